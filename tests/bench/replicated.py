"""A master and its slave, both ours or both Apache's: how far the slave lags behind, and how fast it catches up."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_store.client import session
from broker_store.formats import record
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import SendHeader, write_send
from tests.interop.brokers import ApacheBroker, OurBroker, OurBrokerAlone
from tests.interop.replication import test_controller as controlled
from tests.support.ports import free_port

NAME = "pair"
TOPIC, QUEUES = "BenchTopic0", 4
RATE = 20_000  # sends a second
FILE_BYTES = 1 << 30  # of the log
LOOK_S = 0.001
TURN_S = 0.005  # of the sender
LIMIT_S = 300
ROUTES_S = 0.05  # between two requests of a sender for its routes
SIZE_AT = record.FIXED_IPV4.offset["total_size"]
PLACE_AT = record.FIXED_IPV4.offset["log_offset"]
STORED_AT = record.FIXED_IPV4.offset["store_timestamp"]


class Pair:
    """The brokers; the slave's store is empty."""

    def __init__(self, root: Path, is_ours: bool, role: str, store_of_master: Path | None = None):
        """`store_of_master` is moved to the master."""
        settings = {
            "brokerName": NAME,
            "brokerRole": role,
            "inSyncReplicas": 2 if role == "SYNC_MASTER" else 1,
        }
        as_slave = {"brokerName": NAME, "brokerRole": "SLAVE", "brokerId": 1}
        self.master: OurBroker | ApacheBroker
        self.slave: OurBroker | ApacheBroker
        if is_ours:
            self.master = OurBrokerAlone(root / "master", settings | {"haListenPort": free_port()})
            arguments = ("--no-web", "--nameserver", self.master.nameserver)
            self.slave = OurBrokerAlone(root / "slave", as_slave, arguments)
        else:
            self.master = ApacheBroker(root / "master", settings)
            self.slave = ApacheBroker(root / "slave", as_slave, nameserver=self.master.nameserver)
        if store_of_master is not None:
            self.master.store.parent.mkdir(parents=True)
            store_of_master.rename(self.master.store)

    @contextmanager
    def running(self) -> Iterator[Pair]:
        try:
            self.master.start()
            self.slave.start()
            yield self
        finally:
            self.slave.end()
            self.master.end()


class LogView:
    """The log of a store as its files have it, also while its broker writes them."""

    def __init__(self, store: Path, file_bytes: int = FILE_BYTES):
        self._directory, self._file_bytes = store / "commitlog", file_bytes
        self._base, self._map = -1, None
        self.end = 0  # of the last whole head that was read

    def _word(self, offset: int, length: int) -> int | None:
        """Return a number of the log; None where there is no file yet."""
        base = offset // self._file_bytes * self._file_bytes
        if base != self._base:
            path = self._directory / f"{base:020d}"
            try:
                if path.stat().st_size < self._file_bytes:
                    return None
                with open(path, "rb") as file:
                    self._map = mmap.mmap(file.fileno(), self._file_bytes, prot=mmap.PROT_READ)
            except FileNotFoundError:
                return None
            self._base = base
        at = offset - base
        return int.from_bytes(self._map[at : at + length], "big")

    def advance(self) -> int:
        """Read the heads of the records that came; return the log offset after the last."""
        while size := self._word(self.end + SIZE_AT, 4):
            self.end += size
        return self.end

    def stored_ms(self, offset: int) -> int | None:
        """Return the store time of the record at a log offset; None if there is none yet."""
        if not self._word(offset + SIZE_AT, 4) or self._word(offset + PLACE_AT, 8) != offset:
            return None  # nothing, or the blank at the end of a file
        return self._word(offset + STORED_AT, 8) or None

    def has(self, offset: int) -> bool:
        """Return True if the 64 bytes from a log offset on are not all zeros."""
        return any(self._word(offset + at, 8) for at in range(0, 64, 8))


