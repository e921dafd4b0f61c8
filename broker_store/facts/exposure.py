"""If it crashed now: what would be lost, and what the next start would do.

What a killed process wrote stays with the system; what a power cut takes is what was not synced. In both
cases the next start finds `abort` and begins at the newest log file whose first record is not younger than
the checkpoint less three seconds (engine/start/log_scan.py), and reads from there to the end of the
log. How fast it reads is known only from earlier starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.report import SCAN
from broker_store.engine.start.start_records import names, parsed
from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import record

REPORTS_LOOKED_AT = 5
LEAST_SCANNED_BYTES = 1 << 20  # less is over too soon to tell a rate
_RUNS = "What a crash at this moment would take, and what the start after it would do."
_CLOSED = (
    "The store was closed in order: everything is on the disk, and a start reads only the end of its log."
)
_CRASHED = (
    "The store was not closed in order, or its broker runs: this is what a start would do with the files "
    "as they are."
)
_UNKNOWN_RATE = "no start that is remembered has read enough of a log to tell how fast this machine does"


def of_files(directory: StoreDirectory, rate: dict) -> dict:
    """What the files alone tell of a store without its broker; `rate` is what `scan_rate` gave."""
    is_closed = not directory.disk.exists(directory.root / "abort")
    start = None if is_closed else start_of_recovery(directory)
    return {
        "state": "closed" if is_closed else "crashed",
        "flush_type": None,
        "sentence": _CLOSED if is_closed else _CRASHED,
        "start": start,
        "restart": restart(start, directory.log_end(), rate),
        "losses": None,
    }


def of(directory: StoreDirectory, store: dict, rate: dict) -> dict:
    """`store` is the snapshot of a store that runs, `rate` what `scan_rate` gave. It reads files: not for the
    loop."""
    start = start_of_recovery(directory)
    return {
        "at_ms": store["at_ms"],
        "state": store["state"],
        "flush_type": store["flush"]["type"],
        "sentence": _RUNS,
        "start": start,
        "restart": restart(start, store["positions"]["wrote"], rate),
        "losses": losses(store),
    }


def losses(store: dict) -> dict:
    """What each kind of crash would take of what is written, at most, and what of that was acknowledged."""
    behind, is_sync = store["behind"], store["flush"]["type"] == "SYNC_FLUSH"
    unflushed = {
        "bytes": behind["unflushed_bytes"],
        "messages": behind["unflushed_messages"],
        "oldest_ms": behind["oldest_unflushed_ms"],
    }
    nothing = {"bytes": 0, "messages": 0, "oldest_ms": 0}
    known = unflushed["bytes"] is not None
    if not known:
        sentence = "How much of the log is on the disk is not known yet."
    elif is_sync:
        sentence = (
            "Nothing that was acknowledged: with SYNC_FLUSH a send is answered when its message is on "
            "the disk."
        )
    elif unflushed["bytes"] == 0:
        sentence = "Nothing at this moment: all of the log is on the disk."
    else:
        sentence = (
            "Acknowledged messages that are not on the disk yet, at most as many as stand here; of each "
            "queue only its newest."
        )
    return {
        "process": {
            "written": nothing,
            "acknowledged": nothing,
            "sentence": "Nothing: what was written stays in the system's memory when the process is killed.",
        },
        "power": {
            "written": unflushed,
            "acknowledged": nothing if known and is_sync else unflushed,
            "sentence": sentence,
        },
    }


def start_of_recovery(directory: StoreDirectory) -> dict | None:
    """The log file that a start after a crash begins with; None without any. `limit_ms` is the checkpoint's
    time less three seconds."""
    files, limit_ms = directory.log_files(), directory.checkpoint_limit_ms()
    if not files:
        return None
    chosen, first_ms = files[0], None
    for file in reversed(files):
        found_ms = _first_stored_ms(directory, file[0])
        if found_ms is not None and 0 < found_ms <= limit_ms:
            chosen, first_ms = file, found_ms
            break
    if first_ms is not None:
        why = "the newest file whose first record is not younger than the checkpoint less 3 s"
    elif limit_ms > 0:
        why = "no file begins with a record that is old enough, so all are read"
    else:
        why = "the checkpoint lacks a time, so all are read"
    return {
        "file": chosen[2].name,
        "position": chosen[0],
        "first_ms": first_ms,
        "limit_ms": limit_ms or None,
        "why": why,
    }


def _first_stored_ms(directory: StoreDirectory, base: int) -> int | None:
    """Store time of a file's first record; None when no good one is there."""
    try:
        return record.decode(directory.record_at(base), log_offset=base).store_timestamp
    except (FormatError, NotFoundError):
        return None


def restart(start: dict | None, log_end: int | None, rate: dict) -> dict:
    """How much such a start reads, and how long it takes as far as earlier ones tell."""
    rescan = None if start is None or log_end is None else max(0, log_end - start["position"])
    known = rescan is not None and rate["bytes_per_s"] is not None
    return {
        "rescan_bytes": rescan,
        "log_end": log_end,
        "estimated_ms": round(rescan / rate["bytes_per_s"] * 1000 + rate["other_ms"]) if known else None,
        **rate,
    }


def scan_rate(found: Iterable[dict]) -> dict:
    """How fast the last starts read their logs, and what the other steps of the newest of them took."""
    scans, other_ms = [], None
    for report in found:
        # A dry run reads what is in memory by then, and a start to look at copies what it changes.
        if report.get("purpose") != "start" or report["state"] != "done":
            continue
        steps = [step for step in report["steps"] if step["name"] == SCAN and step["duration_ms"]]
        size, took_ms = sum(step["bytes"] for step in steps), sum(step["duration_ms"] for step in steps)
        if size < LEAST_SCANNED_BYTES:
            continue
        scans.append((size, took_ms))
        if other_ms is None:
            other_ms = max(0.0, report["finished_ms"] - report["started_ms"] - took_ms)
        if len(scans) == REPORTS_LOOKED_AT:
            break
    if not scans:
        return {"bytes_per_s": None, "other_ms": None, "measured_by": 0, "why_unknown": _UNKNOWN_RATE}
    rate = sum(size for size, _ in scans) / sum(took_ms for _, took_ms in scans) * 1000
    return {"bytes_per_s": rate, "other_ms": other_ms, "measured_by": len(scans), "why_unknown": None}


def reports(directory: Path, disk: Disk | None = None) -> Iterator[dict]:
    """The records of earlier starts that are kept in a directory, newest first."""
    disk = disk or Disk()
    for name in reversed(names(disk, directory)):
        raw = disk.read_file(directory / name)
        record = None if raw is None else parsed(raw)
        if record is not None:
            yield record
