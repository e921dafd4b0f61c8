"""The plan of a repair: which actions, in which order, and what no repair can restore."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path

from broker_store.check.checkpoint import FILE_NAME as CHECKPOINT
from broker_store.check.checkpoint import read_stamps
from broker_store.check.losses import Losses, losses_of
from broker_store.check.repair.actions import (
    Action,
    Bound,
    Mark,
    Move,
    Plan,
    Rebuild,
    WriteCheckpoint,
    move_away,
)
from broker_store.check.repair.config import ConfigPlan
from broker_store.check.repair.derived import move_index, move_queues
from broker_store.check.repair.headers import HeaderPlan
from broker_store.check.repair.log import LogPlan
from broker_store.check.repair.names import NamePlan
from broker_store.check.repair.timer import TimerPlan
from broker_store.check.report import NOTE
from broker_store.check.walk import StoreCheck, WantedSizes
from broker_store.engine.config_files import DIRECTORY as CONFIG
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.status.file_facts import LOST_AND_FOUND
from broker_store.errors import MisuseError
from broker_store.formats import checkpoint, record
from broker_store.formats.checkpoint import Checkpoint

# Findings that a start which reads the whole log does not repair
_NOT_REPAIRED_BY_STARTS = ("config", "config-missing", "ends-missing", "offset-ahead")


def make_plan(check: StoreCheck, sizes: WantedSizes | None = None) -> Plan:
    """Return the plan for the findings of a check that ran to its end. `sizes` (a FileSizes or settings) are
    used where no file shows them. Raises MisuseError for a check that was stopped."""
    if check.report.stopped:
        raise MisuseError("a check that was stopped knows too little for a plan")
    return _Planner(check, sizes).plan()


class _Planner:
    def __init__(self, check: StoreCheck, sizes: WantedSizes | None):
        self._check, self._report, self._disk, self._root = check, check.report, check.disk, check.root
        self._left: list[str] = []
        found = check.report.sizes
        self._sizes = FileSizes(
            *(getattr(found, one.name) or getattr(sizes, one.name, None) for one in fields(FileSizes))
        )

    def plan(self) -> Plan:
        check, left = self._check, self._left
        if self._find_in_the_way() or self._lacks_the_log():
            # Otherwise the start at the end of a repair would be refused, after everything before it was
            # changed.
            return self._plan_of([], check.log.end, losses_of(check))
        losses = losses_of(check)
        new_begin = self._begin_of_empty_log(losses)
        log_end = check.log.end if new_begin is None else new_begin
        names, headers, log, timer = (
            NamePlan(check),
            HeaderPlan(check),
            LogPlan(check, left),
            TimerPlan(check),
        )
        placed = [*names.places()]
        # All headers first: bridges leave out the stretches that they restore
        restored = [*headers.actions()]
        of_log = (
            [*log.lengths(), *log.bridges(headers.stretches), *restored, *log.tail()]
            if new_begin is None
            else [*log.empty_log(new_begin)]
        )
        derived: list[Action] = [
            *names.strays(),
            *move_queues(check, names, left),
            *move_index(check, changed_log=bool(of_log)),
        ]
        tables = ConfigPlan(check)
        config = [*tables.tables(), *tables.deleted_topics(), *tables.positions()]
        of_timer = [*timer.actions()]
        repaired_by_start = any(
            finding.severity != NOTE
            and finding.kind not in _NOT_REPAIRED_BY_STARTS
            and not timer.is_own(finding)
            for finding in self._report.findings
        )
        if headers.restored:
            losses = losses_of(check, headers.restored)
        actions = [*config, *of_timer]
        if of_log or derived or repaired_by_start:
            following = [*of_log, *derived, *config, self._rebuild(), *of_timer]
            actions = [
                *self._distrust(),
                *(self._forget_times() if of_log or placed else ()),
                *self._bounds(losses, log_end),
                *placed,
                *(names.after_moves(action) for action in following),
            ]
        return self._plan_of(actions, log_end, losses)

    def _plan_of(self, actions: list[Action], log_end: int, losses: Losses) -> Plan:
        check = self._check
        return Plan(
            self._root,
            actions,
            self._left,
            self._sizes,
            check.delay_levels_ms,
            check.log_directory,
            log_end,
            losses,
        )

    # What stops a repair --------------------------------------------------------------------------

    def _find_in_the_way(self) -> bool:
        """Note files of another kind than a start needs, where only a person can decide; return whether there
        are any."""
        for finding in self._report.findings:
            if finding.kind != "unreadable":
                continue
            path = Path(finding.file)
            if path.parent == self._check.log_directory:
                self._left.append(f"{path.name} is no regular file: put the file itself in its place.")
            elif path.parent == self._root / CONFIG:
                self._left.append(
                    f"config/{path.name} is no regular file: put the file itself in its place, or move it "
                    f"out of the store."
                )
            elif path.name == LOST_AND_FOUND:
                self._left.append(
                    f"{LOST_AND_FOUND} beside the store {finding.what}: move it away; what a start "
                    f"takes away goes there."
                )
            elif path.parent == self._root and finding.what != "is no directory":
                self._left.append(f"{path.name} {finding.what}: move it out of the store.")
            elif finding.what == "is no directory":
                self._left.append(
                    f"{path.relative_to(self._root)} is no directory: move it out of the store; a queue's "
                    f"files are made again from the log."
                )
        return bool(self._left)

    def _lacks_the_log(self) -> bool:
        """Note that the log as a whole is missing though the store had one; return whether that is so."""
        gone = next((finding for finding in self._report.findings if finding.kind == "log-missing"), None)
        if gone is not None:
            self._left.append(
                f"{gone.what[:1].upper()}{gone.what[1:]}. Put the files of the log back, or mount "
                f"their disk. Nothing can be made from the log until then;"
                " to go on without it, with new offsets after the old ones, start with --accept-damage."
            )
        return gone is not None

    def _begin_of_empty_log(self, losses: Losses) -> int | None:
        """Return where the log goes on when it holds no record of those that the queues had; None where it
        goes on in the files that it has.

        A start does the same where the log is gone (`engine/start/empty_log.py`). A record whose number is
        larger than the count of records that have room before it counts as damaged, so the numbers that were
        given need room.
        """
        files, file_size = self._check.log.files, self._check.log.file_size
        if self._report.counts["records"] or not losses.next_offsets or not files or not file_size:
            return None
        known = max(
            self._check.ends.position,
            files[-1].end,
            record.MIN_RECORD * max(losses.next_offsets.values()),
        )
        return -(-known // file_size) * file_size

    # Before and after -----------------------------------------------------------------------------

    def _distrust(self) -> Iterator[Action]:
        """Make a start treat nothing of the store as synced if the repair ends in the middle."""
        abort = self._root / "abort"
        if not self._disk.exists(abort):
            what = (
                "Mark the store as not closed in order, so that a start scans all of it if this "
                "repair does not end."
            )
            yield Mark(abort, None, 0, what)
        content, stamps = read_stamps(self._disk, self._root)
        # All good records count as synced: a start that does not reach their end stops instead of cutting,
        # and a record with a NUL in its properties is not treated as torn.
        wanted = Checkpoint(self._check.log.last_ms)
        if stamps != wanted or content is None or len(content) != checkpoint.FILE_BYTES:
            what = (
                "Let the checkpoint say that no queue and no index file is sure, so that the whole log "
                "is read."
            )
            yield WriteCheckpoint(self._root / CHECKPOINT, 0, len(content or b""), what, wanted)

    def _forget_times(self) -> Iterator[Move]:
        """Remove the notes of store times before the log is changed. The next start reads the whole log and
        makes them again."""
        path = self._root / CONFIG / STORE_TIMES
        if self._disk.exists(path):
            what = "Take the note of where store times go back away: it is of the log as it was."
            yield move_away(self._disk, path, what)

    def _bounds(self, losses: Losses, log_end: int) -> Iterator[Bound]:
        """Note numbers that were given and that no file of the repaired store shows."""
        if losses.next_offsets:
            what = (
                f"Note the next offsets of {len(losses.next_offsets):,} queues that lose their last "
                f"messages or units, so that no number is given again: placeholders at the end of the "
                f"log take those of lost messages."
            )
            remade = self._check.ends.remade(
                (key, queue.next, queue.last_at) for key, queue in self._check.queues.items()
            )
            yield Bound(self._root / ENDS, None, 0, what, losses.next_offsets, log_end, remade)

    def _rebuild(self) -> Rebuild:
        sizes = self._sizes
        if all(astuple(sizes)):
            what = (
                f"Read the whole log as a start does, and make from it every unit and every index entry "
                f"that is missing: files of queues have {sizes.mapped_file_size_consume_queue:,} bytes, "
                f"those of the index {sizes.max_hash_slot_num:,} slots and {sizes.max_index_num:,} entries."
            )
            reach = self._check.log.end if self._report.counts["records"] else 0
            return Rebuild(self._root, None, 0, what, reach)
        what = (
            "Leave it to the next start to make queues and index from the log: no file shows how large "
            "their files are."
        )
        return Rebuild(self._root, None, 0, what, None)
