"""Check of a whole store directory, which changes nothing: is everything there, and does it agree?

    commit log  ── a slice at a time ──►  rows (a record each)  ──►  the unit of its queue, at its queue
                                                                     offset
                                                                └──►  the entries of the index, in order

Each record must be sound (length, magic, own place, body CRC, topic); each that has a place in a queue must
have its unit there, and the queue may hold nothing else; each key must be in the index, and no entry may
point to nothing. So damage of one file shows in the two others. A few slices of the log bound the memory, not
the store.

What the engine's next start repairs by itself (a torn tail, queues or index that lack the end of the log,
after a stop that was not in order) is a *warning*. What needs a decision, or is wrong in a store that was
closed, is an *error*. Of many findings of one kind the first hundred are kept, all are counted.

A store that is in use is checked up to `log_end`: neither what lies after it is checked, nor what waits for
its time (`timer.py`), which changes meanwhile.

The order of a check:

    names and lengths   ends, places, log files, queue files, tombstones, index files
    content             the log with units and index, then what is left of queues and index
    the rest            checkpoint, config/, lock, positions of groups, timer files
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from broker_store.check import rules
from broker_store.check.checkpoint import CheckpointCheck, read_stamps
from broker_store.check.config_files import ConfigCheck, read_json, read_tombstones
from broker_store.check.contradictions import Contradictions
from broker_store.check.deleted_topics import DeletedTopics
from broker_store.check.ends import EndsCheck
from broker_store.check.files import FileLists, named
from broker_store.check.index import IndexCheck
from broker_store.check.index_files import IndexFiles
from broker_store.check.log import Log
from broker_store.check.log_walk import LogWalk
from broker_store.check.places import PlaceCheck
from broker_store.check.positions import Positions
from broker_store.check.queue_ends import QueueEndsCheck
from broker_store.check.queue_files import load_queues
from broker_store.check.queues import UnitsCheck
from broker_store.check.report import ERROR, NOTE, CheckReport
from broker_store.check.store import CheckedStore, Progress, StoppedError
from broker_store.check.timer import TimerFilesCheck
from broker_store.config.store import MIN_LOG_FILE_BYTES
from broker_store.engine import config_files
from broker_store.engine.config_files import ConfigReader
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes, likely_size
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.engine.queue.tombstones import read_file as read_tombstone_file
from broker_store.engine.start.log_begin import holds_nothing, missing_log
from broker_store.engine.start.start_records import LastStart, store_gone
from broker_store.engine.status.file_facts import LOST_AND_FOUND
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import queue_unit
from broker_store.formats.timer_log import TIMER_TOPIC

# Counts that a report has even where they are 0
_COUNTS = (
    "records",
    "blanks",
    "units",
    "entries",
    "log_files",
    "queue_files",
    "queues",
    "index_files",
    "log_bytes",
)


class WantedSizes(Protocol):
    """Sizes that the caller gives, as FileSizes and StoreSettings have them; None where the files show
    them."""

    @property
    def mapped_file_size_commit_log(self) -> int | None: ...
    @property
    def mapped_file_size_consume_queue(self) -> int | None: ...
    @property
    def max_hash_slot_num(self) -> int | None: ...
    @property
    def max_index_num(self) -> int | None: ...


def check_store(
    root: Path,
    sizes: WantedSizes | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    *,
    log_directory: Path | None = None,
    log_end: int | None = None,
    delay_levels_ms: tuple[int, ...] = queue_unit.DEFAULT_DELAY_LEVELS_MS,
    disk: Disk | None = None,
) -> CheckReport:
    """Walk a store and report what is wrong with it.

    Without `sizes` the files show their own. `on_progress(done bytes, total bytes, step)` is called between
    slices, `should_stop()` too: when it is true the report is given as far as it got, with `stopped` set.
    StoreError only when `root` is no directory that can be read.
    """
    return StoreCheck(
        root,
        sizes,
        on_progress,
        should_stop,
        log_directory=log_directory,
        log_end=log_end,
        delay_levels_ms=delay_levels_ms,
        disk=disk,
    ).run()


class StoreCheck:
    """One check. `load` finds the files, `run` does all of it. Afterwards its parts say what a repair needs.

    After `load`: `store`, `lists`, `ends`, `places`, `log`, `queues`, `deleted`, `index_files`, `positions`.
    After `run` also: `units`, `index`, `units_before_log`, `is_synced_beyond`.
    """

    def __init__(
        self,
        root: Path,
        sizes: WantedSizes | None = None,
        on_progress: Callable[[int, int, str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        *,
        noted: FileSizes | None = None,
        last_start: LastStart | None = None,
        log_directory: Path | None = None,
        log_end: int | None = None,
        delay_levels_ms: tuple[int, ...] = queue_unit.DEFAULT_DELAY_LEVELS_MS,
        config_readers: Mapping[str, ConfigReader] = MappingProxyType({}),
        disk: Disk | None = None,
    ):
        """`last_start` is the newest start of a broker that opened this store, `noted` are the sizes that it
        used (see `file_sizes.py`).

        `config_readers` are those of the broker (broker/config_readers.py), by the name of the file in
        config/."""
        self.root, self.disk = Path(root), disk or Disk()
        self.noted, self._last_start = noted or FileSizes(), last_start or LastStart()
        self._wanted = FileSizes(*(getattr(sizes, name, None) for name in FileSizes.__dataclass_fields__))
        self._wanted_timer_bytes: int | None = getattr(sizes, "mapped_file_size_timer_log", None)
        self.log_directory = log_directory or self.root / "commitlog"
        self._limit = log_end
        self.delay_levels_ms = delay_levels_ms
        self._knows_readers = bool(config_readers)
        self.config_readers = {TOMBSTONES: ConfigReader(read_tombstone_file), **config_readers}
        self.report = CheckReport()
        self._progress = Progress(on_progress, should_stop)
        self.units_before_log = 0
        self.is_synced_beyond = False

    def load(self) -> CheckReport:
        """Find all files by name and length, without reading what is in them; return the report so far."""
        if not self.disk.is_directory(self.root):
            raise StoreError(f"{self.root} is no store directory")
        is_unclean = self.disk.exists(self.root / "abort")
        late = rules.late_severity(is_unclean or self._limit is not None)
        # Units that lead beyond the log: an error where their records were there (decision 57).
        proves = self._last_start.units_prove_records and self._limit is None
        self.store = CheckedStore(
            self.root,
            self.log_directory,
            self.disk,
            self.report,
            self._progress,
            is_unclean,
            self._limit,
            late,
            ERROR if proves else late,
        )
        self.lists = FileLists(self.disk, self.report)
        self._check_names()
        self._load()
        return self.report

    def run(self) -> CheckReport:
        """Check all of the store; the report is that of `load` and more."""
        report = self.report
        try:
            self.load()
            self._check_log()
            self.positions.check()
            if not self.store.is_in_use:
                TimerFilesCheck(
                    self.store,
                    self.log,
                    self.lists,
                    self.positions,
                    self.queues.get((TIMER_TOPIC, 0)),
                    self._wanted_timer_bytes,
                ).run()
        except StoppedError:
            report.stopped = True
        for name in _COUNTS:
            report.counts.setdefault(name, 0)
        return report

    def find_referenced_to(self) -> int:
        """Return the log offset up to which the record of ends, the index and the queues refer to records; 0
        when none does.

        After a stop in order the index says as much as queues do. After another one Apache's may lead to old
        records after a cut end of the log; ours, which has a record of ends, is cut with the log.
        """
        is_cut_with_log = not self.store.is_unclean or self.ends.position > 0
        indexed_to = self.index_files.reaches_to if is_cut_with_log and not self.store.is_in_use else 0
        return max(
            [self.ends.position, indexed_to, *(queue.last_record_end for queue in self.queues.values())]
        )

    # Names and lengths ----------------------------------------------------------------------------

    def _check_names(self) -> None:
        """Check the names under which a start writes files of its own."""
        if self.store.is_unclean:
            self.lists.size_of(self.root / "abort")
        try:
            self.disk.require_directory(self.root.parent / LOST_AND_FOUND)
        except DamagedStoreError as error:
            self.report.add(ERROR, "unreadable", error.file, None, error.what)
        for directory in (self.root, self.root / config_files.DIRECTORY):
            for name in self.disk.list_names(directory):
                if name.endswith(".tmp") and self.disk.is_directory(directory / name):
                    what = "is a directory, where a temporary file is written"
                    self.report.add(ERROR, "unreadable", str(directory / name), None, what)

    def _load(self) -> None:
        self.ends = EndsCheck(self.disk, self.root, self.report, self.store.late)
        self.places = PlaceCheck(self.store, self.ends)
        self.log = self._load_log()
        self.queues, queue_file_size = load_queues(
            self.store,
            self.lists,
            self.places,
            self.log,
            self._wanted.mapped_file_size_consume_queue,
            self.noted.mapped_file_size_consume_queue,
        )
        table = read_json(self.disk, self.root, "topics.json").get("topicConfigTable")
        self.deleted = DeletedTopics(
            self.log,
            self.queues,
            read_tombstones(self.disk, self.root),
            set(table) if isinstance(table, dict) else set(),
        )
        self.positions = Positions(self.store, self.log, self.queues, self.deleted)
        self.report.count("queues", len(self.queues))
        self.index_files = IndexFiles(self.store, self.lists, self._wanted, self.noted)
        if not any(file.actual for file in self.log.files):
            self._check_missing_log()
        geometry = self.index_files.geometry
        self.report.sizes = FileSizes(
            self.lists.sizes.get(self.log_directory),
            queue_file_size,
            geometry.slots if geometry else None,
            geometry.entries if geometry else None,
        )
        self._progress.total_bytes = sum(file.size for file in self.log.files) + self.index_files.bytes

    def _load_log(self) -> Log:
        expired = self.ends.expired(self.disk.list_names(self.log_directory), self.log_directory)
        files = [
            file
            for file in self.lists.listed(self.log_directory, "commitlog")
            if file.path.name not in expired
        ]
        size = self._wanted.mapped_file_size_commit_log or likely_size(
            [named(files)], self.noted.mapped_file_size_commit_log, least=MIN_LOG_FILE_BYTES
        )
        files = self.lists.in_order(self.log_directory, self.places.log_files(files, size), size)
        self.report.count("log_files", len(files))
        return Log(self.store, files, self.lists.sizes.get(self.log_directory, 0))

    def _check_missing_log(self) -> None:
        """Report, for a store without a byte of a log, whether it had one."""
        where = str(self.log_directory)
        messages = sum(
            max(queue.end, self.ends.next_offset(*key)) - queue.first for key, queue in self.queues.items()
        )
        messages += self.ends.missing_messages(self.queues)
        started_ms = self._last_start.started_ms
        if started_ms is not None and holds_nothing(self.disk, self.root, self.log_directory):
            what: str | None = store_gone(started_ms)
        else:
            _, stamps = read_stamps(self.disk, self.root)
            what = missing_log(
                self.ends.position,
                stamps.physic_msg_timestamp,
                messages,
                self.index_files.reaches_to > 0,
            )
        if what is None:
            self.report.add(NOTE, "empty", where, None, "there is no commit log file")
        else:
            self.report.add(ERROR, "log-missing", where, None, what)

    # Content --------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        """Check the log with all that is compared with it, then the checkpoint and the tables of config/."""
        store, log = self.store, self.log
        contradictions = Contradictions(log, self.queues)
        self.units = UnitsCheck(
            store, log, self.queues, self.deleted, contradictions, self.ends, self.delay_levels_ms
        )
        self.index = IndexCheck(store, log, self.index_files)
        is_start_known = self._last_start.started_ms is not None
        LogWalk(store, log, self.units, self.index, self.find_referenced_to(), is_start_known).run()
        was_clean = not store.is_unclean and not store.is_in_use
        self.ends.finish(
            self.log_directory,
            log.start,
            log.file_size,
            was_clean,
            log.is_end,
            self._last_start.started_ms,
        )
        queue_ends = QueueEndsCheck(store, log, self.queues, contradictions)
        queue_ends.run()
        self.units_before_log = queue_ends.units_before_log
        self.deleted.count(self.report, contradictions.by_topic)
        self.index.finish()
        checkpoint = CheckpointCheck(store, log)
        checkpoint.run()
        self.is_synced_beyond = checkpoint.is_synced_beyond
        ConfigCheck(store, self.config_readers, self._knows_readers).run(
            {topic for topic, _ in self.queues},
            self.ends.is_final and is_start_known and was_clean,
            self.deleted.before if not store.is_unclean and log.files else None,
        )
        if self.disk.exists(self.root / "lock"):
            self.lists.size_of(self.root / "lock")
