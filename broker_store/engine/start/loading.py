"""Step 1: load the files of the store. A wrong length, a gap in the log or a foreign name stops the start.

The record of ends is loaded first: it states where the log begins, and with which length each index file was
closed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from broker_store.engine.start.ends import FILE_NAME
from broker_store.engine.start.report import counted, time_text
from broker_store.engine.start.start_records import ends_gone
from broker_store.engine.start.state import RecoveryParts, RecoveryState


def load_files(parts: RecoveryParts, state: RecoveryState) -> None:
    """Load the record of ends, log, queues, checkpoint and index. Raises DamagedStoreError, StoreError."""
    report = parts.report
    _load_record(parts, state)
    with report.step("load the commit log") as step:
        parts.log.load(minimum=parts.ends.log_minimum)
        step.detail = f"{counted(len(parts.log.files), 'file')} of {parts.log.file_size:,} bytes"
    with report.step("load the queues") as step:
        parts.queues.load()
        step.detail = counted(len(parts.queues), "queue")
    with report.step("load the checkpoint") as step:
        parts.checkpoint.load()
        stamps = parts.checkpoint.stamps
        report.checkpoint = {
            "found": parts.checkpoint.found,
            "physic_ms": stamps.physic_msg_timestamp,
            "logics_ms": stamps.logics_msg_timestamp,
            "index_ms": stamps.index_msg_timestamp,
            "limit_ms": max(0, stamps.min_timestamp),
        }
        step.detail = (
            f"log {time_text(stamps.physic_msg_timestamp)}, queues "
            f"{time_text(stamps.logics_msg_timestamp)}, index "
            f"{time_text(stamps.index_msg_timestamp)}"
            if parts.checkpoint.found
            else "there is none: its stamps count as 0"
        )
    with report.step("load the index") as step:
        parts.index.load(partial(_keep_if_recorded, parts, state))
        step.detail = counted(len(parts.index.files), "file")


def _load_record(parts: RecoveryParts, state: RecoveryState) -> None:
    """Load the record of ends, and report what is wrong with it."""
    report = parts.report
    with report.step("load the record of ends") as step:
        parts.ends.load()
        state.was_recorded = parts.ends.found
        state.was_closed = parts.was_clean and parts.ends.is_final
        queues, note = len(parts.ends.queues), parts.ends.note
        step.detail = (
            f"{counted(queues, 'queue')}, the log up to {parts.ends.position:,}"
            + (f"; {note}" if note else "")
            if parts.ends.found
            else f"{note or 'it holds no whole block'}, so how far queues and index reach is read "
            f"from their files"
        )
        started_ms = parts.last_start.started_ms
        if parts.is_record_gone and started_ms is not None:
            report.finding("warning", ends_gone(started_ms), FILE_NAME)
        if parts.ends.is_there and note:
            report.finding("warning", note, FILE_NAME, parts.ends.good_bytes)


def _keep_if_recorded(parts: RecoveryParts, state: RecoveryState, path: Path, length: int) -> bool:
    """Return True for an index file that was closed with the right length and now has another. It is left
    out, and moved to `lost+found/` when the start goes on; its entries are built again."""
    wanted = (int(path.name), parts.index.geometry.file_bytes)
    if not parts.was_clean or wanted not in [(end.name, end.file_bytes) for end in parts.ends.index]:
        return False
    parts.report.finding(
        "warning",
        f"has {length:,} bytes, not those it was closed with; it is made again",
        f"index/{path.name}",
    )
    state.away.append(path)
    return True
