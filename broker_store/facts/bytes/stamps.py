"""The checkpoint and the timer's: some longs, then zeros to the end of a page."""

from __future__ import annotations

from abc import abstractmethod

from broker_store.errors import FormatError
from broker_store.facts.bytes.cutter import SimpleCutter
from broker_store.facts.bytes.field import Field, Reading, field, number, of_layout, time_words
from broker_store.facts.bytes.pieces import Piece, piece
from broker_store.facts.pointers import UnitPointer
from broker_store.formats import checkpoint, timer_check, timer_log

_ROOM_BYTES = 256  # of the rest of the page, when no length is asked for
_CHECKPOINT_MEANINGS = {
    "physic_msg_timestamp": "messages stored up to then are on the disk, in the commit log",
    "logics_msg_timestamp": "messages stored up to then are on the disk, in the consume queues",
    "index_msg_timestamp": "messages stored up to then are on the disk, in the index",
    "master_flushed_offset": "for replicas: how far the master's log is on the disk",
    "confirm_phy_offset": "for replicas: how far the log is confirmed",
    "logics_physical_offset": "Apache 5.5's own: how far the queues know the log",
}
_TIMER_MEANINGS = {
    "read_ms": "seconds of the wheel before this are delivered",
    "log_flushed": "how far the timer log is on the disk",
    "queue_offset": "messages of the timer topic before this offset stand in the timer log",
    "master_queue_offset": "the same of a replica's master",
    "state_version": "which term of a replica's master wrote this",
    "timestamp": "when the numbers of the timer last changed",
    "counter": "how often they changed",
    "seal": "says that this broker wrote the longs before it",
    "seal_crc": "CRC-32 of the longs before it",
}


class _Stamps(SimpleCutter):
    length: int  # bytes of the longs
    title: str

    @abstractmethod
    def fields(self, buffer: bytes) -> list[Field]:
        """Return the fields of the longs. Raises FormatError."""

    def usual_length(self, at: int) -> int:
        return _ROOM_BYTES if at else self.length

    def begin(self, at: int) -> int:
        return 0 if at < self.length else at

    def piece(self, at: int, end: int) -> Piece:
        if at:
            return piece("room", "the rest of the page", at, max(1, end - at), "Never used.")
        try:
            fields = self.fields(self.file.read(0, self.length))
        except FormatError as error:
            return piece("nothing", self.title, 0, end, f"{error}.", "bad")
        return piece("stamps", self.title, 0, self.length, fields=fields)


class Checkpoint(_Stamps):
    kind = "checkpoint"
    length = checkpoint.LAYOUT.size
    title = "what is surely on the disk"

    def fields(self, buffer: bytes) -> list[Field]:
        def read(name: str, value: int) -> Reading:
            return _moment(value) if name.endswith("timestamp") else number(name, value)

        return of_layout(_CHECKPOINT_MEANINGS, checkpoint.LAYOUT, buffer, 0, read)


class TimerCheck(_Stamps):
    kind = "timercheck"
    length = timer_check.LAYOUT.size + timer_check.SEALED.size
    title = "how far timed messages are dealt with"

    def fields(self, buffer: bytes) -> list[Field]:
        def read(name: str, value: int) -> Reading:
            if name in ("read_ms", "timestamp"):
                return _moment(value)
            if name == "queue_offset" and value > 0:
                last = UnitPointer(topic=timer_log.TIMER_TOPIC, queue=0, unit=value - 1)
                return Reading(f"{value:,}", last)
            return number(name, value)

        fields = of_layout(_TIMER_MEANINGS, timer_check.LAYOUT, buffer, 0, read)
        at = timer_check.LAYOUT.size
        magic, crc = timer_check.SEALED.unpack(buffer, at)
        if magic == timer_check.SEAL_MAGIC:
            right = timer_check.is_sealed(buffer)
            words = f"{crc:#010x} ({'right' if right else 'WRONG'})"
            fields.append(field(_TIMER_MEANINGS, "seal", at, 4, Reading(f"{magic:#010x}"), magic))
            fields.append(field(_TIMER_MEANINGS, "seal_crc", at + 4, 4, Reading(words, right=right), crc))
        return fields


def _moment(value: int) -> Reading:
    return Reading(time_words(value) if value else "0 (none yet)")
