"""The repair of a damaged store: a plan of single actions, and their execution.

    check ──► plan: actions in order, what stays unmended ──► apply: copy kept, change, sync, one after the
                                                              other ──► recovery

The log decides what exists, so it is mended first, and queues and index are then made from it by the engine's
own recovery. What was readable before stays readable, at its place in its queue and by its key:

* A *tail* that holds no good record is cut.
* A *damaged stretch* with good records behind it is bridged: nothing may move in a log, and no broker steps
  over what is no record. Where a queue knows a record there, a *placeholder* takes its place in log and
  queue: a message without body or keys whose property REPAIRED says why. (It is as long as the record was:
  more than properties hold are zeros in its body; one with less than 11 bytes for properties has no room for
  it.) So no number of a queue is missing, which neither broker could live with. The rest is filled with
  records that were "rolled back": they are in no queue and in no index. At the end of a file a blank does.
* A sound record that states another queue or number than the unit that points to it gets those of the unit.
* A missing log file between others is made again, of placeholders and a blank.
* A file whose content states another place than its name is renamed, where that place is free, and set aside
  where it is not (`check/places.py`). All other actions are planned for the store as it is then.

A timer log that cannot be believed is moved away with its wheel: the next start takes what waits from the
queue of timer messages (docs/decisions/0035).

What is changed or taken away is first copied or moved to `lost+found/TIME-repair/`, where `manifest.json`
says what came from where. Before the log is touched, `abort` is there and the checkpoint says that nothing is
sure: so a repair that ends in the middle is, to the next check or start, a crash like others, and the same
plan or a smaller one mends the rest (docs/decisions/0030).
"""

from __future__ import annotations

import bisect
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_store.check.checkpoint import read_stamps
from broker_store.check.log import Stretch
from broker_store.check.log_chain import chain_end
from broker_store.check.losses import Losses, losses_of
from broker_store.check.places import MAX_MISSING_FILES
from broker_store.check.queue import Queue
from broker_store.check.report import ERROR, NOTE, Finding
from broker_store.check.rules import QUEUE_OFFSET
from broker_store.check.walk import StoreCheck
from broker_store.config.store import StoreSettings
from broker_store.engine.config_files import BACKUP
from broker_store.engine.disk.disk import Disk
from broker_store.engine.file_facts import LOST_AND_FOUND
from broker_store.engine.file_sizes import FileSizes
from broker_store.engine.log.record_room import MAX_RECORD, ColumnRoom
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.mapped_file import file_name, is_file_name
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.store import MessageStore
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.errors import DamagedStoreError, FormatError, MisuseError, StoreError
from broker_store.formats import (
    checkpoint,
    config_json,
    queue_unit,
    record,
    timer_check,
    timer_log,
    timer_wheel,
)
from broker_store.formats.checkpoint import Checkpoint
from broker_store.formats.queue_unit import LIGHT_QUEUE
from broker_store.messages import Message

FILLER_TOPIC = "repaired"
_FILLER_BYTES = 64 << 10  # of one record that fills a stretch
_LEAST_FILLER = record.MIN_RECORD + 1  # with a topic of one letter
_MOST_PROPERTIES = record.MAX_PROPERTIES
_REASON = "the record that lay here was damaged"
_UNITS_AT_ONCE = 1 << 16
_MOST_SUSPECTS = 1 << 16
_MOST_MISSING = 1 << 20
_MANIFEST = "manifest.json"
# What no reading of the whole log mends
_NOT_OF_A_START = ("config", "config-missing", "ends-missing", "offset-ahead")


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
    """What is written into a stretch: a placeholder, a filler (no `place`) or the blank that closes the
    file."""

    at: int
    size: int
    place: Place | None = None
    is_blank: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan. `bytes` is how many bytes of the store it changes or takes away; a copy of them is
    kept."""

    kind: str
    path: Path
    offset: int | None
    bytes: int
    what: str
    data: object = field(default=None, repr=False)


@dataclass
class Plan:
    """What to do, in order; `left` says what it cannot repair, `losses` which messages are gone for good."""

    root: Path
    actions: list[Action]
    left: list[str]
    sizes: FileSizes
    delay_levels_ms: tuple[int, ...]
    log_directory: Path
    log_end: int
    losses: Losses = Losses()

    def as_dict(self) -> dict:
        return {
            "store": str(self.root),
            "actions": [
                {
                    "number": number,
                    "action": action.kind,
                    "file": self.name_of(action.path),
                    "offset": action.offset,
                    "bytes": action.bytes,
                    "what": action.what,
                }
                for number, action in enumerate(self.actions, 1)
            ],
            "left": self.left,
            "lost": self.losses.as_dict(),
            "bytes": sum(action.bytes for action in self.actions),
            "kept_in": LOST_AND_FOUND if self.actions else None,
        }

    def name_of(self, path: Path) -> str:
        """A file's name below the store."""
        if path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        return f"commitlog/{path.name}" if path.parent == self.log_directory else str(path)


def make_plan(check: StoreCheck, sizes=None) -> Plan:
    """The plan for what a check found that ran to its end. `sizes` (a FileSizes or settings) are used where
    no file shows them."""
    if check.report.stopped:
        raise MisuseError("a check that was stopped knows too little for a plan")
    return _Planner(check, sizes).plan()


