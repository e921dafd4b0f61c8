"""Where the next pop of each queue begins.

    pop ──► pop checkpoint in the log ──► `move`: the next pop begins after it, in memory
                                             │ the log is synced as far
                                             ▼
                                          `settle`: the group's offset is committed

An offset is committed when its pop checkpoint is synced, so no power cut leaves an offset without the record
of the messages below it. The log offset up to which all pop checkpoints are in the offsets is
saved with them; after a kill `restore` reads the pop checkpoints from there on, and no message is given
before its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from broker_store.broker.deleted_groups import DeletedGroups
from broker_store.broker.offsets import Offsets
from broker_store.broker.pop import order_log
from broker_store.broker.pop.log_records import TOO_EARLY, SkippedPopRecords, read_checkpoint
from broker_store.broker.pop.revive_log import NEXT_OFFSET
from broker_store.broker.pop.stored_records import first_at, first_since, records_of
from broker_store.broker.timer_request import parse_long
from broker_store.engine.store_protocol import Store
from broker_store.errors import FormatError
from broker_store.formats import properties, record
from broker_store.formats.pop_records import CHECKPOINT_TAG, REVIVE_GROUP
from broker_store.formats.timer_log import TIMER_TOPIC

Place = tuple[str, str, int]  # group, topic, queue id
# Log that may lie between the saved and the present end of what the offsets include: a start reads it.
MAX_UNSAVED_BYTES = 64 << 20


@dataclass(slots=True, eq=False)
class _Move:
    """A position that is not committed yet. Its record lies in [begin, end) of the log."""

    place: Place
    offset: int
    begin: int
    end: int
    is_dropped: bool = False


class _Found(NamedTuple):
    """Where a record of a pop leaves a position. `is_exact` if it may set it back, too."""

    place: Place
    log_offset: int
    offset: int
    is_exact: bool


class PopPositions:
    """The positions of all groups. Loop's thread.

    `on_set_back(group, topic)` is called when an offset of a group may be lower than before.
    """

    def __init__(self, store: Store, offsets: Offsets, deleted_groups: DeletedGroups):
        self._store, self._offsets, self._deleted_groups = store, offsets, deleted_groups
        self._moves: deque[_Move] = deque()
        self._latest: dict[Place, _Move] = {}
        self.on_set_back: Callable[[str, str], None] = lambda group, topic: None
        self._is_used = False  # True: a queue was popped since the start, or before

    def next_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the next pop begins; None if the group has no offset of this queue."""
        committed = self._offsets.query(group, topic, queue_id)
        move = self._latest.get((group, topic, queue_id))
        if move is None:
            return committed
        return move.offset if committed is None else max(move.offset, committed)

    def move(self, place: Place, offset: int, begin: int, end: int) -> None:
        """Move a position to `offset`, because of a record in [begin, end) of the log."""
        self.has_records()
        move = self._latest[place] = _Move(place, offset, begin, end)
        self._moves.append(move)

    def has_records(self) -> None:
        """Have the log offset saved up to which records of pops are included: the log has some now."""
        self._is_used = True

    def skip(self, place: Place, offset: int) -> None:
        """Move a position past messages that the group does not want, or that are gone. Raises
        TooManyOffsetsError."""
        latest = self._latest.get(place)
        if latest is None:
            self._offsets.commit(*place, offset)
        else:
            self.move(place, offset, latest.end, latest.end)

    def drop(self, group: str, topic: str, queue_id: int | None = None) -> None:
        """Forget positions that are not committed, because the group's offsets of a queue, or of the topic,
        were reset or removed."""
        self._drop(lambda place: place[:2] == (group, topic) and queue_id in (None, place[2]))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit an offset that a client states, and forget positions above it: it may set the group back.
        Return False while a reset is pending. Raises TooManyOffsetsError."""
        before = self.next_offset(group, topic, queue_id)
        latest = self._latest.get((group, topic, queue_id))
        if not self._offsets.commit(group, topic, queue_id, offset):
            return False
        if latest is not None and offset < latest.offset:
            self.drop(group, topic, queue_id)
        if before is not None and offset < before:
            self.on_set_back(group, topic)
        return True

    def drop_topic(self, topic: str) -> None:
        """Forget positions of a deleted topic that are not committed."""
        self._drop(lambda place: place[1] == topic)

    def drop_group(self, group: str) -> None:
        """Forget positions of a deleted group that are not committed."""
        self._drop(lambda place: place[0] == group)

    def deleted_before(self, group: str, topic: str) -> int:
        """Return the log offset below which records of pops are of a deleted topic or group; 0 for none."""
        return max(self._store.tombstones.before(topic), self._deleted_groups.before(group))

    def _drop(self, concerns: Callable[[Place], bool]) -> None:
        for move in self._moves:
            if concerns(move.place):
                move.is_dropped = True
                self._latest.pop(move.place, None)
                self._offsets.dirty = True  # a start must not find the record of this move

    def unsettled_end(self) -> int:
        """Return how far the log must be synced before all positions may be committed; 0 when all are."""
        return max((move.end for move in self._moves), default=0)

    def settle(self, synced: int) -> None:
        """Commit the positions whose records lie below `synced`."""
        moves = self._moves
        while moves and moves[0].end <= synced:
            move = moves.popleft()
            if self._latest.get(move.place) is move:
                del self._latest[move.place]
            before = self._offsets.query(*move.place)
            is_own = move.place[0] == REVIVE_GROUP
            # A group or topic without an offset was deleted meanwhile: its first pop had committed one.
            if not move.is_dropped and (is_own if before is None else move.offset > before):
                self._offsets.commit(*move.place, move.offset, is_own=is_own)
        if not self._is_used:
            return
        included = moves[0].begin if moves else self._store.log.wrote
        if self._offsets.dirty or included - (self._offsets.pops_included or 0) > MAX_UNSAVED_BYTES:
            self._offsets.pops_included = included
            self._offsets.dirty = True

    def restore(self, topic: str, queues: int, order_topic: str, exists: Callable[[str], bool]) -> int:
        """Move the offsets to where the records of pops in the log leave them; return how many moved.

        Called at a start, after the offsets are loaded. `topic` is the revive log, `order_topic` the log of
        pops in order. `exists` returns whether there is a topic of a name.
        """
        begin = self._offsets.pops_included
        found = self._find(topic, queues, order_topic, begin)
        if begin is not None and begin > self._store.log.wrote:
            # A power cut took the end of the log: what comes there now is not included.
            self._offsets.pops_included, self._offsets.dirty = self._store.log.wrote, True
        self._is_used = begin is not None or bool(found)
        moved = 0
        for place, _, offset, is_exact in found.values():
            before = self._offsets.query(*place)
            if exists(place[1]) and (before is None or before < offset or is_exact and before != offset):
                self._offsets.commit(*place, offset)
                moved += 1
        return moved

    def popped_by_master(
        self, topic: str, queues: int, is_stopped: Callable[[], bool]
    ) -> list[tuple[Place, int]]:
        """Return where the newest pops of the master of this slave leave its positions: queues and offsets.
        Any thread but the loop's. `topic` is the revive log."""
        found = self._find(topic, queues, None, self._offsets.pops_included, is_stopped)
        return [(place, offset) for place, _, offset, _ in found.values()]

    def move_on(self, moves: Iterable[tuple[Place, int]], exists: Callable[[str], bool]) -> int:
        """Commit offsets that are after those of their groups; return how many. Raises
        TooManyOffsetsError."""
        moved = 0
        for place, offset in moves:
            if exists(place[1]) and (self._offsets.query(*place) or 0) < offset:
                self._offsets.commit(*place, offset)
                moved += 1
        return moved

    def _find(
        self,
        topic: str,
        queues: int,
        order_topic: str | None,
        begin: int | None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> dict[Place, _Found]:
        """Return what the newest record of a pop of each queue states, of those at or after `begin` in the
        log."""
        skipped = SkippedPopRecords(self._store, TOO_EARLY)
        found: dict[Place, _Found] = {}
        for queue_topic, queue_id in [
            (TIMER_TOPIC, 0),
            *((topic, queue_id) for queue_id in range(queues)),
            *(() if order_topic is None else ((order_topic, 0),)),
        ]:
            for stored in self._records(queue_topic, queue_id, begin):
                if is_stopped():
                    return {}
                try:
                    move = (
                        _next_in_order(stored)
                        if queue_topic == order_topic
                        else self._next_of(stored, topic, is_direct=queue_topic == topic)
                    )
                except FormatError as error:
                    skipped.invalid(stored, error)
                    continue
                if move is None or move.log_offset < self.deleted_before(*move.place[:2]):
                    continue  # also what is of a topic or group that was deleted later
                if move.place not in found or found[move.place].log_offset < move.log_offset:
                    found[move.place] = move
        return found

    def _records(self, topic: str, queue_id: int, begin: int | None) -> Iterator[record.StoredMessage]:
        """Return the records of a queue at or after a log offset, in order.

        None as the offset means that no pop was included when the offsets were saved: then the records
        stored since are returned.
        """
        if begin is None:
            first = first_since(self._store, topic, queue_id, self._offsets.data_version.timestamp)
        else:
            first = first_at(self._store, topic, queue_id, begin)
        return records_of(self._store, topic, queue_id, first, self._store.reads.max_offset(topic, queue_id))

    def _next_of(self, stored: record.StoredMessage, topic: str, *, is_direct: bool) -> _Found | None:
        """Return what the record of a pop states; None for another record. Raises FormatError for one that is
        not valid.

        A record that the timer delivered to the revive log does not count: the one in the timer topic is
        older.
        """
        pairs = stored.properties
        text = pairs.get(NEXT_OFFSET)
        if pairs.get(properties.TAGS) != CHECKPOINT_TAG or text is None:
            return None
        if (properties.TIMER_OUT_MS in pairs) if is_direct else pairs.get(properties.REAL_TOPIC) != topic:
            return None
        checkpoint = read_checkpoint(stored)
        key = checkpoint.key
        after = key.start_offset + max(checkpoint.diffs) + 1
        end = self._store.reads.max_offset(key.topic, key.queue_id)
        offset = parse_long(text)
        if offset is None or offset < 0 or (after <= end and not after <= offset <= end):
            raise FormatError(
                f"{NEXT_OFFSET} of a pop checkpoint", expected=f"{after} to {end}", found=text[:40]
            )
        return _Found((key.group, key.topic, key.queue_id), stored.log_offset, offset, False)


def _next_in_order(stored: record.StoredMessage) -> _Found | None:
    """Return what a record of pops in order states. It may set an offset back: there may have been a reset
    before it."""
    try:
        place, _, offset = order_log.decode(stored)
    except FormatError:
        return None
    return None if offset is None else _Found(place, stored.log_offset, offset, True)
