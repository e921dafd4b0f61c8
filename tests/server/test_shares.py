"""One address or one user does not use up what all have (maxPercentOfAddress, maxPercentOfUser)."""

from __future__ import annotations

import asyncio

import pytest

from broker_store.access.signatures import signed
from broker_store.broker.shares import Shares
from broker_store.client import tls_context
from broker_store.config.broker import BrokerSettings
from broker_store.config.shares import LEAST_UNFINISHED_BYTES
from broker_store.engine.disk.disk import Disk
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import VERSION, Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.server import tls_server
from broker_store.server.listener import bind, listen
from broker_store.server.port_shares import shares_of
from broker_store.server.tls_setup import what_comes_before
from tests.server.test_access import ANN, allow, ask, with_ann
from tests.server.test_flow import send_fields
from tests.support.broker_harness import FakeChannel, Harness, turns
from tests.support.waits import LIMIT_S, until

BUSY = int(ResponseCode.SYSTEM_BUSY)
PROXY = b"PROXY TCP4 %s 10.0.0.1 %d 10911\r\n"
FIRST, SECOND = "203.0.113.9", "203.0.113.10"


class Port:
    """A port whose clients are those that prologues from loopback name."""

    def __init__(self, listener, refused):
        self.listener, self.refused = listener, refused
        self._number = 50_000
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, address: str = FIRST, tls=None, sent: bytes = b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        self._number += 1
        self.writers.append(writer)
        writer.write(PROXY % (address.encode(), self._number))
        if tls is not None:
            await writer.start_tls(tls)
        writer.write(sent)
        return reader, writer

    async def answers(self, reader, writer) -> bool:
        """Return whether a request is answered."""
        writer.write(encode_frame(Command.request(10, opaque=1)))
        connection = Connection()
        try:
            async with asyncio.timeout(LIMIT_S):
                while data := await reader.read(1 << 16):
                    if connection.receive(data):
                        return True
        except ConnectionError:
            pass
        return False


@pytest.fixture
async def opened(tmp_path):
    ports: list[tuple[Port, object]] = []

    async def make(max_connections: int = 8, shares: Shares | None = None, **settings) -> Port:
        given = BrokerSettings(proxy_protocol_addresses="127.0.0.1", **settings)
        before = what_comes_before(given, tmp_path / "tls", {"127.0.0.1"}, Disk())
        if before.tls is not None:
            await before.tls.open()
        refused: list = []
        listener = await listen(
            lambda command, channel: command.answer(0, channel.remote),
            bind("127.0.0.1", 0),
            max_connections=max_connections,
            refused=lambda cause, **case: refused.append((cause, case)),
            before=before,
            shares=shares_of(given) if shares is None else shares,
        )
        ports.append((Port(listener, refused), before))
        return ports[-1][0]

    yield make
    for port, before in ports:
        for writer in port.writers:
            writer.transport.abort()
        await port.listener.close()
        assert (
            not port.listener._holders and not port.listener._held.counts and not port.listener._kept.counts
        )
        if before.tls is not None:
            before.tls.close()


@pytest.mark.parametrize("with_tls", [True, False])
async def test_an_address_has_half_of_the_connections_and_others_find_room(opened, with_tls):
    port, tls = await opened(), tls_context() if with_tls else None
    held = [await port.connect(tls=tls) for _ in range(4)]
    for connection in held:
        assert await port.answers(*connection)
    reader, writer = await port.connect()
    assert not await port.answers(reader, writer)
    (cause, case) = port.refused[-1]
    assert cause == "connections of one address"
    assert (case["value"], case["limit"], case["who"].split(":")[0]) == (4, 4, FIRST)
    other = await port.connect(SECOND, tls)
    assert await port.answers(*other)
    # A connection that ends makes room.
    held[0][1].close()
    await until(lambda: len(port.listener.channels) == 4)
    assert await port.answers(*await port.connect(tls=tls))


async def test_loopback_and_gateways_may_have_all(opened):
    port = await opened(gateway_addresses="203.0.113.0/24")
    for _ in range(4):
        assert await port.answers(*await port.connect())
    for _ in range(4):
        assert await port.answers(*await port.connect("127.0.0.1"))
    assert port.refused == []
    assert not await port.answers(*await port.connect("127.0.0.1"))
    assert port.refused[-1][0] == "too many connections"


