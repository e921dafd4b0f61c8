"""The findings of an audit on the index: what tasks found of its entries, its links, and its headers."""

from __future__ import annotations

from pathlib import Path

from broker_store.check import entries, rules
from broker_store.check.records import good_record
from broker_store.check.report import ERROR, WARNING
from broker_store.engine.disk.disk import Disk
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexGeometry
from broker_store.pipeline.audit_report import AuditReport
from broker_store.pipeline.findings import Fault, IndexFile


def entry_offset(disk: Disk, file: IndexFile, number: int) -> int:
    """The log offset that an entry names."""
    with disk.open_reader(Path(file.path)) as reader:
        raw = reader.read(file.geometry.entry_at(number), index_file.ENTRY.size)
    return index_file.decode_entry(raw).log_offset


class IndexAudit:
    """`index` are the files with entries, `files` those of the log (path, first, end); `late` is the severity
    of what the next start makes again."""

    def __init__(
        self,
        report: AuditReport,
        disk: Disk,
        index: list[IndexFile],
        geometry: IndexGeometry | None,
        files: list[tuple[Path, int, int]],
        late: str,
        is_in_use: bool,
    ):
        self._report, self._disk, self._index, self._geometry = report, disk, index, geometry
        self._files, self._late, self._is_in_use = files, late, is_in_use

    def entries(self, fault: Fault) -> None:
        """Report the entries and keys that a task found."""
        offset, path, number = fault.first
        severity, what = {
            entries.INDEX_EXTRA: (WARNING, f"point {rules.AFTER_THE_LOG}"),
            entries.INDEX_ENTRY: (ERROR, f"match no key of a record, the first points to {offset}"),
            entries.INDEX_TIME: (ERROR, "state another time than their record"),
            entries.INDEX_STARTS_LATE: (self._late, "keys of older records are in no index file"),
            entries.INDEX_BEHIND: (self._late, f"keys of the records from {offset} on are not in the index"),
            entries.INDEX_MISSING: (
                self._late,
                f"keys of records are in no index file, the first of the record at {offset}",
            ),
        }[fault.kind]
        at = self._index[0].geometry.entry_at(number) if path else None
        beside = self._index[0] if fault.kind == entries.INDEX_STARTS_LATE else self._index[-1]
        self._report.add(
            severity,
            fault.kind,
            path or beside.path,
            at,
            f"{fault.count} {'entries ' if path else ''}{what}",
            fault.count,
        )

    def links(self, faults: list[Fault]) -> None:
        """Report the wrong links, slots and counts that the tasks of index files found."""
        for fault in faults:
            # A spare may come after the last that has entries
            is_last = not self._index or fault.path >= self._index[-1].path
            if is_last and self._is_in_use and fault.kind not in (entries.INDEX_CHAIN, entries.INDEX_ENTRY):
                continue  # a running broker goes on adding entries
            # A start after an unclean stop links the last file again.
            severity = self._late if is_last else ERROR
            geometry = self._geometry
            if fault.kind == entries.INDEX_HEADER:
                used, stated = fault.first
                self._report.add(
                    severity,
                    fault.kind,
                    fault.path,
                    index_file.HEADER.offset["slots_used"],
                    entries.wrong_slots_used(stated, used),
                )
                continue
            assert geometry is not None  # files of the index were read
            for number, (place, wanted, there) in enumerate(fault.runs, 1):
                if fault.kind == entries.INDEX_ENTRY:
                    severity, at, what = (
                        ERROR,
                        geometry.entry_at(place),
                        entries.points_back(there, wanted),
                    )
                elif fault.kind == entries.INDEX_CHAIN:
                    loops = "; the chain loops" if there >= place else ""
                    link = entries.WrongLink(place, there, wanted)
                    at, what = geometry.entry_at(place), f"{entries.wrong_link(link)}{loops}"
                else:
                    at, what = geometry.slot_at(place), entries.wrong_slot(place, there, wanted)
                more = fault.count - len(fault.runs) if number == len(fault.runs) else 0
                self._report.add(severity, fault.kind, fault.path, at, what, 1 + more)

    def headers(self) -> None:
        """Each header states the place and the store time of the records of its first and last entry, and
        each file begins where the one before it ends, or after."""
        before = 0
        for file in self._index:
            first, last = (
                entry_offset(self._disk, file, number)
                for number in (index_file.FIRST_ENTRY, file.header.count - 1)
            )
            if first < before:
                self._report.add(
                    ERROR,
                    entries.INDEX_ENTRY,
                    file.path,
                    file.geometry.entry_at(index_file.FIRST_ENTRY),
                    entries.points_back(first, before),
                )
            before = last
            is_last = file is self._index[-1]
            if is_last and self._is_in_use:
                continue  # a running broker goes on adding entries
            severity, header = self._late if is_last else ERROR, file.header
            if [first, last] != [header.begin_offset, header.end_offset]:
                self._report.add(
                    severity,
                    entries.INDEX_HEADER,
                    file.path,
                    index_file.HEADER.offset["begin_offset"],
                    entries.WRONG_ENDS,
                )
            for name, offset in zip(("begin_timestamp", "end_timestamp"), (first, last), strict=True):
                stored_ms, stated_ms = self._store_ms(offset), getattr(header, name)
                if stored_ms is not None and stored_ms != stated_ms:
                    what = entries.wrong_stamp(name, stated_ms, stored_ms)
                    self._report.add(
                        severity, entries.INDEX_HEADER, file.path, index_file.HEADER.offset[name], what
                    )

    def _store_ms(self, offset: int) -> int | None:
        """Store time of the good record at a log offset; None when there is none."""
        for path, base, end in self._files:
            if base <= offset < end:
                with self._disk.open_reader(path) as reader:
                    found = good_record(reader, offset - base)
                return None if found is None or found.log_offset != offset else found.store_timestamp
        return None
