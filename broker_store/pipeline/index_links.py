"""The audit's task for an index file: do its slots and links form the chains that its entries require?"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from broker_store.check import entries as e
from broker_store.check.entries import ENTRY, SLOT
from broker_store.engine.disk.disk import Disk
from broker_store.formats import index_file
from broker_store.pipeline.findings import (
    MAX_ENTRIES,
    Fault,
    IndexFile,
    opened,
)

MAX_LINKS_LISTED = 1_000  # wrong links of a file that are listed with their place


def check_links(file: IndexFile, disk: Disk | None = None) -> list[Fault]:
    """Return the faults of an index file: entries that do not name the one before them in their slot or that
    step back, slots that do not name their newest entry, and the header's number of used slots."""
    geometry, header = file.geometry, file.header
    newest = np.zeros(geometry.slots, dtype=np.int32)
    room = np.empty((MAX_LINKS_LISTED, 2), dtype=np.int64)
    chains, order, before = Fault(e.INDEX_CHAIN, path=file.path), Fault(e.INDEX_ENTRY, path=file.path), 0
    with ExitStack() as closing:
        reader = opened(file.path, disk or Disk(), closing)
        for number in range(index_file.FIRST_ENTRY, header.count, MAX_ENTRIES):
            raw = np.frombuffer(
                reader.read(
                    geometry.entry_at(number), min(MAX_ENTRIES, header.count - number) * ENTRY.itemsize
                ),
                dtype=ENTRY,
            )
            links, count = e.wrong_links(raw, number, newest, room[: MAX_LINKS_LISTED - len(chains.runs)])
            chains.runs += [(link.number, link.expected, link.named) for link in links]
            chains.count += count
            steps = [*e.steps_back(raw, number, before)]
            before = int(raw["log_offset"][-1])
            order.count += len(steps)
            order.runs += [
                (step.number, step.before, step.log_offset)
                for step in steps[: MAX_LINKS_LISTED - len(order.runs)]
            ]
        slots = np.frombuffer(reader.read(geometry.slot_at(0), geometry.slots * SLOT.itemsize), dtype=SLOT)
    wrong = np.flatnonzero(slots != newest)
    heads = Fault(
        e.INDEX_SLOT,
        path=file.path,
        count=len(wrong),
        runs=[(int(slot), int(newest[slot]), int(slots[slot])) for slot in wrong[:MAX_LINKS_LISTED]],
    )
    used = int(np.count_nonzero(newest))
    header_fault = Fault(
        e.INDEX_HEADER, path=file.path, count=int(used != header.slots_used), first=(used, header.slots_used)
    )
    return [fault for fault in (chains, order, heads, header_fault) if fault.count]
