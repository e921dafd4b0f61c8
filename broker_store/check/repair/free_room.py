"""Room in damaged stretches for messages whose units are lost as well."""

from __future__ import annotations

import bisect
import itertools
from typing import NamedTuple

from broker_store.check.log import Stretch
from broker_store.check.repair.pieces import MIN_FILLER_BYTES, Place
from broker_store.formats import record


class Unplaced(NamedTuple):
    """A message that no unit names: `place` has its queue and number and the least size of a placeholder. Its
    record lay between the log offsets `after` and `before`."""

    place: Place
    after: int
    before: int


class _FreeRoom:
    """The free parts of damaged stretches, in the order of the log. Placeholders take their room from the
    begin of each part."""

    def __init__(self, placed: dict[Stretch, list[Place]]):
        self._lows: list[int] = []
        self._highs: list[int] = []
        for stretch, places in sorted(placed.items()):
            at = stretch.low
            for place in sorted(places):
                self._add(at, place.at)
                at = max(at, place.end)
            self._add(at, stretch.high - record.BLANK_BYTES if stretch.closes_file else stretch.high)
        # For each part its own number or, once it is full, that of a later part towards the next with room
        self._following = list(range(len(self._lows) + 1))
        self._failed: tuple[int, int, int] | None = None

    def _add(self, low: int, high: int) -> None:
        if high - low >= MIN_FILLER_BYTES:  # less holds no record
            self._lows.append(low)
            self._highs.append(high)

    def _with_room(self, number: int) -> int:
        """Return the first part from `number` on that is not full. Later calls skip full ones in one step."""
        passed = []
        while self._following[number] != number:
            passed.append(number)
            number = self._following[number]
        for one in passed:
            self._following[one] = number
        return number

    def take(self, size: int, after: int, before: int) -> tuple[int, int] | None:
        """Return (log offset, bytes) of the first room for `size` bytes after `after` that ends at or before
        `before`; None without any."""
        if (
            self._failed is not None
            and size >= self._failed[0]
            and after >= self._failed[1]
            and before <= self._failed[2]
        ):
            return None
        number = self._with_room(bisect.bisect_right(self._highs, after + 1))
        while number < len(self._lows) and self._lows[number] + size <= before:
            at = max(self._lows[number], after + 1)
            room = min(before, self._highs[number]) - at
            if room >= size:
                taken = size if room - size >= MIN_FILLER_BYTES else room
                self._lows[number] = at + taken
                if self._highs[number] - self._lows[number] < MIN_FILLER_BYTES:
                    self._following[number] = number + 1
                return at, taken
            number = self._with_room(number + 1)
        self._failed = size, after, before
        return None


def put_where_free(unplaced: list[Unplaced], placed: dict[Stretch, list[Place]]) -> list[Place]:
    """Place each message between its neighbours in its queue; return those for which there is no room.

    `unplaced` is in order of numbers within a queue.
    """
    room = _FreeRoom(placed)
    stretches = sorted(placed)
    lows = [stretch.low for stretch in stretches]
    own: dict[tuple[str, int], list[Place]] = {}
    for places in placed.values():
        for place in places:
            own.setdefault((place.topic, place.queue_id), []).append(place)
    left = []
    for key, group in itertools.groupby(unplaced, key=lambda one: (one.place.topic, one.place.queue_id)):
        known = sorted(own.get(key, ()), key=lambda place: place.number)
        # In the order of the log: where the first known message with a larger number begins, and where the
        # last one with a smaller number ends.
        first_at = list(itertools.accumulate((place.at for place in reversed(known)), min))[::-1]
        reached, passed = -1, 0
        for wanted, after, before in group:
            while passed < len(known) and known[passed].number < wanted.number:
                reached = max(reached, known[passed].end - 1)
                passed += 1
            found = room.take(
                wanted.size,
                max(after, reached),
                min(before, first_at[passed]) if passed < len(known) else before,
            )
            if found is None:
                left.append(wanted)
                continue
            at, size = found
            reached = at + size - 1
            placed[stretches[bisect.bisect_right(lows, at) - 1]].append(wanted._replace(at=at, size=size))
    return left
