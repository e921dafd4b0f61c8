"""Messages that were popped and are invisible: of which group, until when. For pages, REST and commands.

    pop checkpoint stored ──────────────► `given`   ─┐
    acknowledged, came again, is gone ──► `left`     ├──► the pops of each queue, and counts of each group
    pop checkpoint finished ────────────► `finished`─┘

The log decides what comes again (revive.py). This is a copy of what it has, and is bounded: pops above
MAX_POPS are not kept, and `doubt` says so. After a start the pops of before are found by EarlierPops. What
was popped in order is in ordered.py; only its counts are here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from broker_store.formats.pop_records import PopCheckpoint, PopKey

Place = tuple[str, str, int]  # group, topic, queue id: as in positions.py
# Pops of all groups that are kept, about 700 bytes each.
MAX_POPS = 100_000
# Records kept for one pop that is not found yet: it has at most 32 messages, more of them are repeated.
MAX_EARLY_OF_POP = 64
# Of those that are forgotten together, in one step: about a millisecond of work.
FREED_PER_STEP = 1_000
SEARCHING = "what was popped before the start is being read"


class Left(Enum):
    """Why a message is not invisible any more by a pop."""

    ACKNOWLEDGED = "acknowledged"
    CHANGED = "changed"  # it has another invisible time, by another pop checkpoint
    CAME_AGAIN = "came_again"  # it is stored in a retry topic
    DROPPED = "dropped"  # it is gone, or its topic or group is


@dataclass(slots=True)
class GroupCounts:
    """Messages of a group since the start. `without_effect` are acknowledgements of messages that were not
    invisible any more: they came too late, or twice."""

    popped: int = 0
    acknowledged: int = 0
    changed: int = 0
    came_again: int = 0
    dropped: int = 0
    without_effect: int = 0
    not_kept_until_ms: int = 0  # the latest invisible time of a pop for which there was no room

    def add(self, why: Left, messages: int) -> None:
        """Count messages that are not invisible any more."""
        match why:
            case Left.ACKNOWLEDGED:
                self.acknowledged += messages
            case Left.CHANGED:
                self.changed += messages
            case Left.CAME_AGAIN:
                self.came_again += messages
            case Left.DROPPED:
                self.dropped += messages


class OpenPop:
    """A pop with messages that are invisible. `over` has the bits of those that are not any more. `client` is
    the id of the client, or its address; None if it is not known."""

    __slots__ = ("checkpoint", "client", "over", "revive_queue", "serial")

    def __init__(self, checkpoint: PopCheckpoint, revive_queue: int, client: str | None, serial: int):
        self.checkpoint, self.revive_queue, self.client = checkpoint, revive_queue, client
        self.serial = serial
        self.over = checkpoint.acked

    @property
    def place(self) -> Place:
        key = self.checkpoint.key
        return key.group, key.topic, key.queue_id

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages that are invisible."""
        start = self.checkpoint.key.start_offset
        return [start + diff for i, diff in enumerate(self.checkpoint.diffs) if not self.over >> i & 1]

    def mark(self, offsets: Sequence[int]) -> int:
        """Note that messages are not invisible any more; return how many were."""
        bits = 0
        for offset in offsets:
            index = self.checkpoint.index_of(offset)
            if index is not None:
                bits |= 1 << index
        before, self.over = self.over, self.over | bits
        return (self.over & ~before).bit_count()

    @property
    def size(self) -> int:
        """The number of messages that are invisible."""
        every = (1 << len(self.checkpoint.diffs)) - 1
        return (every & ~self.over).bit_count()


_Leaving = tuple[Sequence[int], int, Left | None]  # queue offsets, revive queue, and why


