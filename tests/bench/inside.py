"""Scans of a store, measured alone: `python -m tests.bench.inside DIRECTORY cache|layout [gib=10]
[units=4000000]` prints a JSON line.

The log is files of holes, which take no disk. `cache` reads them until all of it is in memory; `layout`
writes units of four topics whose messages take turns.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from broker_store.facts.cache import residency
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.layout import LayoutScan, Start

GIB = 1 << 30
QUEUES = [(f"topic{number % 4}", number // 4) for number in range(16)]


def make_log(root: Path, gib: int) -> None:
    (root / "commitlog").mkdir(parents=True)
    for number in range(gib):
        with open(root / "commitlog" / f"{number * GIB:020d}", "wb") as file:
            file.truncate(GIB)


def read_all(root: Path) -> None:
    room = bytearray(8 << 20)
    for path in sorted((root / "commitlog").iterdir()):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(room):
                pass


def make_queues(root: Path, gib: int, units: int) -> None:
    each, size = units // len(QUEUES), gib * GIB // units
    for number, (topic, queue_id) in enumerate(QUEUES):
        made = np.zeros(each, dtype=[("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
        made["log_offset"] = (np.arange(each) * len(QUEUES) + number) * size
        made["size"] = size
        directory = root / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True)
        (directory / ("0" * 20)).write_bytes(made.tobytes())


def measured(look) -> dict:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    found = look()
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "ms": took * 1e3,
        "cpu_ms": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3,
        "found": found,
    }


def main(root: Path, mode: str, gib: int = 10, units: int = 4_000_000) -> dict:
    make_log(root, gib)
    store, end = StoreDirectory(root), gib * GIB
    if mode == "cache":
        residency(store, end)  # loads the kernel
        read_all(root)
        line = measured(lambda: residency(store, end).totals["commitlog"].resident_bytes)
        return line | {"found": line["found"] / (gib * GIB)}
    make_queues(root, gib, units)
    topics = sorted({topic for topic, _ in QUEUES})
    LayoutScan(store, Start(log_offset=end), end).of(topics)
    return measured(lambda: LayoutScan(store, Start(), end).of(topics).messages)


if __name__ == "__main__":
    directory, mode, *options = sys.argv[1:]
    print(
        json.dumps(
            {
                "mode": mode,
                "processors": os.cpu_count(),
                **main(
                    Path(directory),
                    mode,
                    **{name: int(value) for name, value in (option.split("=") for option in options)},
                ),
            }
        )
    )
