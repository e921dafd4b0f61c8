"""Messages that wait for a delay level (docs/spec/store-behaviour.md section 8).

A message with DELAY=level is stored in SCHEDULE_TOPIC_XXXX, queue level - 1, with its real queue in
REAL_TOPIC and REAL_QID. The unit of that queue holds the delivery time instead of a tags code. All messages
of a level wait equally long, so a level is delivered in order and only its first message has to be checked.

    step(now) -> the time of the next delivery, None when nothing waits

reads what is due of each level, and the store puts it to its real queues, many messages in one call
(`put_waited`). The position of a level moves when the put is accepted; the *saved* position moves only when
the log is synced past that put. So a crash delivers some messages twice, as with Apache's broker, but loses
none, which Apache's may after a power cut.

The delivered record keeps DELAY, REAL_TOPIC and REAL_QID, as Apache's does. It is put to the store directly,
so it is not delayed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker_store.broker.offsets import is_outdated
from broker_store.broker.step_pacing import PAUSE_MS, RETRY_MS
from broker_store.engine.store_protocol import Store
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.excerpts import text_excerpt
from broker_store.formats import config_json, properties
from broker_store.formats.config_json import DataVersion
from broker_store.formats.topics import FORBIDDEN_TO_SEND, SCHEDULE_TOPIC
from broker_store.messages import (
    FINAL,
    GetRequest,
    GetResult,
    GetStatus,
    Message,
    MovedOn,
    PutStatus,
)

FILE_NAME = "delayOffset.json"
# Deliveries of one step, so that it takes the loop for a millisecond or two; also the most of one level.
BATCH = 128
BATCH_BYTES = 1 << 20
# A message with a level must not request a time as well: after its delivery it would be a timer message.
_NO_TIME: dict[str, str | None] = dict.fromkeys(properties.TIMER_ASKING)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFacts:
    """A delay level that was ever used."""

    level: int
    delay_ms: int
    offset: int  # of the next that is delivered, in the level's queue
    max_offset: int
    waiting: int
    due_ms: int | None  # of the first; None: none waits


@dataclass(slots=True)
class _Level:
    """One level: `offset` is the next to deliver, `done` the (offset, log end) pairs not known to be
    synced."""

    delay_ms: int
    queue_id: int
    offset: int = 0
    saved: int = 0
    due_end: int = 0  # messages before it are due
    retry_ms: int = 0
    reading: bool = False
    watched: bool = False
    done: deque[tuple[int, int]] = field(default_factory=deque)


class Delay:
    """The delay levels; `levels_ms[0]` is the delay of level 1. `on_ready()` requests a step as soon as
    possible."""

    def __init__(self, store: Store, *, levels_ms: Sequence[int], clock: Callable[[], int]):
        self._store = store
        self._clock = clock
        self._levels = [_Level(delay_ms, number) for number, delay_ms in enumerate(levels_ms)]
        self.data_version = DataVersion(timestamp=clock())
        self._turn = 0  # the level that the next step starts with
        self.dirty = False  # True: write the file though nothing moved
        self.delivered = 0
        self.dropped = 0
        self.failures = 0
        self.on_ready: Callable[[], None] = lambda: None
        self.on_delivered: Callable[[Sequence[tuple[str, int, int]]], None] = lambda stored: None
        # On a slave that acts for its master: sends records to another broker, and calls the function that it
        # is given with what became of them
        self.escape: Callable[[bytes, Callable[[MovedOn], None]], None] | None = None
        self.keeps_version = False  # the table is a copy of a master's

    @property
    def max_level(self) -> int:
        return len(self._levels)

    def schedule(self, message: Message, level: int) -> None:
        """Turn a message into one that waits; a `level` above the highest counts as the highest."""
        level = min(level, self.max_level)
        encoded = message.properties
        changes: dict[str, str | None] = dict(_NO_TIME) if b"TIMER_" in encoded else {}
        if encoded.count(b"DELAY") != 1 or b"\x02DELAY\x01%d\x02" % level not in encoded:
            changes[properties.DELAY] = str(level)
        changes |= {properties.REAL_TOPIC: message.topic, properties.REAL_QUEUE_ID: str(message.queue_id)}
        message.properties = properties.set_values(encoded, changes)
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1

    def start(self) -> list[str]:
        """Bound the loaded positions by what the store holds; return a sentence for each that was impossible.

        For such a level it is not known how far it was delivered. It continues with what became due after its
        newest message was stored: what was due before then had been delivered, and of the rest some may come
        twice.
        """
        sentences = []
        for level in self._levels:
            low = max(0, self._store.reads.min_offset(SCHEDULE_TOPIC, level.queue_id))
            high = max(low, self._store.reads.max_offset(SCHEDULE_TOPIC, level.queue_id))
            at = max(low, level.offset)
            if at > high:
                at = self._first_due_late(level, low, high)
                sentences.append(
                    f"delay level {level.queue_id + 1} was at {level.offset:,} of its queue, which "
                    f"ends at {high:,}: it goes on at {at:,}"
                )
            level.offset = level.saved = at
        return sentences

    def _first_due_late(self, level: _Level, low: int, high: int) -> int:
        """Return the first message in [low, high) that became due after the last one was stored.

        Delivery times ascend along a level's queue, so this is a binary search.
        """
        if low == high:
            return high
        last = self._store.reads.read_units(SCHEDULE_TOPIC, level.queue_id, high - 1, 1)
        if not last:
            return low
        stored_ms = last[0][2] - level.delay_ms
        while low < high:
            middle = (low + high) // 2
            unit = self._store.reads.read_units(SCHEDULE_TOPIC, level.queue_id, middle, 1)
            if unit and unit[0][2] <= stored_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def step(self, now_ms: int) -> int | None:
        """Deliver what is due; return when to call again (ms), None when nothing waits: an arrival requests
        it."""
        times = []
        before = self.delivered
        for level in self._levels[self._turn :] + self._levels[: self._turn]:
            if level.reading:
                continue
            due_ms = self._step_level(level, now_ms)
            if due_ms is not None:
                times.append(due_ms)
            if self.delivered - before >= BATCH:
                # Many levels may be due at once: the next step starts with the next level.
                self._turn = (level.queue_id + 1) % len(self._levels)
                return now_ms
        return min(times) if times else None

    def _step_level(self, level: _Level, now_ms: int) -> int | None:
        if level.retry_ms > now_ms:
            return level.retry_ms
        units = self._store.reads.read_units(SCHEDULE_TOPIC, level.queue_id, level.offset, BATCH)
        if not units:
            return self._nothing_at(level, now_ms)
        self._watch(level, False)
        count = 0
        for _, _, due_ms in units:
            if now_ms < due_ms <= now_ms + level.delay_ms:
                break
            count += 1
        if not count:
            return units[0][2]
        level.due_end = level.offset + count
        size = 0
        while level.offset < level.due_end and size < BATCH_BYTES:
            request = GetRequest(
                SCHEDULE_TOPIC, level.queue_id, level.offset, max_count=level.due_end - level.offset
            )
            result = self._store.reads.get(request, lambda result: self._arrived(level, result))
            if result is None:
                level.reading = True
                return None
            self._deliver(level, result, now_ms)
            if level.reading:  # it is sent to another broker
                return None
            if level.retry_ms > now_ms:
                return level.retry_ms
            size += len(result.body)
        return now_ms if count == BATCH or level.offset < level.due_end else now_ms + PAUSE_MS

    def _nothing_at(self, level: _Level, now_ms: int) -> int | None:
        low = self._store.reads.min_offset(SCHEDULE_TOPIC, level.queue_id)
        if level.offset < low:
            level.offset = low
            return now_ms
        self._watch(level, True)
        return None

    def _watch(self, level: _Level, watched: bool) -> None:
        if level.watched != watched:
            level.watched = watched
            (self._store.confirmation.watch if watched else self._store.confirmation.unwatch)(
                SCHEDULE_TOPIC, level.queue_id
            )

    def _arrived(self, level: _Level, result: GetResult) -> None:
        level.reading = False
        self._deliver(level, result, self._clock())
        self.on_ready()

    def _deliver(self, level: _Level, result: GetResult, now_ms: int) -> None:
        """Put what was read to its real queues, or have it read again later."""
        if result.status is not GetStatus.FOUND:
            # Skip records that are gone; repeat a read later that made no progress (the readers are busy).
            if result.status is GetStatus.MESSAGE_DAMAGED and result.next_offset == level.offset:
                # All groups share a level: one damaged message must not block those after it.
                self.dropped += 1
                level.offset += 1
                return
            level.retry_ms = 0 if result.next_offset > level.offset else now_ms + RETRY_MS
            level.offset = max(level.offset, result.next_offset)
            return
        if self.escape is not None:
            level.reading, offset = True, level.offset
            self.escape(result.body, lambda moved: self._escaped(level, offset, moved))
            return
        self._moved(
            level,
            self._store.appender.put_waited(result.body, result.count, SCHEDULE_TOPIC, FORBIDDEN_TO_SEND),
            now_ms,
        )

    def _escaped(self, level: _Level, offset: int, moved: MovedOn) -> None:
        """Count what another broker has stored of what was read at `offset`, unless the level's position was
        taken from the master since."""
        level.reading = False
        if level.offset == offset:
            self._moved(level, moved, self._clock())
            if level.done:  # stored elsewhere, so no sync of this log is waited for
                level.saved, self.dirty = level.done[-1][0], True
                level.done.clear()
        self.on_ready()

    def _moved(self, level: _Level, moved: MovedOn, now_ms: int) -> None:
        failed = next((number for number, status in enumerate(moved.statuses) if status not in FINAL), None)
        taken = moved.statuses[:failed]
        delivered = taken.count(PutStatus.PUT_OK)
        level.retry_ms = 0
        if failed is not None:
            self.failures += 1
            level.retry_ms = now_ms + RETRY_MS
        if taken:
            level.offset += len(taken)
            level.done.append((level.offset, moved.log_end))
        self.delivered += delivered
        self.dropped += len(taken) - delivered
        if moved.stored:
            self.on_delivered(moved.stored)

    def facts(self) -> list[LevelFacts]:
        """Return the facts of each level that was ever used."""
        found, now_ms = [], self._clock()
        for number, level in enumerate(self._levels, 1):
            end = self._store.reads.max_offset(SCHEDULE_TOPIC, level.queue_id)
            if end:
                at = max(level.offset, self._store.reads.min_offset(SCHEDULE_TOPIC, level.queue_id))
                head = self._store.reads.read_units(SCHEDULE_TOPIC, level.queue_id, at, 1) if at < end else []
                # A time further ahead than the level's delay is invalid: such a message is delivered at once.
                due_ms = (head[0][2] if head[0][2] <= now_ms + level.delay_ms else now_ms) if head else None
                found.append(
                    LevelFacts(
                        level=number,
                        delay_ms=level.delay_ms,
                        offset=level.offset,
                        max_offset=end,
                        waiting=end - at,
                        due_ms=due_ms,
                    )
                )
        return found

    def waits(self, queue_id: int, queue_offset: int) -> bool | None:
        """True if a message of the schedule topic still waits; None for a level that this broker does not
        have."""
        return queue_offset >= self._levels[queue_id].offset if queue_id < len(self._levels) else None

    def to_json(self) -> dict:
        table = {number: level.saved for number, level in enumerate(self._levels, 1) if level.saved}
        return {"dataVersion": self.data_version.to_json(), "offsetTable": table}

    def unsaved_end(self) -> int:
        """Return how far the log must be synced before all deliveries may be saved; 0 when all are."""
        return max((level.done[-1][1] for level in self._levels if level.done), default=0)

    def picture(self, synced: int) -> Callable[[], bytes] | None:
        """Return a function that makes the file's text for a log synced up to `synced`; None without a
        change."""
        moved, self.dirty = self.dirty, False
        for level in self._levels:
            while level.done and level.done[0][1] <= synced:
                level.saved = level.done.popleft()[0]
                moved = True
        if not moved:
            return None
        if not self.keeps_version:
            self.data_version = self.data_version.next(self._clock())
        value = self.to_json()
        return lambda: config_json.write(value).encode()

    def take_newer(self, text: str) -> bool:
        """Take over the positions of another broker of this name unless those here are newer; of tables that
        are about as new, the greater ones. Return whether any were taken. Raises FormatError."""
        found, version = read_file(text)
        own = self.data_version
        if is_outdated(version, own):
            return False
        is_older = version.is_older_than(own)
        for number, offset in found.items():
            if 1 <= number <= self.max_level:
                level = self._levels[number - 1]
                if not is_older or offset > level.offset:
                    level.offset = level.saved = offset
                    level.done.clear()
        self.data_version, self.dirty = own if is_older else version, True
        return True

    def load(self, text: str) -> None:
        """Take over a delayOffset.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            found, version = read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place; without it and its .bak all that is kept in the delay "
                "queues is delivered again."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self.data_version = version
        for number, offset in found.items():
            if 1 <= number <= self.max_level:
                level = self._levels[number - 1]
                level.offset = level.saved = max(0, offset)
                level.done.clear()


def read_file(text: str) -> tuple[dict[int, int], DataVersion]:
    """Return the offset of each delay level in a delayOffset.json. Raises FormatError."""
    value = config_json.read(text)
    if not isinstance(value, dict):
        raise FormatError("must be an object that holds offsetTable", found=text_excerpt(value))
    version = DataVersion.from_json(value.get("dataVersion"))
    offsets = config_json.int_keys(value.get("offsetTable") or {}, "offsetTable")
    return {number: _offset(offset) for number, offset in offsets.items()}, version


def _offset(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise FormatError("an offset is an integer of 0 to 2^63 - 1", found=text_excerpt(value))
    return value
