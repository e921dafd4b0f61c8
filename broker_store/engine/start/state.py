"""The data of one start: the loaded parts of the store, and what its steps have found so far.

A step of recovery is a function of a module of this folder. It takes `RecoveryParts`, and `RecoveryState` too
where it reads or writes what other steps found. So its signature says whether it depends on earlier steps.

One thread runs a start, and no other thread uses these objects: nothing here has a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.flusher import CheckpointFile
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.queue.tombstones import Tombstones
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.ends import EndsFile, IndexEnd
from broker_store.engine.start.kept_files import KeptFiles
from broker_store.engine.start.log_begin import LostBegin
from broker_store.engine.start.log_records import LogRecords
from broker_store.engine.start.proof import Proof, Suspect
from broker_store.engine.start.queue_units import QueueUnits
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import LastStart
from broker_store.errors import DamagedStoreError
from broker_store.formats.record import StoredMessage


class Unverified(NamedTuple):
    """Units [first, after) of a queue that lead to bad parts of the log, the last of which ends at
    `log_offset`: no record shows whether they are right."""

    first: int
    after: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Units [first, following) at the end of a queue, whose records state other places; `stated` is the
    record of unit `first`, at `log_offset`."""

    first: int
    following: int
    log_offset: int
    stated: StoredMessage

    def what(self, queue: ConsumeQueue) -> str:
        """Return the sentence of the report."""
        stated = self.stated
        place = (
            f"{stated.topic}/{stated.queue_id} {stated.queue_offset:,}"
            if stated.is_queued
            else "a message that is in no queue"
        )
        more = f", and so do those up to {self.following - 1:,}" if self.following - self.first > 1 else ""
        return (
            f"the record states {place}, and unit {self.first:,} of {queue.topic}/{queue.queue_id} leads "
            f"to it{more}"
        )

    def error(self, queue: ConsumeQueue, log: CommitLog, root: Path) -> DamagedStoreError:
        """Return the error of a start that does not accept damage."""
        file = log.file_holding(self.log_offset)
        return DamagedStoreError(
            self.what(queue) + ": one of the two is damaged",
            file=str(file.path),
            offset=self.log_offset - file.base,
            advice=f"Nothing was changed. `manage.py check_store {root} --plan` shows what a repair would "
            f"do; or start with --accept-damage: the record is taken as right, and"
            " placeholders take the offsets of the units, so that none is given again.",
        )


@dataclass(frozen=True)
class RecoveryParts:
    """The parts of the store, and how the last run of it ended. The references stay; what they refer to
    changes in step 6 and after."""

    disk: Disk  # an inspection has one that changes nothing
    settings: StoreSettings
    context: WriterContext  # words that kernels read and write: topics, queue rows, positions
    log: CommitLog
    queues: ConsumeQueues
    index: HashIndex
    dispatcher: Dispatcher[ConsumeQueue]
    checkpoint: CheckpointFile
    ends: EndsFile  # the record of ends: how far each queue reached when it was last synced
    tombstones: Tombstones  # below which log offset records of a deleted topic count as gone
    times: StoreTimes  # where store times go back along the log
    read_config: Callable[[str], str | None]  # text of a file in config/, None without it
    report: RecoveryReport
    root: Path  # the store's directory, which messages and advice name
    last_start: LastStart  # the newest start before this one of a broker that opened the store
    was_clean: bool  # True if the last run ended in order: there was no `abort` file
    records: LogRecords
    units: QueueUnits
    kept: KeptFiles

    @property
    def compares_all(self) -> bool:
        """True if all queue and index files are compared with the record of ends.

        A start that accepts damage does so too: the next plain start could not build them again from a
        damaged log.
        """
        return self.ends.in_doubt or self.settings.accept_damage

    @property
    def keeps_what_was_written(self) -> bool:
        """True if the last run was killed and the machine was not restarted since: then everything written is
        there."""
        return self.last_start.is_same_boot and not self.was_clean and not self.report.in_use

    @property
    def was_closed_here(self) -> bool:
        """True if a broker of ours opened the store before this start, and it was closed in order."""
        return self.was_clean and self.last_start.started_ms is not None

    @property
    def units_prove_records(self) -> bool:
        """True if a unit that the last run wrote proves that its record was there."""
        if self.was_clean:
            return self.was_closed_here
        return self.last_start.units_prove_records and not self.report.in_use

    @property
    def is_record_gone(self) -> bool:
        """True if the record of ends was removed since the last stop, which wrote one."""
        return self.was_closed_here and not self.ends.is_there


