"""The HA port of a master: sends the log to slaves, and takes their reports (protocol/ha.py).

    slave's first report ──► where to begin ──► frames of the log, as far as it may be sent ──► heartbeats
    later reports ─────────► what it has ─────► `on_report`, in this thread

One worker thread serves all slaves: reads of old parts of the log may wait for the disk, so the loop does
not do them. The system copies the log from its cache to the socket (`sendfile`); what a slave with TLS gets
is encrypted in this thread (links.py). A slave that takes nothing or is silent for `haHousekeepingInterval`
is closed.

What may be sent is what the next start of this master has too: with SYNC_FLUSH up to *flushed*, else up to
*wrote*. So a power cut never leaves a slave with records that its master lost, as far as the master's own
setting keeps them.

Source: Apache's `DefaultHAService` and `DefaultHAConnection`, but for the begin of a copy: a slave without a
log gets the whole log, and not the last file alone (docs/decisions/0081-a-copy-is-whole-and-compared.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from broker_store.config.checks import networks
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.errors import ProtocolError, StoreError
from broker_store.protocol.tls import TlsError
from broker_store.replication.links import HaTls, Link, link_of
from broker_store.replication.wires import PlainWire, Wire

log = logging.getLogger(__name__)

MAX_SLAVES = 16
FIRST_REPORT_S = 10.0  # in which a connection must say where its log ends
_READS_IN_TURN = 16
_READ_BYTES = 4_096
# A slave reports each frame by 8 or 12 bytes: more than this in a second are no reports.
_MAX_REPORTED_IN_SECOND = 4 << 20
_FRAMES_IN_TURN = 64  # of one slave, before the next one is served
# A slave that has everything is served again after this time; longer while nothing was written.
_SHORTEST_WAIT_S, _LONGEST_WAIT_S, _IDLE_WAIT_S = 0.001, 0.02, 0.1
_LIVELY_S = 0.2
_NEWS_S = 0.1  # between two heartbeats of a log that is confirmed further


class SentLog(Protocol):
    """What is sent, from any thread."""

    file_size: int

    @property
    def minimum(self) -> int: ...

    @property
    def committed(self) -> int: ...

    flushed: int

    def file_at(self, offset: int) -> MappedFile | None: ...


@dataclass
class Slave:
    """One connection. Log offsets; `None` until the slave has said where its log ends."""

    connection: socket.socket
    address: str
    connected_s: float
    heard_s: float
    sent_s: float
    reported: int | None = None
    following: int = 0  # the next byte to send
    sent_bytes: int = 0
    reported_in_second: int = 0  # bytes
    received: bytearray = field(default_factory=bytearray)
    head: bytes = b""  # of the frame, what is not sent of it
    body: int = 0  # bytes of the frame that are not sent
    reader: Reader | None = None
    base: int = -1  # of the reader's file
    # In controller mode
    number: int | None = None  # its broker id; None before its greeting
    is_learner: bool = False
    from_last_file: bool = False  # without a log it gets the last file alone, and what follows
    told_confirmed: int = 0  # by the last frame
    # It had all that was in the log at that time (`seconds`); None before it had
    caught_up_s: float | None = None
    goal: int = 0  # when its log reaches this offset, it has all that there was at `goal_s`
    goal_s: float = 0.0
    # (time, bytes sent) about each second, the last ten
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=10))
    link: Link | None = None  # None before its first byte


class SlaveLeft(NamedTuple):
    """A slave whose connection ended after it had reported."""

    address: str
    at_ms: int
    reported: int  # it had the log up to here


class Ended(Exception):
    """A connection ends; the text says why."""


class Feeder:
    """`step` is the work of a worker's thread; the rest is for the thread that is named."""

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        sent: SentLog,
        *,
        on_report: Callable[[], None],
        seconds: Callable[[], float] = time.monotonic,
        wire: Wire | None = None,
        tls: HaTls | None = None,
    ):
        """`on_report` is called in the worker's thread after a slave reported, came or left. `wire` is the
        protocol, by default that of fixed roles. With `tls` slaves may connect by TLS, or must."""
        self._wire: Wire = wire or PlainWire()
        self._tls = tls
        self._settings, self._disk, self._log, self._on_report, self._seconds = (
            settings,
            disk,
            sent,
            on_report,
            seconds,
        )
        self._is_sync = settings.flush_disk_type == "SYNC_FLUSH"
        self._silence_s = settings.ha_housekeeping_interval / 1000
        self._heartbeat_s = settings.ha_send_heartbeat_interval / 1000
        self._networks = networks(settings.ha_slave_addresses)
        self._selector = selectors.DefaultSelector()
        self._listening: socket.socket | None = None
        self._nudge = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._nudge, selectors.EVENT_READ)
        self._sent_at_s = 0.0
        # The worker replaces the tuple; any thread reads it.
        self.slaves: tuple[Slave, ...] = ()
        self.left: SlaveLeft | None = None  # the last one that left; replaced by the worker
        self.refused: dict[str, int] = {}  # why connections were not taken or were closed: how many

    def open(self, listening: socket.socket) -> None:
        """Take connections of this bound socket from the next step on; called before the worker runs."""
        listening.setblocking(False)
        listening.listen(MAX_SLAVES)
        self._listening = listening
        self._selector.register(listening, selectors.EVENT_READ)

    def wake(self) -> None:
        """Send at once what was written. Any thread."""
        if self.slaves:
            os.eventfd_write(self._nudge, 1)

    def close(self) -> None:
        """Close all connections; after the worker has ended."""
        for slave in self.slaves:
            self._drop(slave)
        self.slaves = ()
        if self._listening is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
        self._selector.close()
        os.close(self._nudge)

    @property
    def end(self) -> int:
        """The log offset up to which the log may be sent."""
        return self._log.flushed if self._is_sync else self._log.committed

    def step(self, now_ms: int) -> bool:
        """Wait until there is something to do, at most a tenth of a second, and do it."""
        for key, _ in self._selector.select(self._wait_s()):
            if key.fileobj is self._listening:
                self._accept()
            elif key.fd == self._nudge:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._nudge)
        now_s = self._seconds()
        for slave in self.slaves:
            try:
                self._serve(slave, now_s)
            except (Ended, OSError, ProtocolError, StoreError) as error:
                self._end(slave, str(error) or type(error).__name__, now_ms)
        return True

    def _wait_s(self) -> float:
        if not self.slaves:
            return _IDLE_WAIT_S
        if any(self._may_write(slave) for slave in self.slaves):
            return 0.0
        silent_s = self._seconds() - self._sent_at_s
        return _SHORTEST_WAIT_S if silent_s < _LIVELY_S else _LONGEST_WAIT_S

    def _may_write(self, slave: Slave) -> bool:
        """Return whether there is something to send that does not wait for the socket."""
        has_more = bool(
            slave.head
            or slave.body
            or (slave.link is not None and slave.link.unsent)
            or (slave.reported is not None and slave.following < self.end)
        )
        waits = bool(self._selector.get_key(slave.connection).events & selectors.EVENT_WRITE)
        return has_more and not waits

    # Connections

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            connection, name = self._listening.accept()
        except OSError:
            return  # it has gone again
        address = f"{name[0]}:{name[1]}"
        why = self._refusal(name[0])
        if why is not None:
            self._count(why)
            log.warning("the HA port took no connection from %s: %s", address, why)
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now_s = self._seconds()
        self._selector.register(connection, selectors.EVENT_READ)
        self.slaves = (*self.slaves, Slave(connection, address, now_s, now_s, now_s))

    def _refusal(self, host: str) -> str | None:
        if not self.takes(host):
            return "its address is none of haSlaveAddresses"
        return f"{MAX_SLAVES} connections are there" if len(self.slaves) >= MAX_SLAVES else None

    def takes(self, host: str) -> bool:
        """Return True if a slave may connect from this address. Any thread."""
        found = ip_address(host.partition("%")[0])
        found = getattr(found, "ipv4_mapped", None) or found
        return found.is_loopback or any(found in network for network in self._networks)

    def _end(self, slave: Slave, why: str, now_ms: int) -> None:
        self._drop(slave)
        self.slaves = tuple(one for one in self.slaves if one is not slave)
        if slave.reported is None:
            self._count("foreign or silent")
        else:
            self.left = SlaveLeft(slave.address, now_ms, slave.reported)
        log.info("the slave at %s has no connection any more: %s", slave.address, why)
        self._on_report()

    def _drop(self, slave: Slave) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(slave.connection)
        if slave.link is not None:
            slave.link.close()
        slave.connection.close()
        if slave.reader is not None:
            slave.reader.close()

    def _count(self, why: str) -> None:
        self.refused[why] = self.refused.get(why, 0) + 1

    # One slave

    def _serve(self, slave: Slave, now_s: float) -> None:
        if not slave.samples or now_s - slave.samples[-1][0] >= 1:
            slave.samples.append((now_s, slave.sent_bytes))
            slave.reported_in_second = 0
        self._read(slave, now_s)
        if slave.reported is None:
            if now_s - slave.connected_s > FIRST_REPORT_S:
                raise Ended(f"it did not say where its log ends within {FIRST_REPORT_S:.0f} s")
            if slave.head:  # the answer to its greeting
                self._send_frame(slave, now_s)
            return
        if slave.reported >= self._log.committed:
            slave.caught_up_s = now_s
        assert slave.link is not None  # it has reported
        if now_s - slave.heard_s > self._silence_s:
            raise Ended(f"it was silent for {self._silence_s:.0f} s")
        if (slave.head or slave.body or slave.link.unsent) and now_s - slave.sent_s > self._silence_s:
            raise Ended(f"it took nothing for {self._silence_s:.0f} s")
        for _ in range(_FRAMES_IN_TURN):
            if not self._send_frame(slave, now_s):
                return
        self._wait_for_room(slave, False)

    def _read(self, slave: Slave, now_s: float) -> None:
        if slave.link is None:
            slave.link = self._link(slave, now_s)
            if slave.link is None:
                return
        for _ in range(_READS_IN_TURN):
            try:
                piece = slave.link.receive(_READ_BYTES, now_s)
            except BlockingIOError:
                break
            if not piece:
                raise Ended("it closed the connection")
            slave.received += piece
            slave.heard_s = now_s
            slave.reported_in_second += len(piece)
            if len(piece) < _READ_BYTES:
                break
        if slave.reported_in_second > _MAX_REPORTED_IN_SECOND:
            raise Ended(
                f"it sent {slave.reported_in_second:,} bytes in a second, and a report has "
                f"{self._wire.report_bytes}"
            )
        offset = self._wire.take(slave, self._log.committed)
        if offset is not None:
            self._take(slave, offset)
            if offset >= slave.goal:
                if slave.goal:
                    slave.caught_up_s = max(slave.goal_s, slave.caught_up_s or 0.0)
                slave.goal, slave.goal_s = self._log.committed, now_s

    def _link(self, slave: Slave, now_s: float) -> Link | None:
        try:
            return link_of(slave.connection, self._tls, now_s)
        except TlsError:
            self._count("connection without TLS")
            raise

    def _take(self, slave: Slave, offset: int) -> None:
        end = self._log.committed
        if not 0 <= offset <= end:
            raise Ended(
                f"its log ends at {offset:,}, and this one at {end:,}: it is no copy of this log, and gets "
                f"nothing of it"
                if offset > end
                else f"it sent {offset}, which is no place of a log"
            )
        if slave.reported is None:
            begin = self._log.minimum
            if offset and offset < begin:
                raise Ended(f"its log ends at {offset:,}, and this one begins at {begin:,} now")
            if slave.from_last_file:
                begin = max(begin, end // self._log.file_size * self._log.file_size)
            slave.following = offset or begin
            log.info("the slave at %s gets the log from %s on", slave.address, f"{slave.following:,}")
        elif offset < slave.reported:
            raise Ended(f"it reported {slave.reported:,}, and now {offset:,}")
        slave.reported = offset
        self._on_report()

    def _send_frame(self, slave: Slave, now_s: float) -> bool:
        """Send what the socket takes of the current frame, or of a new one. Return whether more can be sent
        now."""
        assert slave.link is not None  # it has reported
        unsent = slave.link.unsent
        if not slave.link.flush():
            if slave.link.unsent < unsent:
                slave.sent_s = now_s
            self._wait_for_room(slave, True)
            return False
        if not slave.head and not slave.body and not self._begin_frame(slave, now_s):
            self._wait_for_room(slave, False)
            return False
        if slave.head:
            count = slave.link.send(slave.head, more_follows=bool(slave.body))
            slave.head = slave.head[count:]
            if slave.head:
                self._wait_for_room(slave, True)
                return False
        while slave.body:
            reader = self._reader(slave)
            count = slave.link.send_file(reader, slave.following - slave.base, slave.body)
            if not count:
                self._wait_for_room(slave, True)
                return False
            slave.following += count
            slave.body -= count
            slave.sent_bytes += count
            slave.sent_s = now_s
        slave.sent_s = now_s
        return True

    def _begin_frame(self, slave: Slave, now_s: float) -> bool:
        """Begin a frame of the log, or a heartbeat; return False if neither is due."""
        at, end = slave.following, self.end
        if at < end:
            file_size = self._log.file_size
            slave.body = min(end - at, file_size - at % file_size, self._settings.ha_transfer_batch_size)
            if (border := self._wire.end_of_frame(at)) is not None:
                slave.body = min(slave.body, border - at)
            self._reader(slave)
            self._sent_at_s = now_s
        elif now_s - slave.sent_s < (_NEWS_S if self._wire.has_news(slave) else self._heartbeat_s):
            return False
        slave.head = self._wire.head(slave, at, slave.body)
        slave.sent_s = now_s
        return True

    def _reader(self, slave: Slave) -> Reader:
        """Return the reader of the file that has the next byte. Raises Ended when it is gone."""
        if slave.reader is None or not slave.base <= slave.following < slave.base + self._log.file_size:
            file = self._log.file_at(slave.following)
            if file is None:
                raise Ended(
                    f"it has the log up to {slave.following:,}, and the next file was deleted by its age or "
                    f"for room"
                )
            if slave.reader is not None:
                slave.reader.close()
            slave.reader, slave.base = self._disk.open_reader(file.path), file.base
        return slave.reader

    def _wait_for_room(self, slave: Slave, waits: bool) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        if self._selector.get_key(slave.connection).events != wanted:
            self._selector.modify(slave.connection, wanted)
