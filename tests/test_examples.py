"""The programs of docs/examples, as the README has them run: each receives what it sent."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

EXAMPLES = clients.ROOT / "docs" / "examples"
LIMIT_S = 150


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with its dashboard, and the topic that the tour makes first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DJANGO_SETTINGS_MODULE", raising=False)  # pytest-django's; the broker has its own
        port = free_port()
        arguments = ("--web-port", "0", "--grpc-port", str(port))
        running = OurBroker(tmp_path_factory.mktemp("tour") / "data", arguments=arguments).start()
        try:
            manage(running, "topic", "create", "Tour", "--queues", "4")
            yield running
        finally:
            running.stop()


def manage(broker: OurBroker, *words: str) -> str:
    return run([sys.executable, "manage.py", *words, "--data", str(broker.data)])


def run(command: list[str], cwd=clients.ROOT, **environment: str) -> str:
    """What the program printed; it must end with 0."""
    variables = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=variables | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_came_back(output: str, language: str) -> None:
    assert len(re.findall(r"^sent ", output, re.MULTILINE)) == 3
    for number in range(3):
        assert re.search(
            rf"^received  'hello {number} from {language}' from queue \d at \d+$", output, re.MULTILINE
        ), output


def test_the_python_example_receives_what_it_sent(broker):
    output = run([sys.executable, "docs/examples/python/tour.py", broker.nameserver], PYTHONPATH=".")
    assert_came_back(output, "Python")


@pytest.mark.client
def test_the_grpc_example_receives_what_it_sent(broker):
    python = clients.BUILD / "python-client" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"Apache's Python client is not in {clients.BUILD} (make deps)")
    endpoints = re.search(r"grpc=(\S+)", broker.ready_line)[1]
    output = run([str(python), "docs/examples/python/tour_grpc.py", endpoints])
    assert len(re.findall(r"^sent ", output, re.MULTILINE)) == 3
    for number in range(3):
        assert f"received  'hello {number} from gRPC', attempt 1\n" in output


def test_the_rest_example_finds_what_it_sent_by_place_and_by_key(broker):
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    web = re.search(r"web=(\S+)", broker.ready_line)[1]
    token = manage(broker, "token", "create", "tour", "--role", "operator").strip()
    lines = run(["docs/examples/rest/tour.sh", web], TOKEN=token).splitlines()
    assert [line.split()[0] for line in lines] == ["I", "sent", "a", "pulled", "by"]
    assert '"status":"PUT_OK"' in lines[1]
    assert '"stored":2,"complete":true' in lines[2]
    assert "hello 0 from REST" in lines[3] and "hello 0 from REST" in lines[4]


@pytest.mark.client
def test_the_java_example_receives_what_it_sent(broker, tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    if shutil.which("javac") is None:
        pytest.skip("no javac on this machine (make deps)")
    jars = (clients.BUILD / f"cp-{clients.JAVA_5}.txt").read_text().strip()
    run(["javac", "-nowarn", "-d", str(tmp_path), "-cp", jars, str(EXAMPLES / "java" / "Tour.java")])
    output = run(
        [
            "java",
            f"-Duser.home={tmp_path}",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-cp",
            f"{tmp_path}:{jars}",
            "Tour",
            broker.nameserver,
        ]
    )
    assert_came_back(output, "Java")


@pytest.mark.client
def test_the_java_example_of_grpc_receives_what_it_sent(broker, tmp_path):
    if reason := clients.java_missing(clients.JAVA_GRPC):
        pytest.skip(reason)
    if shutil.which("javac") is None:
        pytest.skip("no javac on this machine (make deps)")
    jars = (clients.BUILD / f"cp-{clients.JAVA_GRPC}.txt").read_text().strip()
    run(["javac", "-nowarn", "-d", str(tmp_path), "-cp", jars, str(EXAMPLES / "java-grpc" / "TourGrpc.java")])
    endpoints = re.search(r"grpc=(\S+)", broker.ready_line)[1]
    flags = [f"-Duser.home={tmp_path}", "-Xmx256m", "-XX:+UseSerialGC"]
    output = run(["java", *flags, "-cp", f"{tmp_path}:{jars}", "TourGrpc", endpoints])
    assert len(re.findall(r"^sent ", output, re.MULTILINE)) == 3
    for number in range(3):
        assert f"received  'hello {number} from gRPC', attempt 1\n" in output


@pytest.mark.client
def test_the_go_example_receives_what_it_sent(broker, tmp_path):
    if (reason := clients.program_missing()) or (
        reason := None if shutil.which("go") else "no go on this machine (make deps)"
    ):
        pytest.skip(reason)
    program = tmp_path / "tour"
    # What `make deps` fetched for the interop tests is what this needs; nothing is fetched here.
    run(
        ["go", "build", "-buildvcs=false", "-o", str(program), "."],
        cwd=EXAMPLES / "go",
        GOPROXY="off",
        GOFLAGS="-mod=readonly",
    )
    assert_came_back(run([str(program), broker.nameserver], HOME=str(tmp_path)), "Go")