class InFlight:
    """The pops with invisible messages, by queue, and what became of messages since the start. Loop's
    thread."""

    def __init__(self, max_pops: int = MAX_POPS):
        self._max_pops = max_pops
        self._pops = self._serial = 0
        self._places: dict[Place, dict[PopKey, OpenPop]] = {}
        self._places_of: dict[str, dict[Place, None]] = {}  # by group
        self._places_in: dict[str, dict[Place, None]] = {}  # by topic
        self._groups_of: dict[tuple[str, int], dict[str, None]] = {}  # by topic and queue id
        self._invisible: Counter[Place] = Counter()
        self._counts: dict[str, GroupCounts] = {}
        # Until all pops of before the start are found: what left those that are not found yet
        self._early: dict[PopKey, list[_Leaving]] = {}
        self._is_searching = False
        self._forgotten: list[dict[PopKey, OpenPop]] = []  # `free_some` gives their memory back
        self._not_kept_until_ms = 0  # of all groups
        self.earlier_doubt = ""  # why pops of before the start may be missing; empty: they are not
        self.invisible = 0  # messages of all groups

    # What happens

    def given(
        self,
        checkpoint: PopCheckpoint,
        revive_queue: int,
        client: str | None,
        *,
        changed: PopKey | None = None,
    ) -> None:
        """Note a pop whose pop checkpoint was stored. With `changed` it gives a message of that pop another
        invisible time; the client is the same."""
        if changed is None:
            self.counts_of(checkpoint.key.group).popped += len(checkpoint.diffs)
        elif (before := self._pop_of(changed)) is not None:
            client = before.client
        self._keep(checkpoint, revive_queue, client)

    @property
    def kept(self) -> int:
        """The number of pops that are kept. Any thread."""
        return self._pops

    def found(self, checkpoint: PopCheckpoint, revive_queue: int) -> None:
        """Note a pop checkpoint of before the start that was read in the log; without effect if its pop is
        known."""
        key = checkpoint.key
        if self._pop_of(key) is None:
            self._keep(checkpoint, revive_queue, None)
            for leaving in self._early.pop(key, ()):
                self.left(key, *leaving)

    def _keep(self, checkpoint: PopCheckpoint, revive_queue: int, client: str | None) -> None:
        key = checkpoint.key
        self.finished(key)
        if self._pops >= self._max_pops:
            counts = self.counts_of(key.group)
            counts.not_kept_until_ms = max(counts.not_kept_until_ms, checkpoint.revive_ms)
            self._not_kept_until_ms = max(self._not_kept_until_ms, checkpoint.revive_ms)
            return
        self._serial += 1
        pop = OpenPop(checkpoint, revive_queue, client, self._serial)
        if not pop.size:
            return
        place = pop.place
        pops = self._places.get(place)
        if pops is None:
            pops = self._places[place] = {}
            self._places_of.setdefault(key.group, {})[place] = None
            self._places_in.setdefault(key.topic, {})[place] = None
            self._groups_of.setdefault((key.topic, key.queue_id), {})[key.group] = None
        pops[key] = pop
        self._pops += 1
        self._add(place, pop.size)

    def left(self, key: PopKey, offsets: Sequence[int], revive_queue: int, why: Left | None) -> None:
        """Note that messages of a pop are not invisible any more. `revive_queue` has the record that says so:
        one in another queue than the pop checkpoint has no effect. None as the reason counts nothing."""
        pop = self._pop_of(key)
        if pop is None and why in (Left.CAME_AGAIN, Left.DROPPED):
            # There was no room for it, or it is not found yet, or its group or topic was deleted meanwhile.
            self._count_unknown(key.group, why, len(offsets))
            why = None
        if pop is None and self._is_searching:
            early = self._early.get(key)
            if early is not None:
                if len(early) < MAX_EARLY_OF_POP:
                    early.append((offsets, revive_queue, why))
            elif len(self._early) < self._max_pops:
                self._early[key] = [(offsets, revive_queue, why)]
            return
        if pop is None or pop.revive_queue != revive_queue:
            self._had_no_effect(key.group, len(offsets), why)
            return
        messages = pop.mark(offsets)
        self._add(pop.place, -messages)
        if why is not None:
            counts = self.counts_of(key.group)
            counts.add(why, messages)
            if why is Left.ACKNOWLEDGED:
                counts.without_effect += len(offsets) - messages
        if not pop.size:
            self.finished(key)

    def _count_unknown(self, group: str, why: Left, messages: int) -> None:
        """Count messages of a pop that is not known. Those of a group that does not exist are dropped."""
        if why is Left.CAME_AGAIN or group in self._counts:
            self.counts_of(group).add(why, messages)

    def _had_no_effect(self, group: str, messages: int, why: Left | None) -> None:
        counts = self._counts.get(group)
        # A group that had pops for which there was no room may mean one of these.
        if why is Left.ACKNOWLEDGED and counts is not None and not counts.not_kept_until_ms:
            counts.without_effect += messages

    def finished(self, key: PopKey) -> None:
        """Forget a pop: none of its messages comes again."""
        place = (key.group, key.topic, key.queue_id)
        pops = self._places.get(place, {})
        pop = pops.pop(key, None)
        if pop is None:
            return
        self._pops -= 1
        self._add(place, -pop.size)
        if not pops:
            self._forget_place(place)

    def forget_pops(self, group: str) -> None:
        """Forget what a group popped that was deleted with its offsets."""
        for place in list(self._places_of.get(group, ())):
            self._forget_pops(place)

    def forget_counts(self, group: str) -> None:
        """Forget the counts of a deleted group."""
        self._counts.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Forget what was popped of a deleted topic."""
        for place in list(self._places_in.get(topic, ())):
            self._forget_pops(place)

    def _forget_pops(self, place: Place) -> None:
        pops = self._places[place]
        self._pops -= len(pops)
        self.invisible -= self._invisible[place]
        self._forget_place(place)
        self._forgotten.append(pops)

    @property
    def has_forgotten(self) -> bool:
        """Return whether `free_some` has to be called again."""
        return bool(self._forgotten)

    def free_some(self) -> None:
        """Give back the memory of some forgotten pops: that of 100,000 takes too long for one turn."""
        for _ in range(FREED_PER_STEP):
            if not self._forgotten:
                return
            self._forgotten[-1].popitem()
            if not self._forgotten[-1]:
                self._forgotten.pop()

    def _add(self, place: Place, messages: int) -> None:
        self._invisible[place] += messages
        self.invisible += messages

    def _forget_place(self, place: Place) -> None:
        group, topic, queue_id = place
        del self._places[place], self._invisible[place]
        places = self._places_of[group]
        del places[place]
        if not places:
            del self._places_of[group]
        places = self._places_in[topic]
        del places[place]
        if not places:
            del self._places_in[topic]
        groups = self._groups_of[topic, queue_id]
        del groups[group]
        if not groups:
            del self._groups_of[topic, queue_id]

    # The search for pops of before the start

    def begin_search(self) -> None:
        """From now on, note what leaves pops that are not known: they may be found yet."""
        self._is_searching = True
        self.earlier_doubt = SEARCHING

    def end_search(self, doubt: str) -> None:
        self._is_searching = False
        self._early.clear()
        self.earlier_doubt = doubt

    # What is known

    def counts(self, group: str) -> GroupCounts:
        """Return the counts of a group since the start, also of what it popped in order."""
        return self._counts.get(group) or GroupCounts()

    def doubt(self, group: str | None, now_ms: int) -> str:
        """Return why more messages may be invisible to a group than are known, or to any group; empty if
        there are not."""
        until_ms = self._not_kept_until_ms if group is None else self.counts(group).not_kept_until_ms
        if until_ms > now_ms:
            return f"at most {self._max_pops:,} pops of all groups are kept, and there were more"
        return self.earlier_doubt

    def invisible_of(self, group: str, topic: str | None = None, queue_id: int | None = None) -> int:
        """Return how many messages are invisible to a group, of all topics and queues or of one."""
        if topic is not None and queue_id is not None:
            return self._invisible.get((group, topic, queue_id), 0)
        return sum(
            self._invisible[place] for place in self._places_of.get(group, ()) if topic in (None, place[1])
        )

    def is_invisible(self, key: PopKey, offset: int, revive_queue: int) -> bool:
        """Return whether a message is invisible by a pop that is known, with its records in this queue."""
        pop = self._pop_of(key)
        return pop is not None and pop.revive_queue == revive_queue and offset in pop.offsets()

    def is_known(self, key: PopKey) -> bool:
        """Return whether a pop with invisible messages is known."""
        return self._pop_of(key) is not None

    def invisible_ms(self, key: PopKey) -> int | None:
        """Return the invisible time of a pop with invisible messages; None if it is not known."""
        pop = self._pop_of(key)
        return None if pop is None else pop.checkpoint.invisible_ms

    def pops_of(self, group: str) -> list[OpenPop]:
        """Return the pops of a group with invisible messages."""
        return list(
            chain.from_iterable(self._places[place].values() for place in self._places_of.get(group, ()))
        )

    def pops_in(self, topic: str, queue_id: int) -> list[OpenPop]:
        """Return the pops of all groups with invisible messages of a queue."""
        groups = self._groups_of.get((topic, queue_id), ())
        return list(chain.from_iterable(self._places[group, topic, queue_id].values() for group in groups))

    def counts_of(self, group: str) -> GroupCounts:
        """Return the counts of a group since the start, to be changed."""
        counts = self._counts.get(group)
        if counts is None:
            counts = self._counts[group] = GroupCounts()
        return counts

    def _pop_of(self, key: PopKey) -> OpenPop | None:
        pops = self._places.get((key.group, key.topic, key.queue_id))
        return None if pops is None else pops.get(key)
