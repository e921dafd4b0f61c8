"""The pops that gave a message to a group, from the records of the revive log (docs/spec/pop.md section 2).

    timer topic, revive log ──► pop checkpoints that name the message ──► acknowledged, or came again
    log of pops in order ──► states of its queue (ordered_pops.py)

Pops of a message are stored after it, and mostly soon. So some records after each of its records are read:
at most MAX_POP_RECORDS in all, with at most POP_SECONDS of processor time. What was not read is said.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_store import throttle
from broker_store.check.units import UNIT
from broker_store.engine.disk.file_access import Reader
from broker_store.errors import FormatError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.journey.ordered_pops import OrderedPop, OrderedPops, stop_of_pop, together
from broker_store.facts.journey.stop import State, Stop, clock_text, seconds_text
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import pop_records, properties, record
from broker_store.formats.java_hash import java_hash
from broker_store.formats.names import RETRY_PREFIX, popping_group
from broker_store.formats.order_info import LOG_PREFIX, LOG_TAG, OrderState, decode_state
from broker_store.formats.pop_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    REVIVE_PREFIX,
    PopAck,
    PopCheckpoint,
    PopKey,
)
from broker_store.formats.record import StoredMessage
from broker_store.formats.timer_log import TIMER_TOPIC

MAX_POP_RECORDS = 10_000
MAX_POPS = 64  # of one message that are shown
POP_SECONDS = 0.25
_TAGS = tuple(map(java_hash, (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG, LOG_TAG)))
_LOGS = (REVIVE_PREFIX, LOG_PREFIX)
_END = 1 << 63  # of the log, whatever it holds
_MAX_RECORD_BYTES = 64 << 10  # of one of the revive log; a larger one is none


@dataclass(slots=True)
class MessagePop:
    """A pop of a message. `stored` is the record of its pop checkpoint."""

    checkpoint: PopCheckpoint
    stored: StoredMessage
    offset: int
    acknowledged: StoredMessage | None = None

    @property
    def key(self) -> PopKey:
        return self.checkpoint.key


class PopsOfMessage(NamedTuple):
    """The pops of a message, and its pops in order, the oldest first. `doubt` says why there may be more;
    empty if there are not."""

    pops: list[MessagePop]
    in_order: list[OrderedPop]
    doubt: str


def pops_of(directory: StoreDirectory, records: list[StoredMessage]) -> PopsOfMessage:
    """Return the pops of a message; `records` are all its records, of which each may have been popped."""
    places = {(one.topic, one.queue_id, one.queue_offset) for one in records if one.topic != TIMER_TOPIC}
    found: dict[PopKey, MessagePop] = {}
    ordered = OrderedPops(places)
    with _Reading(directory, sorted({one.log_offset for one in records})) as reading:
        for stored in reading.records({topic for topic, _, _ in places}):
            _take(stored, places, found, ordered)
            if len(found) + len(ordered.pops) > MAX_POPS:
                break
    pops = sorted(found.values(), key=lambda pop: pop.stored.log_offset)
    doubt = reading.doubt
    if len(pops) + len(ordered.pops) > MAX_POPS:
        doubt = f"it was popped more than {MAX_POPS} times"
    return PopsOfMessage(pops[:MAX_POPS], ordered.pops[:MAX_POPS], doubt)


def _take(
    stored: StoredMessage,
    places: set[tuple[str, int, int]],
    found: dict[PopKey, MessagePop],
    ordered: OrderedPops,
) -> None:
    """Take a record of the revive log, or of the log of pops in order."""
    read = _read(stored)
    if isinstance(read, OrderState):
        ordered.take(stored, read)
    elif isinstance(read, PopCheckpoint):
        key = read.key
        for diff in read.diffs:
            if (key.topic, key.queue_id, key.start_offset + diff) in places and key not in found:
                found[key] = MessagePop(read, stored, key.start_offset + diff)
    elif read is not None:
        pop = found.get(read.key)
        if pop is not None and pop.acknowledged is None and pop.offset in read.offsets:
            pop.acknowledged = stored


def _read(stored: StoredMessage) -> PopCheckpoint | PopAck | OrderState | None:
    try:
        if stored.topic.startswith(LOG_PREFIX):
            return decode_state(stored.body)
        return pop_records.decode_record(stored.tags, stored.body)
    except FormatError:
        return None


class _Reading:
    """Reads records of pops that follow some places of the log, in the order of the log. `doubt`
    says what was not read; empty if all were."""

    def __init__(self, directory: StoreDirectory, log_offsets: list[int]):
        self._directory, self._starts = directory, log_offsets
        self._per_start = max(1, MAX_POP_RECORDS // len(log_offsets))
        self._queues = [(TIMER_TOPIC, 0)]
        self._queues += [queue for queue in directory.queues() if queue[0].startswith(_LOGS)]
        self._files = directory.log_files()
        self._readers: dict[Path, Reader] = {}
        self._open = ExitStack()
        self.doubt = ""

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def records(self, topics: set[str]) -> Iterator[StoredMessage]:
        """Yield the records that name one of the topics. A record that the timer delivered is left out: it
        is the same as one in the timer topic."""
        until_s = time.thread_time() + POP_SECONDS
        needles = [f'"{topic}"'.encode() for topic in topics]
        for number, (log_offset, size) in enumerate(self._places()):
            if not number % 64:
                throttle.pause()
                if time.thread_time() > until_s:
                    self.doubt = f"of the records of pops {number:,} were read, and there are more"
                    return
            raw = self._bytes_at(log_offset, size)
            if not any(needle in raw for needle in needles):
                continue
            try:
                stored = record.decode(raw, check_crc=False)
            except FormatError:
                continue
            real = stored.properties.get(properties.REAL_TOPIC, "")
            is_waiting = stored.topic == TIMER_TOPIC and real.startswith(REVIVE_PREFIX)
            if is_waiting or (
                stored.topic.startswith(_LOGS) and properties.TIMER_OUT_MS not in stored.properties
            ):
                yield stored

    def _places(self) -> list[tuple[int, int]]:
        """Return place and size of the records that are read, in the order of the log."""
        found: dict[int, int] = {}
        read_to = self._starts[0]  # all records up to it are read
        for start in self._starts:
            places, end = self._places_after(start)
            found |= places
            if start <= read_to:
                read_to = max(read_to, end)
        if read_to < _END:
            self.doubt = (
                f"of the records of pops at most {self._per_start:,} after each of its records were read"
            )
        return sorted(found.items())

    def _places_after(self, start: int) -> tuple[dict[int, int], int]:
        """Return places and sizes of records with the tags of such records after a place of the log, and
        up to where these are all."""
        found: list[tuple[int, int]] = []
        end = _END
        for topic, queue_id in self._queues:
            of_queue = self._places_of(topic, queue_id, start)
            found += of_queue
            if len(of_queue) > self._per_start:
                end = min(end, of_queue[-1][0])
        found = sorted(place for place in found if place[0] < end)
        if len(found) > self._per_start:
            end = found[self._per_start][0]
        return dict(found[: self._per_start]), end

    def _places_of(self, topic: str, queue_id: int, start: int) -> list[tuple[int, int]]:
        """Return the places of one queue, at most one more than are read."""
        queue = self._directory.queue_units(topic, queue_id)
        found: list[tuple[int, int]] = []
        for piece in queue.pieces(queue.first_at(start)):
            units = piece[: len(piece) // UNIT.itemsize * UNIT.itemsize].view(UNIT)
            ends = np.flatnonzero(units["size"] <= 0)
            is_last = len(ends) > 0
            units = units[: ends[0]] if is_last else units
            units = units[np.isin(units["tags_code"], _TAGS) & (units["size"] <= _MAX_RECORD_BYTES)]
            found += zip(units["log_offset"].tolist(), units["size"].tolist(), strict=True)
            if is_last or len(found) > self._per_start:
                break
        return found[: self._per_start + 1]

    def _bytes_at(self, log_offset: int, size: int) -> bytes:
        for base, length, path in self._files:
            if base <= log_offset < base + length:
                reader = self._readers.get(path)
                if reader is None:
                    reader = self._readers[path] = self._open.enter_context(
                        self._directory.disk.open_reader(path)
                    )
                return reader.read(log_offset - base, size)
        return b""


# Stops


def pop_stop(
    pop: MessagePop, found: list[MessagePop], copies: list[StoredMessage], facts: StoreFacts
) -> Stop:
    """Return a pop as a stop. `found` are all pops of the message, `copies` all its records."""
    key = pop.key
    state, became = _became(pop, found, copies, facts)
    others = together(len(pop.checkpoint.diffs), key.queue_id)
    sentence = f"It was given out for {seconds_text(pop.checkpoint.invisible_ms)}{others}. {became}"
    return stop_of_pop(key.group, state, sentence, key.pop_ms, pop.stored)


def _became(
    pop: MessagePop, found: list[MessagePop], copies: list[StoredMessage], facts: StoreFacts
) -> tuple[State, str]:
    """Return (state, sentence) of what became of the message after a pop."""
    revive_ms = pop.checkpoint.revive_ms
    ack = pop.acknowledged
    if ack is not None and (change := _change_before(pop, ack, found)) is not None:
        took = seconds_text(change.key.pop_ms - pop.key.pop_ms)
        return "done", f"After {took} its client asked for another invisible time; see the next pop."
    if ack is not None and ack.store_timestamp < revive_ms:
        return "done", _acknowledged(pop, ack)
    again = _copy_after(pop, copies)
    if again is not None:
        return (
            "done",
            f"It was not acknowledged by {clock_text(revive_ms)}, so it came again: offset "
            f"{again.queue_offset:,} of {again.topic}.",
        )
    if ack is not None:
        return "done", _acknowledged(pop, ack)
    is_invisible = facts.is_invisible(pop.key, pop.offset)
    if is_invisible or (is_invisible is None and revive_ms > time.time() * 1000):
        return "waiting", f"Invisible to the group until {clock_text(revive_ms)}, unless it is acknowledged."
    if is_invisible is None:
        return "unknown", f"Its time was over at {clock_text(revive_ms)}. No acknowledgement was found."
    return "done", f"Its time was over at {clock_text(revive_ms)}; the broker has finished it."


def _acknowledged(pop: MessagePop, ack: StoredMessage) -> str:
    return f"Acknowledged after {seconds_text(max(0, ack.store_timestamp - pop.key.pop_ms))}."


def _change_before(pop: MessagePop, ack: StoredMessage, found: list[MessagePop]) -> MessagePop | None:
    """Return the change of the invisible time for which the broker stored an acknowledgement; None if a
    client did. A change stores a pop checkpoint of one message, then the acknowledgement in the other one."""
    for other in found:
        is_between = pop.stored.log_offset < other.stored.log_offset < ack.log_offset
        if is_between and other.key.group == pop.key.group and other.key.start_offset == pop.offset:
            if other.key.topic == pop.key.topic and other.checkpoint.diffs == (0,):
                return other
    return None


def _copy_after(pop: MessagePop, copies: list[StoredMessage]) -> StoredMessage | None:
    """Return the record of a retry topic with which the message came again after a pop."""
    topic, group = pop.key.topic, pop.key.group
    since_ms = pop.checkpoint.revive_ms
    for copy in sorted(copies, key=lambda one: one.log_offset):
        is_of_group = (
            copy.topic == topic
            if topic.startswith(RETRY_PREFIX)
            else popping_group(copy.topic, topic) == group
        )
        if (
            is_of_group
            and copy.log_offset > pop.stored.log_offset
            and properties.FIRST_POP_TIME in copy.properties
            and copy.store_timestamp >= since_ms
        ):
            return copy
    return None
