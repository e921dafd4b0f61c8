"""Records of starts: what each found and did, as a small JSON file in the data directory, also for a start
that failed or was killed.

A record exists from the moment a start has the store, and is updated while the start runs. A record with the
state `running` whose process is gone belongs to a start that was killed: every reader shows it as ended
midway, and the next start writes that into the record.

    DIR/recoveries/recovery-<id>.json      id: the time of the start in ms, and a number after it if two
                                           have the same
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from broker_store import processes
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.start.report import RecoveryReport, time_text
from broker_store.errors import StoreError

SYNC_FLUSH = "SYNC_FLUSH"
MAX_RECORDS = 200
MAX_BYTES = 16 << 20  # of all records; one has a few KB, at most some hundred KB
MIN_WRITE_INTERVAL_S = 2.0  # during a start
ID = re.compile(r"\d{1,15}(-\d{1,3})?")
ENDED_MIDWAY = "ended midway"


class LastStart(NamedTuple):
    """The newest start of a broker that opened a store, from its record. The defaults stand for no record."""

    started_ms: int | None = None
    is_same_boot: bool = False  # the machine was not restarted since: everything written is there
    is_sync_flush: bool = False  # a queue unit was written after its record had been synced

    @property
    def units_prove_records(self) -> bool:
        """True if a unit that the previous run wrote proves that its record was there."""
        return self.is_same_boot or self.is_sync_flush


class StartRecords:
    """Writes the record of one start. It names `store`, relative to the data directory when it lies there."""

    def __init__(
        self,
        directory: Path,
        store: Path,
        disk: Disk | None = None,
        every_s: float = MIN_WRITE_INTERVAL_S,
        keeps: bool = True,
    ):
        """Without `keeps` no record is written; existing ones are read."""
        self.directory, self._disk, self._every_s, self._keeps = directory, disk or Disk(), every_s, keeps
        self._store = _name_of(store, directory)
        self._path: Path | None = None
        self._written = 0.0
        self.failure = ""  # why the record is not kept; the caller that opens the store reports it

    def begin(self, report: RecoveryReport) -> None:
        """Give the start an id and write its record; the oldest records are removed when there are too
        many."""
        if not self._keeps:
            return
        try:
            self._disk.make_directory(self.directory)
            self._mark_dead()
            self._remove_old()
            number = 0
            while self._disk.exists(path := self.directory / f"recovery-{report.id}.json"):
                number += 1
                report.id = f"{report.started_ms}-{number}"
            self._path = path
        except StoreError as error:
            self._give_up(report, error)
            return
        self.write(report, at_once=True)

    def write(self, report: RecoveryReport, at_once: bool = False) -> None:
        """Update the record, if that is due. A failure must not fail the start: it becomes a finding."""
        now = time.monotonic()
        if self._path is None or self.failure or (not at_once and now - self._written < self._every_s):
            return
        self._written = now
        try:
            self._disk.replace_file(self._path, self._bytes(report.as_dict()))
        except StoreError as error:
            self._give_up(report, error)

    def last_start(self, report: RecoveryReport) -> LastStart:
        """Return the newest start of a broker that opened this store. Records that cannot be read become a
        finding, and count as none."""
        if self.failure:
            return LastStart()
        try:
            return _last_start(self._disk, self.directory, self._store)
        except StoreError as error:
            self._give_up(report, error)
            return LastStart()

    def _bytes(self, facts: dict) -> bytes:
        return json.dumps(
            facts | {"store": self._store, "pid": os.getpid(), "boot": processes.boot_id()}
        ).encode()

    def _give_up(self, report: RecoveryReport, error: StoreError) -> None:
        self.failure = str(error)
        report.finding("info", f"the record of this start cannot be kept: {error}")

    def _mark_dead(self) -> None:
        for name in names(self._disk, self.directory):
            raw = self._disk.read_file(self.directory / name)
            if (
                raw is not None
                and b'"state": "running"' in raw
                and (found := parsed(raw))
                and found["state"] == ENDED_MIDWAY
            ):
                self._disk.replace_file(self.directory / name, json.dumps(found).encode())

    def _remove_old(self) -> None:
        kept = names(self._disk, self.directory)
        sizes = [self._disk.size_of(self.directory / name) for name in kept]
        while kept and (len(kept) >= MAX_RECORDS or sum(sizes) > MAX_BYTES):
            self._disk.unlink(self.directory / kept.pop(0))
            sizes.pop(0)


def sizes_of_last_start(directory: Path, store: Path, disk: Disk | None = None) -> FileSizes:
    """Return the file sizes of the newest start of a broker that opened `store`; unknown ones are None."""
    for found in _starts(disk or Disk(), directory, _name_of(store, directory)):
        sizes = found.get("sizes")
        if isinstance(sizes, dict):
            known = {field.name: sizes.get(field.name) for field in fields(FileSizes)}
            return FileSizes(
                **{key: value for key, value in known.items() if isinstance(value, int) and value > 0}
            )
    return FileSizes()


def levels_of_last_start(directory: Path, store: Path, disk: Disk | None = None) -> str | None:
    """Return the messageDelayLevel of the newest start of a broker that opened `store`; None when it is not
    recorded."""
    newest = next(_starts(disk or Disk(), directory, _name_of(store, directory)), {})
    levels = newest.get("delay_levels")
    return levels if isinstance(levels, str) and levels else None


def last_start(directory: Path, store: Path, disk: Disk | None = None) -> LastStart:
    """Return what `StartRecords.last_start` does. Raises StoreError where the records cannot be read."""
    return _last_start(disk or Disk(), directory, _name_of(store, directory))


def _last_start(disk: Disk, directory: Path, store: str) -> LastStart:
    newest = next(_starts(disk, directory, store), None)
    if newest is None:
        return LastStart()
    return LastStart(
        newest["started_ms"],
        newest.get("boot") == processes.boot_id() != "",
        newest.get("flush_disk_type") == SYNC_FLUSH,
    )


def store_gone(last_start_ms: int) -> str:
    """Return a sentence: nothing is left of a store that a start opened."""
    return (
        f"nothing is left of the store that was opened at {time_text(last_start_ms)}: its disk is not "
        f"mounted, or the store was removed"
    )


def ends_gone(last_start_ms: int) -> str:
    """Return a sentence: the record of ends of a store that was closed is missing, though a start opened the
    store."""
    return (
        f"is missing, though each stop writes it and the store was opened at "
        f"{time_text(last_start_ms)}: where the log began, and which offsets were given,"
        " is known from the files alone"
    )


def _name_of(store: Path, directory: Path) -> str:
    """Return the store's name in its records: relative to the data directory when it lies there."""
    return str(store.relative_to(directory.parent)) if store.is_relative_to(directory.parent) else str(store)


