"""Apache's Java and Go clients with credentials, against a broker with access control: what a user may do
works, and all else is refused with Apache's sentences.

Users and policies are made by the Python client. `INTEROP_BROKER=apache` runs the tests against Apache's
broker.
"""

import asyncio
import json
from pathlib import Path

import pytest

from broker_store.client import Admin, Credentials
from broker_store.formats.topics import HALF_TOPIC
from broker_store.protocol.codes import RequestCode as R
from tests.interop import clients
from tests.interop.brokers import IS_APACHE, Broker
from tests.interop.lines import acknowledged, names, place

ROOT = Credentials("root", "the-secret-of-root-0001")
ANN_SECRET = "the-secret-of-ann-00001"
GOLDEN = Path(__file__).parent.parent / "golden" / "access" / "mqadmin.txt"
PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
    "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"the-secret-of-inner-1"}',
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    running = Broker(tmp_path_factory.mktemp("broker") / "data", SETTINGS, has_grpc=not IS_APACHE).start()
    try:
        yield running
    finally:
        running.stop()


def let(broker, name: str, **rights: str) -> None:
    """Make a user with rights: the name of a resource after its type and `_` -> actions."""
    entries = [
        {"resource": resource.replace("_", ":", 1), "actions": actions.split(), "decision": "Allow"}
        for resource, actions in rights.items()
    ]
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()

    async def make() -> None:
        async with Admin(broker.nameserver, credentials=ROOT) as admin:
            user = json.dumps({"password": ANN_SECRET}).encode()
            address = f"127.0.0.1:{broker.broker_port}"
            await admin.ask(address, R.AUTH_CREATE_USER, {"username": name}, user)
            await admin.ask(address, R.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)

    asyncio.run(make())


def errors_of(lines: list[dict]) -> str:
    assert lines and all("error" in line for line in lines), lines
    return " ".join(line["error"] for line in lines)


def test_a_client_sends_and_reads_what_its_user_may(java, broker):
    topic, group, other = names(java, "allowed", "readers", "other")
    user = f"ann-{topic}"
    let(broker, user, **{f"Topic_{topic}": "Pub Sub", f"Group_{group}": "Sub"})
    ann = java.signed_by(user, ANN_SECRET)
    root = java.signed_by(*ROOT[:2])
    assert all(
        "error" not in line
        for line in root.admin(f"create_topic\t{topic}\t4\t4\t6", f"create_topic\t{other}\t4\t4\t6")
    )
    sent = acknowledged(ann.run("send", topics=topic, n=40, mode="sync"))
    sent += acknowledged(ann.run("send", topics=topic, n=40, mode="batch", run="b"))
    assert len(sent) == 80
    received = ann.run("consume", group=group, topics=topic, n=80, timeout=60_000, **{"from": "first"})
    assert {place(line) for line in sent} == {place(line) for line in received if "topic" in line}
    refused = errors_of(ann.run("send", topics=other, n=1, mode="async"))
    assert f"User:{user} has no permission to access Topic:{other} from 127.0.0.1" in refused
    assert "no permission to access" in errors_of(ann.admin(f"create_topic\t{topic}-x\t4\t4\t6"))


def test_a_client_without_a_key_or_with_a_wrong_secret_sends_nothing(java, broker):
    (topic,) = names(java, "refused")
    root = java.signed_by(*ROOT[:2])
    root.admin(f"create_topic\t{topic}\t4\t4\t6")
    for program, remark in (
        (java, "username cannot be null."),
        (java.signed_by("root", "wrong-secret"), "check signature failed."),
        (java.signed_by("stranger", "wrong-secret"), "User:stranger is not found."),
    ):
        assert remark in errors_of(program.run("send", topics=topic, n=1, mode="async"))
    assert all(line["max"] == 0 for line in root.run("offsets", topic=topic) if "max" in line)


def test_a_go_client_sends_and_reads_what_its_user_may(go, broker):
    topic, group, other = names(go, "allowed", "readers", "other")
    user = f"ann-{topic}"
    let(broker, user, **{f"Topic_{topic}": "Pub Sub", f"Group_{group}": "Sub"})
    ann, root = go.signed_by(user, ANN_SECRET), go.signed_by(*ROOT[:2])
    address = f"127.0.0.1:{broker.broker_port}"
    created = root.admin(f"create_topic\t{topic}\t{address}", f"create_topic\t{other}\t{address}")
    assert not [line for line in created if "error" in line]
    sent = acknowledged(ann.run("send", topics=topic, n=40))
    sent += acknowledged(ann.run("send", topics=topic, n=40, mode="batch", run="b"))
    assert len(sent) == 80
    received = ann.run("consume", group=group, topics=topic, n=80, timeout=60_000)
    assert {place(line) for line in sent} == {place(line) for line in received if "topic" in line}
    refused = errors_of(ann.run("send", topics=other, n=1))
    assert f"User:{user} has no permission to access Topic:{other} from 127.0.0.1" in refused
    for program, remark in (
        (go, "username cannot be null."),
        (go.signed_by(user, "wrong-secret"), "check signature failed."),
    ):
        assert remark in errors_of(program.run("send", topics=topic, n=1))
    assert ann.run("consume", group=f"{group}-x", topics=topic, n=1, timeout=5_000) == []


