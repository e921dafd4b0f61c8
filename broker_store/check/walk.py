"""Checks a store directory from end to end and changes nothing: is everything there, and does it agree?

    commit log  ── a slice at a time ──►  rows (a record each)  ──►  the unit of its queue, at its queue
                                                                     offset
                                                                └──►  the entries of the index, in order

Each record must be sound (length, magic, own place, body CRC, topic); each that has a place in a queue must
have its unit there, and nothing else may stand in the queue; each key must be in the index, and no entry may
point at nothing. So damage of one file is told from the two others. Memory is bounded by a slice of the log,
not by the store.

What the engine's next start would mend by itself (a torn tail, queues or index behind the log, after a stop
that was not orderly) is a *warning*; what needs a decision, or is wrong in a store that was closed, is an
*error*. Of many findings of one kind the first hundred are told, all are counted.

A store that is in use is checked up to `log_end`: what lies behind is not looked at, nor what waits for its
time (`check_timer.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from broker_store.check import rules
from broker_store.check.ends import EndsCheck
from broker_store.check.index import IndexCheck
from broker_store.check.places import PlaceCheck
from broker_store.check.report import ERROR, MOST_TOLD_OF_A_KIND, NOTE, WARNING, CheckReport
from broker_store.check.timer import TimerFilesCheck
from broker_store.config import LEAST_LOG_FILE_BYTES
from broker_store.engine import config_files
from broker_store.engine.config_files import ConfigReader, judged
from broker_store.engine.disk import Disk, Reader
from broker_store.engine.file_facts import LOST_AND_FOUND
from broker_store.engine.file_sizes import FileSizes, NamedFile, likely_size
from broker_store.engine.log.record_room import MAX_RECORD, ColumnRoom
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.engine.queue.tombstones import beyond
from broker_store.engine.queue.tombstones import read_file as read_tombstones
from broker_store.engine.start.log_begin import holds_nothing, missing_log
from broker_store.engine.start.start_records import LastStart, store_gone
from broker_store.errors import DamagedStoreError, FormatError, NameError_, StoreError
from broker_store.formats import checkpoint, config_json, names, properties, queue_unit, record
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.kernels import columns as k
from broker_store.kernels import compare
from broker_store.kernels import context as c

# Log read at once where a record is so large; at least two of the largest must fit, and a usual slice with
# what is taken over
SLICE_BYTES = 32 << 20
USUAL_SLICE_BYTES = 8 << 20
REST_BYTES = 8 << 20  # at most so much of a slice is taken over into the next
ROOMS = 3  # slices in memory: one that is compared, one that becomes rows, one that is copied
ROWS_A_SLICE = 1 << 18
QUEUES_A_SLICE = 256  # compared by compiled code
KEYS_A_SLICE = 1 << 20
ZEROS_AT_ONCE = 1 << 20
UNITS_AT_ONCE = 1 << 16  # of a queue, where they are compared with no record
UNITS_AT_THE_END = 1 << 12  # of a queue, read at once to find its last
CONFIG_BYTES = 256 << 20
_NEVER = 1 << 62
MOST_GAPS = 1 << 16  # remembered for a repair

UNIT = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_TAGS_AT = UNIT.fields["tags_code"][1]

REASONS = {
    c.REASON_NOT_A_RECORD: "no record begins here, the magic is wrong",
    c.REASON_LENGTH: "a length is out of bounds or the parts do not add up",
    c.REASON_PLACE: "the record states another place in the log",
    c.REASON_BODY_CRC: "the body has another CRC",
    c.REASON_SYNTAX: "the topic or the properties hold what they may not",
    c.REASON_RECORD_CRC: "the CRC of the whole record, in its properties, is wrong",
}


class _Stopped(Exception):
    """`should_stop` said so."""


def check_store(
    root: Path,
    sizes=None,
    on_progress: Callable[[int, int, str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    *,
    log_directory: Path | None = None,
    log_end: int | None = None,
    delay_levels_ms: tuple[int, ...] = queue_unit.DEFAULT_DELAY_LEVELS_MS,
    disk: Disk | None = None,
) -> CheckReport:
    """Walk a store and report what is wrong with it.

    `sizes` has the attributes of `FileSizes` (StoreSettings has them); without it the files show their own.
    `on_progress(done bytes, total bytes, step)` is called between slices, `should_stop()` too: when it is
    true the report is given as far as it got, with `stopped` set. StoreError only when `root` is no directory
    that can be read.
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


@dataclass(slots=True)
class StoreFile:
    """A file of a sequence that is named by its start offset. It should have `size` bytes, and has
    `actual`."""

    path: Path
    base: int
    size: int
    actual: int


class Stretch(NamedTuple):
    """A part [low, high) of the log that holds no good record but should: good ones follow, unless it is the
    log's tail."""

    low: int
    high: int
    is_tail: bool = False
    closes_file: bool = False  # it reaches to the end of its file, and the log goes on in the next


class Gap(NamedTuple):
    """Queue offsets [first, end) that no record has, between the records at log offsets `after` (-1: none)
    and `before`."""

    topic: str
    queue_id: int
    first: int
    end: int
    after: int
    before: int