async def test_a_hundred_percent_is_no_share(opened):
    port = await opened(max_percent_of_address=100)
    for _ in range(8):
        assert await port.answers(*await port.connect())
    assert port.refused == []


async def test_the_unfinished_requests_of_one_address_are_bounded_and_its_largest_ends(opened):
    port = await opened(max_connections=20, shares=Shares(50, unfinished_bytes=400_000))
    begun = (8_000_000).to_bytes(4, "big") + (16).to_bytes(4, "big")
    small = [await port.connect(sent=begun + bytes(50_000)) for _ in range(3)]
    victim = await port.connect(SECOND, sent=begun + bytes(90_000))
    await until(lambda: port.listener.kept_bytes >= 240_000)
    assert port.refused == []
    large = await port.connect(sent=begun + bytes(70_000))
    await until(lambda: [cause for cause, _ in port.refused] == ["unfinished frames of one address"])
    case = port.refused[0][1]
    assert case["limit"] == 200_000 and case["value"] > 200_000 and case["who"].startswith(FIRST)
    await until(lambda: len(port.listener.channels) == 4)
    await until(large[0].at_eof)
    assert not any(reader.at_eof() for reader, _ in (*small, victim))
    await until(lambda: port.listener._kept.counts[FIRST] <= 200_000)


async def test_the_total_of_unfinished_requests_is_a_setting(opened):
    port = await opened(max_unfinished_bytes=LEAST_UNFINISHED_BYTES)
    begun = (8_000_000).to_bytes(4, "big") + (16).to_bytes(4, "big")
    for _ in range(3):
        await port.connect(sent=begun + bytes(6_000_000))
    await until(lambda: [cause for cause, _ in port.refused] == ["unfinished frames of one address"])
    assert port.refused[0][1]["limit"] == LEAST_UNFINISHED_BYTES // 2


async def test_a_flood_of_handshakes_of_one_address_ends_its_own(opened, monkeypatch):
    monkeypatch.setattr(tls_server, "MAX_HANDSHAKES", 4)
    port = await opened(max_connections=100)
    begun = b"\x16\x03\x01\x02\x00\x01"
    other = await port.connect(SECOND, sent=begun)
    await until(lambda: len(port.listener.tls.shaking) == 1)
    flood = []
    for _ in range(3):
        flood.append(await port.connect(sent=begun))
        await until(lambda: len(port.listener.tls.shaking) == 1 + len(flood))
    flood.append(await port.connect(sent=begun))
    await until(lambda: [cause for cause, _ in port.refused] == ["too many handshakes"])
    assert await flood[0][0].read() == b"" and not other[0].at_eof()
    assert port.refused[0][1]["who"].startswith(f"{FIRST}:")


async def test_the_connections_of_a_user_are_counted_over_all_addresses(opened):
    shares = Shares(100, 50)
    port = await opened(max_connections=4, shares=shares)
    connections = [await port.connect(f"203.0.113.{number}") for number in range(1, 5)]
    for connection in connections[:3]:
        assert await port.answers(*connection)
    channels = sorted(port.listener.channels, key=lambda channel: channel.remote)
    assert [port.listener.has_room_for_user(one, "ann") for one in channels] == [True, True, False]
    assert port.refused[-1][0] == "connections of one user" and port.refused[-1][1]["said"] == "of user ann"
    # A connection may sign for another user later, and counts for that one then.
    assert port.listener.has_room_for_user(channels[0], "bob")
    assert port.listener.has_room_for_user(channels[2], "ann")
    assert dict(port.listener._held.counts) == {"user ann": 2, "user bob": 1}


async def test_unfinished_requests_count_for_the_address_and_for_the_user_from_its_first_signed_one(opened):
    port = await opened(shares=Shares(50, 50))
    reader, writer = await port.connect()
    assert await port.answers(reader, writer)
    (channel,) = port.listener.channels
    frame = encode_frame(Command.request(10, opaque=2, body=b"x" * 1000))
    writer.write(frame[:-1])
    await until(lambda: channel.kept)
    assert dict(port.listener._kept.counts) == {FIRST: channel.kept}
    assert port.listener.has_room_for_user(channel, "ann")
    assert dict(port.listener._kept.counts) == {FIRST: channel.kept, "user ann": channel.kept}