def test_transactions_and_their_checks_need_the_right_to_send_alone(java, broker):
    """A client of 5 names the topic of half messages in its answer to a check. Apache's broker demands the
    right to that topic: without it the answer is refused, and only message 0 is delivered. A client of 4.9
    names no topic."""
    topic, group = names(java, "halves", "buyers")
    user = f"ann-{topic}"
    needed = {f"Topic_{topic}": "Pub"}
    if IS_APACHE:
        needed[f"Topic_{HALF_TOPIC}"] = "Pub"
    let(broker, user, **needed)
    root = java.signed_by(*ROOT[:2])
    root.admin(f"create_topic\t{topic}\t4\t4\t6")
    running = java.signed_by(user, ANN_SECRET).start("transact", topics=topic, group=group, n=4)
    try:
        running.until(lambda lines: len([line for line in lines if "asked" in line]) >= 2, 90)
        received = root.run(
            "consume", group=f"{group}-r", topics=topic, n=2, timeout=60_000, **{"from": "first"}
        )
    finally:
        running.finish()
    assert {line["number"] for line in received if "topic" in line} == {"0", "2"}


def test_clients_of_rocketmq_5_sign_their_calls(java_5, broker, tmp_path):
    if IS_APACHE:
        pytest.skip("Apache's proxy keeps users of its own")
    topic, group = names(java_5, "grpc", "grpc-readers")
    user = f"ann-{topic}"
    let(broker, user, **{f"Topic_{topic}": "Pub Sub", f"Group_{group}": "Sub"})
    java_5.signed_by(*ROOT[:2]).admin(f"create_topic\t{topic}\t4\t4\t6")
    program = clients.grpc_program(clients.JAVA_GRPC, f"127.0.0.1:{broker.grpc_port}", tmp_path)
    ann = program.signed_by(user, ANN_SECRET)
    sent = [line for line in ann.run("send", topic=topic, n=20, tls="false") if "id" in line]
    assert len(sent) == 20
    reader = ann.start("simple", topic=topic, group=group, tls="false")
    try:
        wanted = {line["id"] for line in sent}
        reader.until(lambda lines: wanted <= {line.get("id") for line in lines}, 60)
    finally:
        reader.kill()
    with pytest.raises(AssertionError, match="ended with 1"):
        program.run("send", topic=topic, n=1, tls="false")
    offsets = java_5.signed_by(*ROOT[:2]).run("offsets", topic=topic)
    assert sum(line["max"] for line in offsets if "max" in line) == 20


def mqadmin_commands() -> list[tuple[str, list[str]]]:
    """Return the commands of mqadmin about users and policies that the golden file has, and what each printed."""
    commands: list[tuple[str, list[str]]] = []
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("## mqadmin "):
            commands.append((line.removeprefix("## mqadmin "), []))
        else:
            commands[-1][1].append(line)
    return commands


def printed_lines(text: str) -> list[str]:
    """Return the lines that a command printed, without those of a stack and without blanks at their end."""
    lines = (line.rstrip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("\tat ", "\t... "))]


def test_apaches_mqadmin_prints_of_users_and_policies_what_it_prints_against_apaches_broker(java_5, broker):
    """All but passwords, which no answer has here. Lists of all users differ, because others are there."""
    golden = [
        (command, lines)
        for command, lines in mqadmin_commands()
        # A wrong option ends the process of mqadmin.
        if not command.startswith(("topicList", "updateUser"))
        and " -c DefaultCluster" not in command
        and command != "listAcl -b 127.0.0.1:10911"
    ]
    assert len(golden) == 17
    address = f"127.0.0.1:{broker.broker_port}"
    running = java_5.signed_by(*ROOT[:2]).start("mqadmin")
    running.say(
        "".join(command.replace(" ", "\t") + "\n" for command, _ in golden).replace(
            "127.0.0.1:10911", address
        )
    )
    found = [
        line["text"].replace(address, "127.0.0.1:10911") for line in running.finish(120) if "command" in line
    ]
    for (command, lines), text in zip(golden, found, strict=True):
        shown = [
            line.rstrip() if IS_APACHE else line.rstrip().replace("mapw", "null") for line in lines if line
        ]
        assert printed_lines(text) == shown, command
