"""A running broker and clients of it. Every broker ends with the test that asked for it."""

import pytest

from tests.interop import clients
from tests.interop.brokers import ApacheBroker, Broker


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/interop/" in str(item.path):
            item.add_marker(pytest.mark.client)


@pytest.fixture(scope="session", autouse=True)
def servers_start_sooner():
    """Have Apache's broker and name server started without what is for figures (tests/bench/peers/start.sh).

    The broker keeps its second compiler: without it a start takes 2 s of processor time less, and each second
    after it 0.15 s more.
    """
    archive = clients.archive_of(clients.JAVA_5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_BROKER_FLAGS", " ".join(["-XX:+UseSerialGC", *archive]))
        patch.setenv("JAVA_NAMESRV_FLAGS", " ".join(["-XX:+UseSerialGC -XX:TieredStopAtLevel=1", *archive]))
        if archive:
            patch.setenv("JAVA_LAST_JAR", clients.classpath_of(clients.JAVA_5).rpartition(":")[2])
        # Until it is over once, Apache's thread for it computes without a pause: 3 s by default.
        patch.setattr(ApacheBroker, "usual", {"transactionMetricFlushInterval": 200})
        yield


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for a file's tests, each with its own topics and groups."""
    running = Broker(tmp_path_factory.mktemp("broker") / "data").start()
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def broker_on(request, tmp_path):
    """A function that starts a broker of a kind on the test's directory, with the SETTINGS of its file; ends
    what is still running.

    A test that asks for it drives the broker with Java's client, which must be here before one is started.
    """
    clients.require(clients.JAVA_5)
    started = []

    def start(kind, **settings):
        running = kind(tmp_path / "data", request.module.SETTINGS | settings)
        started.append(running)
        return running.start()

    yield start
    for running in started:
        running.end()


@pytest.fixture(params=[clients.JAVA_5, clients.JAVA_4])
def java(request, broker, tmp_path):
    """Apache's Java client, 5.x and 4.9.x."""
    return clients.java_of(request.param, broker, tmp_path)


@pytest.fixture
def java_5(broker, tmp_path):
    return clients.java_of(clients.JAVA_5, broker, tmp_path)


@pytest.fixture
def go(broker):
    clients.require("go")
    return clients.GoProgram(broker.nameserver)