async def test_a_user_with_too_many_connections_is_answered_busy_and_the_connection_is_closed():
    harness = await with_ann([allow("Topic:*", "All")])

    class Full:
        def has_room_for_user(self, channel, user):
            assert user == "ann"
            return False

    channel = FakeChannel(51_000, FIRST)
    channel.listener = Full()
    answer = await ask(harness, R.GET_MAX_OFFSET, ANN, channel=channel, topic="T", queueId="0")
    await turns()
    assert (answer.code, channel.closed) == (BUSY, True) and "maxPercentOfUser" in answer.remark
    # One that is known is not counted again.
    harness.parts.shares.note_user(channel.remote, "ann")
    assert (await ask(harness, R.GET_MAX_OFFSET, ANN, channel=channel, topic="T", queueId="0")).code != BUSY


async def test_a_name_that_is_not_proved_uses_up_no_connection_of_its_user():
    harness = await with_ann(
        [allow("Topic:*", "All")], authentication_whitelist="30", authorization_whitelist="30"
    )

    class Port:
        def has_room_for_user(self, channel, user):
            raise AssertionError("counted")

    channel = FakeChannel(51_000, FIRST)
    channel.listener = Port()
    fields = {"topic": "T", "queueId": "0", "AccessKey": "ann", "Signature": "forged"}
    answer = await harness.ask(int(R.GET_MAX_OFFSET), b"", channel=channel, **fields)
    assert answer.code != BUSY and harness.parts.shares.user(channel.remote) is None


async def test_an_address_has_half_of_the_sends_that_wait_for_their_sync():
    harness = Harness(sync_flush=True, send_thread_pool_queue_capacity=8)
    one, other = FakeChannel(51_000, FIRST), FakeChannel(51_000, SECOND)
    for _ in range(6):
        harness.request(310, b"body", channel=one, **send_fields())
    await turns()
    assert [answer.code for answer in one.answers] == [BUSY, BUSY]
    (facts,) = harness.parts.statistics.refusals.facts()
    assert (facts["cause"], facts["count"], facts["value"], facts["limit"]) == (
        "overload of sends of one address", 2, 4, 4,
    )  # fmt: skip
    for _ in range(4):
        harness.request(310, b"body", channel=other, **send_fields())
    await turns()
    assert other.answers == [] and harness.parts.sends.pending == 8
    harness.request(310, b"body", channel=other, **send_fields())
    assert harness.parts.statistics.refusals.counts()["overload of sends"] == 1
    harness.store.sync()
    await turns()
    assert harness.parts.sends.pending == 0 and harness.parts.sends._held is None
    harness.request(310, b"body", channel=one, **send_fields())
    await turns()
    assert harness.parts.sends.pending == 1


async def test_a_user_has_half_of_the_sends_that_wait_whatever_the_addresses():
    harness = await with_ann([allow("Topic:*", "Pub")], send_thread_pool_queue_capacity=8, sync_flush=True)
    channels = [FakeChannel(51_000, f"203.0.113.{number}") for number in range(1, 7)]
    for channel in channels:
        fields = {name: str(value) for name, value in send_fields().items()}
        harness.request(310, b"body", channel=channel, **signed(fields, b"body", ANN, VERSION))
    await turns()
    assert [len(channel.answers) for channel in channels] == [0, 0, 0, 0, 1, 1]
    assert harness.parts.statistics.refusals.counts() == {"overload of sends of one user": 2}


async def test_an_address_has_half_of_the_parked_pulls_and_of_the_pops():
    harness = Harness(max_parked_pulls=4, max_pop_polling_size=4)
    one, other = FakeChannel(51_000, FIRST), FakeChannel(51_000, SECOND)
    for queue in range(3):
        harness.request(R.PULL_MESSAGE, channel=one, **pull_fields(queue))
    assert [answer.code for answer in one.answers] == [BUSY]
    harness.request(R.PULL_MESSAGE, channel=other, **pull_fields(0))
    await turns()
    assert harness.parts.parked.count == 3 and other.answers == []
    facts = harness.parts.statistics.refusals.facts()[0]
    assert (facts["cause"], facts["value"], facts["limit"]) == ("parked pulls of one address", 2, 2)
    assert facts["who"] == f"{one.remote}, {FIRST}"
    harness.parts.parked.channel_closed(one)
    harness.parts.parked.channel_closed(other)
    assert not harness.parts.parked.held.counts


def pull_fields(queue: int) -> dict:
    return {
        "consumerGroup": "readers", "topic": "TBW102", "queueId": queue, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