@dataclass
class RecoveryState:
    """Results of steps that later steps use, in the order of the steps that set them."""

    # Compares queues and index with the record of ends. Set before step 1, and again after it, when the begin
    # of the log is known.
    proof: Proof

    # 1. Load -----------------------------------------------------------------------------------------
    # True if the record of ends was there before this start wrote in it
    was_recorded: bool = False
    # True if this engine closed the store, by the last block of the record of ends
    was_closed: bool = False
    # Files that leave the store once the start is sure to go on: to lost+found (an index file of a wrong
    # length, queue files after a missing one), or deleted (of deleted topics, or below the log's begin).
    away: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    # 2. The begin of the log, and the end of each queue -----------------------------------------------
    # True if the log begins at 0 and, by the record of ends, lost nothing before
    has_first_record: bool = False
    # What was lost with the log's first files, where that is accepted
    lost_begin: LostBegin | None = None
    # By queue that differs from the record of ends: from which unit on it is built again
    suspects: dict[ConsumeQueue, Suspect] = field(default_factory=dict)
    # Queues with units after the recorded end, which are reported
    too_long: set[ConsumeQueue] = field(default_factory=set)
    # By queue of which a file was missing: the files after it, which are taken away. Dispatch goes back to
    # where the queue ends now.
    shortened: dict[ConsumeQueue, list[Path]] = field(default_factory=dict)
    # Queue files that were taken away, for the report
    queue_files_gone: int = 0
    # 3. and 4. The scan -------------------------------------------------------------------------------
    # True while the index counts as closed in order, so that it is not compared entry by entry
    trusts_index: bool = False
    # True if the log goes on after bytes that are no good record
    has_bad_part: bool = False
    # By queue: units that lead to such bytes
    unverified: dict[ConsumeQueue, Unverified] = field(default_factory=dict)
    # Store time of the last good record, 0 without one
    last_store_ms: int = 0
    # 5. The decision ----------------------------------------------------------------------------------
    # True if the end of the log is lost, which was accepted
    is_end_lost: bool = False
    # By (topic, queue id): where its recorded units end in the log, of a record that was lowered
    recorded_to: dict[tuple[str, int], int] = field(default_factory=dict)
    # By queue: its last units, if their records state other places
    contradicted: dict[ConsumeQueue, Contradicted] = field(default_factory=dict)
    # By log offset: the number of each queue's first record from there on; a walk of the log gives all of it
    stated_from: dict[int, dict[tuple[str, int], int]] = field(default_factory=dict)
    # Queue and unit before which retention removed all records: dispatch must decide as the rehearsal did
    may_begin_at: set[tuple[ConsumeQueue, int]] = field(default_factory=set)
    # 6. to 8. Changes ---------------------------------------------------------------------------------
    # True from the first change of a file on
    has_changed_files: bool = False
    # Rows of index files that were not read as a whole: a worker compares them later
    unread_index: tuple[IndexEnd, ...] = ()
    # Queues in which this start wrote units for lost messages
    bridged: set[ConsumeQueue] = field(default_factory=set)
    # Queues that are shorter than the record says, and the next offset there: they get placeholders
    missing: list[tuple[ConsumeQueue, int]] = field(default_factory=list)
