"""Scans of a full index file of Apache's default size: `python -m tests.bench.index DIRECTORY
slots|chains` prints a JSON line.

The file is filled with random hashes and linked by the engine's own kernel, by a process of its own, whose
map of the file is not this one's memory. Then it is in the page cache. `rss_bytes` is what memory grew by
over the looks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from broker_store.facts.chains import chains
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.slots import heat_map
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexGeometry, IndexHeader
from broker_store.kernels.index import link_slots

FULL = IndexGeometry(5_000_000, 20_000_000)
NAME = "20260101000000000"
ENTRY = np.dtype([("key_hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SCANS = 5


def fill(root: Path) -> None:
    """A store with that one index file and an empty log."""
    for name in ("commitlog", "index"):
        (root / name).mkdir(parents=True)
    path = root / "index" / NAME
    with open(path, "w+b") as file:
        file.truncate(FULL.file_bytes)
    content = np.memmap(path, dtype=np.uint8, mode="r+")
    entries = content[FULL.entries_at :].view(ENTRY)
    entries["key_hash"] = np.random.default_rng(7).integers(0, 1 << 31, FULL.entries)
    entries["log_offset"] = np.arange(FULL.entries) * 300
    used = link_slots(content.ctypes.data, FULL.slots, index_file.FIRST_ENTRY, FULL.entries)
    header = IndexHeader(1_700_000_000_000, 1_700_000_900_000, 300, FULL.entries * 300, used, FULL.entries)
    content[: index_file.HEADER.size] = np.frombuffer(index_file.encode_header(header), dtype=np.uint8)
    content.flush()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(root: Path, mode: str) -> dict:
    """The median times of some scans, and the memory that they took."""
    directory, function = StoreDirectory(root), {"slots": heat_map, "chains": chains}[mode]
    function(directory, NAME)  # what is compiled is not measured
    before, took, cpu = resident_bytes(), [], []
    for _ in range(SCANS):
        began, spent = time.perf_counter(), time.process_time()
        found = function(directory, NAME)
        took.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.process_time() - spent) * 1e3)
        assert found.findings == [], found.findings
    return {
        "ms": sorted(took)[SCANS // 2],
        "cpu_ms": sorted(cpu)[SCANS // 2],
        "rss_bytes": resident_bytes() - before,
    }


if __name__ == "__main__":
    where, what = sys.argv[1:]
    if what == "fill":
        fill(Path(where))
    else:
        subprocess.run([sys.executable, "-m", "tests.bench.index", where, "fill"], check=True)
        print(json.dumps({"mode": what, "processors": os.cpu_count(), **measure(Path(where), what)}))
