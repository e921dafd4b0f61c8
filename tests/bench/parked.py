"""Thousands of parked pulls, and how soon they are answered: `python -m tests.bench.parked NAMESERVER
BROKER_PORT PID MODE`.

A hundred connections park 10,000 pulls between them. Everything is seen from outside, by a client that does
little itself: a time runs from just before a send is written to the moment at which the answer of a parked
pull was read, so it holds the send, the append and two ways over loopback. Modes, each of which prints a JSON
line:

    spread   one pull a queue; messages come one after another into 100 of the queues
    burst    the same, with all 100 messages in one write
    one      all pulls on one queue; one message, and the time until the last of them is answered
    idle     nothing comes: what processor time the broker takes with and without the pulls, by turns within
             its one life
"""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import statistics
import sys
import time

from broker_store.client import Admin
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, SendHeader, write_send

PULLS, CONNECTIONS, QUEUES_A_TOPIC, BUSY = 10_000, 100, 100, 100
GROUP = "BenchParkedGroup"
SUSPEND_MS = 90_000
LIMIT_S = 30
# Of the idle broker: windows before the first pull, then windows with and without by turns; each tenth of a
# second has its tick, so a window of ten seconds is a mean already.
IDLE_S, IDLE_BEFORE, IDLE_TURNS, SETTLE_S = 10, 3, 5, 2
ROUNDS = {"spread": 3_000, "burst": 50, "one": 10}


