"""Pieces that are written into a damaged stretch of the log: placeholders, fillers, the blank of a file."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.formats import record
from broker_store.messages import Message

FILLER_TOPIC = "repaired"
REASON = "the record that lay here was damaged"
MIN_FILLER_BYTES = record.MIN_RECORD + 1  # a record with a topic of one letter
_FILLER_BYTES = 64 << 10  # at most so large is one filler record


class Place(NamedTuple):
    """Where a queue says that a record lies: [at, at + size) of the log."""

    at: int
    size: int
    topic: str
    queue_id: int
    number: int

    @property
    def end(self) -> int:
        return self.at + self.size


class Piece(NamedTuple):
    """One piece of a stretch: a placeholder, a filler (no `place`) or the blank that closes the file."""

    at: int
    size: int
    place: Place | None = None
    is_blank: bool = False


def least_size(topic: str) -> int:
    """Return the size in bytes of the smallest placeholder of a topic."""
    return record.record_size(Message(topic, 0, b"", b""))


def laid_out(low: int, high: int, places: list[Place], closes_file: bool) -> list[Piece] | None:
    """Return pieces that fill [low, high) without a hole; None when it is too short for any."""
    pieces: list[Piece] = []
    at = low
    end = high - record.BLANK_BYTES if closes_file else high
    for place in places:
        if place.end > end or place.at < at:
            continue
        if 0 < place.at - at < MIN_FILLER_BYTES:  # too little for a record: the placeholder begins earlier
            pieces.append(Piece(at, place.end - at, place))
        else:
            pieces += _fillers(at, place.at)
            pieces.append(Piece(place.at, place.size, place))
        at = place.end
    if closes_file:
        return [*pieces, Piece(at, high - at, is_blank=True)]
    if 0 < high - at < MIN_FILLER_BYTES:
        if not pieces:
            return None
        last = pieces.pop()
        return [*pieces, last._replace(size=high - last.at)]
    return [*pieces, *_fillers(at, high)]


def _fillers(low: int, high: int) -> list[Piece]:
    pieces = []
    while low < high:
        size = high - low if high - low <= _FILLER_BYTES + MIN_FILLER_BYTES else _FILLER_BYTES
        pieces.append(Piece(low, size))
        low += size
    return pieces


def encode_piece(piece: Piece, store_ms: int) -> bytes:
    """Return the bytes of a piece; of a blank only its head."""
    if piece.is_blank:
        return record.encode_blank(piece.size)
    if piece.place is None:
        topic = FILLER_TOPIC[: piece.size - record.MIN_RECORD]
        body = bytes(piece.size - record.MIN_RECORD - len(topic))
        # Rolled back: such a record has no unit and no index entry
        return record.encode(
            Message(topic, 0, body, b"", sys_flag=record.TRANSACTION_ROLLBACK, born_timestamp=store_ms),
            0,
            piece.at,
            store_ms,
        )
    place = piece.place
    room = piece.size - least_size(place.topic)
    beyond = max(0, room - record.MAX_PROPERTIES)
    message = Message(
        place.topic, place.queue_id, bytes(beyond), padding(room - beyond), born_timestamp=store_ms
    )
    return record.encode(message, place.number, piece.at, store_ms)


def padding(size: int) -> bytes:
    """Return properties of exactly `size` bytes: why the message is empty, cut or followed by spaces to
    fit."""
    room = size - len(b"REPAIRED\x01\x02")
    if room > 0:
        return b"REPAIRED\x01" + REASON.encode()[:room].ljust(room) + b"\x02"
    return b"-" * size  # readers skip a piece that is no pair