class _Planner:
    def __init__(self, check: StoreCheck, sizes):
        self.check, self.report, self.disk, self.root = check, check.report, check.disk, check.root
        self.log_size = check.lists.sizes.get(check.log_directory, 0)
        self._misplaced = check.places.found
        self.left: list[str] = []
        # topic, queue and offset that go into a sound record's header again
        self._restored: list[tuple[str, int, int]] = []
        self._stretches_restored: set[Stretch] = set()  # each of one record that is good with them
        found = self.report.sizes
        self.sizes = FileSizes(
            *(getattr(found, name) or getattr(sizes, name, None) for name in vars_of(FileSizes))
        )

    def plan(self) -> Plan:
        if self._find_in_the_way() or self._lacks_the_log():
            # The start at the end of a repair would be refused, after everything before it was changed.
            return Plan(
                self.root,
                [],
                self.left,
                self.sizes,
                self.check.delay_levels_ms,
                self.check.log_directory,
                self.check.log.end,
                losses_of(self.check),
            )
        losses = losses_of(self.check)
        self._new_begin = self._begin_of_empty_log(losses)
        placed = [*self._places_of_files()]
        headers = list(self._headers())
        log = (
            [*self._lengths(), *self._bridges(), *headers, *self._tail()]
            if self._new_begin is None
            else [*self._empty_log()]
        )
        derived = [*self._strays(), *self._queues(), *self._index(changed_log=bool(log))]
        config = [*self._config(), *self._deleted_topics(), *self._offsets()]
        timer = list(self._timer())
        mended_by_start = any(
            finding.severity != NOTE and finding.kind not in _NOT_OF_A_START and not self._is_timers(finding)
            for finding in self.report.findings
        )
        if self._restored:
            losses = losses_of(self.check, self._restored)
        actions = [*config, *timer]
        if log or derived or mended_by_start:
            following = [*log, *derived, *config, self._rebuild(), *timer]
            actions = [
                *self._distrust(),
                *(self._forget_times() if log or placed else ()),
                *self._bounds(losses),
                *placed,
                *(self._after_moves(action) for action in following),
            ]
        return Plan(
            self.root,
            actions,
            self.left,
            self.sizes,
            self.check.delay_levels_ms,
            self.check.log_directory,
            self._log_end,
            losses,
        )

    # Before and after -----------------------------------------------------------------------------

    def _distrust(self) -> Iterator[Action]:
        abort, path = self.root / "abort", self.root / "checkpoint"
        if not self.disk.exists(abort):
            yield Action(
                "mark",
                abort,
                None,
                0,
                "Mark the store as not closed in order, so that a start looks at all of it if this "
                "repair does not end.",
            )
        content, stamps = read_stamps(self.disk, self.root)
        # All that is good counts as having been on the disk: a start that does not come as far stops instead
        # of cutting, and a record with a NUL in its properties is not taken for torn.
        wanted = Checkpoint(self.check.log.last_ms)
        if stamps != wanted or content is None or len(content) != checkpoint.FILE_BYTES:
            what = (
                "Let the checkpoint say that no queue and no index file is sure, so that the whole log "
                "is read."
            )
            yield Action("checkpoint", path, 0, len(content or b""), what, wanted)

    def _forget_times(self) -> Iterator[Action]:
        """Before the log is another one. The next start reads all of it and notes them again."""
        path = self.root / "config" / STORE_TIMES
        if self.disk.exists(path):
            yield self._away(
                path, "Take the note of where store times go back away: it is of the log as it was."
            )

    def _bounds(self, losses: Losses) -> Iterator[Action]:
        if losses.next_offsets:
            what = (
                f"Note the next offsets of {len(losses.next_offsets):,} queues that lose their last "
                f"messages or units, so that no number is given again: placeholders at the end of the "
                f"log take those of lost messages."
            )
            remade = self.check.ends.remade(
                (key, queue.next, queue.last_at) for key, queue in self.check.queues.items()
            )
            yield Action(
                "bound", self.root / ENDS, None, 0, what, (losses.next_offsets, self._log_end, remade)
            )

    def _rebuild(self) -> Action:
        if all(getattr(self.sizes, name) for name in vars_of(FileSizes)):
            made = (
                f"files of queues have {self.sizes.mapped_file_size_consume_queue:,} bytes, those of the "
                f"index {self.sizes.max_hash_slot_num:,} slots and {self.sizes.max_index_num:,} entries"
            )
            what = (
                f"Read the whole log as a start does, and make from it every unit and every index entry "
                f"that is missing: {made}."
            )
            return Action(
                "rebuild",
                self.root,
                None,
                0,
                what,
                self.check.log.end if self.check.report.counts["records"] else 0,
            )
        what = (
            "Leave it to the next start to make queues and index from the log: no file shows how large "
            "their files are."
        )
        return Action("rebuild", self.root, None, 0, what, None)

    # A log without a record -----------------------------------------------------------------------

    @property
    def _log_end(self) -> int:
        """Where the log ends when it is repaired."""
        return self.check.log.end if self._new_begin is None else self._new_begin

    def _begin_of_empty_log(self, losses: Losses) -> int | None:
        """Where the log goes on when it holds no record of those that the queues had; None where it goes on
        in the files that it has.

        A start does the same where the log is gone (`engine/start/empty_log.py`). A record whose number is
        larger than the count of records that have room before it counts as damaged, so the numbers that were
        given need room.
        """
        if (
            self.report.counts["records"]
            or not losses.next_offsets
            or not self.check.log.files
            or not self.log_size
        ):
            return None
        known = max(
            self.check.ends.position,
            self.check.log.files[-1].base + self.log_size,
            record.MIN_RECORD * max(losses.next_offsets.values()),
        )
        return -(-known // self.log_size) * self.log_size

    def _empty_log(self) -> Iterator[Action]:
        """The new file first: without any log file a start, and the next plan, would wait for the old
        ones."""
        path = self.check.log_directory / file_name(self._new_begin)
        what = (
            f"No record is left: let the log go on at {self._new_begin:,}, behind all that was there, "
            f"with an empty file."
        )
        yield Action("create", path, None, 0, what, (self.log_size, self._new_begin, 0, []))
        for file in self.check.log.files:
            yield self._away(file.path, "Move it out of the store: it holds no record.")

    # Names of files -------------------------------------------------------------------------------

    def _places_of_files(self) -> Iterator[Action]:
        for path in self._misplaced.aside:
            yield self._away(path, "Move it out of the store: where its content belongs, its own file lies.")
        waiting = dict(self._misplaced.moves)
        while waiting:
            free = next((path for path, right in waiting.items() if right not in waiting), None)
            if free is not None:
                chain = [(free, waiting.pop(free))]
            else:  # each lies where another belongs
                first = path = next(iter(waiting))
                chain = []
                while path in waiting:
                    right = waiting.pop(path)
                    chain.append((path, right))
                    path = right
                assert path == first
            what = "; ".join(
                f"Rename {_name_in(self.root, path)} to {_name_in(self.root, right)}: by its content "
                f"it begins there"
                for path, right in chain
            )
            yield Action("rename", chain[0][0], None, 0, f"{what}.", chain)

    def _after_moves(self, action: Action) -> Action:
        """The same action once files have their right names. One that makes a file has the right name
        already."""
        if action.kind == "create":
            return action
        return replace(action, path=self._misplaced.moves.get(action.path, action.path))

    def _now_at(self, right: Path) -> Path:
        return next((path for path, place in self._misplaced.moves.items() if place == right), right)

    def _names(self, directory: Path) -> list[str]:
        """The names in a directory once files are in their right places, by the paths that they have now
        where they are renamed."""
        gone = {*self._misplaced.aside, *self._misplaced.moves}
        # What is no directory is reported
        listed = self.disk.list_names(directory) if self.disk.is_directory(directory) else ()
        names = [name for name in listed if directory / name not in gone]
        return sorted(
            [*names, *(right.name for right in self._misplaced.moves.values() if right.parent == directory)]
        )

    # The log --------------------------------------------------------------------------------------

    def _lengths(self) -> Iterator[Action]:
        for file in self.check.log.files:
            if file.actual != file.size:
                more = max(0, file.actual - file.size)
                what = (
                    f"Cut the file to {self.log_size:,} bytes."
                    if more
                    else f"Let the file go on with zeros to {self.log_size:,} bytes."
                )
                yield Action("length", file.path, min(file.actual, file.size), more, what, file.size)

    def _find_in_the_way(self) -> bool:
        """Note what is of another kind than a start needs, where only a person can say what belongs there;
        whether there is any."""
        for finding in self.report.findings:
            if finding.kind != "unreadable":
                continue
            if Path(finding.file).parent == self.check.log_directory:
                self.left.append(
                    f"{Path(finding.file).name} is no regular file: put the file itself in its place."
                )
            elif Path(finding.file).parent == self.root / "config":
                self.left.append(
                    f"config/{Path(finding.file).name} is no regular file: put the file itself in "
                    f"its place, or move it out of the store."
                )
            elif Path(finding.file).name == LOST_AND_FOUND:
                self.left.append(
                    f"{LOST_AND_FOUND} beside the store {finding.what}: move it away; what a start "
                    f"takes away goes there."
                )
            elif Path(finding.file).parent == self.root and finding.what != "is no directory":
                self.left.append(f"{Path(finding.file).name} {finding.what}: move it out of the store.")
            elif finding.what == "is no directory":
                self.left.append(
                    f"{Path(finding.file).relative_to(self.root)} is no directory: move it out of "
                    f"the store; a queue's files are made again from the log."
                )
        return bool(self.left)

    def _lacks_the_log(self) -> bool:
        """Note that the log as a whole is not there, but that the store had one; whether that is so."""
        gone = next((finding for finding in self.report.findings if finding.kind == "log-missing"), None)
        if gone is not None:
            self.left.append(
                f"{gone.what[:1].upper()}{gone.what[1:]}. Put the files of the log back, or mount "
                f"their disk. Nothing can be made from the log until then;"
                " to go on without it, with new offsets behind the old ones, start with --accept-damage."
            )
        return gone is not None

    def _bridges(self) -> Iterator[Action]:
        stretches = [
            stretch
            for stretch in self.check.log.stretches
            if not stretch.is_tail and stretch not in self._stretches_restored
        ]
        placed = self._places(stretches)
        for stretch in stretches:
            places = placed[stretch]
            file = self._file_at(stretch.low)
            if file is None:
                yield from self._missing_files(stretch, places)
                continue
            high = file.base + self.log_size if stretch.closes_file else stretch.high
            pieces = _laid_out(stretch.low, high, places, stretch.closes_file)
            if pieces is None:
                self.left.append(
                    f"{file.path.name} at {stretch.low - file.base}: {high - stretch.low} bytes are "
                    f"too few for a record that bridges them."
                )
                continue
            what = (
                f"Bridge {high - stretch.low:,} damaged bytes{_placeholders(places)}; what follows stays "
                f"readable."
            )
            held = max(0, min(high, file.base + file.actual) - stretch.low)
            yield Action(
                "bridge",
                file.path,
                stretch.low - file.base,
                held,
                what,
                (file.base, self._time_from(high), pieces),
            )

    def _missing_files(self, stretch: Stretch, places: list[Place]) -> Iterator[Action]:
        count = (stretch.high - stretch.low) // self.log_size
        if count > MAX_MISSING_FILES:
            self.left.append(
                f"{count:,} log files are missing before {file_name(stretch.high)}, more than "
                f"{MAX_MISSING_FILES:,}, which is more than are made again:"
                " move the files on one side of them out of the store."
            )
            return
        for base in range(stretch.low, stretch.high, self.log_size):
            here = [place for place in places if base <= place.at < base + self.log_size]
            pieces = _laid_out(base, base + self.log_size, here, True)
            what = f"Make the missing file again{_placeholders(here)}; the files behind it can be read then."
            path = self.check.log_directory / file_name(base)
            yield Action(
                "create",
                path,
                None,
                0,
                what,
                (self.log_size, base, self._time_from(base + self.log_size), pieces),
            )

    def _places(self, stretches: list[Stretch]) -> dict[Stretch, list[Place]]:
        """The records that queues had in each stretch, in the order of the log."""
        placed: dict[Stretch, list[Place]] = {stretch: [] for stretch in stretches}
        if not stretches:
            return placed
        known: dict[tuple[str, int], dict[int, Place]] = {}
        homeless: list[tuple[Place, int, int]] = []
        queues = {
            key: queue for key, queue in self.check.queues.items() if not key[0].startswith(LIGHT_QUEUE)
        }
        for key, queue in queues.items():
            for number, offset, size in _units_in(queue, stretches):
                known.setdefault(key, {})[number] = Place(offset, size, *key, number)
        ends: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
        for gap in self.check.units.gaps:
            ends.setdefault((gap.topic, gap.queue_id), []).append((gap.first, gap.end, gap.after, gap.before))
        for key, queue in queues.items():
            own = known.get(key, {})
            wanted: list[tuple[int, int, int]] = []  # number, between the records at these two log offsets
            for first, end, after, before in ends.get(key, ()):
                if end - first > _MOST_MISSING:
                    self.left.append(
                        f"Queue offsets {first:,} to {end - 1:,} of {key[0]}/{key[1]} are in no "
                        f"record, too many to put placeholders there."
                    )
                    continue
                wanted += [(number, after, before) for number in range(first, end)]
            if queue.covered_from is None:
                wanted += [(number, -1, 1 << 62) for number in sorted(own)]
            else:
                first = queue.covered_from
                while first - 1 in own:
                    first -= 1
                wanted += [(number, -1, 1 << 62) for number in range(first, queue.covered_from)]
                last = queue.next
                while last in own:
                    last += 1
                wanted += [(number, -1, 1 << 62) for number in range(queue.next, last)]
            homeless += self._put_where_known(sorted(wanted), own, stretches, placed, key)
        # Only when each unit has its record again is the room between them free.
        if len(homeless) > _MOST_MISSING:
            self.left.append(
                f"{len(homeless):,} messages are lost together with their units: start with "
                f"--accept-damage to go on without them."
            )
            homeless = []
        for wanted_place in put_where_free(homeless, placed):
            self.left.append(
                f"Queue offset {wanted_place.number:,} of "
                f"{wanted_place.topic}/{wanted_place.queue_id} is in no record, and there is no "
                f"damaged stretch where it could"
                " have been: start with --accept-damage to let the queue begin behind it."
            )
        for places in placed.values():
            places.sort()
        return placed

    @staticmethod
    def _put_where_known(
        wanted, own: dict[int, Place], stretches: list[Stretch], placed, key
    ) -> Iterator[tuple[Place, int, int]]:
        """Each wanted number at the place that its unit names; yields the others."""
        lows = [stretch.low for stretch in stretches]
        ends = dict.fromkeys(stretches, -1)
        for number, after, before in wanted:
            place = own.get(number)
            stretch = stretches[bisect.bisect_right(lows, place.at) - 1] if place is not None else None
            if place is not None and after < place.at < before and place.at >= ends[stretch]:
                placed[stretch].append(place)
                ends[stretch] = place.end
            else:
                yield Place(0, _least_size(key[0]), *key, number), after, before

    def _time_from(self, at: int) -> int:
        """Store time of the first record at or behind `at`: times never step back along a log, so that of
        what follows is right."""
        for file in self.check.log.files:
            if file.base + file.size > at:
                found = self._record_at(max(at, file.base))
                if found is not None:
                    return found.store_timestamp
        return self.check.log.newest_ms

    def _record_at(self, at: int) -> record.StoredMessage | None:
        file = self._file_at(at)
        if file is None:
            return None
        try:
            with self.disk.open_reader(file.path) as reader:
                head = record.read_head(reader.read(at - file.base, record.BLANK_BYTES))
                size = head.total_size if head.is_record and 0 < head.total_size <= MAX_RECORD else 0
                return (
                    record.decode(reader.read(at - file.base, size), log_offset=at, max_size=MAX_RECORD)
                    if size
                    else None
                )
        except FormatError:
            return None

    def _file_at(self, at: int):
        return next((file for file in self.check.log.files if file.base <= at < file.base + file.size), None)

    def _headers(self) -> Iterator[Action]:
        """Records with a sound body that state another queue or number than the unit that points to them.

        One that is no good record, since its topic is no name, is restored where it is good then; else it is
        bridged.
        """
        done: set[int] = set()
        stretches = sorted(self.check.log.stretches)
        lows = [stretch.low for stretch in stretches]
        out_of_sequence = self._out_of_sequence()
        for place in self._suspects():
            found = self._record_at(place.at)
            if found is None or place.at in done or found.size != place.size:
                continue
            stated = (found.topic, found.queue_id, found.queue_offset, found.is_queued)
            if stated == (place.topic, place.queue_id, place.number, True) or self._is_confirmed(found):
                continue
            if (
                stated[:2] == (place.topic, place.queue_id)
                and found.is_queued
                and place.at not in out_of_sequence
            ):
                continue  # it states the number that follows the record before it: the unit is damaged
            patches = _patches(found, place)
            file = self._file_at(place.at)
            if patches is None:
                continue
            stretch = stretches[number] if (number := bisect.bisect_right(lows, place.at) - 1) >= 0 else None
            if stretch is not None and place.at < stretch.high:
                if (
                    stretch.is_tail
                    or (stretch.low, stretch.high) != (place.at, place.end)
                    or not self._is_good(place, patches)
                ):
                    continue
                self._stretches_restored.add(stretch)
            done.add(place.at)
            self._restored.append((place.topic, place.queue_id, place.number))
            own = f"{found.topic}/{found.queue_id} at {found.queue_offset}" if found.is_queued else "no queue"
            what = (
                f"The record states {own}; its unit says {place.topic}/{place.queue_id} at "
                f"{place.number}. Write that into it."
            )
            at = place.at - file.base
            yield Action(
                "restore",
                file.path,
                at,
                sum(len(data) for _, data in patches),
                what,
                [(at + offset, data) for offset, data in patches],
            )

    def _out_of_sequence(self) -> set[int]:
        """Log offsets of records that do not state the number which follows that of the record before them in
        their queue."""
        bases = {str(file.path): file.base for file in self.check.log.files}
        found = {gap.before for gap in self.check.units.gaps}
        for finding in self.report.findings:
            if finding.kind == QUEUE_OFFSET and finding.file in bases and finding.offset is not None:
                found.add(bases[finding.file] + finding.offset)
        return found

    def _is_good(self, place: Place, patches: list[tuple[int, bytes]]) -> bool:
        """Whether the record at a place is a good one with these bytes in it, by the kernel that a check
        walks the log with."""
        file = self._file_at(place.at)
        with self.disk.open_reader(file.path) as reader:
            raw = bytearray(reader.read(place.at - file.base, place.size))
        for offset, data in patches:
            raw[offset : offset + len(data)] = data
        room = ColumnRoom(1, place.size)  # of keys: each has a byte at least
        room.begin(np.frombuffer(raw, dtype=np.uint8), place.at, place.size + record.BLANK_BYTES)
        room.step(place.size)
        return room.count == 1

    def _suspects(self) -> Iterator[Place]:
        """Units whose number no record of their queue has."""
        spans = [(gap.topic, gap.queue_id, gap.first, gap.end) for gap in self.check.units.gaps]
        for (topic, queue_id), queue in self.check.queues.items():
            spans.append((topic, queue_id, queue.first if queue.next is None else queue.next, queue.end))
            if queue.covered_from is not None:
                spans.append(
                    (
                        topic,
                        queue_id,
                        max(queue.first, queue.covered_from - _MOST_SUSPECTS),
                        queue.covered_from,
                    )
                )
        for topic, queue_id, first, end in spans:
            queue = self.check.queues.get((topic, queue_id))
            if queue is None or topic.startswith(LIGHT_QUEUE):
                continue
            first, end = max(first, queue.first), min(end, queue.end)
            for low in {first, max(first, end - _MOST_SUSPECTS)}:
                units = queue.units(low, max(0, min(_MOST_SUSPECTS, end - low)))
                for place in np.flatnonzero(
                    (units["size"] > 0) & (units["log_offset"] >= self.check.log.start)
                ):
                    yield Place(
                        int(units["log_offset"][place]),
                        int(units["size"][place]),
                        topic,
                        queue_id,
                        low + int(place),
                    )

    def _is_confirmed(self, found: record.StoredMessage) -> bool:
        """Whether the unit where the record says it belongs points to it."""
        queue = self.check.queues.get((found.topic, found.queue_id))
        if queue is None or not queue.first <= found.queue_offset < queue.end or not found.is_queued:
            return False
        return int(queue.units(found.queue_offset, 1)["log_offset"][0]) == found.log_offset

    def _tail(self) -> Iterator[Action]:
        for stretch in self.check.log.stretches:
            if stretch.is_tail:
                file = self._file_at(stretch.low)
                what = (
                    f"Cut the log at {stretch.low:,}: what follows is no record. The file is zero from "
                    f"there on."
                )
                held = max(0, min(self._data_end(file.path), file.size) - (stretch.low - file.base))
                yield Action("cut", file.path, stretch.low - file.base, held, what)

    def _data_end(self, path: Path) -> int:
        region = self.disk.open_region(path, writable=False)
        try:
            return region.data_end()
        finally:
            region.close()

    # What follows from the log --------------------------------------------------------------------

    def _strays(self) -> Iterator[Action]:
        for finding in self.report.findings:
            path = Path(finding.file)
            if finding.kind == "stray-file" or (finding.kind == "file-name" and finding.queue is None):
                yield self._away(path, "Move it out of the store: it does not belong there.")

    def _away(self, path: Path, what: str) -> Action:
        size = 0 if self.disk.is_directory(path) or path.is_symlink() else self.disk.size_of(path)
        return Action("move", path, None, size, what)

    def _queues(self) -> Iterator[Action]:
        for topic, queue_id in sorted(self.report.bad_queues):
            directory = self.root / "consumequeue" / topic / str(queue_id)
            if topic.startswith(LIGHT_QUEUE):
                self.left.append(
                    f"{topic}/{queue_id} is a light queue: its units are of records of other topics "
                    f"and cannot be made from the log."
                )
                continue
            # The newest first: what is left by a repair that ends in the middle is a queue that ends early.
            for name in reversed(self._names(directory)):
                if is_file_name(name):
                    yield self._away(
                        self._now_at(directory / name),
                        f"Take the file away; queue {topic}/{queue_id} is made again from the log.",
                    )

    def _index(self, changed_log: bool) -> Iterator[Action]:
        directory = self.root / "index"
        names = [name for name in self.disk.list_names(directory) if len(name) == 17 and name.isdigit()]
        bad = any(
            finding.kind == "index-starts-late"
            or (
                finding.severity == ERROR
                and finding.kind != "stray-file"
                and Path(finding.file).parent == directory
            )
            for finding in self.report.findings
        )
        if bad or changed_log:
            for name in reversed(names):
                yield self._away(directory / name, "Take the file away; the index is made anew from the log.")

    # Timer messages -------------------------------------------------------------------------------

    def _is_timers(self, finding: Finding) -> bool:
        return finding.kind.startswith("timer-") or finding.file.startswith(
            (f"{self._timer_log}/", str(self.root / timer_wheel.PATH))
        )

    @property
    def _timer_log(self) -> Path:
        return self.root / timer_log.PATH

    def _timer(self) -> Iterator[Action]:
        found = [
            finding
            for finding in self.report.findings
            if finding.severity != NOTE and self._is_timers(finding)
        ]
        if any(finding.kind == "timer-check" and finding.severity == ERROR for finding in found):
            yield self._away(
                self.root / timer_check.PATH,
                "Take it away: those of the last seven days come once more, and none is passed over.",
            )
        in_log = {"timer-chain", "timer-unit", "file-length", "file-name", "file-missing", "unreadable"}
        wheel = self.root / timer_wheel.PATH
        if any(
            finding.kind in in_log and finding.severity == ERROR and Path(finding.file) != wheel
            for finding in found
        ):
            yield from self._without_timer_log(wheel)
        elif any(
            finding.kind in ("timer-wheel", "timer-slot", "timer-slots", "timer-log")
            or Path(finding.file) == wheel
            for finding in found
        ):
            yield from self._new_wheel(wheel, found)

    def _without_timer_log(self, wheel: Path) -> Iterator[Action]:
        """What waits stands in the queue too, and timercheck tells what of it was delivered."""
        path = self.root / timer_check.PATH
        content = self.disk.read_file(path)
        if (
            content is not None
            and len(content) >= timer_check.FILE_BYTES
            and (page := timer_check.decode(content)).log_flushed == 0
        ):
            # A start must see that the timer log falls short of it, to read the queue from its begin.
            what = (
                "Let it say that there was a timer log, so that a start takes the messages from the "
                "queue again."
            )
            yield Action(
                "replace",
                path,
                0,
                len(content),
                what,
                timer_check.encode_page(page._replace(log_flushed=timer_log.SIZE)),
            )
        strays = {
            finding.file for finding in self.report.findings if finding.kind in ("stray-file", "file-name")
        }
        for name in reversed(self.disk.list_names(self._timer_log)):
            if (
                not self.disk.is_directory(self._timer_log / name)
                and str(self._timer_log / name) not in strays
            ):
                yield self._away(
                    self._timer_log / name,
                    "Take the file away; the next start takes what waits from the queue of timer "
                    "messages again.",
                )
        if self.disk.exists(wheel):
            yield self._away(wheel, "Take the wheel away, which is made from the timer log.")

    def _new_wheel(self, wheel: Path, found: list[Finding]) -> Iterator[Action]:
        ends = sorted(
            (Path(finding.file), finding.offset) for finding in found if finding.kind == "timer-log"
        )
        if ends:
            path, at = ends[0]
            for name in reversed(self.disk.list_names(self._timer_log)):
                if name > path.name:
                    yield self._away(
                        self._timer_log / name, "Take the file away: the timer log ends before it."
                    )
            yield Action(
                "cut",
                path,
                at,
                max(0, self._data_end(path) - at),
                "Cut the timer log here; what follows is taken from the queue again.",
            )
        if any(finding.kind == "timer-wheel" or finding.kind == "unreadable" for finding in found):
            yield self._away(wheel, "Take the wheel away: it has a wrong length.")
        size = self.check.lists.sizes.get(self._timer_log)
        if size:
            what = "Make the wheel of timer messages from the timer log."
            yield Action(
                "wheel",
                wheel,
                0,
                self._data_end(wheel) if self._is_whole(wheel) else 0,
                what,
                (size, self.check.log.end),
            )

    def _is_whole(self, wheel: Path) -> bool:
        return (
            self.disk.exists(wheel) and self.disk.size_of(wheel) == timer_wheel.SLOTS * timer_wheel.SLOT_BYTES
        )

    # config/ --------------------------------------------------------------------------------------

    def _config(self) -> Iterator[Action]:
        for finding in self.report.findings:
            if finding.kind != "config" or finding.severity == NOTE:
                continue
            path = Path(finding.file)
            size = self.disk.size_of(path) if self.disk.exists(path) else 0
            if finding.severity != ERROR:
                content = self.disk.read_file(path.with_name(path.name + ".bak"))
                yield Action(
                    "replace", path, 0, size, "Put the copy in its place that is beside it (.bak).", content
                )
            elif path.name == "topics.json":
                what = (
                    "Make the table of topics from the queues: names and numbers of queues are right, "
                    "other settings are the default."
                )
                yield Action("replace", path, 0, size, what, self._topics())
            else:
                # With its bad .bak: that alone would refuse the start.
                name = path.name.removesuffix(BACKUP)
                reader = self.check.config_readers.get(name)
                without = f"; {reader.without}" if reader is not None and reader.without else ""
                for one in (path.with_name(name), path.with_name(f"{name}{BACKUP}")):
                    if self.disk.exists(one):
                        yield self._away(
                            one, f"Move it away: neither {name} nor its copy can be read{without}."
                        )

    def _topics(self) -> bytes:
        counts: dict[str, int] = {}
        for topic, queue_id in self.check.queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        table = {
            topic: {
                "attributes": {},
                "order": False,
                "perm": 6,
                "readQueueNums": count,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
                "writeQueueNums": count,
            }
            for topic, count in sorted(counts.items())
        }
        return config_json.write(
            {"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}, "topicConfigTable": table}
        ).encode()

    def _deleted_topics(self) -> Iterator[Action]:
        """Apache keeps no note of deleted topics; a reading of the whole log would bring their messages
        back."""
        missing = {
            topic: end
            for topic, end in self.check.deleted.to.items()
            if self.check.deleted.before.get(topic, 0) < end
        }
        if missing:
            content = json.dumps({**self.check.deleted.before, **missing}).encode()
            what = (
                f"Note that records of {', '.join(sorted(missing)):.100} up to where their queues begin "
                f"are of deleted topics, so that they stay out."
            )
            yield Action("replace", self.root / "config" / TOMBSTONES, 0, 0, what, content)

    def _offsets(self) -> Iterator[Action]:
        ahead: dict[str, dict[tuple[str, int, str], int]] = {}
        if any(finding.kind == "offset-ahead" for finding in self.report.findings):
            for name, topic, queue_id, group, offset in self.check.positions.all():
                end = self.check.positions.end_of(topic, queue_id)
                if offset > end:
                    ahead.setdefault(name, {})[topic, queue_id, group] = (
                        end if group else self._first_due_late(queue_id, end)
                    )
        bad = {
            finding.file
            for finding in self.report.findings
            if finding.kind == "config" and finding.severity != NOTE
        }
        for name, ends in ahead.items():
            path = self.root / "config" / name
            if str(path) in bad:
                continue  # it is moved away, or its .bak takes its place, whose offsets were not compared
            raw = self.disk.read_file(path) or b"{}"
            value = config_json.read(raw)
            table = value["offsetTable"]
            for (topic, queue_id, group), end in ends.items():
                queues = table[f"{topic}@{group}"] if group else table
                number = queue_id if group else queue_id + 1
                queues[number if number in queues else str(number)] = end
            where = (
                "to the end of the queue, so that the next messages"
                if name == "consumerOffset.json"
                else "to what became due after the level's newest message was stored, so that those that wait"
            )
            what = f"Lower {len(ends):,} offset{'s' if len(ends) > 1 else ''} {where} are not passed over."
            yield Action("replace", path, 0, len(raw), what, config_json.write(value).encode())

    def _first_due_late(self, queue_id: int, end: int) -> int:
        """Where a delay level goes on whose position cannot have been, as a start takes it
        (`Delay._first_due_late`)."""
        queue = self.check.queues.get((queue_unit.SCHEDULE_TOPIC, queue_id))
        if queue is None or queue_id >= len(self.check.delay_levels_ms) or end <= queue.first:
            return end
        due_ms = queue.units(queue.first, end - queue.first)["tags_code"].astype(np.int64)
        late = np.flatnonzero(due_ms > due_ms[-1] - self.check.delay_levels_ms[queue_id])
        return queue.first + int(late[0]) if len(late) else end


def _name_in(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def vars_of(kind) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)


def _placeholders(places: list[Place]) -> str:
    """For a sentence: how many placeholders, and where when it is one."""
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


def _least_size(topic: str) -> int:
    """Bytes of the smallest placeholder of a topic."""
    return record.record_size(Message(topic, 0, b"", b""))


class _FreeRoom:
    """The free parts of damaged stretches, in the order of the log, from which placeholders take their room,
    each from its begin."""

    def __init__(self, placed: dict[Stretch, list[Place]]):
        self._lows: list[int] = []
        self._highs: list[int] = []
        for stretch, places in sorted(placed.items()):
            at = stretch.low
            for place in sorted(places):
                self._add(at, place.at)
                at = max(at, place.end)
            self._add(at, stretch.high - record.BLANK_BYTES if stretch.closes_file else stretch.high)
        # Of each part itself or, once it is full, one towards the next with room
        self._following = list(range(len(self._lows) + 1))
        self._failed: tuple[int, int, int] | None = None

    def _add(self, low: int, high: int) -> None:
        if high - low >= _LEAST_FILLER:  # less holds no record
            self._lows.append(low)
            self._highs.append(high)

    def _with_room(self, number: int) -> int:
        """The first part from `number` on that is not full. Full ones are passed in one step by those who
        come later."""
        passed = []
        while self._following[number] != number:
            passed.append(number)
            number = self._following[number]
        for one in passed:
            self._following[one] = number
        return number

    def take(self, size: int, after: int, before: int) -> tuple[int, int] | None:
        """(log offset, bytes) of the first room for `size` bytes after `after` that ends at or before
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
                taken = size if room - size >= _LEAST_FILLER else room
                self._lows[number] = at + taken
                if self._highs[number] - self._lows[number] < _LEAST_FILLER:
                    self._following[number] = number + 1
                return at, taken
            number = self._with_room(number + 1)
        self._failed = size, after, before
        return None


def put_where_free(homeless: list[tuple[Place, int, int]], placed: dict[Stretch, list[Place]]) -> list[Place]:
    """Place each message between those that neighbour it in its queue; returns those for which there is no
    room.

    `homeless` has of each message the log offsets that its record lay between, and is in order of numbers
    within a queue.
    """
    room = _FreeRoom(placed)
    stretches = sorted(placed)
    lows = [stretch.low for stretch in stretches]
    own: dict[tuple[str, int], list[Place]] = {}
    for places in placed.values():
        for place in places:
            own.setdefault((place.topic, place.queue_id), []).append(place)
    left = []
    for key, group in itertools.groupby(homeless, key=lambda one: (one[0].topic, one[0].queue_id)):
        known = sorted(own.get(key, ()), key=lambda place: place.number)
        # Of the known messages with larger numbers the first in the log, and the end of the last of those
        # with smaller ones.
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


def _units_in(queue: Queue, stretches: list[Stretch]) -> Iterator[tuple[int, int, int]]:
    """(number, log offset, size) of each unit that points into one of the stretches."""
    lows = np.array([stretch.low for stretch in stretches], dtype=np.int64)
    highs = np.array([stretch.high for stretch in stretches], dtype=np.int64)
    for first, count in queue.spans(queue.first, queue.end, _UNITS_AT_ONCE):
        units = queue.units(first, count)
        offsets, sizes = units["log_offset"].astype(np.int64), units["size"].astype(np.int64)
        at = np.searchsorted(lows, offsets, side="right") - 1
        inside = (
            (at >= 0)
            & (offsets < highs[at])
            & (sizes >= _least_size(queue.key[0]))
            & (offsets + sizes <= highs[at])
        )
        for place in np.flatnonzero(inside):
            yield first + int(place), int(offsets[place]), int(sizes[place])


def _laid_out(low: int, high: int, places: list[Place], closes_file: bool) -> list[Piece] | None:
    """Pieces that fill [low, high) without a hole; None when it is too short for any."""
    pieces: list[Piece] = []
    at = low
    end = high - record.BLANK_BYTES if closes_file else high
    for place in places:
        if place.end > end or place.at < at:
            continue
        if 0 < place.at - at < _LEAST_FILLER:  # too little for a record: the placeholder begins earlier
            pieces.append(Piece(at, place.end - at, place))
        else:
            pieces += _fillers(at, place.at)
            pieces.append(Piece(place.at, place.size, place))
        at = place.end
    if closes_file:
        return [*pieces, Piece(at, high - at, is_blank=True)]
    if 0 < high - at < _LEAST_FILLER:
        if not pieces:
            return None
        last = pieces.pop()
        return [*pieces, last._replace(size=high - last.at)]
    return [*pieces, *_fillers(at, high)]


def _fillers(low: int, high: int) -> list[Piece]:
    pieces = []
    while low < high:
        size = high - low if high - low <= _FILLER_BYTES + _LEAST_FILLER else _FILLER_BYTES
        pieces.append(Piece(low, size))
        low += size
    return pieces


def encode_piece(piece: Piece, store_ms: int) -> bytes:
    """The bytes of a piece; a blank's are its head alone."""
    if piece.is_blank:
        return record.encode_blank(piece.size)
    if piece.place is None:
        topic = FILLER_TOPIC[: piece.size - record.MIN_RECORD]
        body = bytes(piece.size - record.MIN_RECORD - len(topic))
        return record.encode(
            Message(topic, 0, body, b"", sys_flag=record.TRANSACTION_ROLLBACK, born_timestamp=store_ms),
            0,
            piece.at,
            store_ms,
        )
    place = piece.place
    room = piece.size - _least_size(place.topic)
    beyond = max(0, room - _MOST_PROPERTIES)
    message = Message(
        place.topic, place.queue_id, bytes(beyond), _padding(room - beyond), born_timestamp=store_ms
    )
    return record.encode(message, place.number, piece.at, store_ms)


def _padding(size: int) -> bytes:
    """Properties of exactly so many bytes: why the message is empty, cut or with spaces after it to fit."""
    room = size - len(b"REPAIRED\x01\x02")
    if room > 0:
        return b"REPAIRED\x01" + _REASON.encode()[:room].ljust(room) + b"\x02"
    return b"-" * size  # readers pass over a piece that is no pair


def _patches(found: record.StoredMessage, place: Place) -> list[tuple[int, bytes]] | None:
    """(offset in the record, bytes) to make it state its place in its queue; None when its topic is of
    another length, or a CRC of the whole record shows that it states what it was stored with."""
    if record.has_record_crc(found.raw_properties):
        return None
    fixed = record.FIXED_IPV4.offset
    patches = []
    if found.topic != place.topic:
        topic = place.topic.encode()
        if len(topic) != len(found.topic.encode()):
            return None
        patches.append(
            (found.size - len(found.raw_properties) - record.PROPERTIES_LENGTH.size - len(topic), topic)
        )
    if found.queue_id != place.queue_id:
        patches.append((fixed["queue_id"], place.queue_id.to_bytes(4, "big")))
    if found.queue_offset != place.number:
        patches.append((fixed["queue_offset"], place.number.to_bytes(8, "big")))
    if not found.is_queued:
        patches.append(
            (record.SYS_FLAG_AT, record.SYS_FLAG.pack(found.sys_flag & ~record.TRANSACTION_PREPARED))
        )
    return patches


class Repair:
    """The execution of a plan on a store that no broker runs on. Raises StoreError; what was done until then
    stays, and is in the manifest."""

    def __init__(
        self,
        plan: Plan,
        disk: Disk | None = None,
        on_step: Callable[[int, Action], None] | None = None,
        now_ms: int | None = None,
    ):
        self._plan, self._disk = plan, disk or Disk()
        self._on_step = on_step or (lambda number, action: None)
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._manifest: list[dict] = []
        self._lock = None
        self.kept_in: Path | None = None

    def run(self) -> None:
        if not self._plan.actions:
            return
        self._lock = self._disk.lock(self._plan.root / "lock")
        try:
            for number, action in enumerate(self._plan.actions, 1):
                self._on_step(number, action)
                getattr(self, f"_{action.kind}")(action)
        finally:
            if self._lock is not None:
                self._lock.release()

    # What is kept ---------------------------------------------------------------------------------

    def _directory(self) -> Path:
        if self.kept_in is None:
            parent = self._plan.root.parent / LOST_AND_FOUND
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._now_ms / 1000)) + "-repair"
            number = 0
            while self._disk.exists(path := parent / (stamp + (f"-{number}" if number else ""))):
                number += 1
            self._disk.make_directory(path)
            self.kept_in = path
        return self.kept_in

    def _note(self, action: Action, kept: Path | None, offset: int | None, length: int) -> None:
        """Into the manifest, before anything is changed."""
        entry = {
            "action": action.kind,
            "file": self._plan.name_of(action.path),
            "offset": offset,
            "bytes": length,
            "kept": kept and kept.name,
            "what": action.what,
        }
        self._manifest.append(entry)
        text = json.dumps(
            {"store": str(self._plan.root), "started_ms": self._now_ms, "actions": self._manifest}, indent=1
        )
        self._disk.replace_file(self._directory() / _MANIFEST, text.encode())

    def _kept_name(self, action: Action, suffix: str = "") -> Path:
        return self._directory() / (self._plan.name_of(action.path).replace("/", ".") + suffix)

    def _keep(self, action: Action, offset: int, length: int) -> None:
        """A copy of a part of a file."""
        if length <= 0:
            self._note(action, None, offset, 0)
            return
        kept = self._kept_name(action, f".from-{offset}")
        region = self._disk.open_region(action.path, writable=False)
        try:
            self._disk.copy_range(region, offset, length, kept)
        finally:
            region.close()
        self._disk.sync_directory(kept.parent)
        self._note(action, kept, offset, length)

    # The actions ----------------------------------------------------------------------------------

    def _mark(self, action: Action) -> None:
        self._note(action, None, None, 0)
        self._disk.write_file(action.path, b"repair")
        self._disk.sync_directory(action.path.parent)

    def _checkpoint(self, action: Action) -> None:
        self._replace_with(action, checkpoint.encode(action.data))

    def _replace(self, action: Action) -> None:
        self._replace_with(action, action.data)

    def _replace_with(self, action: Action, content: bytes) -> None:
        if self._disk.exists(action.path):
            self._keep(action, 0, self._disk.size_of(action.path))
        else:
            self._note(action, None, None, 0)
        self._disk.make_directory(action.path.parent)
        self._disk.replace_file(action.path, content)

    def _length(self, action: Action) -> None:
        self._keep(action, action.data, action.bytes)
        self._disk.set_length(action.path, action.data)

    def _bridge(self, action: Action) -> None:
        base, store_ms, pieces = action.data
        self._keep(action, action.offset, action.bytes)
        region = self._disk.open_region(action.path)
        try:
            self._write(region, base, store_ms, pieces)
        finally:
            region.close()

    def _write(self, region, base: int, store_ms: int, pieces: list[Piece]) -> None:
        low, high = pieces[0].at - base, pieces[-1].at + pieces[-1].size - base
        region.allocate(low, high - low)
        for piece in pieces:
            content = encode_piece(piece, store_ms)
            region.write(piece.at - base, content)
            if piece.is_blank:
                region.punch(piece.at - base + len(content))
        region.sync(low, high - low)

    def _rename(self, action: Action) -> None:
        """Each file of the chain takes its right name. Where the first lies, the last belongs, if they change
        places.

        The first then waits beside the others, under a name that no file has: a repair that ends here leaves
        a file under a wrong name, which the next one finds.
        """
        chain: list[tuple[Path, Path]] = action.data
        self._note(action, None, None, 0)
        (first, right), *others = chain
        waiting = self._free_name(first.parent)
        moves = [(first, waiting), *reversed(others), (waiting, right)] if others else chain
        for source, target in moves:
            if self._disk.exists(target):
                raise StoreError(
                    f"{source} belongs at {target}, where a file lies now: check again, and repair "
                    f"what is found then"
                )
            self._disk.make_directory(target.parent)
            self._disk.rename(source, target)
            self._disk.sync_directory(target.parent)
            self._disk.sync_directory(source.parent)

    def _free_name(self, directory: Path) -> Path:
        """The name of a file behind all others of a directory of the log or of a queue."""
        sizes = self._plan.sizes
        size = (
            sizes.mapped_file_size_commit_log
            if directory == self._plan.log_directory
            else sizes.mapped_file_size_consume_queue
        )
        last = max(int(name) for name in self._disk.list_names(directory) if name.isdigit())
        return directory / file_name((last // size + 1) * size)

    def _create(self, action: Action) -> None:
        """Under another name until it is whole: a part of it would be a log that ends there."""
        size, base, store_ms, pieces = action.data
        if self._disk.exists(action.path):
            raise StoreError(
                f"{action.path} is to be made again, and a file lies there now: check again, and "
                f"repair what is found then"
            )
        self._note(action, None, None, 0)
        fresh = action.path.parent.parent / (action.path.name + ".tmp")
        self._disk.unlink(fresh, missing_ok=True)
        region = self._disk.create_region(fresh, size)
        try:
            if pieces:
                self._write(region, base, store_ms, pieces)
            region.sync(0, size)
        finally:
            region.close()
        self._disk.rename(fresh, action.path)
        self._disk.sync_directory(action.path.parent)

    def _restore(self, action: Action) -> None:
        for number, (offset, content) in enumerate(action.data):
            if number == 0:
                whole = max(at + len(data) for at, data in action.data) - min(at for at, _ in action.data)
                self._keep(action, min(at for at, _ in action.data), whole)
            region = self._disk.open_region(action.path)
            try:
                region.write(offset, content)
                region.sync(offset, len(content))
            finally:
                region.close()

    def _cut(self, action: Action) -> None:
        self._keep(action, action.offset, action.bytes)
        region = self._disk.open_region(action.path)
        try:
            region.punch(action.offset)
            region.sync(action.offset, region.size - action.offset)
        finally:
            region.close()

    def _move(self, action: Action) -> None:
        kept = self._kept_name(action)
        self._note(action, kept, None, action.bytes)
        self._disk.move(action.path, kept)
        self._disk.sync_directory(action.path.parent)

    def _wheel(self, action: Action) -> None:
        """As a start does it: the wheel follows from the timer log."""
        self._keep(action, 0, action.bytes)
        size, log_end = action.data
        files = TimerFiles(self._disk, self._plan.root, size, lambda: 0)
        try:
            files.open(log_end, lambda offset: None)
            files.sync()
        finally:
            files.close()

    def _bound(self, action: Action) -> None:
        """Before the units that say so are changed: they may be all that knows these numbers."""
        self._note(action, None, None, 0)
        ends = EndsFile(self._disk, action.path)
        ends.load()
        next_offsets, log_end, remade = action.data
        ends.bound(next_offsets, log_end, remade)

    def _give_up_lost(self) -> None:
        """What the plan says is lost is not missed by a start. Next offsets stay in the record of ends, so
        none is given twice."""
        ends = EndsFile(self._disk, self._plan.root / ENDS)
        ends.load()
        if ends.found:
            first = min(
                (int(name) for name in self._disk.list_names(self._plan.log_directory) if name.isdigit()),
                default=0,
            )
            # Not below the log's end: of a queue whose records lie after it the start would believe that it
            # was made again.
            ends.lower(min(ends.position, self._plan.log_end), first)

    def _rebuild(self, action: Action) -> None:
        self._note(action, None, None, 0)
        plan, sizes = self._plan, self._plan.sizes
        if action.data is None:
            self._give_up_lost()
            return
        reached = chain_end(self._disk, plan.log_directory, sizes.mapped_file_size_commit_log)
        if reached < action.data:
            raise DamagedStoreError(
                f"the log leads to {reached:,} only, and good records lie up to {action.data:,}: a "
                f"start would take away what lies between",
                file=str(
                    plan.log_directory
                    / file_name(
                        reached // sizes.mapped_file_size_commit_log * sizes.mapped_file_size_commit_log
                    )
                ),
                offset=reached % sizes.mapped_file_size_commit_log,
                advice="Nothing more was changed. Check again, and repair what is found then; what was "
                "changed until here is kept in lost+found.",
            )
        self._give_up_lost()
        settings = StoreSettings(
            store_path_root_dir=plan.root,
            store_path_commit_log=plan.log_directory,
            max_message_size=(16 << 20) - (64 << 10),
            timer_wheel_enable=False,
            message_delay_level=" ".join(f"{ms // 1000}s" for ms in plan.delay_levels_ms),
            **{name: getattr(sizes, name) for name in vars_of(FileSizes)},
        )
        store = MessageStore(settings, disk=self._disk, lock=self._lock)
        self._lock = None  # the store lets go of it
        store.open()
        store.close()