def _starts(disk: Disk, directory: Path, store: str) -> Iterator[dict]:
    """Yield the records of starts of a broker that opened `store`, newest first."""
    for name in reversed(names(disk, directory)):
        found = parsed(disk.read_file(directory / name) or b"")
        if found is None or not isinstance(found.get("started_ms"), int):
            continue
        if (found["state"], found.get("purpose"), found.get("store")) == ("done", "start", store):
            yield found


def names(disk: Disk, directory: Path) -> list[str]:
    """Return the names of the records' files, oldest first."""
    found = [
        name
        for name in disk.list_names(directory)
        if name.startswith("recovery-") and ID.fullmatch(name[9:-5]) and name.endswith(".json")
    ]
    return sorted(found, key=lambda name: tuple(int(piece) for piece in name[9:-5].split("-")))


def parsed(raw: bytes) -> dict | None:
    """Return a record; None for a file that is none. A record whose process is gone gets the state
    ENDED_MIDWAY."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("id"), str)
        or not isinstance(found.get("steps"), list)
    ):
        return None
    if found.get("state") == "running" and not processes.exists(found.get("pid")):
        found |= {
            "state": ENDED_MIDWAY,
            "left_ms": None,
            "error": f"its process ended before the start did, in the step “{found.get('step', '')}”",
        }
    return found