def lag_ms(pair: Pair, seconds: float) -> list[float]:
    """Read the slave's log each LOOK_S for so many seconds; return for each look that found new records
    how old the first of them was. Its store time is in whole milliseconds."""
    slave = LogView(pair.slave.store)
    slave.advance()
    found, until = [], time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        stored_ms = slave.stored_ms(slave.end)
        if stored_ms is not None:
            found.append(max(0.0, time.time() * 1000 - stored_ms))
        slave.advance()
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - now)))
    return found


class Sender:
    """Sends messages at a rate while its block lasts, over one connection."""

    def __init__(self, port: int, rate: int, size: int):
        self._port, self._rate = port, rate
        self._frames = [_frame(bytes(size), queue) for queue in range(QUEUES)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent = self.answered = self.refused = 0

    def __enter__(self) -> Sender:
        self._wire = socket.create_connection(("127.0.0.1", self._port))
        self._reader = threading.Thread(target=self._read)
        self._thread.start()
        self._reader.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()
        until = time.monotonic() + LIMIT_S
        while self.answered < self.sent and time.monotonic() < until:
            time.sleep(0.01)
        self._wire.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._wire.close()

    def _send(self) -> None:
        began, turn = time.monotonic(), 0
        each = int(self._rate * TURN_S)
        piece = b"".join(self._frames[number % QUEUES] for number in range(each))
        while not self._stop.is_set():
            self._wire.sendall(piece)
            self.sent += each
            turn += 1
            self._stop.wait(max(0.0, began + turn * TURN_S - time.monotonic()))

    def _read(self) -> None:
        parser = Connection()
        while data := self._wire.recv(1 << 18):
            for answer in parser.receive(data):
                self.answered += 1
                self.refused += answer.code != 0


def _frame(body: bytes, queue: int) -> bytes:
    unique = f"UNIQ_KEY\x01{queue:032X}\x02"
    header = SendHeader(
        "BenchGroup", TOPIC, "TBW102", 4, queue, 0, int(time.time() * 1000), 0, unique, 0, False, None, False
    )
    return encode_frame(Command.request(int(RequestCode.SEND_MESSAGE_V2), write_send(header), body, opaque=1))


def caught_up(pair: Pair, end: int) -> float:
    """Return the bytes a second of the slave over the last file of a log of `end` bytes, without a tenth of it:
    a new slave of Apache's copies no other file."""
    view = LogView(pair.slave.store)
    begin, began = end - end % FILE_BYTES + FILE_BYTES // 10, 0.0
    until = time.monotonic() + LIMIT_S
    while not view.has(end - 64):
        if not began and view.has(begin):
            began = time.monotonic()
        if time.monotonic() > until:
            raise RuntimeError(f"the slave had not {end} bytes after {LIMIT_S} s")
        time.sleep(0.005)
    if not began:
        raise RuntimeError("the slave had the end before anything else was seen")
    return (end - begin) / (time.monotonic() - began)


def failover_s(root: Path, is_ours: bool, kills: int) -> list[float]:
    """Kill the master of two brokers so many times while 8 senders renew their routes each ROUTES_S; return the
    seconds from each kill until the other broker acknowledges a send. The settings are the defaults, but for
    Apache's `allAckInSyncStateSet`, without which it loses messages."""
    kind = controlled.OURS if is_ours else controlled.APACHE
    brokers = controlled.Set(
        root, (kind, kind), brokerHeartbeatInterval=1_000, syncBrokerMetadataPeriod=5_000
    )
    load, waits, usual = controlled.Load(brokers.names.address), [], session.ROUTE_INTERVAL_S

    def act() -> None:
        for _ in range(kills):
            controlled.fail_over(brokers, load, random.Random(len(waits)), waits)

    session.ROUTE_INTERVAL_S = ROUTES_S
    try:
        controlled.start_all(brokers)
        asyncio.run(load.run(act))
    finally:
        session.ROUTE_INTERVAL_S = usual
        brokers.stop()
    return waits


def disk_rate(path: Path, size: int) -> float:
    """Return the bytes a second with which a file of `size` bytes is written and synced."""
    piece = os.urandom(1 << 20)
    began = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(piece)
        os.fdatasync(file.fileno())
    took = time.monotonic() - began
    path.unlink()
    return size / took
