"""The source of each view's numbers, as a sentence. Its page shows it beside the drawing, REST beside the
numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from broker_store.units import Moment

SOURCES = {
    "positions": "Positions, flags and counters from the memory of the process.",
    "files": "From the process that writes them; store times are read from the files.",
    "dispatch": "Positions from memory, the ages from the records themselves.",
    "flush": "Counted by the thread that syncs; each sync is measured.",
    "exposure": "Unsynced bytes from memory; the start file from the checkpoint and the first records of the "
    "log files.",
    "write-path": "Measured in the broker, a group at a time.",
    "refusals": "Counted where something is refused.",
    "index": "From the headers of the index files.",
    "slots": "Counted from the slots of the file itself.",
    "chains": "Counted from every entry and slot of the file.",
    "explain": "Read from the files by position, step by step, with the time each took.",
    "disk": "From the files of the store and their times, the file system, and the offsets of groups; the "
    "growth of others on the disk from samples.",
    "timeline": "From queue and log files, their times, and samples every 10 s.",
    "pops": "From the memory of the broker, a copy of the revive log; how often a message was given out, "
    "from its record.",
    "recovery": "Reported by recovery itself, while it runs and when it has ended.",
    "recoveries": "Read from recoveries/ in the data directory.",
    "record": "The record that this start left in the data directory.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The time at which numbers were measured, and their source."""

    at_ms: Moment
    source: str


def measured(view: str) -> Measurement:
    """Return the head of an answer whose numbers of a view are measured now."""
    return Measurement(at_ms=time.time_ns() // 1_000_000, source=SOURCES[view])
