"""The audit's task for a stretch of the log: its records, and the units and entries that belong to them.

    stretch   ── kernels/columns ──►  rows, keys  ── kernels/compare ──►  units [from, to) of each queue
                                                                   └──►  entries [from, to) of the index

Log offsets ascend in the units of a queue and in the entries of the index, so a binary search finds where
those of a stretch begin. Damage breaks the order. The search then still assigns each unit and entry to
exactly one stretch, since of two places in the log the later never gets the lower number. What agrees is only
marked. What is left in the end, of records, units or entries, is searched at the place that it names, and its
fault is reported: the number of such faults, and the first.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.row_buffer import ColumnBuffer
from broker_store.kernels import columns as k
from broker_store.pipeline.batches import TORN, walk
from broker_store.pipeline.findings import MAX_ROWS, Findings, Found, Store, Stretch
from broker_store.pipeline.stretch_entries import StretchEntries
from broker_store.pipeline.stretch_units import StretchUnits

MAX_KEYS = 256 << 10  # in memory at once
MAX_DAMAGED_LISTED = (
    1_000  # parts without a record, or store times that step back, that a task lists one by one
)


def check_stretch(store: Store, stretch: Stretch, disk: Disk | None = None) -> Found:
    """Compare a stretch with queues and index; return what was found."""
    findings = Findings(store, stretch, disk or Disk())
    found = findings.found
    with ExitStack() as closing:
        units = StretchUnits(findings)
        entries = StretchEntries(findings, closing) if store.index else None
        room = ColumnBuffer(MAX_ROWS, MAX_KEYS)
        for part in () if stretch.split is None else walk(stretch.split, room, "report", findings.disk):
            if isinstance(part, np.ndarray):
                rows, keys = room.rows, room.keys
                found.records += len(rows)
                found.log_end = int(rows[-1, k.ROW_LOG_OFFSET] + rows[-1, k.ROW_SIZE])
                _check_times(found, rows)
                units.check(rows, part, room.base)
                if entries:
                    entries.check(rows, keys)
                else:
                    found.keys += len(keys)
            else:
                _note_damage(findings, *part)
        units.finish()
        if entries:
            entries.finish()
    found.faults = findings.faults()
    return found


def _check_times(found: Found, rows: np.ndarray) -> None:
    """Note where store times step back; the driver compares those at the border of two stretches."""
    times = rows[:, k.ROW_STORE_MS]
    if found.first_time is None:
        found.first_time = int(rows[0, k.ROW_LOG_OFFSET]), int(times[0])
    before = np.concatenate(([times[0] if found.last_ms is None else found.last_ms], times[:-1]))
    back = np.flatnonzero(times < before)
    for place in back[: MAX_DAMAGED_LISTED - len(found.times_back)]:
        found.times_back.append((int(rows[place, k.ROW_LOG_OFFSET]), int(before[place] - times[place])))
        back = back[1:]
    found.times_back_more += len(back)
    found.last_ms = int(times[-1])


def _note_damage(findings: Findings, at: int, length: int, problem: str) -> None:
    found, torn = findings.found, problem.startswith(TORN)
    split = findings.stretch.split
    assert split is not None  # what is damaged was read from it
    findings.damaged.append((at, split.file_end if torn else at + length))
    if len(found.damaged) < MAX_DAMAGED_LISTED or torn:
        found.damaged.append((at, length, problem))
    else:
        found.damaged_more += 1
