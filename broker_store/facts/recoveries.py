"""Starts of the store: their records, and what a start would do (a dry run).

A dry run is recovery itself on a disk on which nothing is changed (`InspectDisk`). On the store of a running
broker it tells what a start would do if the process died now: from the files as they are, while they are
written. What comes in meanwhile shows as dispatched again and as taken out of the index; behind the log's end
it counts as `came_meanwhile`, not as cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import ID, StartRecords, names, parsed
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError, NotFoundError
from broker_store.facts.directory import StoreDirectory

DRY_RUN_SECONDS = 600.0
_MOST_BYTES = 4 << 20  # of one record; it has far less
_BRIEF = (
    "id",
    "purpose",
    "kind",
    "state",
    "started_ms",
    "finished_ms",
    "took_ms",
    "scanned_bytes",
    "messages",
    "cut_bytes",
    "redispatched",
    "log_end",
    "error",
    "store",
)


class DryRunStopped(Exception):
    """It was told to stop, or took too long."""


def listing(directory: Path, disk: Disk | None = None) -> list[dict]:
    """Each record in brief, newest first; what cannot be read as one is left out."""
    disk = disk or Disk()
    found = []
    for name in reversed(names(disk, directory)):
        raw = disk.read_file(directory / name, _MOST_BYTES)
        record = None if raw is None else parsed(raw)
        if record is not None:
            found.append(
                {key: record.get(key) for key in _BRIEF} | {"findings": len(record.get("findings") or [])}
            )
    return found


def one(directory: Path, id: str, disk: Disk | None = None) -> dict:
    """The record of one start. Raises NotFoundError."""
    disk = disk or Disk()
    raw = disk.read_file(directory / f"recovery-{id}.json", _MOST_BYTES) if ID.fullmatch(id) else None
    record = None if raw is None else parsed(raw)
    if record is None:
        raise NotFoundError(f"no start has a record {id[:40]!r}; the newest 200 are kept")
    return {key: value for key, value in record.items() if key != "pid"}


def settings_for(directory: StoreDirectory, given: StoreSettings | None = None) -> StoreSettings:
    """Settings to look at a store with: file sizes are those of its files, everything else as `given`, or as
    it is by default."""
    settings = given or StoreSettings()
    log = directory.log_directory if directory.log_directory != directory.root / "commitlog" else None
    return replace(
        settings, store_path_root_dir=directory.root, store_path_commit_log=log, **directory.sizes()
    )


def dry_run(
    settings: StoreSettings,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_change: Callable[[dict], None] | None = None,
    records: StartRecords | None = None,
    limit_s: float = DRY_RUN_SECONDS,
) -> dict:
    """The report of a start that changes nothing. What would stop a start is in it: state `failed` with the
    sentence.

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
            on_change(report.as_dict())

    store = MessageStore(replace(settings, inspect=True), records=records, purpose="dry run")
    try:
        store.open(on_step)
    except DamagedStoreError:
        pass  # the report says it
    finally:
        store.close()
    return store.report.as_dict()
