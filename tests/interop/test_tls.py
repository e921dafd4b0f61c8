"""Apache's clients and servers with TLS, against a broker and a name server that require it, and plain
clients, which they refuse."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from broker_store.client import Admin, Producer, PullConsumer, tls_context
from broker_store.client.errors import ClientError
from broker_store.server.certificate import self_signed
from broker_store.tools.run import run
from mqadmin.process import run_file
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.interop.lines import acknowledged, names, place
from tests.support.ports import free_port

SETTINGS = {"tls.server.mode": "enforcing"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    data = tmp_path_factory.mktemp("broker") / "data"
    running = OurBroker(data, SETTINGS, ("--web-port", "0"), has_grpc=True).start()
    try:
        yield running
    finally:
        running.stop()


def test_java_clients_send_and_read_by_tls(java, broker):
    topic, group = names(java, "secure", "readers")
    secure = java.by_tls()
    assert "error" not in secure.admin(f"create_topic\t{topic}\t4\t4\t6")[0]
    sent = acknowledged(secure.run("send", topics=topic, n=200, mode="sync"))
    sent += acknowledged(secure.run("send", topics=topic, n=40, mode="batch", run="b"))
    assert len(sent) == 240
    received = secure.run("consume", group=group, topics=topic, n=240, timeout=60_000, **{"from": "first"})
    assert {place(line) for line in sent} == {place(line) for line in received if "topic" in line}


def test_a_java_client_without_tls_is_refused(java_5, broker):
    (topic,) = names(java_5, "plain")
    lines = java_5.admin(f"create_topic\t{topic}\t4\t4\t6")
    assert lines and all("error" in line for line in lines)


def test_clients_of_rocketmq_5_need_tls_too(java_5, broker, tmp_path):
    (topic,) = names(java_5, "grpc")
    java_5.by_tls().admin(f"create_topic\t{topic}\t4\t4\t6")
    program = clients.grpc_program(clients.JAVA_GRPC, f"127.0.0.1:{broker.grpc_port}", tmp_path)
    sent = [line for line in program.run("send", topic=topic, n=20) if "id" in line]
    assert len(sent) == 20


def manage(broker, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return subprocess.run(
        [sys.executable, "manage.py", arguments[0], "--data", str(broker.data), *arguments[1:]],
        cwd=clients.ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--tls",)], ids=["by itself", "asked for"])
def test_the_demo_runs_by_tls(broker, options):
    done = manage(broker, "demo", "--seconds", "3", "--json", *options)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["sent"] > 100 and counts["demo-billing"] > 0


def test_commands_reach_a_broker_that_enforces_tls(broker):
    sent = manage(broker, "message", "send", "ByCommand", "by the local socket", "--create")
    assert sent.returncode == 0, sent.stderr
    shown = manage(broker, "topic", "show", "ByCommand")
    assert shown.returncode == 0 and "ByCommand" in shown.stdout


def test_apaches_mqadmin_works_by_tls_and_not_without(java_5, broker):
    (topic,) = names(java_5, "mqadmin")
    commands = (
        f"updateTopic -n {broker.nameserver} -c DefaultCluster -t {topic} -r 3 -w 3",
        f"topicRoute -n {broker.nameserver} -t {topic}",
        f"topicStatus -n {broker.nameserver} -t {topic}",
        f"clusterList -n {broker.nameserver}",
    )
    text = "".join(command.replace(" ", "\t") + "\n" for command in commands)
    running = java_5.by_tls().start("mqadmin")
    running.say(text)
    made, route, status, cluster = (line["text"] for line in running.finish(120) if "command" in line)
    assert "success" in made and f'0:"127.0.0.1:{broker.broker_port}"' in route
    assert sum(line.startswith("broker-a") for line in status.splitlines()) == 3
    assert f"127.0.0.1:{broker.broker_port}" in cluster
    running = java_5.start("mqadmin")
    running.say(text)
    plain = [line["text"] for line in running.finish(120) if "command" in line]
    assert plain and not any("success" in one or "broker-a  " in one for one in plain)


def test_the_python_client_checks_the_certificate(broker, tmp_path):
    topic = "PythonByTls"
    other = tmp_path / "other.pem"
    other.write_bytes(self_signed(["127.0.0.1"], int(time.time() * 1000)))

    async def exchange(tls) -> list[bytes]:
        async with Admin(broker.nameserver, tls=tls) as admin:
            await admin.create_topic(topic, read_queues=1, write_queues=1)
        async with Producer(broker.nameserver, tls=tls) as producer:
            for number in range(30):
                await producer.send(topic, b"%d" % number)
        async with PullConsumer("PythonReaders", broker.nameserver, tls=tls) as consumer:
            (queue,) = await consumer.queues(topic)
            return [message.body for message in (await consumer.pull(queue, 0)).messages]

    trusted = tls_context(str(broker.data / "tls" / "self-signed.crt"))
    assert asyncio.run(exchange(trusted)) == [b"%d" % number for number in range(30)]
    for wrong in (None, tls_context(str(other))):
        with pytest.raises(ClientError):
            asyncio.run(exchange(wrong))


def test_a_broker_registers_at_a_name_server_of_its_own_process_by_tls(tmp_path, java_5):
    port = free_port()
    nameserver = subprocess.Popen(
        [sys.executable, "manage.py", "runnamesrv", "--data", str(tmp_path / "names"), "--port", str(port),
         "--set", "tls.server.mode=enforcing"],
        cwd=clients.ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert nameserver.stdout.readline().startswith(b"READY")
        broker = OurBroker(
            tmp_path / "data",
            SETTINGS | {"namesrvAddr": f"127.0.0.1:{port}", "tls.enable": "true"},
        ).start()
        try:
            java = clients.JavaProgram(clients.JAVA_5, f"127.0.0.1:{port}", tmp_path).by_tls()
            end = time.monotonic() + clients.RUN_LIMIT_S
            while "NoSuchElement" in (created := java.admin("create_topic\tSecure\t2\t2\t6")[0]).get(
                "error", ""
            ):
                assert time.monotonic() < end, "the broker does not register"  # it does so after it is ready
            assert "error" not in created
            assert len(acknowledged(java.run("send", topics="Secure", n=20, mode="sync"))) == 20
        finally:
            broker.stop()
    finally:
        nameserver.send_signal(signal.SIGTERM)
        nameserver.wait(20)
        nameserver.stdout.close()


@pytest.fixture(scope="module")
def asking(tmp_path_factory):
    """A broker that takes only clients with a certificate of one authority."""
    home = tmp_path_factory.mktemp("asking")
    (home / "authority.pem").write_bytes(self_signed([], int(time.time() * 1000)))
    asked = {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(home / "authority.pem"),
    }
    running = OurBroker(home / "data", SETTINGS | asked, ("--web-port", "0"), has_grpc=True).start()
    try:
        yield running
    finally:
        running.stop()


def test_the_demo_has_a_certificate_for_a_broker_that_asks_for_one(asking):
    done = manage(asking, "demo", "--seconds", "3", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["sent"] > 100 and counts["demo-billing"] > 0


def test_mqadmin_without_java_has_the_certificate_of_apaches_file(asking, tmp_path):
    own, authority = asking.data / "tls" / "client.pem", asking.data.parent / "authority.pem"
    trust = asking.data / "tls" / "self-signed.crt"
    for certificate, is_taken in ((own, True), (authority, True), (trust.with_suffix(".pem"), False)):
        file = tmp_path / "tls.properties"
        file.write_text(
            f"tls.client.certPath={certificate}\ntls.client.keyPath={certificate}\n"
            f"tls.client.trustCertPath={trust}\ntls.server.mode=enforcing\n"
        )
        lines: list[str] = []
        words = ["clusterList", "-n", asking.nameserver, "--tls-config", str(file)]
        code = asyncio.run(run(words, lines.append, lines.append))
        assert (code == 0) == is_taken, lines
    lines.clear()
    assert (
        asyncio.run(run(["clusterList", "-n", asking.nameserver, "--tls"], lines.append, lines.append)) == 1
    )


def test_a_job_reaches_a_broker_that_asks_for_a_certificate(asking):
    run = run_file.read(asking.data)

    async def asked() -> bool:
        async with Admin(run.nameserver, tls=run_file.tls_of(run)) as admin:
            return bool((await admin.cluster_info()).brokers)

    assert asyncio.run(asked())
