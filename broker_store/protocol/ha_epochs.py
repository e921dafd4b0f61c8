"""The protocol of a master's HA port in controller mode (Apache's AutoSwitchHA, docs/spec/replication.md).

    slave ──► master   greeting: state 1, from the last file alone?, learner?, broker id
    master ──► slave   history: state 1, bytes of entries, end of the log, last epoch; (epoch, begin) each
    slave ──► master   report: state 2, where its log ends; the first after it was cut to the common end
    master ──► slave   frame: state 2, bytes, log offset, epoch, begin of the epoch, confirmed; then the bytes

Numbers are big-endian. A frame never has bytes of two epochs. A frame without bytes is a heartbeat; it says
how far the master's log is confirmed. Source: Apache's `AutoSwitchHAConnection` and `AutoSwitchHAClient`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from broker_store.errors import ProtocolError
from broker_store.formats.epochs import MAX_EPOCHS, Epoch

GREET, TRANSFER = 1, 2  # Apache's HAConnectionState.HANDSHAKE and TRANSFER
GREETING = struct.Struct(">ihhq")
HISTORY_HEAD = struct.Struct(">iiqi")
HISTORY_ENTRY = struct.Struct(">iq")
REPORT = struct.Struct(">iq")
FRAME_HEAD = struct.Struct(">iiqiqq")
# Apache's slave reads into a buffer of 4 MiB, head included.
MAX_FRAME_BODY = (4 << 20) - FRAME_HEAD.size


class Greeting(NamedTuple):
    """What a slave says first. A learner is never counted as in sync."""

    number: int  # its broker id
    from_last_file: bool = False
    is_learner: bool = False


class History(NamedTuple):
    """What a master answers: its epochs, and where its log ends."""

    epochs: tuple[Epoch, ...]
    end: int


class FrameHead(NamedTuple):
    """The head of a frame of the log."""

    size: int
    offset: int  # of the first byte; -1 in a heartbeat of Apache's master without a log
    epoch: Epoch
    confirmed: int


def write_greeting(greeting: Greeting) -> bytes:
    return GREETING.pack(GREET, greeting.from_last_file, greeting.is_learner, greeting.number)


def take_greeting(received: bytearray) -> Greeting | None:
    """Take a whole greeting from the begin of `received`; None while it is not whole. Raises
    ProtocolError."""
    if len(received) < GREETING.size:
        return None
    state, from_last_file, is_learner, number = GREETING.unpack_from(received)
    if state != GREET or number < 0:
        raise ProtocolError(f"it is in state {state} with id {number}, and a greeting has state {GREET}")
    del received[: GREETING.size]
    return Greeting(number, from_last_file == 1, is_learner == 1)


def write_history(epochs: Sequence[Epoch], end: int) -> bytes:
    last = epochs[-1].number if epochs else -1
    head = HISTORY_HEAD.pack(GREET, len(epochs) * HISTORY_ENTRY.size, end, last)
    return head + b"".join(HISTORY_ENTRY.pack(*epoch) for epoch in epochs)


def history_bytes(head: bytes) -> int:
    """Return how many bytes of entries follow the head of a history. Raises ProtocolError."""
    state, size, end, _ = HISTORY_HEAD.unpack(head)
    if (
        state != GREET
        or not 0 <= size <= MAX_EPOCHS * HISTORY_ENTRY.size
        or size % HISTORY_ENTRY.size
        or end < 0
    ):
        raise ProtocolError(
            f"the HA port answered with state {state}, {size} bytes of epochs and the end {end}: it is no "
            f"master's in controller mode"
        )
    return int(size)


def read_history(head: bytes, entries: bytes) -> History:
    """Return the history of a head that `history_bytes` took, and its entries."""
    epochs = tuple(Epoch(number, begin) for number, begin in HISTORY_ENTRY.iter_unpack(entries))
    return History(epochs, HISTORY_HEAD.unpack(head)[2])


def write_report(end: int) -> bytes:
    return REPORT.pack(TRANSFER, end)


def last_report(received: bytearray) -> int | None:
    """Take the whole reports from the begin of `received`; return the last one, None without a whole one.
    Raises ProtocolError."""
    whole = len(received) // REPORT.size * REPORT.size
    reports = list(REPORT.iter_unpack(received[:whole]))
    for state, _ in reports:
        if state != TRANSFER:
            raise ProtocolError(f"it is in state {state}, and a report has state {TRANSFER}")
    del received[:whole]
    return int(reports[-1][1]) if reports else None


def write_frame_head(size: int, offset: int, epoch: Epoch, confirmed: int) -> bytes:
    return FRAME_HEAD.pack(TRANSFER, size, offset, epoch.number, epoch.begin, confirmed)


def read_frame_head(head: bytes) -> FrameHead:
    """Return the head of a frame. Raises ProtocolError."""
    state, size, offset, number, begin, confirmed = FRAME_HEAD.unpack(head)
    if state != TRANSFER or not 0 <= size <= MAX_FRAME_BODY or (size and offset < 0):
        raise ProtocolError(
            f"the HA port sent a frame of state {state} with {size} bytes at {offset}: it is no master's in "
            f"controller mode"
        )
    return FrameHead(size, offset, Epoch(number, begin), confirmed)
