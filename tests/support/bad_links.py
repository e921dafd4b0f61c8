"""Connections between servers that a test delays, holds, loses and cuts, by a random plan.

    server ──► Link.address ──► THERE ──► target
                            ◄── BACK ◄──

`Links` is a proxy on loopback in a thread of its own. A link stands for one way of one server to one port of
another. What a fault does to it:

    delay    each piece of bytes waits
    hold     nothing passes, in one direction or in both; it passes later. New connections wait as well
    lose     what comes is thrown away; the connections that lost something are cut later
    cut      all connections end by a reset
    refuse   the same, and no new one is taken
    forget   what comes on the connections of now is thrown away for ever, and neither end hears of the other's
             end; new ones pass. So does a firewall that drops what it knew

Servers state addresses to each other, and would connect past the proxy. So a link may replace addresses in the
answers that it passes by others of the same length (`rename`): a server that asks its name server and its
controller by such links connects to all others by the links of the test.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tests.support.ports import free_port

THERE, BACK = "there", "back"
BOTH = (THERE, BACK)
PIECE_BYTES = 1 << 16
LENGTH_BYTES = 4
NO_LINGER = struct.pack("ii", 1, 0)


class Link:
    """One link. Its methods may be called by any thread but that of the proxy, and return when it is done."""

    def __init__(self, links: Links, name: str, target: str):
        self._links, self.name, self._target = links, name, target
        self.address = f"127.0.0.1:{free_port()}"
        self._names: dict[bytes, bytes] = {}
        self._gates = {direction: asyncio.Event() for direction in BOTH}
        self._delay_s, self._loses, self._refuses = 0.0, False, False
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        for gate in self._gates.values():
            gate.set()

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace addresses in what the target answers, which has to be frames of the remoting protocol."""
        assert all(len(old) == len(new) for old, new in names.items())
        self._names |= {old.encode(): new.encode() for old, new in names.items()}

    def delay(self, seconds: float) -> None:
        self._links.call(lambda: self._set(delay_s=seconds))

    def hold(self, *directions: str) -> None:
        self._links.call(lambda: [self._gates[direction].clear() for direction in directions or BOTH])

    def lose(self) -> None:
        self._links.call(lambda: self._set(loses=True))

    def cut(self) -> None:
        self._links.call(self._cut)

    def refuse(self) -> None:
        self._links.call(lambda: (self._set(refuses=True), self._cut()))

    def forget(self) -> None:
        self._links.call(self._forget)

    def heal(self) -> None:
        """Let everything pass, but for what is forgotten."""
        self._links.call(self._heal)

    # The thread of the proxy

    def _set(self, *, delay_s: float = 0.0, loses: bool = False, refuses: bool = False) -> None:
        self._delay_s, self._loses, self._refuses = delay_s, loses, refuses

    def _cut(self, only_with_loss: bool = False) -> None:
        for connection in self._connections:
            if connection.has_lost or not only_with_loss:
                connection.abort()

    def _forget(self) -> None:
        for connection in self._connections:
            connection.is_forgotten = True

    def _heal(self) -> None:
        self._cut(only_with_loss=True)
        self._set()
        for gate in self._gates.values():
            gate.set()

    async def open(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._take, host, int(port))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._cut()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        if self._refuses:
            connection.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._links.tasks.add(task)
        self._connections.add(connection)
        try:
            await self._pass(connection, reader, writer)
        except OSError:  # no connection to the target
            connection.abort()
        await connection.close()
        self._connections.discard(connection)
        self._links.tasks.discard(task)

    async def _pass(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._gates[THERE].wait()
        host, _, port = self._target.rpartition(":")
        answers, target = await asyncio.open_connection(host, int(port))
        connection.add(target)
        change = Replacement(self._names) if self._names else bytes
        await asyncio.gather(
            self._pump(connection, reader, target, THERE, bytes),
            self._pump(connection, answers, writer, BACK, change),
        )

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
        change: Callable[[bytes], bytes],
    ) -> None:
        """Pass the bytes of one direction until their end."""
        try:
            while data := await reader.read(PIECE_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._gates[direction].wait()
                connection.has_lost |= self._loses
                if not connection.has_lost and not connection.is_forgotten:
                    writer.write(change(data))
                    await writer.drain()
            await self._gates[direction].wait()
            if not connection.is_forgotten and not writer.transport.is_closing():
                writer.write_eof()
        except OSError:  # a reset passes as all else does
            for gate in self._gates.values():
                await gate.wait()
            if not connection.is_forgotten:
                connection.abort()


class _Connection:
    """Both ends of a connection through a link."""

    def __init__(self, writer: asyncio.StreamWriter):
        self._writers = [writer]
        self._is_aborted = False
        self.has_lost = self.is_forgotten = False

    def add(self, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._is_aborted:
            self.abort()

    def abort(self) -> None:
        """End both by a reset."""
        self._is_aborted = True
        for writer in self._writers:
            if not writer.transport.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            writer.transport.abort()

    async def close(self) -> None:
        """End both, after what was written has left."""
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


class Replacement:
    """Called with pieces of frames; returns whole frames, with other addresses in them."""

    def __init__(self, names: Mapping[bytes, bytes]):
        self._names, self._kept = names, b""

    def __call__(self, data: bytes) -> bytes:
        self._kept += data
        done = b""
        while len(self._kept) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._kept[:LENGTH_BYTES])
            if len(self._kept) < end:
                break
            frame, self._kept = self._kept[:end], self._kept[end:]
            for old, new in self._names.items():
                frame = frame.replace(old, new)
            done += frame
        return done


class Links:
    """The proxy; use it in a `with` statement."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bad-links")
        self.tasks: set[asyncio.Task] = set()
        self.all: list[Link] = []

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for link in self.all:
            await link.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self.all:
            await link.close()  # connections that were closing
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn

    def add(self, name: str, target: str) -> Link:
        """Open a link to the address `target`."""
        link = Link(self, name, target)
        asyncio.run_coroutine_threadsafe(link.open(), self._loop).result()
        self.all.append(link)
        return link

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the proxy, and wait for it."""

        async def calling() -> None:
            function()

        asyncio.run_coroutine_threadsafe(calling(), self._loop).result()

    def heal(self) -> None:
        for link in self.all:
            link.heal()


FAULTS: dict[str, Callable[[Link, random.Random], None]] = {
    "delayed": lambda link, chance: link.delay(chance.uniform(0.002, 0.3)),
    "held": lambda link, chance: link.hold(),
    "held there": lambda link, chance: link.hold(THERE),
    "held back": lambda link, chance: link.hold(BACK),
    "lossy": lambda link, chance: link.lose(),
    "cut": lambda link, chance: link.cut(),
    "refused": lambda link, chance: link.refuse(),
    "forgotten": lambda link, chance: link.forget(),
}
LENGTHS_S = ((0.1, 1.0), (1.0, 4.0), (4.0, 9.0))
TWO_AT_ONCE = 0.3


def storm(
    links: Links,
    groups: Mapping[str, Sequence[Link]],
    seed: int,
    seconds: float,
    healed: Callable[[], None],
) -> int:
    """Do faults to groups of links, one after the other or two at once, for so many seconds; return how many.

    `healed` is called each time that everything passes again. The order, kinds and lengths depend on `seed`
    alone. Each fault is printed, for the report of a test that fails.
    """
    chance, began_s, count = random.Random(seed), time.monotonic(), 0
    print(f"faults of seed {seed}")
    try:
        while time.monotonic() - began_s < seconds:
            for _ in range(2 if chance.random() < TWO_AT_ONCE else 1):
                name, fault = chance.choice(sorted(groups)), chance.choice(sorted(FAULTS))
                print(f"{time.monotonic() - began_s:8.2f} s  {name}: {fault}")
                for link in groups[name]:
                    FAULTS[fault](link, chance)
                count += 1
            length_s = chance.uniform(*chance.choice(LENGTHS_S))
            threading.Event().wait(length_s)  # the fault; not a wait for anything
            links.heal()
            print(f"{time.monotonic() - began_s:8.2f} s  healed after {length_s:.2f} s")
            healed()
    finally:
        links.heal()
    return count
