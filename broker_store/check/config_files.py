"""Check of the tables of config/, as a start reads them: an error where a start refuses one, a warning where
it goes on without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker_store.check.report import ERROR, NOTE, WARNING
from broker_store.check.store import CheckedStore
from broker_store.engine import config_files
from broker_store.engine.config_files import BadConfigFile, ConfigReader, find_bad
from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.engine.queue.tombstones import beyond
from broker_store.engine.queue.tombstones import read_file as read_tombstone_file
from broker_store.errors import DamagedStoreError, FormatError, StoreError
from broker_store.formats import config_json

MAX_CONFIG_BYTES = 256 << 20


def read_json(disk: Disk, root: Path, name: str) -> dict[str, object]:
    """Return a table of config/; empty where it cannot be read, which is reported with the other tables."""
    try:
        raw = disk.read_file(root / config_files.DIRECTORY / name, MAX_CONFIG_BYTES)
        value = config_json.read(raw or b"{}")
    except (FormatError, StoreError):
        return {}
    return value if isinstance(value, dict) else {}


def read_tombstones(disk: Disk, root: Path) -> dict[str, int]:
    """Return the log offset by deleted topic, as a start reads it: of the file, else of its .bak; none where
    both are bad."""
    sound: list[dict[str, int]] = []
    find_bad(
        disk,
        root / config_files.DIRECTORY / TOMBSTONES,
        lambda text: sound.append(read_tombstone_file(text)),
    )
    return sound[-1] if sound else {}


class ConfigCheck:
    """`readers` are those of a start, by the name of the file in config/; without the broker's readers a file
    that is not JSON is an error."""

    def __init__(self, store: CheckedStore, readers: Mapping[str, ConfigReader], knows_readers: bool):
        self._store, self._report = store, store.report
        self._readers, self._knows_readers = readers, knows_readers
        self._directory = store.root / config_files.DIRECTORY

    def run(
        self, topics: set[str], was_closed_by_broker: bool, deleted_before: Mapping[str, int] | None
    ) -> None:
        """Report what is wrong with the tables.

        `topics` are those that have queues. `was_closed_by_broker`: each table that a stop writes must be
        there. `deleted_before` are the tombstones to compare with the end of the log, None where they are not
        to be compared.
        """
        disk, report = self._store.disk, self._report
        found = {name for name in disk.list_names(self._directory) if name.endswith(".json")}
        for name in sorted(found - {STORE_TIMES} | self._readers.keys()):
            path, reader = self._directory / name, self._readers.get(name)
            bad = find_bad(disk, path, reader.read if reader is not None else config_json.read)
            if bad is not None:
                self._report_bad(path, reader, bad)
            elif disk.exists(path):
                report.count("config_files")
            elif reader is not None and was_closed_by_broker and (gone := reader.gone(topics)):
                report.add(WARNING, "config-missing", str(path), None, gone)
        if deleted_before is not None:
            for doubt in beyond(deleted_before, report.log_end):
                report.add(WARNING, "config", str(self._directory / TOMBSTONES), None, doubt)
        self._check_store_times()

    def _report_bad(self, path: Path, reader: ConfigReader | None, bad: BadConfigFile) -> None:
        report = self._report
        if bad.is_in_the_way:
            report.add(ERROR, "unreadable", str(path), None, bad.problem)
        elif reader is None and self._knows_readers:
            what = f"{bad.problem}; this broker does not read the file"
            report.add(NOTE, "config", str(path), None, what)
        elif bad.backup is not None and reader is not None and not reader.takes_backup:
            what = f"{bad.problem}; {config_files.not_taken(path)}"
            report.add(ERROR, "config", str(path), None, what)
        elif bad.backup is not None:
            what = f"{bad.problem}; its .bak is good and is taken instead"
            report.add(WARNING, "config", str(path), None, what)
        elif reader is None or reader.is_needed:
            backup = path.with_name(f"{path.name}{config_files.BACKUP}")
            report.add(
                ERROR, "config", str(path if self._store.disk.exists(path) else backup), None, bad.both
            )
        else:
            report.add(NOTE, "config", str(path), None, f"{bad.both}: a start begins without its content")

    def _check_store_times(self) -> None:
        path = self._directory / STORE_TIMES
        times = StoreTimes(self._store.disk, path)
        try:
            times.load()
        except DamagedStoreError as error:
            self._report.add(ERROR, "unreadable", str(path), None, error.what)
        if times.note:
            self._report.add(NOTE, "config", str(path), None, times.note)
