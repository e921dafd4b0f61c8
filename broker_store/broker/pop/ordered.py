"""Queues that groups pop in order (docs/spec/pop.md section 8).

    pop in order ──► messages given: the queue is blocked for the group
                       │ all are acknowledged, or visible again
                       ▼
                     free: parked pops of the group read again

The group's position in a queue is its first message without an acknowledgement; acknowledgements move it. So
what is not acknowledged is read again from the queue, in order, and no retry topic is needed.

Each change is stored in the log first. consumerOrderInfo.json has the state some seconds ago, and the log
offset up to which it includes the records; `restore` reads the rest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from broker_store import throttle
from broker_store.broker.pop import order_log
from broker_store.broker.pop.in_flight import InFlight
from broker_store.broker.pop.order_log import OrderLog, Place
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.pop.stored_records import first_at, first_since, records_of
from broker_store.engine.store_protocol import Store
from broker_store.errors import DamagedStoreError, FormatError, LimitError
from broker_store.excerpts import text_excerpt
from broker_store.formats import config_json, order_info
from broker_store.formats.order_info import OrderInfo
from broker_store.messages import PutResult

FILE_NAME = "consumerOrderInfo.json"
_TABLE = "table"
_INCLUDED = "recordsIncluded"  # in the file; Apache's broker ignores it
# Queues of all groups that are blocked, or were not consumed to the end. Each takes a kilobyte at most.
MAX_ENTRIES = 20_000
# A state without a pop for so long is removed, as in Apache's broker.
MAX_IDLE_MS = 86_400_000
# Records that a start without a sound file reads at most, some seconds of work.
MAX_READ = 200_000
CLEAN_INTERVAL_MS = 60_000
CLEANED_PER_STEP = 256
WAKES_PER_STEP = 100


class TooManyOrderedError(LimitError):
    """One more queue popped in order would exceed the bound of all groups together."""

    cause = "limit of queues popped in order"


class Given(NamedTuple):
    """Messages that a pop in order gives. `counts` states how often a message was given before, absent for
    0."""

    put: PutResult
    counts: dict[int, int]


class Changed(NamedTuple):
    """The result of acknowledgements, or of a changed invisible time. `put` is None if nothing changes: the
    messages were acknowledged before, or popped again since. `unknown` are offsets that the group was not
    given."""

    put: PutResult | None
    unknown: list[int]


class OrderedQueues:
    """The state of queues that were popped in order. Loop's thread.

    `exists(group, topic, queue_id)` returns whether these are there. `on_free(place)` is called when a queue
    is not blocked any more, `on_ready()` to request a step. `in_flight` counts messages.
    `max_invisible_ms` is the longest invisible time that a client may choose.
    """

    def __init__(
        self,
        store: Store,
        positions: PopPositions,
        log: OrderLog,
        *,
        clock: Callable[[], int],
        exists: Callable[[Place], bool],
        in_flight: InFlight,
        max_invisible_ms: int = MAX_IDLE_MS,
    ):
        self._store, self._positions, self._exists = store, positions, exists
        self.log, self._in_flight = log, in_flight
        self._table: dict[tuple[str, str], dict[int, OrderInfo]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}  # by group
        self._clients: dict[Place, str | None] = {}  # that popped last since the start, for pages
        self._count = 0
        self._ends: list[tuple[int, Place]] = []  # heap: when a queue may become free
        self._end_of: dict[Place, int] = {}  # the next time in the heap that counts
        self._unchecked: deque[Place] = deque()
        self._cleaned_ms = clock()
        self._included: int | None = None
        self._is_loaded = False
        self._clock, self._max_invisible_ms = clock, max_invisible_ms
        self.dirty = False
        self.on_free: Callable[[Place], None] = lambda place: None
        self.on_ready: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return self._count

    def state(self, place: Place) -> OrderInfo | None:
        """Return the state of a queue for a group; None if nothing of it is to be acknowledged."""
        group, topic, queue_id = place
        info = self._table.get((topic, group), {}).get(queue_id)
        if info is None or (self._positions.next_offset(*place) or 0) < info.next_offset():
            return None  # the group's offset was set back: it wants these messages again
        return info

    def is_blocked(self, place: Place, attempt_id: str | None, now_ms: int) -> bool:
        """Return whether a pop gets nothing of a queue. A repeated attempt gets its messages again."""
        info = self.state(place)
        if info is None or (attempt_id is not None and info.attempt_id == attempt_id):
            return False
        return info.free_ms() > now_ms

    def wanted(self, place: Place, offsets: Sequence[int]) -> list[int]:
        """Return which of these messages are not acknowledged yet."""
        info = self.state(place)
        return [offset for offset in offsets if info is None or not info.is_acked(offset)]

    def queues_of(self, group: str, most: int) -> list[tuple[Place, OrderInfo, str | None]]:
        """Return at most so many queues of a group with messages to be acknowledged, each with its state and
        the client that popped last; None if that was before the start."""
        places = islice(
            (
                (group, topic, queue_id)
                for topic in self._topics_of.get(group, ())
                for queue_id in self._table[topic, group]
            ),
            most,
        )
        return [
            (place, info, self._clients.get(place))
            for place in places
            if (info := self.state(place)) is not None
        ]

    # Changes

    def give(
        self,
        place: Place,
        attempt_id: str | None,
        pop_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
        client: str | None = None,
    ) -> Given:
        """Block a queue, because a pop gives these messages to a client. Raises TooManyOrderedError."""
        before = self.state(place)
        if before is None and self._count >= MAX_ENTRIES:
            raise TooManyOrderedError(
                f"no room for one more queue that group {place[0]:.120} pops in order",
                self._count,
                MAX_ENTRIES,
            )
        info = order_info.following(before, attempt_id, pop_ms, invisible_ms, offsets)
        put = self._put(place, info)
        again = {offset: info.counts[offset] for offset in offsets if offset in info.counts}
        if put.ok:
            self._clients[place] = client
            counts = self._in_flight.counts_of(place[0])
            is_repeated = attempt_id is not None and before is not None and before.attempt_id == attempt_id
            # What a repeated attempt gets again was counted at the first one
            counted = before.offsets if before is not None and is_repeated else ()
            new = [offset for offset in offsets if offset not in counted]
            counts.popped += len(new)
            counts.came_again += sum(offset in again for offset in new)
        return Given(put, again)

    def acknowledge(self, place: Place, offsets: Sequence[int], pop_ms: int) -> Changed:
        """Note that messages of a pop were consumed, and move the group's position."""
        info, unknown = self._of_pop(place, pop_ms), self.unknown(place, offsets, pop_ms)
        wanted = set() if info is None else set(info.left()).intersection(offsets)
        counts = self._in_flight.counts(place[0])
        counts.without_effect += len(offsets) - len(wanted)
        if info is None or not wanted:
            return Changed(None, unknown)
        put = self._put(place, info.acknowledged(offsets))
        counts = self._in_flight.counts_of(place[0])
        counts.acknowledged += len(wanted) * put.ok
        return Changed(put, unknown)

    def unknown(self, place: Place, offsets: Sequence[int], pop_ms: int) -> list[int]:
        """Return the offsets that the group was not given. Those before its position, and those of an earlier
        pop, do not count."""
        position = self._positions.next_offset(*place) or 0
        info = self.state(place)
        if info is None:
            return [offset for offset in offsets if offset >= position]
        if info.pop_ms != pop_ms:
            return []
        return [offset for offset in offsets if offset >= position and not info.has(offset)]

    def _of_pop(self, place: Place, pop_ms: int) -> OrderInfo | None:
        """Return the state that a pop left; None if there is none, or a later one."""
        info = self.state(place)
        return info if info is not None and info.pop_ms == pop_ms else None

    def is_invisible(self, place: Place, offset: int, pop_ms: int) -> bool:
        """Return whether a pop gave the message, and it is not acknowledged since."""
        info = self._of_pop(place, pop_ms)
        return info is not None and offset in info.left()

    def change(self, place: Place, offset: int, pop_ms: int, visible_ms: int) -> Changed:
        """Note when a message of a pop is visible again."""
        info = self._of_pop(place, pop_ms)
        if info is None or offset not in info.left():
            return Changed(None, self.unknown(place, [offset], pop_ms))
        put = self._put(place, info.changed(offset, visible_ms))
        self._in_flight.counts_of(place[0]).changed += put.ok
        return Changed(put, [])

    def clear(self, place: Place) -> None:
        """Forget the state of a queue, because the group's offset was set."""
        group, topic, queue_id = place
        if queue_id in self._table.get((topic, group), {}):
            self.log.put(place, None, self._positions.next_offset(*place))
            self._positions.has_records()
            self._remove(place)

    def _put(self, place: Place, info: OrderInfo) -> PutResult:
        """Store a state, take it over, and move the group's position."""
        next_offset = info.next_offset()
        put = self.log.put(place, info, next_offset)
        if put.ok:
            self._positions.has_records()
            if next_offset > (self._positions.next_offset(*place) or 0):
                self._positions.move(place, next_offset, put.log_offset, put.log_end)
            self._set(place, info)
        return put

    def _set(self, place: Place, info: OrderInfo) -> None:
        group, topic, queue_id = place
        self.dirty = True
        if not info.left():
            self._remove(place)
            self.on_free(place)
            return
        queues = self._table.setdefault((topic, group), {})
        self._topics_of.setdefault(group, {})[topic] = None
        self._count += queue_id not in queues
        queues[queue_id] = info
        self._schedule(place, info.free_ms())

    def _remove(self, place: Place) -> None:
        group, topic, queue_id = place
        queues = self._table.get((topic, group))
        if queues is None or queues.pop(queue_id, None) is None:
            return
        self.dirty = True
        self._count -= 1
        self._end_of.pop(place, None)
        self._clients.pop(place, None)
        if not queues:
            del self._table[topic, group]
            topics = self._topics_of[group]
            del topics[topic]
            if not topics:
                del self._topics_of[group]

    # Time

    def step(self, now_ms: int) -> int | None:
        """Report queues whose blocks ended, and remove old states."""
        for _ in range(WAKES_PER_STEP):
            if not self._ends or self._ends[0][0] > now_ms:
                break
            at_ms, place = heapq.heappop(self._ends)
            if self._end_of.get(place) != at_ms:
                continue
            del self._end_of[place]
            info = self.state(place)
            if info is not None and info.free_ms() > now_ms:
                self._schedule(place, info.free_ms())
            else:
                self.on_free(place)
        if not self._unchecked and now_ms - self._cleaned_ms >= CLEAN_INTERVAL_MS:
            self._cleaned_ms = now_ms
            self._unchecked = deque(self._places())
        for _ in range(min(CLEANED_PER_STEP, len(self._unchecked))):
            self._clean(self._unchecked.popleft(), now_ms)
        if self._unchecked:
            return now_ms + 1
        next_ms = self._cleaned_ms + CLEAN_INTERVAL_MS
        return min(next_ms, max(now_ms, self._ends[0][0])) if self._ends else next_ms

    def _schedule(self, place: Place, at_ms: int) -> None:
        """Have a queue checked at `at_ms`. An earlier check that is scheduled finds the later time."""
        before = self._end_of.get(place)
        if before is not None and before <= at_ms:
            return
        self._end_of[place] = at_ms
        if len(self._ends) > 2 * len(self._end_of) + 64:  # most were replaced by earlier ones
            self._ends = [(end_ms, other) for other, end_ms in self._end_of.items()]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, (at_ms, place))
        if self._ends[0][0] == at_ms:
            self.on_ready()

    def _clean(self, place: Place, now_ms: int) -> None:
        group, topic, queue_id = place
        info = self._table.get((topic, group), {}).get(queue_id)
        if info is not None and (
            not self._exists(place) or now_ms - max(info.consumed_ms, info.free_ms()) > MAX_IDLE_MS
        ):
            self._remove(place)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget the queues of a group, or of a topic, that was deleted."""
        for place in [place for place in self._places() if place[0] == group or place[1] == topic]:
            self._remove(place)

    def _places(self) -> Iterator[Place]:
        return (
            (group, topic, queue_id) for (topic, group), queues in self._table.items() for queue_id in queues
        )

    # Persistence

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the states as they are at its call, in any
        thread."""
        head: dict[str, object] = {_INCLUDED: self._store.log.wrote}

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            return config_json.write_table(head, _TABLE, throttle.in_pieces(self._entries()))

        return text

    def _entries(self) -> Iterator[tuple[str, dict[int, dict[str, object]]]]:
        """Return (topic@group, queue -> object) of all, as of the call. Any thread."""
        for topic, group in list(self._table):
            queues = self._table.get((topic, group), {}).copy()
            yield (
                f"{topic}@{group}",
                {queue_id: order_info.to_json(info) for queue_id, info in queues.items()},
            )

    def load(self, text: str) -> None:
        """Take over a consumerOrderInfo.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            found, included = read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place, or remove it and its .bak: then the states are read from "
                "the records of the log."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self._table = found
        self._topics_of = {}
        for topic, group in found:
            self._topics_of.setdefault(group, {})[topic] = None
        self._count = sum(map(len, found.values()))
        self._included = included
        self._is_loaded = True
        self.dirty = False

    def restore(self, since_ms: int) -> int:
        """Apply the records that the file does not include, and schedule the ends of blocks. Return how many
        queues changed.

        Called at a start, after the positions are restored. `since_ms` is when the positions were saved:
        with a file that does not state what it includes, older records are not read. Without a file those of
        MAX_IDLE_MS are, which have all of it.
        """
        reads, topic = self._store.reads, self.log.topic
        now_ms = self._clock()
        if not self._is_loaded:
            begin = max(
                reads.times.offset_by_time(topic, 0, now_ms - MAX_IDLE_MS),
                reads.max_offset(topic, 0) - MAX_READ,
            )
        elif self._included is None:
            begin = first_since(self._store, topic, 0, since_ms)
        else:
            begin = first_at(self._store, topic, 0, self._included)
        for topic_group in list(self._table):  # of topics and groups that were deleted after the file
            before = self._positions.deleted_before(topic_group[1], topic_group[0])
            if self._included is not None and before >= max(1, self._included):
                for queue_id in list(self._table[topic_group]):
                    self._remove((topic_group[1], topic_group[0], queue_id))
        newest: dict[Place, OrderInfo | None] = {}
        for stored in records_of(self._store, topic, 0, begin, reads.max_offset(topic, 0)):
            try:
                place, info, _ = order_log.decode(stored)
            except FormatError:
                continue  # not written by this broker
            if stored.log_offset >= self._positions.deleted_before(*place[:2]):
                newest[place] = info
        for place, info in newest.items():
            self._remove(place)
            if info is not None:
                self._set(place, info)
        for place in list(self._places()):
            info = self._table[place[1], place[0]][place[2]].before_end(reads.max_offset(*place[1:]))
            self._remove(place)
            # No pop blocks a queue for longer than that: the file is damaged
            is_possible = info is not None and info.free_ms() <= now_ms + self._max_invisible_ms
            if info is not None and is_possible and self._exists(place):
                self._set(place, info)
        # After a power cut the log may end before what the file states
        self.dirty = bool(newest or self._count or (self._included or 0) > self._store.log.wrote)
        return len(newest)


def read_file(text: str) -> tuple[dict[tuple[str, str], dict[int, OrderInfo]], int | None]:
    """Return the states by topic and group and by queue, and up to which log offset the file includes the
    records. Raises FormatError."""
    value, table, _ = config_json.read_table(text, _TABLE)
    included = value.get(_INCLUDED)
    if included is not None and (type(included) is not int or not 0 <= included < 1 << 63):
        raise FormatError(f"{_INCLUDED} is an offset of the log", found=text_excerpt(included))
    found: dict[tuple[str, str], dict[int, OrderInfo]] = {}
    for key, queues in table.items():
        topic, separator, group = str(key).partition("@")
        if not separator:
            raise FormatError("an entry of table is named topic@group", found=text_excerpt(key))
        states = {
            queue_id: info
            for queue_id, state in config_json.int_keys(queues, str(key)).items()
            if (info := order_info.from_json(state)) is not None and info.left()
        }
        if states:
            found[topic, group] = states
    return found, included
