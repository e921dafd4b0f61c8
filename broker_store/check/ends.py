"""Check of the record of ends: whether it is whole, and whether the log begins where it says."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from pathlib import Path

from broker_store.check.report import ERROR, NOTE, WARNING, CheckReport
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import is_expired_name
from broker_store.engine.start.ends import BOUND, FILE_NAME, EndsFile, FileEnd
from broker_store.engine.start.log_begin import MissingBegin, missing_begin
from broker_store.engine.start.start_records import ends_gone


class EndsCheck:
    """Call `expired` before the log's files are listed, and `finish` after the walk of the log."""

    def __init__(self, disk: Disk, root: Path, report: CheckReport, late: str):
        """`late` is the severity of a record that ends early: a power cut tears its last block."""
        self._path, self._report, self._late = root / FILE_NAME, report, late
        self._ends = EndsFile(disk, self._path)
        self.missing: MissingBegin | None = None

    def expired(self, names: list[str], directory: Path) -> set[str]:
        """Return, of the names of log files, those that retention had begun to remove; the next start removes
        them."""
        self._ends.load()
        minimum = self._ends.log_minimum
        gone = {name for name in names if is_expired_name(name, minimum, names)}
        if gone:
            what = (
                f"lies below {minimum:,}, where the log begins: retention had begun to remove "
                f"{len(gone):,} files, and the next start does"
            )
            self._report.add(NOTE, "log-starts-early", str(directory / min(gone)), None, what)
        return gone

    @property
    def position(self) -> int:
        """The log offset up to which the record knows the log; 0 without a record."""
        return self._ends.position

    @property
    def is_final(self) -> bool:
        """True if this engine closed the store, by the record's last block."""
        return self._ends.is_final

    @property
    def log_minimum(self) -> int:
        """The log offset where the log begins by the record; -1 when that is not known."""
        return self._ends.log_minimum

    def first_numbers(self, topic: str, queue_id: int) -> tuple[list[int], int] | None:
        """Return (the first number of each file, the next offset) of a queue when the store was closed; None
        where that is not recorded."""
        rows = [end for end in self._ends.queues.get((topic, queue_id), {}).values() if end.first != BOUND]
        return (
            (sorted(end.first for end in rows), max(rows).following) if rows and self._ends.is_final else None
        )

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the least offset that the queue's next message may have, 0 where it is not recorded."""
        return self._ends.next_offset(topic, queue_id)

    def missing_messages(self, known: Container[tuple[str, int]]) -> int:
        """Return how many messages were in recorded queues that are not among `known`, topics and queue
        ids."""
        return sum(self._ends.messages(*key) for key in self._ends.queues if key not in known)

    def recorded(self) -> dict[tuple[str, int], FileEnd]:
        """Return the row of the newest file of each queue of which files are recorded."""
        files = {
            key: [end for end in rows.values() if end.first != BOUND]
            for key, rows in self._ends.queues.items()
        }
        return {key: max(rows) for key, rows in files.items() if rows}

    def remade(self, ends: Iterable[tuple[tuple[str, int], int | None, int]]) -> list[tuple[str, int]]:
        """Queues that another broker deleted and made again since the record was written.

        `ends` has, for each queue, the number after its last record in the log and that record's log offset.
        Records after the recorded position have the recorded next offset or a larger one, unless numbers
        began at 0 again.
        """
        return [
            key
            for key, following, last_at in ends
            if following is not None
            and last_at >= self._ends.position
            and 0 < following < self._ends.next_offset(*key)
        ]

    def finish(
        self,
        log_directory: Path,
        log_start: int,
        file_size: int,
        was_clean: bool,
        is_end: Callable[[int], bool],
        last_start_ms: int | None,
    ) -> None:
        """`is_end(log offset)` says whether nothing lies there, `last_start_ms` when the last known start on
        the store began."""
        # Read again: in a store in use retention may have noted a new begin before the files were listed
        self._ends.load()
        ends = self._ends
        if ends.is_there and ends.note:
            self._report.add(
                self._late,
                "ends",
                str(self._path),
                ends.good_bytes,
                f"{ends.note}; the log is read from {ends.position:,} on, and the next round writes it again",
            )
        if not ends.is_there and was_clean and file_size and last_start_ms is not None:
            self._report.add(WARNING, "ends-missing", str(self._path), None, ends_gone(last_start_ms))
        if not file_size:
            return
        self.missing = missing_begin(
            ends, log_start, file_size, was_clean, was_clean and ends.is_final and is_end(ends.position)
        )
        if self.missing is not None:
            severity = NOTE if self.missing.by_other_broker else ERROR
            self._report.add(severity, "log-starts-late", str(log_directory), None, str(self.missing))
