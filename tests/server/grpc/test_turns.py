"""The turns of the gRPC port: what many connections send delays no short request, and none waits without end."""

from __future__ import annotations

import asyncio

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.protocol.http2.connection import Connection
from broker_store.server.grpc import channel as channel_module
from broker_store.server.grpc import turns as turns_module
from broker_store.server.grpc.channel import LEAST_PIECE_BYTES, MOST_PIECE_BYTES
from broker_store.server.grpc.turns import Turns
from tests.server.grpc.conftest import route
from tests.server.grpc.wire import connect
from tests.support.waits import until


class Clock:
    """In place of the module `time`: a time that only work moves."""

    def __init__(self, now_s: list[float]):
        self.perf_counter = self.thread_time = lambda: now_s[0]


class Busy:
    """A connection with some pieces of work, each of which takes a millisecond of the test's clock. As the real
    one it does at least one in a turn."""

    def __init__(self, name: str, pieces: int, clock: list[float], unread: int, notes: list[str]):
        self.name, self.pieces, self.unread = name, pieces, unread
        self.waits_for_turn = False
        self.turn_times_s = (0.0, 0.0)
        self._clock, self._notes = clock, notes

    def take_turn(self, until_s: float) -> bool:
        is_first = True
        while self.pieces and (is_first or self._clock[0] < until_s):
            is_first = False
            self.pieces -= 1
            self._clock[0] += 0.001
            self._notes.append(self.name)
        return self.pieces > 0


async def test_the_least_work_goes_first_and_what_waits_longest_has_a_part(monkeypatch):
    clock, notes = [0.0], []
    monkeypatch.setattr(turns_module, "time", Clock(clock))
    turns: Turns = Turns(notes.append)
    large = [Busy(f"large {number}", 50, clock, 1 << 18, notes) for number in range(20)]
    for one in large:
        turns.begin(one)
    await asyncio.sleep(0)
    notes.clear()
    turns.begin(Busy("short", 1, clock, 100, notes))
    await asyncio.sleep(0)
    # The part of the one that waits longest, then the short one, then others as long as the turn has time
    assert notes[1] == "short" and len(notes) <= 6
    while any(one.pieces for one in large):
        await asyncio.sleep(0)
    assert sorted(notes[20:])[0] == "large 0" and not turns._places


async def test_a_turn_is_bounded_and_calls_are_forgotten_in_parts(monkeypatch):
    clock, notes = [0.0], []
    monkeypatch.setattr(turns_module, "time", Clock(clock))

    def forget(call: int) -> None:
        clock[0] += 0.0004
        notes.append(str(call))

    turns: Turns = Turns(forget)
    turns.forget(range(100))
    some = [Busy(f"large {number}", 5, clock, 1 << 18, notes) for number in range(30)]
    for one in some:
        turns.wait(one)
    while len(notes) < 250:
        before_s = clock[0]
        await asyncio.sleep(0)
        assert clock[0] - before_s <= turns_module.MAX_PORT_TURN_S + 0.002
    turns.leave(some[0])
    assert [note for note in notes if note.isdigit()] == [str(call) for call in range(100)]


async def test_a_short_call_goes_before_those_of_many_connections(port, monkeypatch):
    """1,000 connections that sent 200 KiB each delayed it by half a minute: each had a turn of its own."""
    port.parts.topics.put(TopicConfig("Wide", 128, 128))
    monkeypatch.setattr(turns_module, "MAX_PORT_TURN_S", 0.001)
    good = await connect(port, False)
    good.begin()
    good.request(route("Orders").SerializeToString())
    await good.read(lambda: len(good.statuses) == 1)
    handled: list[str] = []
    call = port.service.call

    def note(channel, stream, body):
        handled.append(channel.remote)
        call(channel, stream, body)

    monkeypatch.setattr(port.service, "call", note)
    wires = []
    for _ in range(8):
        wire = await connect(port, False)
        wire.begin()
        for _ in range(60):
            wire.request(route("Wide").SerializeToString())
        wires.append(wire)
    for wire in wires:
        wire.writer.write(wire.h2.data_to_send())
    await until(lambda: len(port.port.turns._places) > 4)
    before = len(handled)
    good.request(route("Orders").SerializeToString())
    good.writer.write(good.h2.data_to_send())
    await good.read(lambda: len(good.statuses) == 2)
    assert len(handled) - before < 100 and before < 240
    for wire in wires:
        await wire.read(lambda wire=wire: len(wire.statuses) == 60)
        assert set(wire.statuses.values()) == {"0"}
    assert len(handled) == 481


@pytest.mark.parametrize(
    ("quick_s", "most"), [(0, LEAST_PIECE_BYTES), (60, MOST_PIECE_BYTES)], ids=["slow", "quick"]
)
async def test_what_was_read_is_parsed_in_pieces(port, monkeypatch, quick_s, most):
    """256 KiB of header blocks that only the library decodes stopped the loop for 0.2 s. Pieces grow while they
    are parsed quickly."""
    monkeypatch.setattr(channel_module, "QUICK_PIECE_S", quick_s)
    sizes: list[int] = []
    receive = Connection.receive

    def note(self, data, now_s):
        sizes.append(len(data))
        return receive(self, data, now_s)

    monkeypatch.setattr(Connection, "receive", note)
    wire = await connect(port, False)
    wire.begin()
    for _ in range(1_000):
        wire.request(route("Orders").SerializeToString())
    requests = wire.h2.data_to_send()
    assert len(requests) > 3 * LEAST_PIECE_BYTES
    wire.writer.write(requests)
    await wire.read(lambda: len(wire.statuses) == 1_000)
    assert sum(sizes) >= len(requests) and max(sizes) <= most
    assert max(sizes[:1]) <= LEAST_PIECE_BYTES
    assert quick_s == 0 or max(sizes) > LEAST_PIECE_BYTES
    (channel,) = port.port.channels
    assert channel.unread == 0 and channel.kept == 0 and not channel.waits_for_turn


async def test_a_connection_that_waits_for_its_turn_is_not_late(port, monkeypatch):
    monkeypatch.setattr(turns_module, "MAX_PORT_TURN_S", 0)
    wire = await connect(port, False)
    wire.begin()
    wire.request(route("Orders").SerializeToString())
    requests = wire.h2.data_to_send()
    await until(lambda: port.port.channels)
    (channel,) = port.port.channels
    port.port.turns.wait(channel)
    wire.writer.write(requests[:-1])
    assert channel.waits_for_turn and channel.overdue(channel.loop.time() + 1_000) is None
    wire.writer.write(requests[-1:])
    await wire.read(lambda: len(wire.statuses) == 1)
