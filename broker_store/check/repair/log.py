"""Repair of the log: lengths of files, bridges over damaged parts, missing files, and the cut of the tail."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np

from broker_store.check.log import Stretch
from broker_store.check.places import MAX_MISSING_FILES
from broker_store.check.queue import UNITS_PER_READ, Gap, Queue
from broker_store.check.repair.actions import Action, Bridge, Create, Cut, SetLength, move_away, written_end
from broker_store.check.repair.free_room import Unplaced, put_where_free
from broker_store.check.repair.pieces import Place, laid_out, least_size
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.mapped_file import file_name

MAX_MISSING = 1 << 20  # messages without a unit that get placeholders
_NEVER = 1 << 62


class LogPlan:
    """Plans the actions on the files of the log. What cannot be repaired is noted in `left`, one sentence
    each."""

    def __init__(self, check: StoreCheck, left: list[str]):
        self._check, self._disk, self._log, self._left = check, check.disk, check.log, left
        self._file_size = check.log.file_size

    def empty_log(self, begin: int) -> Iterator[Action]:
        """Continue a log without a record at `begin`.

        The new file is made first: without any log file a start, and the next plan, would expect the old
        ones.
        """
        path = self._check.log_directory / file_name(begin)
        what = (
            f"No record is left: let the log go on at {begin:,}, after all that was there, "
            f"with an empty file."
        )
        yield Create(path, None, 0, what, self._file_size, begin, 0, [])
        for file in self._log.files:
            yield move_away(self._disk, file.path, "Move it out of the store: it holds no record.")

    def lengths(self) -> Iterator[Action]:
        """Give files of a wrong length the right one."""
        for file in self._log.files:
            if file.actual != file.size:
                more = max(0, file.actual - file.size)
                what = (
                    f"Cut the file to {self._file_size:,} bytes."
                    if more
                    else f"Let the file go on with zeros to {self._file_size:,} bytes."
                )
                yield SetLength(file.path, min(file.actual, file.size), more, what, file.size)

    def tail(self) -> Iterator[Action]:
        """Cut the tail, after which no record follows."""
        for stretch in self._log.stretches:
            file = self._log.file_at(stretch.low)
            if stretch.is_tail and file is not None:
                what = (
                    f"Cut the log at {stretch.low:,}: what follows is no record. The file is zero from "
                    f"there on."
                )
                at = stretch.low - file.base
                held = max(0, min(written_end(self._disk, file.path), file.size) - at)
                yield Cut(file.path, at, held, what)

    def bridges(self, restored: set[Stretch]) -> Iterator[Action]:
        """Fill the damaged stretches that have records after them, except those that `restored` makes
        good."""
        stretches = [
            stretch for stretch in self._log.stretches if not stretch.is_tail and stretch not in restored
        ]
        placed = self._places(stretches)
        for stretch in stretches:
            places = placed[stretch]
            file = self._log.file_at(stretch.low)
            if file is None:
                yield from self._missing_files(stretch, places)
                continue
            high = file.end if stretch.closes_file else stretch.high
            at = stretch.low - file.base
            pieces = laid_out(stretch.low, high, places, stretch.closes_file)
            if pieces is None:
                self._left.append(
                    f"{file.path.name} at {at}: {high - stretch.low} bytes are too few for a record that "
                    f"bridges them."
                )
                continue
            what = (
                f"Bridge {high - stretch.low:,} damaged bytes{_placeholders(places)}; what follows stays "
                f"readable."
            )
            held = max(0, min(high, file.base + file.actual) - stretch.low)
            yield Bridge(file.path, at, held, what, file.base, self._time_from(high), pieces)

    def _missing_files(self, stretch: Stretch, places: list[Place]) -> Iterator[Action]:
        count = (stretch.high - stretch.low) // self._file_size
        if count > MAX_MISSING_FILES:
            self._left.append(
                f"{count:,} log files are missing before {file_name(stretch.high)}, more than "
                f"{MAX_MISSING_FILES:,}, which is more than are made again:"
                " move the files on one side of them out of the store."
            )
            return
        for base in range(stretch.low, stretch.high, self._file_size):
            end = base + self._file_size
            here = [place for place in places if base <= place.at < end]
            pieces = laid_out(base, end, here, True)
            assert pieces is not None  # a blank has room in any file
            what = f"Make the missing file again{_placeholders(here)}; the files after it can be read then."
            path = self._check.log_directory / file_name(base)
            yield Create(path, None, 0, what, self._file_size, base, self._time_from(end), pieces)

    def _time_from(self, at: int) -> int:
        """Return the store time of the first record at or after `at`: times never step back along a log, so
        it is right for what is written at `at`."""
        for file in self._log.files:
            if file.end > at:
                found = self._log.record_from(max(at, file.base))
                if found is not None:
                    return found.store_timestamp
        return self._log.newest_ms

    # Which messages lay in a stretch --------------------------------------------------------------

    def _places(self, stretches: list[Stretch]) -> dict[Stretch, list[Place]]:
        """Return the records that queues had in each stretch, in the order of the log."""
        placed: dict[Stretch, list[Place]] = {stretch: [] for stretch in stretches}
        if not stretches:
            return placed
        queues = {key: queue for key, queue in self._check.queues.items() if not queue.is_light}
        known: dict[tuple[str, int], dict[int, Place]] = {}
        for key, queue in queues.items():
            for place in _places_in(queue, stretches):
                known.setdefault(key, {})[place.number] = place
        gaps: dict[tuple[str, int], list[Gap]] = {}
        for gap in self._check.units.gaps:
            gaps.setdefault((gap.topic, gap.queue_id), []).append(gap)
        unplaced: list[Unplaced] = []
        for key, queue in queues.items():
            own = known.get(key, {})
            wanted = sorted(self._wanted(queue, own, gaps.get(key, [])))
            unplaced += _put_where_known(wanted, own, stretches, placed, key)
        # The room between them is known only when each unit has its record again.
        if len(unplaced) > MAX_MISSING:
            self._left.append(
                f"{len(unplaced):,} messages are lost together with their units: start with "
                f"--accept-damage to go on without them."
            )
            unplaced = []
        for place in put_where_free(unplaced, placed):
            self._left.append(
                f"Queue offset {place.number:,} of {place.topic}/{place.queue_id} is in no record, and "
                f"there is no damaged stretch where it could have been: start with --accept-damage to let "
                f"the queue begin after it."
            )
        for places in placed.values():
            places.sort()
        return placed

    def _wanted(self, queue: Queue, own: dict[int, Place], gaps: list[Gap]) -> list[tuple[int, int, int]]:
        """Return (number, log offset after which its record lay, and before which) of each message that the
        queue lacks in the log. `own` are the places that its units name."""
        wanted: list[tuple[int, int, int]] = []
        for gap in gaps:
            if gap.end - gap.first > MAX_MISSING:
                self._left.append(
                    f"Queue offsets {gap.first:,} to {gap.end - 1:,} of {queue} are in no record, "
                    f"too many to put placeholders there."
                )
                continue
            wanted += [(number, gap.after, gap.before) for number in range(gap.first, gap.end)]
        if queue.covered_from is None or queue.next is None:
            return wanted + [(number, -1, _NEVER) for number in sorted(own)]
        first, last = queue.covered_from, queue.next
        while first - 1 in own:
            first -= 1
        while last in own:
            last += 1
        numbers = [*range(first, queue.covered_from), *range(queue.next, last)]
        return wanted + [(number, -1, _NEVER) for number in numbers]


def _put_where_known(
    wanted: list[tuple[int, int, int]],
    own: dict[int, Place],
    stretches: list[Stretch],
    placed: dict[Stretch, list[Place]],
    key: tuple[str, int],
) -> Iterator[Unplaced]:
    """Put each wanted number at the place that its unit names; yield the others."""
    lows = [stretch.low for stretch in stretches]
    ends = dict.fromkeys(stretches, -1)
    for number, after, before in wanted:
        place = own.get(number)
        if place is not None:
            stretch = stretches[bisect.bisect_right(lows, place.at) - 1]
            if after < place.at < before and place.at >= ends[stretch]:
                placed[stretch].append(place)
                ends[stretch] = place.end
                continue
        yield Unplaced(Place(0, least_size(key[0]), *key, number), after, before)


def _places_in(queue: Queue, stretches: list[Stretch]) -> Iterator[Place]:
    """Yield the places of the queue's units that point into one of the stretches."""
    lows = np.array([stretch.low for stretch in stretches], dtype=np.int64)
    highs = np.array([stretch.high for stretch in stretches], dtype=np.int64)
    for first, count in queue.spans(queue.first, queue.end, UNITS_PER_READ):
        units = queue.units(first, count)
        offsets, sizes = units["log_offset"].astype(np.int64), units["size"].astype(np.int64)
        at = np.searchsorted(lows, offsets, side="right") - 1
        inside = (
            (at >= 0)
            & (offsets < highs[at])
            & (sizes >= least_size(queue.key[0]))
            & (offsets + sizes <= highs[at])
        )
        for place in np.flatnonzero(inside):
            yield Place(int(offsets[place]), int(sizes[place]), *queue.key, first + int(place))


def _placeholders(places: list[Place]) -> str:
    """Return words for a sentence: how many placeholders, and where if it is one."""
    if len(places) == 1:
        return (
            f": a placeholder takes the place of {places[0].topic}/{places[0].queue_id} at "
            f"{places[0].number:,}"
        )
    return (
        f": placeholders take the places of {len(places):,} messages"
        if places
        else " with a record that is in no queue"
    )
