"""The slots of index files while a page shows them: once a second the numbers, and the cells that changed.

All slots of a file are counted every COUNTED_S; in between, new entries are added to the counts.

A frame has the cells that changed since `since_ms`. So a browser whose picture is from then or later is up to
date with the newest frame, also if it missed some. An older picture is fetched again by REST. When most cells
changed, the frame has none, and the picture is fetched too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from broker_store.facts.directory import StoreDirectory
from broker_store.facts.slots import HeatMap, Tally, follow, header_of, picture_of, tally_of
from broker_store.formats.index_file import IndexHeader
from broker_store.units import fields_of
from mqadmin.facts.store import WatchedSlots

REMEMBERED_MS = 5_000  # between two pictures that are kept for comparison; the last two are kept
MAX_FILES = 8
COUNTED_S = 10.0  # between two counts of all slots


@dataclass(slots=True)
class _Watched:
    header: IndexHeader  # read before the picture was made
    tally: Tally
    counted_at: float  # by the monotonic clock
    picture: HeatMap
    # (ms since 1970, cells): pictures for comparison, oldest first
    pictures: list[tuple[int, np.ndarray]] = field(default_factory=list)


class SlotWatch:
    """The last pictures of each watched file. `measure` runs in a thread, one at a time for a file."""

    def __init__(self):
        self._files: dict[str, _Watched] = {}

    def measure(self, directory: StoreDirectory, name: str) -> WatchedSlots:
        """Return the heat map of a file. Slots are read only when the header shows that entries were
        added."""
        header = header_of(directory, name)
        watched = self._files.get(name)
        if watched is None or watched.header != header:
            fresh = _fresh(directory, name, header, watched)
            if len(self._files) >= MAX_FILES and name not in self._files:
                self._files.pop(next(iter(self._files)), None)
            watched = self._files[name] = fresh
        picture = fields_of(watched.picture) | {"at_ms": int(time.time() * 1000)}
        cells = np.array(watched.picture.cells)
        _remember(watched.pictures, watched.picture.at_ms, cells)
        since_ms, before = watched.pictures[0]
        changed = np.flatnonzero(cells != before) if len(before) == len(cells) else np.arange(len(cells))
        if 2 * len(changed) > len(cells):
            return WatchedSlots(**picture, changed=None, since_ms=None)
        pairs = np.column_stack((changed, cells[changed])).ravel().tolist()
        return WatchedSlots(**picture | {"cells": None}, changed=pairs, since_ms=since_ms)


def _fresh(directory: StoreDirectory, name: str, header: IndexHeader, watched: _Watched | None) -> _Watched:
    began = time.perf_counter()
    if (
        watched
        and time.monotonic() - watched.counted_at < COUNTED_S
        and follow(directory, name, watched.tally, header)
    ):
        tally, counted_at = watched.tally, watched.counted_at
    else:
        tally, counted_at = tally_of(directory, name), time.monotonic()
    picture = picture_of(name, tally, (time.perf_counter() - began) * 1e3)
    return _Watched(header, tally, counted_at, picture, watched.pictures if watched else [])


def _remember(pictures: list[tuple[int, np.ndarray]], at_ms: int, cells: np.ndarray) -> None:
    if not pictures or at_ms - pictures[-1][0] >= REMEMBERED_MS:
        pictures.append((at_ms, cells))
        del pictures[:-2]