class Queue:
    """The units of one queue, read by number. `next` is the queue offset the log's next record of it must
    have."""

    def __init__(self, disk: Disk, key: tuple[str, int], name: str, files: list[StoreFile]):
        self._disk, self.key, self.name, self.files = disk, key, name, files
        self.first = files[0].base // queue_unit.SIZE if files else 0
        self.next: int | None = None
        self.last_at = -1  # log offset of the record before that
        self.covered_from: int | None = None
        # Behind the highest number of its units that a record states; one of a damaged record may lower
        # `next`
        self.covered_to = 0
        self.life: tuple[int, int] | None = None  # first unit and its record's place, when known
        self.missing: list[list[int]] = []  # runs [first, last] of units the log has records for
        self.end = self._find_end()
        self.last_record_end = self._last_record_end()

    def units(self, first: int, count: int) -> np.ndarray:
        """Units [first, first + count); zeros where there is no file."""
        found = np.empty(count, dtype=UNIT)
        self.read_units(memoryview(found.view(np.uint8)), first)
        return found

    def read_units(self, target: memoryview, first: int) -> None:
        """Fill `target`, which has the length of whole units, with those from `first` on; zeros where there
        is no file."""
        start = first * queue_unit.SIZE
        end = start + len(target)
        files = [file for file in self.files if file.base < end and start < file.base + file.size]
        if len(files) != 1 or start < files[0].base or files[0].base + files[0].size < end:
            target[:] = bytes(len(target))
        for file in files:
            low, high = max(start, file.base), min(end, file.base + file.size)
            count = 0
            try:
                with self._disk.open_reader(file.path) as reader:
                    count = reader.read_into(target[low - start : high - start], low - file.base)
            except StoreError:
                if self._disk.exists(file.path):
                    raise  # else a store in use has deleted it since
            # Of a file that is cut within a unit: its first 12 bytes say where the message is, so its number
            # was given.
            cut = count % queue_unit.SIZE
            kept = low + count - (cut if cut < _TAGS_AT else 0)
            target[kept - start : high - start] = bytes(high - kept)

    def spans(self, first: int, end: int, most: int) -> Iterator[tuple[int, int]]:
        """(first unit, count) of the parts of [first, end) that lie in files, of at most `most` units: a name
        may be far from the others."""
        for file in self.files:
            low = max(first, file.base // queue_unit.SIZE)
            high = min(end, (file.base + file.size) // queue_unit.SIZE)
            for at in range(low, high, most):
                yield at, min(most, high - at)

    def _find_end(self) -> int:
        """The number behind the last unit that holds data, holes or not."""
        for file in reversed(self.files):
            lowest = file.base // queue_unit.SIZE
            end = lowest - (-_data_end(self._disk, file) // queue_unit.SIZE)
            while end > lowest:
                first = max(lowest, end - UNITS_AT_THE_END)
                units = self.units(first, end - first)
                data = np.flatnonzero(
                    (units["size"] != 0) | (units["log_offset"] != 0) | (units["tags_code"] != 0)
                )
                if len(data):
                    return first + int(data[-1]) + 1
                end = first
        return self.first

    def _last_record_end(self) -> int:
        """Where the record of the last unit ends in the log; 0 when the unit is nonsense or there is none."""
        if self.end == self.first:
            return 0
        unit = self.units(self.end - 1, 1)[0]
        if unit["size"] <= 0 or unit["log_offset"] < 0 or unit["size"] == queue_unit.PRE_BLANK_SIZE:
            return 0
        return int(unit["log_offset"]) + int(unit["size"])

    def file_of(self, number: int) -> tuple[str, int]:
        """(path, offset in the file) of a unit, for a finding."""
        at = number * queue_unit.SIZE
        for file in self.files:
            if file.base <= at < file.base + file.size:
                return str(file.path), at - file.base
        return self.name, at


class _Room:
    """Memory for one slice of the log and its rows; what is not used of it is not taken from the system."""

    def __init__(self):
        self.columns = ColumnRoom(ROWS_A_SLICE, KEYS_A_SLICE)
        self.bytes = np.empty(SLICE_BYTES, dtype=np.uint8)
        self.buffer = memoryview(self.bytes)


class _Slice(NamedTuple):
    """What was read of a log file, and its records as rows, up to where they end."""

    data: memoryview
    room: ColumnRoom
    stopped: int


class _Ahead(NamedTuple):
    """A slice that is under way."""

    room: _Room
    copied: Future[int]
    walked: Future[_Slice | None]


class _Slices:
    """Slices of one log file. While one is compared, a thread makes rows of the next, and another copies
    those after it out of the file.

    They run ahead as long as records follow on records. Where they do not, whoever compares says where to go
    on, and they begin anew there. Rows take the most time of the three, so their thread waits for nobody.
    """

    def __init__(self, file: StoreFile, reader: Reader, limit: int | None, rooms: list[_Room]):
        self._file, self._reader = file, reader
        self._end = file.size if limit is None else min(file.size, limit - file.base)
        self._free, self._taken = rooms.copy(), rooms[:0]
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="check-copy")
        self._walker = ThreadPoolExecutor(1, thread_name_prefix="check-walk")
        self._ahead: deque[_Ahead] = deque()
        self._following = 0  # where the first slice ahead begins
        self._copied_to = 0  # where the next one to be copied begins
        # Of the slice that was walked last, behind its last record; None where the next does not go on with
        # it
        self._rest: memoryview | None = None

    def take(self, at: int) -> _Slice:
        """The slice at a position. What was taken before is gone then."""
        self._free += self._taken
        found = self._ahead[0].walked.result() if self._ahead and self._following == at else None
        if found is not None:
            room = self._ahead.popleft().room
        else:
            self._forget_ahead()
            room = self._free.pop()
            found = self._read(at, room)
            self._copied_to, self._rest = at + found.room.at, found.data[:0]
        self._taken = [room]
        self._following = at + found.room.at
        if found.stopped == c.EXHAUSTED and found.room.count:
            self._run_ahead()
        return found

    def _read(self, at: int, room: _Room) -> _Slice:
        columns = room.columns
        for most in (USUAL_SLICE_BYTES, SLICE_BYTES):
            length = min(most, self._end - at)
            data = room.buffer[: self._reader.read_into(room.buffer[:length], at)]
            columns.begin(room.bytes, self._file.base + at, self._file.size - at)
            stopped = columns.step(len(data))
            if columns.count or stopped != c.EXHAUSTED or length < most:
                break
        return _Slice(data, columns, stopped)

    def _run_ahead(self) -> None:
        while self._free and self._copied_to < self._end:
            room, at = self._free.pop(), self._copied_to
            length = min(USUAL_SLICE_BYTES, self._end - at)
            copied = self._copier.submit(
                self._reader.read_into, room.buffer[REST_BYTES : REST_BYTES + length], at
            )
            self._ahead.append(
                _Ahead(room, copied, self._walker.submit(self._walk, room, at, length, copied))
            )
            self._copied_to = at + length

    def _walk(self, room: _Room, at: int, length: int, copied: Future[int]) -> _Slice | None:
        """Rows of what was copied, with the rest of the slice before in front of it; None when the records do
        not just go on here."""
        rest, self._rest = self._rest, None
        if rest is None or len(rest) > REST_BYTES:
            return None
        count, columns, start = copied.result(), room.columns, REST_BYTES - len(rest)
        room.buffer[start:REST_BYTES] = rest
        data = room.buffer[start : REST_BYTES + count]
        columns.begin(room.bytes[start:], self._file.base + at - len(rest), self._file.size - at + len(rest))
        stopped = columns.step(len(data))
        if stopped == c.EXHAUSTED and not columns.count:
            return None  # a record longer than the slice
        if stopped == c.EXHAUSTED and count == length:
            self._rest = data[columns.at :]
        return _Slice(data, columns, stopped)

    def _forget_ahead(self) -> None:
        """Give up what is under way; what of it could not be read is told when it is asked for."""
        while self._ahead:
            room, copied, walked = self._ahead.popleft()
            for future in (walked, copied):
                if not future.cancel():
                    future.exception()
            self._free.append(room)

    def __enter__(self) -> _Slices:
        return self

    def __exit__(self, *_) -> None:
        for thread in (self._walker, self._copier):
            thread.shutdown(cancel_futures=True)


class StoreCheck:
    """One walk. Afterwards its parts say what a repair needs: `log_files`, `queues`, `stretches`, `gaps`,
    `newest_ms`, `log_end`."""

    def __init__(
        self,
        root: Path,
        sizes=None,
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
        self.wanted, self.noted, self._last_start = sizes, noted or FileSizes(), last_start or LastStart()
        self.on_progress, self.should_stop = on_progress, should_stop
        self.log_directory = log_directory or self.root / "commitlog"
        self._records_to_read = rules.MOST_CONTRADICTED
        self.limit = log_end
        self.delay_levels_ms = delay_levels_ms
        self._knows_readers = bool(config_readers)
        self.config_readers = {TOMBSTONES: ConfigReader(read_tombstones), **config_readers}
        self.report = CheckReport()
        self.damaged: list[tuple[int, int]] = []  # of the log: what is known to hold no good record
        self.stretches: list[Stretch] = []
        self.gaps: list[Gap] = []
        self._topic_begins: dict[str, int] = {}
        # Where the records of a deleted topic end, by what the queues say
        self.deleted_to: dict[str, int] = {}
        self._deleted_records: Counter[str] = Counter()  # by topic
        # By the topic that they state, log offsets of records that another queue's unit leads to
        self._misplaced_records: dict[str, set[int]] = {}
        self.topics: dict[int, str] = {}  # by the hash the kernel gives
        self.file_sizes: dict[Path, int] = {}  # what each file of a directory should have
        # Queue files whose name is no multiple of the file size
        self.misnamed: dict[tuple[str, int], list[StoreFile]] = {}
        self.newest_ms = 0
        self.last_ms = 0  # store time of the last good record in the order of the log
        # Whether the checkpoint says that a record younger than all that are left was on the disk
        self.is_synced_beyond = False
        self.units_before_log = 0
        # By the base of a log file: whether files after it hold records
        self._has_later: dict[int, bool] = {}
        self.done_bytes = self.total_bytes = 0

    def load(self) -> CheckReport:
        """Names and lengths of all files alone, without what is in them."""
        if not self.disk.is_directory(self.root):
            raise StoreError(f"{self.root} is no store directory")
        self.unclean = self.disk.exists(self.root / "abort")
        self._check_names()
        # What a start mends by itself after such a stop is no error.
        self.behind = rules.late_severity(self.unclean or self.limit is not None)
        # Units that lead beyond the log: an error where their records were there (decision 57).
        self.beyond = ERROR if self._last_start.units_prove_records and self.limit is None else self.behind
        self._load()
        return self.report

    def _check_names(self) -> None:
        """Names under which a start writes files of its own."""
        if self.unclean:
            self.size_of(self.root / "abort", None)
        try:
            self.disk.demand_directory(self.root.parent / LOST_AND_FOUND)
        except DamagedStoreError as error:
            self.report.add(ERROR, "unreadable", error.file, None, error.what)
        for directory in (self.root, self.root / config_files.DIRECTORY):
            for name in self.disk.list_names(directory):
                if name.endswith(".tmp") and self.disk.is_directory(directory / name):
                    self.report.add(
                        ERROR,
                        "unreadable",
                        str(directory / name),
                        None,
                        "is a directory, where a temporary file is written",
                    )

    def run(self) -> CheckReport:
        report = self.report
        try:
            self.load()
            self._check_log()
            was_clean = not self.unclean and self.limit is None
            self.ends.finish(
                self.log_directory,
                self.log_start,
                self.file_sizes.get(self.log_directory, 0),
                was_clean,
                self._is_end,
                self._last_start.started_ms,
            )
            self._check_queue_ends()
            self._count_deleted()
            self.index.finish()
            self._check_checkpoint()
            self._check_config()
            self._check_lock()
            self._check_offsets()
            if self.limit is None:
                TimerFilesCheck(
                    self,
                    self.queues.get((TIMER_TOPIC, 0)),
                    getattr(self.wanted, "mapped_file_size_timer_log", None),
                ).run()
        except _Stopped:
            report.stopped = True
        for name in (
            "records",
            "blanks",
            "units",
            "entries",
            "log_files",
            "queue_files",
            "queues",
            "index_files",
            "log_bytes",
        ):
            report.counts.setdefault(name, 0)
        return report

    # Names and lengths ----------------------------------------------------------------------------

    def _load(self) -> None:
        log_size = getattr(self.wanted, "mapped_file_size_commit_log", None)
        self.ends = EndsCheck(self.disk, self.root, self.report, self.behind)
        expired = self.ends.expired(self.disk.list_names(self.log_directory), self.log_directory)
        self.places = PlaceCheck(self)
        files = [
            file
            for file in self._listed(self.log_directory, 20, "commitlog")
            if file.path.name not in expired
        ]
        log_size = log_size or likely_size(
            [_named(files)], self.noted.mapped_file_size_commit_log, least=LEAST_LOG_FILE_BYTES
        )
        self.log_files = self._in_order(self.log_directory, self.places.log_files(files, log_size), log_size)
        self.report.count("log_files", len(self.log_files))
        if self.log_files:
            self.log_start = self.log_files[0].base
        else:
            self.log_start = 0
        self.queues = dict(self._load_queues())
        self.deleted_before = self._read_tombstones()
        table = self._read_json("topics.json").get("topicConfigTable")
        self.known_topics = set(table) if isinstance(table, dict) else set()
        self.report.count("queues", len(self.queues))
        self.index = IndexCheck(self)
        if not any(file.actual for file in self.log_files):
            self._check_missing_log()
        geometry = self.index.geometry
        self.report.sizes = FileSizes(
            self.file_sizes.get(self.log_directory),
            self._queue_file_size,
            geometry.slots if geometry else None,
            geometry.entries if geometry else None,
        )
        self.total_bytes = sum(file.size for file in self.log_files) + self.index.bytes

    def _check_missing_log(self) -> None:
        """Say of a store without a byte of a log whether it had one."""
        where = str(self.log_directory)
        messages = sum(
            max(queue.end, self.ends.next_offset(*key)) - queue.first for key, queue in self.queues.items()
        )
        messages += self.ends.missing_messages(self.queues)
        if self._last_start.started_ms is not None and holds_nothing(
            self.disk, self.root, self.log_directory
        ):
            what = store_gone(self._last_start.started_ms)
        else:
            what = missing_log(
                self.ends.position, self.stamps()[1].physic_msg_timestamp, messages, self.index.reaches_to > 0
            )
        if what is None:
            self.report.add(NOTE, "empty", where, None, "there is no commit log file")
        else:
            self.report.add(ERROR, "log-missing", where, None, what)

    def stamps(self) -> tuple[bytes | None, checkpoint.Checkpoint]:
        """Content of the checkpoint (None: there is none), and its stamps, which are zero where it cannot be
        read."""
        try:
            content = self.disk.read_file(self.root / "checkpoint")
        except StoreError:
            content = b""
        return content, checkpoint.decode(content) if content is not None and len(
            content
        ) >= checkpoint.LAYOUT.size else checkpoint.Checkpoint()

    def sequence(self, directory: Path, digits: int, what: str, wanted: int | None) -> list[StoreFile]:
        """The files of a directory in order, with findings for whatever does not belong there."""
        files = self._listed(directory, digits, what)
        return self._in_order(directory, files, wanted or likely_size([_named(files)]))

    def _listed(
        self, directory: Path, digits: int, what: str, queue: tuple[str, int] | None = None
    ) -> list[StoreFile]:
        """The files of a directory by name; their `size` is not known yet."""
        files: list[StoreFile] = []
        for name in self.disk.list_names(directory):
            path = directory / name
            is_named = len(name) == digits and name.isascii() and name.isdigit()
            if not is_named and self.disk.is_directory(path):
                # Apache passes over directories; one in the place of a file keeps a broker from making it
                continue
            if not is_named:
                self.report.add(
                    ERROR,
                    "stray-file",
                    str(path),
                    None,
                    f"does not belong into {what}/, Apache refuses to start with it",
                )
                continue
            size = self.size_of(path, queue)
            if size is not None:
                files.append(StoreFile(path, int(name), size, size))
        if files and files[-1].actual == 0:
            self.report.add(
                WARNING,
                "empty-file",
                str(files[-1].path),
                None,
                "has no bytes, the next start deletes it",
                queue=queue,
            )
            files.pop()
        return files

    def _in_order(
        self, directory: Path, files: list[StoreFile], size: int | None, queue: tuple[str, int] | None = None
    ) -> list[StoreFile]:
        """The files of a directory, each of which should have `size` bytes; None when nothing shows how
        many."""
        if size is None:
            for file in files:
                self.report.add(
                    ERROR,
                    "file-length",
                    str(file.path),
                    None,
                    f"is {file.actual} bytes long, and no file shows how long it should be",
                    queue=queue,
                )
            return []
        if files:
            self.file_sizes[directory] = size
        sound: list[StoreFile] = []
        for file in files:
            file.size = size
            if file.actual != size:
                self.report.add(
                    ERROR,
                    "file-length",
                    str(file.path),
                    None,
                    f"is {file.actual} bytes long, not {size}; "
                    + (
                        "a start makes it again from the log"
                        if queue is not None and not file.actual
                        else "a start is refused until it has its length again or is moved away"
                    ),
                    queue=queue,
                )
            if file.base % size:
                self.report.add(
                    ERROR,
                    "file-name",
                    str(file.path),
                    None,
                    f"its name is no multiple of the file size {size}",
                    queue=queue,
                )
                if queue is not None:
                    self.misnamed.setdefault(queue, []).append(file)
                continue
            if sound and file.base != sound[-1].base + size:
                what = f"the file before it ends at {sound[-1].base + size}, this begins at {file.base}"
                self.report.add(ERROR, "file-missing", str(file.path), None, what, queue=queue)
            sound.append(file)
        return sound

    def size_of(self, path: Path, queue: tuple[str, int] | None = None) -> int | None:
        try:
            return self.disk.size_of(path)
        except StoreError as error:
            self.report.add(
                ERROR, "unreadable", str(path), None, getattr(error, "what", str(error)), queue=queue
            )
            return None

    def _load_queues(self) -> Iterator[tuple[tuple[str, int], Queue]]:
        listed: dict[tuple[str, int], tuple[Path, list[StoreFile]]] = {}
        top = self.root / "consumequeue"
        for topic in self.disk.list_names(top):
            try:
                names.check_stored_topic(topic)
            except NameError_ as error:
                self.report.add(ERROR, "stray-file", str(top / topic), None, str(error))
                continue
            if not self.disk.is_directory(top / topic):
                self.report.add(ERROR, "unreadable", str(top / topic), None, "is no directory")
                continue
            for queue in self.disk.list_names(top / topic):
                directory = top / topic / queue
                if not (queue.isascii() and queue.isdigit() and len(queue) < 10):
                    self.report.add(ERROR, "stray-file", str(directory), None, "is no number of a queue")
                    continue
                if not self.disk.is_directory(directory):
                    self.report.add(ERROR, "unreadable", str(directory), None, "is no directory")
                    continue
                key = (topic, int(queue))
                listed[key] = directory, self._listed(directory, 20, f"consumequeue/{topic}/{queue}", key)
        # Of all queues together, since many have one file and nothing beside it to compare.
        wanted, noted = (
            getattr(self.wanted, "mapped_file_size_consume_queue", None),
            self.noted.mapped_file_size_consume_queue,
        )
        self._queue_file_size = wanted or likely_size(
            (_named(files) for _, files in listed.values()), noted, queue_unit.SIZE
        )
        self.places.queue_files(listed, self._queue_file_size)
        for key, (directory, files) in listed.items():
            files = self._in_order(directory, files, self._queue_file_size, key)
            self.report.count("queue_files", len(files))
            yield key, Queue(self.disk, key, str(directory), files)

    def _is_end(self, log_offset: int) -> bool:
        """Whether nothing lies at a log offset: zeros, or the end of the last file."""
        file = next(
            (file for file in self.log_files if file.base <= log_offset < file.base + file.size), None
        )
        if file is None:
            return bool(self.log_files) and log_offset == self.log_files[-1].base + self.log_files[-1].size
        with self.disk.open_reader(file.path) as reader:
            return not any(reader.read(log_offset - file.base, 8))

    # The log --------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        self._table = np.empty((4 * QUEUES_A_SLICE, compare.Q_WORDS), dtype=np.int64)
        self._groups = np.empty((QUEUES_A_SLICE, compare.G_WORDS), dtype=np.int64)
        # For units, whether they agree, numbers of rows
        self._room = [np.empty(ROWS_A_SLICE * each, dtype=np.uint8) for each in (queue_unit.SIZE, 1, 8)]
        self._units = memoryview(self._room[0])
        self._words = np.zeros(compare.U_WORDS, dtype=np.int64)
        self._words[[compare.U_UNITS, compare.U_AGREED, compare.U_ODD]] = [
            room.ctypes.data for room in self._room
        ]
        self._words[[compare.U_TABLE, compare.U_MASK]] = self._table.ctypes.data, len(self._table) - 1
        self.referenced_to = self.find_referenced_to()
        self.broken_at: int | None = None
        self.ends_with_blank = False  # the last file is closed: the log went on, or would have, in the next
        self.log_end = self.log_start
        rooms = [_Room() for _ in range(ROOMS)]
        for number, file in enumerate(self.log_files):
            if self.limit is not None and file.base >= self.limit:
                break
            expected = (
                self.log_files[number - 1].base + self.file_sizes[self.log_directory] if number else file.base
            )
            if file.base > expected:
                self._lost(expected, file.base, closes_file=True)
            self.log_end = file.base
            if self.limit is not None and not self.disk.exists(file.path):
                # A store in use has deleted it since: what points into it is neither good nor bad.
                self.damaged.append((file.base, file.base + file.size))
                continue
            with (
                self.disk.open_reader(file.path) as reader,
                _Slices(file, reader, self.limit, rooms) as slices,
            ):
                ended = self._check_log_file(file, reader, slices, last=number == len(self.log_files) - 1)
            self.report.count("log_bytes", file.size)
            if ended:
                break
        self.report.log_end = self.log_end if self.broken_at is None else self.broken_at

    def find_referenced_to(self) -> int:
        """Return the log offset up to which the record of ends, the index and the queues refer to records; 0
        when none does.

        After a stop in order the index says as much as queues do. After another one Apache's may lead to old
        records behind a cut end of the log; ours, which has a record of ends, is cut with the log.
        """
        is_cut_with_log = not self.unclean or self.ends.position > 0
        indexed_to = self.index.reaches_to if is_cut_with_log and self.limit is None else 0
        return max(
            [self.ends.position, indexed_to, *(queue.last_record_end for queue in self.queues.values())]
        )

    def _check_log_file(self, file: StoreFile, reader: Reader, slices: _Slices, last: bool) -> bool:
        """Walk one file; True when the log ends in it."""
        at = 0
        while True:
            self.progress(file.base - self.log_start + at, "log")
            stopped, at, reason = self._check_slice(file, slices, at)
            self.log_end = file.base + at
            if self.limit is not None and self.log_end >= self.limit:
                return True
            if stopped == c.LOG_FILE_END:
                self.report.count("blanks")
                if last:
                    self.ends_with_blank = True
                    self._check_rest(file, reader, at + self._blank_bytes(reader, at))
                    return True
                self.log_end = file.base + file.size
                return False
            if stopped == c.BAD_RECORD:
                following = self._after_bad_record(file, reader, at, reason, last)
                if following is None:
                    return not self._later_records(file)
                at = following

    @staticmethod
    def _blank_bytes(reader: Reader, at: int) -> int:
        return record.BLANK_BYTES if reader.size - at >= record.BLANK_BYTES else reader.size - at

    def _check_slice(self, file: StoreFile, slices: _Slices, at: int) -> tuple[int, int, int]:
        """(why it stopped, position in the file, reason) after one slice of good records was checked."""
        found = slices.take(at)
        stopped, reason, room = found.stopped, found.room.reason, found.room
        rows = room.rows
        if len(rows):
            self.report.count("records", len(rows))
            self._check_times(rows, file)
            self.newest_ms, self.last_ms = max(self.newest_ms, room.newest_ms), int(rows[-1, k.ROW_STORE_MS])
            self._base = room.base
            self._check_rows(rows, found.data, file)
            self.index.check_rows(rows, room.keys)
        elif stopped == c.EXHAUSTED:
            # A record longer than the limit or than what was read
            stopped, reason = c.BAD_RECORD, c.REASON_LENGTH
            if self.limit is not None and file.base + at + len(found.data) >= self.limit:
                return c.EXHAUSTED, self.limit - file.base, 0
        return stopped, at + room.at, reason

    def _check_times(self, rows: np.ndarray, file: StoreFile) -> None:
        """Store times go up along the log, apart from clocks that were set back (not with this broker) and
        changed bytes."""
        times = rows[:, k.ROW_STORE_MS]
        before = np.concatenate(([self.last_ms], times[:-1]))
        for place in np.flatnonzero(times < before):
            back_ms = int(before[place] - times[place])
            self.report.add(
                NOTE,
                rules.STORE_TIME,
                str(file.path),
                int(rows[place, k.ROW_LOG_OFFSET]) - file.base,
                rules.time_goes_back(back_ms),
            )

    def _after_bad_record(
        self, file: StoreFile, reader: Reader, at: int, reason: int, last: bool
    ) -> int | None:
        """Tell what the bad record is: the ordinary end, a torn tail or damage. Returns where good records go
        on."""
        offset = file.base + at
        if self._is_zero(file, reader, at):
            if self._later_records(file):
                self._broken(
                    ERROR, file, at, "the file is zero from here on, but the log goes on in the next file"
                )
                self._lost(offset, file.base + self.file_sizes[file.path.parent], closes_file=True)
            return None
        following = self._next_record(file, reader, at)
        is_unknown = (
            following is not None
            and last
            and self.referenced_to <= file.base + following
            and self.broken_at is None
        )
        if is_unknown and self._last_start.started_ms is None:
            # Nothing refers to what follows: old bytes behind an end that was cut, not the log. A broker of
            # ours leaves zeros there.
            self.report.add(
                WARNING, "stale-tail", str(file.path), at, "old records lie behind the end of the log"
            )
            self.stretches.append(Stretch(offset, file.base + file.size, is_tail=True))
            return None
        if following is None and not self._later_records(file):
            severity = self.beyond if self.referenced_to > offset else WARNING
            self._broken(
                severity, file, at, f"{REASONS[reason]}; nothing good follows, the log ends here", "torn-tail"
            )
            self._lost(offset, file.base + file.size, is_tail=True)
            return None
        goes_on = (
            f"good records go on at {following}"
            if following is not None
            else "the log goes on in the next file"
        )
        self._broken(self.beyond if is_unknown else ERROR, file, at, f"{REASONS[reason]}; {goes_on}")
        if following is None:
            self._lost(offset, file.base + self.file_sizes[file.path.parent], closes_file=True)
        else:
            self._lost(offset, file.base + following)
        return following

    def _lost(self, low: int, high: int, **how: bool) -> None:
        self.damaged.append((low, high))
        self.stretches.append(Stretch(low, high, **how))

    def _broken(self, severity: str, file: StoreFile, at: int, what: str, kind: str = "bad-record") -> None:
        if self.broken_at is None:
            self.broken_at = file.base + at
        self.report.add(severity, kind, str(file.path), at, what)

    def _later_records(self, file: StoreFile) -> bool:
        """Whether any later file holds a good record: damage in one file says nothing of those after it."""
        if file.base not in self._has_later:
            self._has_later[file.base] = any(
                self._holds_record(later) for later in self.log_files if later.base > file.base
            )
        return self._has_later[file.base]

    def _holds_record(self, file: StoreFile) -> bool:
        if not _data_end(self.disk, file):
            return False  # made ahead and never written
        with self.disk.open_reader(file.path) as reader:
            return self._good_at(file, reader, 0) or self._next_record(file, reader, 0) is not None

    def _good_at(self, file: StoreFile, reader: Reader, at: int) -> bool:
        try:
            head = record.read_head(reader.read(at, record.BLANK_BYTES))
            if not head.is_record or not record.MIN_RECORD <= head.total_size <= min(
                MAX_RECORD, file.size - at
            ):
                return False
            record.decode(reader.read(at, head.total_size), log_offset=file.base + at, max_size=MAX_RECORD)
        except FormatError:
            return False
        return True

    def _next_record(self, file: StoreFile, reader: Reader, at: int) -> int | None:
        """Position of the next good record or blank behind a bad one, found by its magic and its own
        place."""
        position = at + 1
        window = 1 << 20
        end = _data_end(self.disk, file)
        while position < end:
            self.progress(file.base - self.log_start + position, "log")
            data = reader.read(position, window + 8)
            for place in _magic_places(data):
                if self._good_at(file, reader, position + place):
                    return position + place
            position += window
        return None

    def records_between(self, low: int, high: int, at_most: int) -> Iterator[record.StoredMessage]:
        """The good records that lie in a part of one log file which the walk has left out, found by their
        magic."""
        file = next((file for file in self.log_files if file.base <= low < file.base + file.size), None)
        if file is None or not file.actual:
            return
        at, found = low - file.base - 1, 0
        with self.disk.open_reader(file.path) as reader:
            while (
                found < at_most
                and (place := self._next_record(file, reader, at)) is not None
                and file.base + place < high
            ):
                size = record.read_head(reader.read(place, record.BLANK_BYTES)).total_size
                yield record.decode(
                    reader.read(place, size), log_offset=file.base + place, max_size=MAX_RECORD
                )
                at, found = place + size - 1, found + 1

    def _is_zero(self, file: StoreFile, reader: Reader, at: int) -> bool:
        end = _data_end(self.disk, file)
        found = np.empty(ZEROS_AT_ONCE, dtype=np.uint8)
        while at < end:
            count = reader.read_into(memoryview(found)[: end - at], at)
            if found[:count].max(initial=0):
                return False
            at = at + count if count else end  # the file was cut since
            self.progress(None, "log")
        return True

    def _check_rest(self, file: StoreFile, reader: Reader, at: int) -> None:
        if not self._is_zero(file, reader, at):
            self.report.add(NOTE, "stale-tail", str(file.path), at, "old bytes lie behind the last blank")

    # Queues ---------------------------------------------------------------------------------------

    def _check_rows(self, rows: np.ndarray, data: memoryview, file: StoreFile) -> None:
        """The records of a slice against the units of their queues: in compiled code, and what does not agree
        there by queue."""
        found = compare.group_rows(
            rows.ctypes.data,
            len(rows),
            self._table.ctypes.data,
            len(self._table) - 1,
            self._groups.ctypes.data,
            len(self._groups),
        )
        if found >= 0 and self._units_agree(rows, data, self._groups[:found], file):
            return
        kind = rows[:, k.ROW_SYS_FLAG] & record.SYS_TRANSACTION_MASK
        queued = rows[(kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT)]
        order = np.lexsort(
            (queued[:, k.ROW_LOG_OFFSET], queued[:, k.ROW_QUEUE_ID], queued[:, k.ROW_TOPIC_HASH])
        )
        queued = queued[order]
        if not len(queued):
            return
        change = (np.diff(queued[:, k.ROW_TOPIC_HASH]) != 0) | (np.diff(queued[:, k.ROW_QUEUE_ID]) != 0)
        for group in np.split(queued, np.flatnonzero(change) + 1):
            self._check_group(group, data, file)

    def _units_agree(self, rows: np.ndarray, data: memoryview, groups: np.ndarray, file: StoreFile) -> bool:
        """Whether all units of the queues in `groups` are as their rows make them; nothing was told when they
        are not.

        Queues that need a closer look (deliveries, deleted topics, numbers that were not expected) are looked
        at one by one then.
        """
        plain, others, at, place = [], [], 0, self._groups.ctypes.data
        for group in groups.tolist():
            row = rows[group[compare.G_FIRST_ROW]]
            topic, queue = self._queue_of(row, data)
            is_plain = self._is_plain(topic, queue, group, int(row[k.ROW_LOG_OFFSET]))
            (plain if is_plain else others).append((queue, group))
            count = group[compare.G_COUNT] if is_plain else 0
            compare.place_units(place, at, count)
            if is_plain:
                queue.read_units(
                    self._units[at * queue_unit.SIZE : (at + count) * queue_unit.SIZE], group[compare.G_FIRST]
                )
            at, place = at + count, place + groups.strides[0]
        if not plain:
            return not others
        words = self._words
        words[[compare.U_ROWS, compare.U_COUNT]] = rows.ctypes.data, len(rows)
        if compare.compare_units(words.ctypes.data) != sum(group[compare.G_COUNT] for _, group in others):
            return False
        for queue, group in plain:
            if queue.covered_from is None:
                queue.covered_from = group[compare.G_FIRST]
            queue.next, queue.last_at = (
                group[compare.G_FIRST] + group[compare.G_COUNT],
                group[compare.G_LAST_AT],
            )
            queue.covered_to = max(queue.covered_to, queue.next)
        self.report.count("units", at)
        for _, group in others:
            kind = rows[:, k.ROW_SYS_FLAG] & record.SYS_TRANSACTION_MASK
            queued = (kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT)
            own = (rows[:, k.ROW_TOPIC_HASH] == group[compare.G_HASH]) & (
                rows[:, k.ROW_QUEUE_ID] == group[compare.G_ID]
            )
            self._check_group(rows[own & queued], data, file)
        return True

    def _is_plain(self, topic: str, queue: Queue, group: list[int], first_at: int) -> bool:
        if (
            topic == queue_unit.SCHEDULE_TOPIC
            or not queue.files
            or queue.next not in (None, group[compare.G_FIRST])
            or group[compare.G_FIRST] < 0
        ):
            return False
        if queue.life is None:
            queue.life = self._begin_of_life(*queue.key, queue)
        return first_at >= max(queue.life[1], self.deleted_before.get(topic, 0))

    def _queue_of(self, row: np.ndarray, data: memoryview) -> tuple[str, Queue]:
        """The topic and the queue of a row's record."""
        hashed, queue_id = int(row[k.ROW_TOPIC_HASH]), int(row[k.ROW_QUEUE_ID])
        topic = self.topics.get(hashed)
        if topic is None:
            start = int(row[k.ROW_TOPIC_AT])
            topic = self.topics[hashed] = bytes(data[start : start + int(row[k.ROW_TOPIC_LENGTH])]).decode()
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            directory = self.root / "consumequeue" / topic / str(queue_id)
            queue = self.queues[topic, queue_id] = Queue(self.disk, (topic, queue_id), str(directory), [])
        return topic, queue

    def _check_group(self, rows: np.ndarray, data: memoryview, file: StoreFile) -> None:
        """The records of one queue, in log order."""
        topic, queue = self._queue_of(rows[0], data)
        queue_id = queue.key[1]
        if topic == queue_unit.SCHEDULE_TOPIC:
            self._set_delivery_times(rows, data)
        rows = self._without_deleted(topic, queue_id, queue, rows)
        if not len(rows):
            return
        numbers = rows[:, k.ROW_QUEUE_OFFSET]
        self._check_density(topic, queue_id, queue, numbers, rows[:, k.ROW_LOG_OFFSET], file)
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < 4 * len(numbers) + 1024:
            units = queue.units(low, high - low + 1)[numbers - low]
        else:  # offsets that are far apart: damage, or an attempt to make us allocate
            units = np.concatenate([queue.units(int(number), 1) for number in numbers])
        self.report.count("units", len(rows))
        sizes, offsets, codes = rows[:, k.ROW_SIZE], rows[:, k.ROW_LOG_OFFSET], rows[:, k.ROW_TAGS_CODE]
        good = (units["log_offset"] == offsets) & (units["size"] == sizes) & (units["tags_code"] == codes)
        if not good.all():
            self._tell_units(queue, rows[~good], units[~good])

    def _without_deleted(self, topic: str, queue_id: int, queue: Queue, rows: np.ndarray) -> np.ndarray:
        """The rows that belong into the queue: records of a topic that was deleted stay in the log and have
        no units.

        Ours keeps where such a topic's records end. Apache does not, but a topic made again counts from 0:
        then the first unit points behind the records of the life before.
        """
        offsets, numbers = rows[:, k.ROW_LOG_OFFSET], rows[:, k.ROW_QUEUE_OFFSET]
        if queue.life is None:
            queue.life = self._begin_of_life(topic, queue_id, queue)
        first, begin = queue.life
        deleted = (offsets < self.deleted_before.get(topic, 0)) | ((offsets < begin) & (numbers >= first))
        if deleted.any():
            # A topic is deleted with all its queues: a record behind the first of any of them states a
            # damaged queue.
            deleted &= (offsets < self.deleted_before.get(topic, 0)) | (offsets < self._begin_of_topic(topic))
        if not queue.files and self.known_topics and topic not in self.known_topics:
            deleted[:] = True
        if deleted.any():
            self._deleted_records[topic] += int(deleted.sum())
            self.deleted_to[topic] = max(self.deleted_to.get(topic, 0), int(offsets[deleted].max()) + 1)
        return rows[~deleted]

    def _count_deleted(self) -> None:
        """Count the records of deleted topics. A topic whose every such record has a unit in another queue
        never was: its name is damaged."""
        for topic, offsets in self._misplaced_records.items():
            if len(offsets) >= self._deleted_records[topic]:
                del self._deleted_records[topic]
                self.deleted_to.pop(topic, None)
        if self._deleted_records:
            self.report.count("records_of_deleted_topics", self._deleted_records.total())

    def _begin_of_topic(self, topic: str) -> int:
        """Log offset of the first record to which a unit of a queue of the topic leads, above all offsets
        without one."""
        if topic not in self._topic_begins:
            begins = [
                begin
                for queue in self.queues.values()
                if queue.key[0] == topic and (begin := self._first_led_to(queue)) is not None
            ]
            self._topic_begins[topic] = min(begins, default=_NEVER)
        return self._topic_begins[topic]

    def _first_led_to(self, queue: Queue) -> int | None:
        """Log offset of the record to which the queue's first unit leads; None when that unit leads to none
        of its topic."""
        unit = self._first_unit(queue)
        found = None if unit is None else self.record_at(unit[1], unit[2])
        return unit[1] if found is not None and found.topic == queue.key[0] else None

    def _first_unit(self, queue: Queue) -> tuple[int, int, int] | None:
        """(number, log offset, size) of the queue's first unit of a message."""
        for start in range(queue.first, queue.end, 1024):
            units = queue.units(start, min(1024, queue.end - start))
            data = np.flatnonzero((units["size"] > 0) & (units["size"] != queue_unit.PRE_BLANK_SIZE))
            if len(data):
                unit = units[int(data[0])]
                return start + int(data[0]), int(unit["log_offset"]), int(unit["size"])
        return None

    def _begin_of_life(self, topic: str, queue_id: int, queue: Queue) -> tuple[int, int]:
        """(number of the first unit, log offset of its record), (0, 0) when that unit and a record do not
        agree."""
        unit = self._first_unit(queue)
        if unit is None:
            return 0, 0
        number, offset, size = unit
        found = self.record_at(offset, size)
        states_it = found is not None and (found.topic, found.queue_id, found.queue_offset) == (
            topic,
            queue_id,
            number,
        )
        return (number, offset) if states_it else (0, 0)

    def _tell_units(self, queue: Queue, rows: np.ndarray, units: np.ndarray) -> None:
        absent = units["size"] == 0
        for first, last in _runs(np.sort(rows[absent][:, k.ROW_QUEUE_OFFSET])):
            if queue.missing and queue.missing[-1][1] == first - 1:
                queue.missing[-1][1] = last
            elif len(queue.missing) < MOST_TOLD_OF_A_KIND:
                queue.missing.append([first, last])
        for row, unit in zip(rows[~absent], units[~absent], strict=True):
            number = int(row[k.ROW_QUEUE_OFFSET])
            path, at = queue.file_of(number)
            found = (int(unit["log_offset"]), int(unit["size"]), int(unit["tags_code"]))
            expected = (int(row[k.ROW_LOG_OFFSET]), int(row[k.ROW_SIZE]), int(row[k.ROW_TAGS_CODE]))
            if found[0] != expected[0] and self._is_record_of(queue, number, *found[:2]):
                # The unit is right: `_check_density` reports this record, which states the number of another
                # one
                continue
            what = f"unit {number} is (offset, size, tags code) {found}, the record makes it {expected}"
            self.report.add(ERROR, "unit-wrong", path, at, what, queue=queue.key)

    def _check_density(
        self,
        topic: str,
        queue_id: int,
        queue: Queue,
        numbers: np.ndarray,
        offsets: np.ndarray,
        file: StoreFile,
    ) -> None:
        """Queue offsets in the log go up by one, apart from what lay in damaged stretches."""
        if queue.covered_from is None:
            queue.covered_from = queue.next = self._first_number(
                queue, numbers, int(offsets[0]), self.ends.next_offset(topic, queue_id)
            )
        expected = np.concatenate(([queue.next], numbers[:-1] + 1))
        for place in np.flatnonzero(numbers != expected):
            wanted, found, offset = int(expected[place]), int(numbers[place]), int(offsets[place])
            if found < wanted:
                what = rules.offset_given_again(found, wanted)
            else:
                after = int(offsets[place - 1]) if place else queue.last_at
                if len(self.gaps) < MOST_GAPS:
                    self.gaps.append(Gap(topic, queue_id, wanted, found, after, offset))
                if self._in_damage(queue, wanted, found, self.damaged) or any(
                    after < low and high <= offset for low, high in self.damaged
                ):
                    continue
                what = rules.offsets_in_no_record(wanted, found - 1, f"{topic}/{queue_id}")
                self._note_misplaced(queue, wanted, found)
            self.report.add(
                ERROR,
                rules.QUEUE_OFFSET,
                str(file.path),
                offset - file.base,
                what,
                queue=(topic, queue_id),
            )
        queue.next, queue.last_at = int(numbers[-1]) + 1, int(offsets[-1])
        queue.covered_to = max(queue.covered_to, int(numbers[numbers < queue.end].max(initial=-1)) + 1)

    def _note_misplaced(self, queue: Queue, first: int, end: int) -> None:
        """Note the records to which units [first, end) lead and that state another place."""
        for unit in queue.units(first, min(end - first, self._records_to_read)):
            if unit["size"] > 0:
                self._is_misplaced(int(unit["log_offset"]), int(unit["size"]))

    @staticmethod
    def _first_number(queue: Queue, numbers: np.ndarray, offset: int, recorded: int) -> int:
        """The number of a queue's first record in the log, at `offset`: that of the unit which leads to it,
        else what it states if there is room for it.

        `recorded` is the queue's next offset by the record of ends: so many records may have been before it,
        and be lost.
        """
        stated, following = int(numbers[0]), numbers[1:]
        has_room = (stated - recorded) * record.MIN_RECORD <= offset
        if (len(following) and int(following[0]) == stated + 1) or (has_room and not queue.files):
            return stated
        for first, count in queue.spans(queue.first, queue.end, UNITS_AT_ONCE):
            places = np.flatnonzero(queue.units(first, count)["log_offset"] == offset)
            if len(places):
                return first + int(places[0])
        return stated if has_room else int(numbers.min()) if len(following) else 0

    @staticmethod
    def _in_damage(queue: Queue, first: int, end: int, damaged: list[tuple[int, int]]) -> bool:
        """Whether the units [first, end) all point into damaged stretches of the log."""
        if end - first > 1 << 20:
            return False
        offsets = queue.units(first, end - first)["log_offset"].astype(np.int64)
        inside = np.zeros(len(offsets), dtype=bool)
        for low, high in damaged:
            inside |= (offsets >= low) & (offsets < high)
        return bool(inside.all())

    def _set_delivery_times(self, rows: np.ndarray, data: memoryview) -> None:
        """In the schedule topic the tags code is the time of delivery, which hangs on a property."""
        base = int(rows[0, k.ROW_LOG_OFFSET]) - self._position(rows[0], data)
        for row in rows:
            message = record.decode(
                data, int(row[k.ROW_LOG_OFFSET]) - base, max_size=MAX_RECORD, check_crc=False
            )
            row[k.ROW_TAGS_CODE] = queue_unit.tags_code(
                message.topic,
                message.tags,
                message.properties.get("DELAY"),
                message.store_timestamp,
                self.delay_levels_ms,
            )

    def _position(self, row: np.ndarray, data: memoryview) -> int:
        """Where in the slice a row's record begins: the slice starts at the log offset of its first byte."""
        return int(row[k.ROW_LOG_OFFSET]) - self._base

    def _check_queue_ends(self) -> None:
        """What stands in the queues before and behind the records of the log."""
        for number, queue in enumerate(self.queues.values()):
            if number % 64 == 0:
                self.progress(None, "queues")
            self._tell_missing(queue)
            covered_from = queue.end if queue.covered_from is None else queue.covered_from
            self._check_before(queue, covered_from)
            if queue.covered_from is not None and queue.covered_to < queue.end:
                self._check_behind(queue, queue.covered_to, queue.end)
        if self.units_before_log and self.log_files:
            what = (
                f"the log begins at {self.log_start}; queues hold {self.units_before_log} units of older "
                f"records, which became too old or are lost"
            )
            self.report.add(NOTE, "log-start", str(self.log_files[0].path), None, what)

    def _tell_missing(self, queue: Queue) -> None:
        for first, last in queue.missing:
            # At the end of a queue they are merely late; in the middle they are a hole.
            severity = rules.missing_severity(self.behind, first >= queue.end, self.unclean)
            path, at = queue.file_of(first)
            what = f"unit {first} is missing" if first == last else f"units {first} to {last} are missing"
            self.report.add(
                severity, "unit-missing", path, at, f"{what}, the log has the records", queue=queue.key
            )

    def _check_before(self, queue: Queue, covered_from: int) -> None:
        """Units whose records are not in the log: it must be because the log begins later."""
        for first, count in queue.spans(queue.first, covered_from, UNITS_AT_ONCE):
            units = queue.units(first, count)
            blank = (units["size"] == queue_unit.PRE_BLANK_SIZE) & (units["log_offset"] == 0)
            gone = (units["log_offset"] >= 0) & (units["size"] > 0) & (units["log_offset"] < self.log_start)
            self.report.count("units", int(gone.sum()))
            self.units_before_log += int((gone & ~blank).sum())
            extra = ~(blank | gone)
            if queue.key[0].startswith(queue_unit.LIGHT_QUEUE):
                self._pass_light(queue, first, units, extra)
            self._tell_extra(queue, first, units, extra)

    def _pass_light(self, queue: Queue, first: int, units: np.ndarray, extra: np.ndarray) -> None:
        """Take away from `extra` the units of a light queue whose records name it, and those that a store in
        use has just added."""
        for place in np.flatnonzero(extra).tolist():
            if place % 1024 == 0:
                self.progress(None, "queues")
            offset, size = int(units["log_offset"][place]), int(units["size"][place])
            if self.limit is not None and offset >= self.limit:
                extra[place] = False
            elif (found := self.record_at(offset, size)) is not None:
                names, numbers = (
                    found.properties.get(name, "").split(",")
                    for name in (properties.LIGHT_QUEUES, properties.LIGHT_QUEUE_OFFSETS)
                )
                extra[place] = (queue.key[0], str(first + place)) not in zip(names, numbers, strict=False)
                self.report.count("units", int(not extra[place]))

    def record_at(self, offset: int, size: int) -> record.StoredMessage | None:
        """The good record of so many bytes at a place in the log; None when there is none."""
        for file in self.log_files:
            if file.base <= offset < file.base + file.size and record.MIN_RECORD <= size <= MAX_RECORD:
                try:
                    with self.disk.open_reader(file.path) as reader:
                        return record.decode(
                            reader.read(offset - file.base, size), log_offset=offset, max_size=size
                        )
                except (FormatError, StoreError):
                    return None  # damage is told where the log is walked
        return None

    def _check_behind(self, queue: Queue, first: int, end: int) -> None:
        """Units behind the last record of the queue."""
        for start, count in queue.spans(first, end, UNITS_AT_ONCE):
            units = queue.units(start, count)
            wrong = np.ones(len(units), dtype=bool)
            if self.limit is not None:
                wrong &= units["log_offset"] < self.limit
            is_data = (units["size"] != 0) | (units["log_offset"] != 0) | (units["tags_code"] != 0)
            self._tell_extra(queue, start, units, wrong & is_data)

    def _tell_extra(self, queue: Queue, first: int, units: np.ndarray, wrong: np.ndarray) -> None:
        offsets = units["log_offset"].astype(np.int64)
        for low, high in self.damaged:  # told already, with the record
            wrong = wrong & ~((offsets >= low) & (offsets < high))
        beyond = wrong & (offsets >= self.log_end)
        elsewhere = np.zeros(len(units), dtype=bool)
        if not queue.key[0].startswith(queue_unit.LIGHT_QUEUE):
            for place in np.flatnonzero(wrong & ~beyond)[: self._records_to_read].tolist():
                elsewhere[place] = self._is_misplaced(int(offsets[place]), int(units["size"][place]))
        for low, high in _runs(np.flatnonzero(elsewhere) + first):
            file = next(
                file for file in self.log_files if file.base <= offsets[low - first] < file.base + file.size
            )
            what = rules.offsets_in_no_record(low, high, f"{queue.key[0]}/{queue.key[1]}")
            self.report.add(
                ERROR,
                rules.QUEUE_OFFSET,
                str(file.path),
                int(offsets[low - first]) - file.base,
                what,
                queue=queue.key,
            )
        for mask, severity, what in (
            (beyond, self.beyond, "behind the end of the log"),
            (wrong & ~beyond & ~elsewhere, ERROR, "at no record of this queue"),
        ):
            for low, high in _runs(np.flatnonzero(mask) + first):
                path, at = queue.file_of(low)
                which = f"unit {low} points" if low == high else f"units {low} to {high} point"
                self.report.add(severity, "unit-extra", path, at, f"{which} {what}", queue=queue.key)

    def _is_record_of(self, queue: Queue, number: int, offset: int, size: int) -> bool:
        """Whether a good record of that size lies at `offset` and states unit `number` of the queue."""
        if not self._records_to_read:
            return False
        self._records_to_read -= 1
        found = self.record_at(offset, size)
        return found is not None and (found.topic, found.queue_id, found.queue_offset) == (*queue.key, number)

    def _is_misplaced(self, offset: int, size: int) -> bool:
        """Whether a good record of that size lies at `offset` to which no unit of the place leads that it
        states: then the record is wrong, not its unit."""
        self._records_to_read -= 1
        found = self.record_at(offset, size)
        if found is None:
            return False
        own = self.queues.get((found.topic, found.queue_id))
        if own is not None and found.is_queued:
            unit = own.units(found.queue_offset, 1)[0]
            if (int(unit["log_offset"]), int(unit["size"])) == (offset, size):
                return False
        self._misplaced_records.setdefault(found.topic, set()).add(offset)
        return True

    # The rest -------------------------------------------------------------------------------------

    def _check_checkpoint(self) -> None:
        path = self.root / "checkpoint"
        try:
            content = self.disk.read_file(path)
        except StoreError as error:
            self.report.add(ERROR, "checkpoint", str(path), None, getattr(error, "what", str(error)))
            return
        if content is None:
            if self.log_files:
                self.report.add(
                    WARNING,
                    "checkpoint",
                    str(path),
                    None,
                    "is missing: an unclean start would read the whole log",
                )
            return
        if len(content) != checkpoint.FILE_BYTES:
            self.report.add(
                ERROR,
                "checkpoint",
                str(path),
                None,
                f"is {len(content)} bytes long, not {checkpoint.FILE_BYTES}",
            )
            if len(content) < checkpoint.LAYOUT.size:
                return
        stamps = checkpoint.decode(content)
        if self.limit is not None:
            return
        known_ms = (
            stamps.physic_msg_timestamp
            if self.unclean
            else max(stamps.physic_msg_timestamp, stamps.logics_msg_timestamp)
        )
        self.is_synced_beyond = self.log_end > self.log_start and known_ms > self.newest_ms
        for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"):
            at, value = checkpoint.LAYOUT.offset[name], getattr(stamps, name)
            if value > self.newest_ms and self.log_end > self.log_start:
                what = (
                    f"{name} is {value}, newer than the newest record ({self.newest_ms}): what was "
                    f"synced is gone"
                )
                self.report.add(ERROR, "checkpoint-ahead", str(path), at, what)
        at, value = checkpoint.LAYOUT.offset["logics_physical_offset"], stamps.logics_physical_offset
        if value > self.report.log_end:
            what = f"logics_physical_offset is {value}, behind the end of the log ({self.report.log_end})"
            self.report.add(ERROR, "checkpoint-ahead", str(path), at, what)

    def _check_config(self) -> None:
        """As a start reads the files (engine/config_files.py): an error where it refuses one, a warning where
        it goes on without.

        A file that a start does not read and that is not JSON gets a note. Without the readers of a start it
        is an error.
        """
        directory = self.root / config_files.DIRECTORY
        found = {name for name in self.disk.list_names(directory) if name.endswith(".json")}
        for name in sorted(found - {STORE_TIMES} | self.config_readers.keys()):
            path, reader = directory / name, self.config_readers.get(name)
            bad = judged(self.disk, path, reader.read if reader is not None else config_json.read)
            if bad is None:
                if self.disk.exists(path):
                    self.report.count("config_files")
                elif (
                    reader is not None
                    and self._was_closed_by_broker
                    and (gone := reader.gone({topic for topic, _ in self.queues}))
                ):
                    self.report.add(WARNING, "config-missing", str(path), None, gone)
            elif bad.is_in_the_way:
                self.report.add(ERROR, "unreadable", str(path), None, bad.problem)
            elif reader is None and self._knows_readers:
                self.report.add(
                    NOTE, "config", str(path), None, f"{bad.problem}; this broker does not read the file"
                )
            elif bad.backup is not None:
                self.report.add(
                    WARNING,
                    "config",
                    str(path),
                    None,
                    f"{bad.problem}; its .bak is good and is taken instead",
                )
            elif reader is None or reader.is_needed:
                is_there = self.disk.exists(path)
                self.report.add(
                    ERROR,
                    "config",
                    str(path if is_there else path.with_name(f"{name}{config_files.BACKUP}")),
                    None,
                    bad.both,
                )
            else:
                self.report.add(
                    NOTE, "config", str(path), None, f"{bad.both}: a start begins its counts at 0"
                )
        if not self.unclean and self.log_files:
            for doubt in beyond(self.deleted_before, self.report.log_end):
                self.report.add(WARNING, "config", str(directory / TOMBSTONES), None, doubt)
        times = StoreTimes(self.disk, directory / STORE_TIMES)
        try:
            times.load()
        except DamagedStoreError as error:
            self.report.add(ERROR, "unreadable", str(directory / STORE_TIMES), None, error.what)
        if times.note:
            self.report.add(NOTE, "config", str(directory / STORE_TIMES), None, times.note)

    @property
    def _was_closed_by_broker(self) -> bool:
        return (
            self.ends.is_final
            and self._last_start.started_ms is not None
            and not self.unclean
            and self.limit is None
        )

    def _check_lock(self) -> None:
        if self.disk.exists(self.root / "lock"):
            self.size_of(self.root / "lock")

    def _check_offsets(self) -> None:
        """What groups and delay levels have read cannot lie behind the end of a queue."""
        if self.limit is not None:
            return  # they move while we look
        for name, topic, queue_id, group, offset in self.offsets():
            end = self.end_of(topic, queue_id)
            if offset > end:
                reader = f"group {group}" if group else f"delay level {queue_id + 1}"
                what = (
                    f"{reader} is at {offset} of {topic}/{queue_id}, which ends at {end}: a start sets "
                    f"it back"
                )
                self.report.add(
                    WARNING,
                    "offset-ahead",
                    str(self.root / "config" / name),
                    None,
                    what,
                    queue=(topic, queue_id),
                )

    def offsets(self) -> Iterator[tuple[str, str, int, str, int]]:
        """(file, topic, queue, group, offset) of the offsets in config/, group "" for those of delay
        levels."""
        for place, queues in _table(self._read_json("consumerOffset.json").get("offsetTable")).items():
            topic, _, group = str(place).partition("@")
            for queue_id, offset in _numbers(queues):
                # A start leaves such positions alone
                is_deleted = topic in self.deleted_before and topic not in self.known_topics
                if not is_deleted and ((topic, queue_id) in self.queues or topic in self.known_topics):
                    yield "consumerOffset.json", topic, queue_id, group, offset
        for level, offset in _numbers(self._read_json("delayOffset.json").get("offsetTable")):
            yield "delayOffset.json", queue_unit.SCHEDULE_TOPIC, level - 1, "", offset

    def end_of(self, topic: str, queue_id: int) -> int:
        """The queue offset that comes next, as the log has it, or the queue when the log holds none of its
        records."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            return 0
        if queue.next is None:
            return queue.end if queue.last_record_end <= self.log_end else 0
        bridged = [(stretch.low, stretch.high) for stretch in self.stretches if not stretch.is_tail]
        if queue.next < queue.end and self._in_damage(queue, queue.next, queue.end, bridged):
            return queue.end  # its last records are among the damaged ones, and a repair keeps their places
        return queue.next

    def _read_tombstones(self) -> dict[str, int]:
        """Log offset by deleted topic, as a start reads it: of the file, else of its .bak; none where both
        are bad."""
        sound: list[dict[str, int]] = []
        judged(
            self.disk,
            self.root / config_files.DIRECTORY / TOMBSTONES,
            lambda text: sound.append(read_tombstones(text)),
        )
        return sound[-1] if sound else {}

    def _read_json(self, name: str) -> dict:
        """A config file as a dict; what cannot be read is told with the other config files."""
        try:
            value = config_json.read(self.disk.read_file(self.root / "config" / name, CONFIG_BYTES) or b"{}")
        except (FormatError, StoreError):
            return {}
        return value if isinstance(value, dict) else {}

    def progress(self, done: int | None, step: str) -> None:
        if done is not None:
            self.done_bytes = done
        if self.on_progress:
            self.on_progress(self.done_bytes, self.total_bytes, step)
        if self.should_stop and self.should_stop():
            raise _Stopped


def _named(files: list[StoreFile]) -> list[NamedFile]:
    return [NamedFile(file.base, file.actual) for file in files]


def _data_end(disk: Disk, file: StoreFile) -> int:
    """Position behind the last byte of a file that was ever written; holes are not read to learn that they
    are zero."""
    if not file.actual:
        return 0
    region = disk.open_region(file.path, writable=False)
    try:
        return min(region.data_end(), file.size)
    finally:
        region.close()


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers."""
    if len(numbers):
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, breaks):
            yield int(run[0]), int(run[-1])


def _table(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _numbers(value: object) -> Iterator[tuple[int, int]]:
    """The pairs of a table of whole numbers by whole number, quoted keys or not; what is none is left out."""
    for key, number in _table(value).items():
        if str(key).isascii() and str(key).isdigit() and isinstance(number, int):
            yield int(key), number


def _magic_places(data: bytes) -> Iterator[int]:
    """Where a record could begin: four bytes before each of the two magics."""
    at = data.find(b"\xda\xa3\x20")
    while at >= 0:
        if at >= 4 and data[at + 3 : at + 4] in (b"\xa7", b"\xab"):
            yield at - 4
        at = data.find(b"\xda\xa3\x20", at + 1)
