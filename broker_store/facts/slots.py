"""How full the slots of an index file are: folded into a grid of cells, with what the header says beside what
was counted.

All slots are read from front to back and counted by a kernel (kernels/slots.py), a piece at a time into
memory that is used again: a full file of Apache's default size has 20 MB of slots, and they never become part
of the broker's own memory.

A count (`Tally`) shows how the slots were when the file had the entries below `upto`, also of a file that is
written meanwhile. From there on `follow` reads no slots but the entries that came: one that names no other is
the first of its slot.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from broker_store.engine.disk.file_access import Reader
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import index_file
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, SLOT, IndexGeometry, IndexHeader
from broker_store.kernels import slots as kernels
from broker_store.throttle import pause
from broker_store.units import Moment, Small

PIECE_BYTES = 1 << 20
MAX_CELLS_PER_SIDE = 100
MIN_SLOTS_PER_CELL = 10  # the share of used ones is rough if there are fewer
WORST_CELLS = 5
# Slots that a writer changed during a count and that are put back to how they were before
MAX_NEWER_SLOTS = 10_000
MAX_FOLLOWED_ENTRIES = 50_000  # 1 MB; after more new entries all slots are counted again
_ENTRIES = np.dtype([("key_hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert _ENTRIES.itemsize == ENTRY.size


@dataclass(slots=True)
class Tally:
    """The used slots of each cell; `wrong` slots name an entry that the file has no room for, `highest` is
    the highest entry named."""

    geometry: IndexGeometry
    cells: np.ndarray  # int64
    wrong: int
    highest: int
    before: IndexHeader  # as it was when this began, and after
    header: IndexHeader
    # The number of the entry that was next; None: slots name newer ones that could not be kept apart
    upto: int | None

    @property
    def per_cell(self) -> int:
        return cell_slots(self.geometry.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One of the emptiest or fullest cells."""

    cell: Small  # its number
    first_slot: int
    last_slot: int
    used: int  # slots
    share: float  # 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShares:
    """How many cells have which share of their slots in use."""

    from_: float  # 0 to 1
    to: float
    cells: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """The slots of an index file, folded into cells. `slots_used` is the header's number and `counted` what
    was found."""

    name: str
    at_ms: Moment
    took_ms: float
    slots: Small
    entries: int
    max_entries: int
    slots_used: Small
    counted: Small
    moving: bool  # it was written meanwhile
    expected_share: float  # of used slots, with an even hash
    spread: float  # standard deviation of the cells' shares
    expected_spread: float
    cell_slots: Small  # slots of a cell; the last may have fewer
    columns: Small
    rows: Small
    cells: list[Small] | None  # used slots of each, row after row
    shares: list[CellShares]
    emptiest: list[Cell]
    fullest: list[Cell]
    findings: list[str]  # where header and count disagree


