"""Notices of a name server to brokers: what a broker gets, and what a broker that is gone costs."""

import asyncio
import socket

import pytest

from broker_store.access.signatures import SIGNATURE, Credentials
from broker_store.nameserver.routes import LowestIdChange
from broker_store.server import broker_notices
from broker_store.server.broker_notices import BrokerNotices
from broker_store.server.listener import bind_for, listen
from tests.support.waits import until


def change(*addresses, lowest=1, name="broker-a"):
    return LowestIdChange(name, lowest, "127.0.0.1:20911", "127.0.0.1:10911", None, addresses)


@pytest.fixture
async def broker():
    """A port that keeps the requests that it gets."""
    came = []
    port = await listen(lambda command, channel: came.append(command), bind_for("127.0.0.1", 0, "port"))
    port.came, port.address = came, f"127.0.0.1:{port.port}"
    yield port
    await port.close(1)


@pytest.fixture
async def notices():
    made = BrokerNotices()
    yield made
    await made.stop()


async def test_a_broker_gets_a_oneway_request_with_the_header_of_apaches(broker, notices):
    notices.send(change(broker.address))
    await until(lambda: broker.came)
    (command,) = broker.came
    assert command.code == 905 and command.is_oneway
    assert command.fields == {
        "minBrokerId": "1",
        "brokerName": "broker-a",
        "minBrokerAddr": "127.0.0.1:20911",
        "offlineBrokerAddr": "127.0.0.1:10911",
    }
    await until(lambda: notices.sent == 1)


async def test_it_is_signed_where_there_are_credentials(broker):
    notices = BrokerNotices(Credentials("inner", "secret123"))
    notices.send(change(broker.address))
    await until(lambda: broker.came)
    assert SIGNATURE in broker.came[0].fields
    await notices.stop()


async def test_brokers_that_are_gone_are_counted_and_the_others_get_theirs(broker, notices, caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{free.getsockname()[1]}"
    notices.send(change(gone, "no..name:1", broker.address))
    await until(lambda: broker.came and notices.failed == 2)
    assert notices.sent == 1
    assert "is not notified of the lowest id" in caplog.text


async def test_only_the_last_of_the_changes_of_a_name_waits_while_one_is_sent(broker, notices, monkeypatch):
    may_connect, connects = asyncio.Event(), 0
    real = broker_notices.connect_to

    async def slow(address, timeout, *, tls=None):
        nonlocal connects
        connects += 1
        await may_connect.wait()
        return await real(address, timeout, tls=tls)

    monkeypatch.setattr(broker_notices, "connect_to", slow)
    notices.send(change(broker.address, lowest=9))
    await until(lambda: connects == 1)
    for lowest in range(5):
        notices.send(change(broker.address, lowest=lowest))
    may_connect.set()
    await until(lambda: len(broker.came) == 2)
    assert [command.fields["minBrokerId"] for command in broker.came] == ["9", "4"]
    assert connects == 2


async def test_few_connections_are_opened_at_once(broker, notices, monkeypatch):
    may_connect, connects = asyncio.Event(), 0

    async def slow(address, timeout, *, tls=None):
        nonlocal connects
        connects += 1
        await may_connect.wait()
        raise TimeoutError

    monkeypatch.setattr(broker_notices, "connect_to", slow)
    for number in range(100):
        notices.send(change(broker.address, name=f"broker-{number}"))
    await until(lambda: connects == broker_notices.AT_ONCE)
    may_connect.set()
    await until(lambda: notices.failed == 100)
    assert notices.sent == 0 and connects == 100


async def test_a_stop_ends_what_is_not_sent(notices, monkeypatch):
    async def never(address, timeout, *, tls=None):
        await asyncio.Event().wait()

    monkeypatch.setattr(broker_notices, "connect_to", never)
    notices.send(change("127.0.0.1:1"))
    await asyncio.sleep(0)
    await notices.stop()
    assert (notices.sent, notices.failed) == (0, 0)
