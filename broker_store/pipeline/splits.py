"""Which stretches of a commit log there are to read: one for each of its files, a partition each.

A record begins at the first byte of every file and none spans two, so a file can be read by itself. The end of what
may be read is where a running broker has dispatched to, told by its live page; without one it is where the records
end, which only reading shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker_store.engine.disk import Disk
from broker_store.engine.live_page import read_live_page
from broker_store.errors import StoreError


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of one log file, in log offsets. `is_last`: behind it nothing follows, so a torn record is an end."""

    path: str
    begin: int
    end: int
    file_end: int
    is_last: bool


def splits_of(store: Path, live_page: Path | None = None, disk: Disk | None = None) -> list[Split]:
    """The stretches of the log of `store`, oldest first. StoreError when it is no store."""
    disk = disk or Disk()
    directory = store / "commitlog"
    if not disk.is_directory(directory):
        raise StoreError(f"{store} is no store: it has no directory commitlog")
    live = None if live_page is None else read_live_page(disk, live_page)
    if live is not None and live.state in ("opening", "recovering"):
        raise StoreError(f"{store} is being opened by a broker; wait until it has recovered")
    splits = []
    for name in sorted(disk.list_names(directory)):
        if len(name) != 20 or not name.isdigit():
            continue
        base, size = int(name), disk.size_of(directory / name)
        end = base + size if live is None else min(base + size, live.dispatched)
        if end > base:
            splits.append(Split(str(directory / name), base, end, base + size, False))
    if splits:
        last = splits[-1]
        splits[-1] = Split(last.path, last.begin, last.end, last.file_end, True)
    return splits