def cell_slots(slots: int) -> int:
    """How many slots a cell has."""
    side = min(MAX_CELLS_PER_SIDE, max(1, math.isqrt(slots // MIN_SLOTS_PER_CELL)))
    return -(-slots // side**2)


def bounded_count(header: IndexHeader, geometry: IndexGeometry) -> int:
    """The number of the header's next entry, which after damage may be any, kept within the file."""
    return min(max(header.count, FIRST_ENTRY), geometry.entries)


def header_of(directory: StoreDirectory, name: str) -> IndexHeader:
    with directory.open_index(name) as (reader, _):
        return index_file.decode_header(reader.read(0, HEADER.size))


def heat_map(directory: StoreDirectory, name: str) -> HeatMap:
    """The file `name`, counted now: `picture_of` a `tally_of`."""
    began = time.perf_counter()
    return picture_of(name, tally_of(directory, name), (time.perf_counter() - began) * 1e3)


def tally_of(directory: StoreDirectory, name: str) -> Tally:
    """All slots of the file `name`."""
    with directory.open_index(name) as (reader, geometry):
        per_cell = cell_slots(geometry.slots)
        cells = np.zeros(-(-geometry.slots // per_cell), dtype=np.int64)
        words = np.zeros(3, dtype=np.int64)
        newer = np.empty((MAX_NEWER_SLOTS, 2), dtype=np.int64)
        piece = np.empty(PIECE_BYTES, dtype=np.uint8)
        before = index_file.decode_header(reader.read(0, HEADER.size))
        first_new = bounded_count(before, geometry)
        upto: int | None = first_new
        for first in range(0, geometry.slots, PIECE_BYTES // SLOT.size):
            count = min(PIECE_BYTES // SLOT.size, geometry.slots - first)
            count = (
                reader.read_into(memoryview(piece)[: count * SLOT.size], geometry.slot_at(first)) // SLOT.size
            )
            addresses = cells.ctypes.data, words.ctypes.data
            kernels.count_used(
                piece.ctypes.data,
                first,
                count,
                per_cell,
                geometry.entries,
                *addresses,
                first_new,
                newer.ctypes.data,
                len(newer),
            )
            pause()
        header = index_file.decode_header(reader.read(0, HEADER.size))
        highest, met = int(words[kernels.W_HIGHEST]), int(words[kernels.W_NEWER])
        if met:
            taken_back = (
                _first_used_since(reader, geometry, newer[:met], first_new, highest)
                if met <= len(newer) and header != before
                else None
            )
            if taken_back is None:
                upto = None
            else:
                np.subtract.at(cells, taken_back // per_cell, 1)
                highest = first_new - 1
    return Tally(geometry, cells, int(words[kernels.W_WRONG]), highest, before, header, upto)


def _first_used_since(
    reader: Reader, geometry: IndexGeometry, newer: np.ndarray, upto: int, highest: int
) -> np.ndarray | None:
    """Which of the slots that name an entry from `upto` on named none before it; None when the entries do not
    show it."""
    if highest - upto >= MAX_FOLLOWED_ENTRIES:
        return None
    entries = _entries(reader, geometry, upto, highest + 1)
    if entries is None:
        return None
    previous = entries["previous"].tolist()
    found = []
    for slot, number in newer.tolist():
        while number >= upto:
            older = previous[number - upto]
            if older >= number:
                return None  # no writer makes such a chain
            number = older
        if number <= 0:
            found.append(slot)
    return np.array(found, dtype=np.int64)


def _entries(reader: Reader, geometry: IndexGeometry, first: int, end: int) -> np.ndarray | None:
    """The entries from number `first` to before `end`; None for a file that is shorter."""
    data = reader.read(geometry.entry_at(first), (end - first) * ENTRY.size)
    return np.frombuffer(data, dtype=_ENTRIES) if len(data) == (end - first) * ENTRY.size else None


def follow(directory: StoreDirectory, name: str, tally: Tally, header: IndexHeader) -> bool:
    """Take what came since into `tally`, up to `header`; False, and nothing is changed, when that is too much
    or another file's."""
    same = (header.begin_timestamp, header.begin_offset) == (
        tally.header.begin_timestamp,
        tally.header.begin_offset,
    )
    with directory.open_index(name) as (reader, geometry):
        end = bounded_count(header, geometry)
        if (
            tally.upto is None
            or not same
            or geometry != tally.geometry
            or not 0 <= end - tally.upto <= MAX_FOLLOWED_ENTRIES
        ):
            return False
        entries = _entries(reader, geometry, tally.upto, end)
        if entries is None:
            return False
    hashes = entries["key_hash"][entries["previous"] == 0].astype(np.int64)
    np.add.at(tally.cells, (np.abs(hashes) % geometry.slots) // tally.per_cell, 1)
    tally.before = tally.header = header
    tally.highest, tally.upto = max(tally.highest, end - 1), end
    return True


def picture_of(name: str, tally: Tally, took_ms: float) -> HeatMap:
    """What is shown of a tally."""
    geometry, header, cells, per_cell = tally.geometry, tally.header, tally.cells, tally.per_cell
    counted = int(cells.sum())
    entries = bounded_count(header, geometry) - FIRST_ENTRY
    sizes = np.full(len(cells), per_cell)
    sizes[-1] = geometry.slots - per_cell * (len(cells) - 1)
    shares = cells / sizes
    expected = 1 - (1 - 1 / geometry.slots) ** entries
    columns = math.ceil(math.sqrt(len(cells)))
    return HeatMap(
        name=name,
        at_ms=int(time.time() * 1000),
        took_ms=took_ms,
        slots=geometry.slots,
        entries=entries,
        max_entries=geometry.entries - FIRST_ENTRY,
        slots_used=header.slots_used,
        counted=counted,
        moving=header != tally.before,
        expected_share=expected,
        spread=float(shares.std()),
        expected_spread=math.sqrt(expected * (1 - expected) / per_cell),
        cell_slots=per_cell,
        columns=columns,
        rows=-(-len(cells) // columns),
        cells=cells.tolist(),
        shares=_histogram(shares),
        emptiest=[
            _cell(int(cell), per_cell, sizes, cells)
            for cell in np.argsort(shares, kind="stable")[:WORST_CELLS]
        ],
        fullest=[
            _cell(int(cell), per_cell, sizes, cells)
            for cell in np.argsort(-shares, kind="stable")[:WORST_CELLS]
        ],
        findings=list(_findings(tally, counted)),
    )


def _histogram(shares: np.ndarray) -> list[CellShares]:
    """How many cells have which share, in tenths; 1 belongs to the last."""
    tenths = np.minimum((shares * 10 + 1e-9).astype(int), 9)
    return [
        CellShares(from_=tenth / 10, to=(tenth + 1) / 10, cells=int(cells))
        for tenth, cells in enumerate(np.bincount(tenths, minlength=10))
    ]


def _cell(cell: int, per_cell: int, sizes: np.ndarray, cells: np.ndarray) -> Cell:
    first, size, used = cell * per_cell, int(sizes[cell]), int(cells[cell])
    return Cell(
        cell=cell,
        first_slot=first,
        last_slot=first + size - 1,
        used=used,
        share=used / size,
    )


def _findings(tally: Tally, counted: int) -> Iterator[str]:
    before, header, geometry = tally.before, tally.header, tally.geometry
    if header.count > geometry.entries:
        yield (
            f"The header counts {header.count - FIRST_ENTRY:,} entries, the file has room for "
            f"{geometry.entries - FIRST_ENTRY:,}."
        )
    if not min(before.slots_used, header.slots_used) <= counted <= max(before.slots_used, header.slots_used):
        yield f"The header says that {header.slots_used:,} slots are used, {counted:,} are."
    if tally.wrong:
        yield (
            f"{tally.wrong:,} slots name an entry that the file has no room for; lookups take them for empty."
        )
    if header == before and tally.highest >= header.count:
        yield (
            f"Slots name entries up to {tally.highest:,}, the header counts only those up to "
            f"{header.count - FIRST_ENTRY:,}; lookups do not follow them."
        )
