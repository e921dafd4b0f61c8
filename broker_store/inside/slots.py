"""How full the slots of an index file are: folded into a grid of cells, with what the header says beside what was counted.

All slots are read from front to back and counted by a kernel (kernels/slots.py), a piece at a time into memory that is used
again: a full file of Apache's default size has 20 MB of slots, and they never become part of the broker's own memory.
"""

from __future__ import annotations

import math
import time

import numpy as np

from broker_store.formats import index_file
from broker_store.formats.index_file import FIRST_ENTRY, HEADER, SLOT, IndexGeometry, IndexHeader
from broker_store.inside.directory import StoreDirectory
from broker_store.kernels import slots as kernels

PIECE_BYTES = 1 << 20
MOST_CELLS_A_SIDE = 100
LEAST_SLOTS_A_CELL = 10  # fewer, and a share says little
WORST_CELLS = 5


def cell_slots(slots: int) -> int:
    """How many slots a cell has."""
    side = min(MOST_CELLS_A_SIDE, max(1, math.isqrt(slots // LEAST_SLOTS_A_CELL)))
    return -(-slots // side**2)


def bounded_count(header: IndexHeader, geometry: IndexGeometry) -> int:
    """The number of the header's next entry, which after damage may be any, kept within the file."""
    return min(max(header.count, FIRST_ENTRY), geometry.entries)


def header_of(directory: StoreDirectory, name: str) -> IndexHeader:
    with directory.open_index(name) as (reader, _):
        return index_file.decode_header(reader.read(0, HEADER.size))


def heat_map(directory: StoreDirectory, name: str) -> dict:
    """The file `name`, counted now. `cells` has the used slots of each cell, row after row; `slots_used` is the header's number
    and `counted` what was found, `findings` says where they disagree. A file that is written meanwhile is `moving`."""
    began = time.perf_counter()
    with directory.open_index(name) as (reader, geometry):
        per_cell = cell_slots(geometry.slots)
        cells = np.zeros(-(-geometry.slots // per_cell), dtype=np.int64)
        words = np.zeros(3, dtype=np.int64)
        piece = np.empty(PIECE_BYTES, dtype=np.uint8)
        before = index_file.decode_header(reader.read(0, HEADER.size))
        for first in range(0, geometry.slots, PIECE_BYTES // SLOT.size):
            count = min(PIECE_BYTES // SLOT.size, geometry.slots - first)
            count = reader.read_into(memoryview(piece)[: count * SLOT.size], geometry.slot_at(first)) // SLOT.size
            kernels.count_used(piece.ctypes.data, first, count, per_cell, geometry.entries, cells.ctypes.data, words.ctypes.data)
        header = index_file.decode_header(reader.read(0, HEADER.size))
    counted = int(cells.sum())
    entries = bounded_count(header, geometry) - FIRST_ENTRY
    sizes = np.full(len(cells), per_cell)
    sizes[-1] = geometry.slots - per_cell * (len(cells) - 1)
    shares = cells / sizes
    expected = 1 - (1 - 1 / geometry.slots) ** entries
    columns = math.ceil(math.sqrt(len(cells)))
    return {
        "name": name,
        "at_ms": int(time.time() * 1000),
        "took_ms": (time.perf_counter() - began) * 1e3,
        "slots": geometry.slots,
        "entries": entries,
        "max_entries": geometry.entries - FIRST_ENTRY,
        "slots_used": header.slots_used,
        "counted": counted,
        "moving": header != before,
        "expected_share": expected,
        "spread": float(shares.std()),
        "expected_spread": math.sqrt(expected * (1 - expected) / per_cell),
        "cell_slots": per_cell,
        "columns": columns,
        "rows": -(-len(cells) // columns),
        "cells": cells.tolist(),
        "shares": _histogram(shares),
        "emptiest": [_cell(int(cell), per_cell, sizes, cells) for cell in np.argsort(shares, kind="stable")[:WORST_CELLS]],
        "fullest": [_cell(int(cell), per_cell, sizes, cells) for cell in np.argsort(-shares, kind="stable")[:WORST_CELLS]],
        "findings": list(_findings(before, header, geometry, counted, int(words[kernels.W_WRONG]), int(words[kernels.W_HIGHEST]))),
    }


def _histogram(shares: np.ndarray) -> list[dict]:
    """How many cells have which share, in tenths; 1 belongs to the last."""
    tenths = np.minimum((shares * 10 + 1e-9).astype(int), 9)
    return [{"from": tenth / 10, "to": (tenth + 1) / 10, "cells": int(cells)} for tenth, cells in enumerate(np.bincount(tenths, minlength=10))]


def _cell(cell: int, per_cell: int, sizes: np.ndarray, cells: np.ndarray) -> dict:
    first, size, used = cell * per_cell, int(sizes[cell]), int(cells[cell])
    return {"cell": cell, "first_slot": first, "last_slot": first + size - 1, "used": used, "share": used / size}


def _findings(before: IndexHeader, header: IndexHeader, geometry: IndexGeometry, counted: int, wrong: int, highest: int):
    if header.count > geometry.entries:
        yield f"The header counts {header.count - FIRST_ENTRY:,} entries, the file has room for {geometry.entries - FIRST_ENTRY:,}."
    if not min(before.slots_used, header.slots_used) <= counted <= max(before.slots_used, header.slots_used):
        yield f"The header says that {header.slots_used:,} slots are used, {counted:,} are."
    if wrong:
        yield f"{wrong:,} slots name an entry that the file has no room for; lookups take them for empty."
    if header == before and highest >= header.count:
        yield f"Slots name entries up to {highest:,}, the header counts only those up to {header.count - FIRST_ENTRY:,}; lookups do not follow them."