class Peer:
    """One blocking connection."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(LIMIT_S)
        self._connection = Connection()
        self._kept: list[Command] = []

    def write(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(encode_frame, commands)))

    def read_some(self) -> list[Command]:
        """The frames that come with one read, or were left."""
        kept, self._kept = self._kept, []
        while not kept:
            data = self.socket.recv(1 << 18)
            if not data:
                raise SystemExit("the broker ended a connection")
            kept = self._connection.receive(data)
        return kept

    def ask(self, command: Command) -> Command:
        """The answer to a request; others that come before it are kept for `read_some`."""
        self.write(command)
        others: list[Command] = []
        while True:
            for answer in (answers := self.read_some()):
                if answer.opaque == command.opaque:
                    answers.remove(answer)
                    self._kept = others + answers
                    return answer
            others += answers


class World:
    """Queues, connections and what is parked on them. A pull's opaque is its number plus 1."""

    def __init__(self, port: int):
        self._port = port
        self.peers = [Peer(port) for _ in range(CONNECTIONS)]
        self.producer = Peer(port)
        self._offsets: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        for peer in (*self.peers, self.producer):
            peer.socket.close()

    def reconnect(self) -> None:
        """New connections for the pulls: what was parked on the old ones is gone."""
        for peer in self.peers:
            peer.socket.close()
        self.peers = [Peer(self._port) for _ in range(CONNECTIONS)]

    def peer(self, number: int) -> Peer:
        return self.peers[number % CONNECTIONS]

    def pull(self, number: int, queue: tuple[str, int]) -> Command:
        topic, queue_id = queue
        fields = {
            "consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id), "queueOffset": str(self._offsets.get(queue, 0)), "maxMsgNums": "32",
            "sysFlag": str(PULL_SUSPEND | PULL_SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": str(SUSPEND_MS), "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        return Command.request(int(RequestCode.PULL_MESSAGE), fields, opaque=number + 1)

    def park(self, queues: list[tuple[str, int]], numbers: range) -> None:
        """Park pull `number` on queues[number], and wait until the broker has handled them all."""
        for first in range(CONNECTIONS):
            mine = [number for number in numbers if number % CONNECTIONS == first]
            self.peers[first].write(*(self.pull(number, queues[number]) for number in mine))
        topic, queue_id = queues[0]
        for peer in self.peers:
            answer = peer.ask(
                Command.request(
                    int(RequestCode.GET_MAX_OFFSET),
                    {"topic": topic, "queueId": str(queue_id)},
                    opaque=PULLS + 1,
                )
            )
            assert answer.code == 0, answer

    def send(self, queue: tuple[str, int]) -> Command:
        """A send into a queue, of which the next pull there will begin after it."""
        self._offsets[queue] = self._offsets.get(queue, 0) + 1
        header = SendHeader(
            "BenchParked",
            queue[0],
            "TBW102",
            8,
            queue[1],
            0,
            int(time.time() * 1000),
            0,
            "",
            0,
            False,
            None,
            False,
        )
        return Command.request(
            int(RequestCode.SEND_MESSAGE_V2), write_send(header), b"x" * 100, opaque=PULLS + 2
        )


async def make_topics(nameserver: str, names: list[str], queues: int) -> None:
    async with Admin(nameserver) as admin:
        for name in names:
            await admin.create_topic(name, read_queues=queues, write_queues=queues)


def facts(mode: str, times_ns: list[int], **more) -> dict:
    times_ns.sort()
    places = {f"p{p}_us": times_ns[min(len(times_ns) - 1, len(times_ns) * p // 100)] / 1e3 for p in (50, 99)}
    return {"scenario": mode, "n": len(times_ns), **places, "max_us": times_ns[-1] / 1e3, **more}


def begin(world: World, queues: list[tuple[str, int]]) -> list[int]:
    """Park a pull on each queue; the numbers of those into which messages will come, each on another
    connection.

    Each of these has a message already: a queue's first one has its file made, which is not what is measured.
    """
    numbers = [number * (PULLS // BUSY) + number % CONNECTIONS for number in range(BUSY)]
    for number in numbers:
        command = world.send(queues[number])
        while (answer := world.producer.ask(command)).code == ResponseCode.SYSTEM_BUSY:
            time.sleep(0.2)
        assert answer.code == 0, answer
    world.park(queues, range(PULLS))
    return numbers


def spread(world: World, queues: list[tuple[str, int]]) -> dict:
    times_ns, numbers = [], begin(world, queues)
    for turn in range(ROUNDS["spread"]):
        number = numbers[turn % BUSY]
        peer, queue = world.peer(number), queues[number]
        command = world.send(queue)
        began = time.perf_counter_ns()
        world.producer.write(command)
        answers = peer.read_some()
        times_ns.append(time.perf_counter_ns() - began)
        assert [(answer.opaque, answer.code) for answer in answers] == [(number + 1, 0)], answers
        assert [answer.code for answer in world.producer.read_some()] == [0]
        peer.write(world.pull(number, queue))
        # So that the pull is parked before the next one's message, and the broker has gone to sleep
        time.sleep(0.001)
    return facts("spread", times_ns)


def ready(selector: selectors.BaseSelector) -> list:
    if not (found := selector.select(LIMIT_S)):
        raise SystemExit(f"no pull was answered within {LIMIT_S} s")
    return found


def burst(world: World, queues: list[tuple[str, int]]) -> dict:
    times_ns, numbers = [], begin(world, queues)
    with selectors.DefaultSelector() as selector:
        for number in numbers:
            selector.register(world.peer(number).socket, selectors.EVENT_READ, world.peer(number))
        for _ in range(ROUNDS["burst"]):
            commands = [world.send(queues[number]) for number in numbers]
            began, left = time.perf_counter_ns(), BUSY
            world.producer.write(*commands)
            while left:
                for key, _ in ready(selector):
                    count = len(key.data.read_some())
                    times_ns += [time.perf_counter_ns() - began] * count
                    left -= count
            sent = 0
            while sent < BUSY:
                sent += len(world.producer.read_some())
            for number in numbers:
                world.peer(number).write(world.pull(number, queues[number]))
            time.sleep(0.05)
    return facts("burst", times_ns)


def one(world: World, queues: list[tuple[str, int]]) -> dict:
    queue, times_ns = queues[0], []
    with selectors.DefaultSelector() as selector:
        for peer in world.peers:
            selector.register(peer.socket, selectors.EVENT_READ, peer)
        for _ in range(ROUNDS["one"]):
            world.park([queue] * PULLS, range(PULLS))
            command = world.send(queue)
            began, left = time.perf_counter_ns(), PULLS
            world.producer.write(command)
            while left:
                for key, _ in ready(selector):
                    left -= len(key.data.read_some())
            times_ns.append(time.perf_counter_ns() - began)
            world.producer.read_some()
    return facts("one", times_ns)


def processor_ns(pid: int) -> int:
    """Processor time of a process so far, by its own clock (clock_getcpuclockid): nanoseconds, threads that
    ended included."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def idle_ms_per_s(pid: int) -> float:
    time.sleep(SETTLE_S)
    before, began = processor_ns(pid), time.monotonic()
    time.sleep(IDLE_S)
    return (processor_ns(pid) - before) / 1e6 / (time.monotonic() - began)


def idle(world: World, queues: list[tuple[str, int]], pid: int) -> dict:
    """Medians of windows. `without` is before any pull came: their queues are not even open then. `between`
    is without them, later."""
    without = [idle_ms_per_s(pid) for _ in range(IDLE_BEFORE)]
    parked, between = [], []
    for _ in range(IDLE_TURNS):
        world.park(queues, range(PULLS))
        parked.append(idle_ms_per_s(pid))
        world.reconnect()
        between.append(idle_ms_per_s(pid))
    middle = {
        "without": statistics.median(without),
        "parked": statistics.median(parked),
        "between": statistics.median(between),
    }
    windows = {"without": without, "parked": parked, "between": between}
    return {
        "scenario": "idle",
        **{f"{name}_ms_per_s": value for name, value in middle.items()},
        "windows": windows,
    }


def main() -> None:
    nameserver, port, pid, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    topics = [f"BenchParked_{mode}_{number}" for number in range(PULLS // QUEUES_A_TOPIC)]
    asyncio.run(make_topics(nameserver, topics, QUEUES_A_TOPIC))
    queues = [(topics[number // QUEUES_A_TOPIC], number % QUEUES_A_TOPIC) for number in range(PULLS)]
    world = World(port)
    try:
        line = (
            idle(world, queues, pid)
            if mode == "idle"
            else {"spread": spread, "burst": burst, "one": one}[mode](world, queues)
        )
    finally:
        world.close()
    print(json.dumps(line))


if __name__ == "__main__":
    main()
