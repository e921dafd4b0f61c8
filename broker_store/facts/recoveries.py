"""Starts of the store: their records, and what a start would do (a dry run).

A dry run is recovery itself on a disk on which nothing is changed (`InspectDisk`). On the store of a running
broker it shows what a start would do if the process died now: from the files as they are, while they are
written. What comes in meanwhile shows as dispatched again and as taken out of the index; after the log's end
it counts as `came_meanwhile`, not as cut.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import (
    ID,
    MIN_WRITE_INTERVAL_S,
    StartRecords,
    names,
    parsed,
)
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError, LookupNameError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.starts import StartBrief, StartRecord, StartReport, brief_of, record_of, report_of
from broker_store.units import fields_of

DRY_RUN_SECONDS = 600.0
MAX_RECORD_BYTES = 4 << 20  # of one record; it has far less


class DryRunStopped(Exception):
    """It was stopped, or took too long."""


def listing(directory: Path, disk: Disk | None = None) -> list[StartBrief]:
    """Each record in brief, newest first; what cannot be read as one is left out."""
    disk = disk or Disk()
    found = []
    for name in reversed(names(disk, directory)):
        raw = disk.read_file(directory / name, MAX_RECORD_BYTES)
        record = None if raw is None else parsed(raw)
        if record is not None:
            with contextlib.suppress(ValueError):
                found.append(brief_of(record))
    return found


def one(directory: Path, id: str, disk: Disk | None = None) -> StartRecord:
    """The record of one start. Raises NotFoundError."""
    disk = disk or Disk()
    raw = disk.read_file(directory / f"recovery-{id}.json", MAX_RECORD_BYTES) if ID.fullmatch(id) else None
    record = None if raw is None else parsed(raw)
    if record is not None:
        with contextlib.suppress(ValueError):
            return record_of(record)
    raise NotFoundError(f"no start has a record {id[:40]!r}; the newest 200 are kept")


def check_id(id: str) -> str:
    """Return `id` when it may be that of a start; else LookupNameError."""
    if not ID.fullmatch(id):
        raise LookupNameError("that is no id of a start")
    return id


def settings_for(directory: StoreDirectory, given: StoreSettings | None = None) -> StoreSettings:
    """Settings to inspect a store with: file sizes are those of its files, everything else as `given`, or as
    it is by default."""
    settings = given or StoreSettings()
    log = directory.log_directory if directory.log_directory != directory.root / "commitlog" else None
    changes: dict[str, Any] = {
        "store_path_root_dir": directory.root,
        "store_path_commit_log": log,
        **{name: size for name, size in fields_of(directory.sizes()).items() if size is not None},
    }
    return replace(settings, **changes)


def dry_run(
    settings: StoreSettings,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_change: Callable[[StartReport], None] | None = None,
    record_in: Path | None = None,
    record_every_s: float = MIN_WRITE_INTERVAL_S,
    keeps_record: bool = True,
    limit_s: float = DRY_RUN_SECONDS,
) -> StartReport:
    """The report of a start that changes nothing. What would stop a start is in it: state `failed` with the
    sentence.

    With `record_in`, the directory of records, it writes a record of its own there at most once in
    `record_every_s`, unless not `keeps_record`.

    Blocks for as long as a start would take, at most `limit_s`; call it in a thread or a process of its own.
    Raises DryRunStopped, and StoreError when there is no store.
    """
    until = time.monotonic() + limit_s

    def on_step(report: RecoveryReport) -> None:
        if report.state == "running" and (should_stop() or time.monotonic() > until):
            raise DryRunStopped(
                "the dry run was stopped" if should_stop() else f"the dry run took longer than {limit_s:g} s"
            )
        if on_change is not None:
            on_change(report_of(report.as_dict()))

    root = settings.store_path_root_dir.absolute()
    records = None
    if record_in is not None:
        records = StartRecords(record_in, root, every_s=record_every_s, keeps=keeps_record)
    store = MessageStore(replace(settings, inspect=True), records=records, purpose="dry run")
    try:
        store.open(on_step)
    except DamagedStoreError:
        pass  # the report says it
    finally:
        store.close()
    return report_of(store.report.as_dict())
