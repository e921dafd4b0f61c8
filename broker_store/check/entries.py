"""Rules for the entries and slots of the index, which the pipeline's audit shares: links, order and times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from broker_store.formats import index_file
from broker_store.kernels import compare

ENTRY = np.dtype([("key_hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT = np.dtype(">i4")

INDEX_ENTRY = "index-entry"
INDEX_TIME = "index-time"
INDEX_CHAIN = "index-chain"
INDEX_SLOT = "index-slot"
INDEX_HEADER = "index-header"
INDEX_MISSING = "index-missing"
INDEX_BEHIND = "index-behind"
INDEX_EXTRA = "index-extra"
INDEX_STARTS_LATE = "index-starts-late"
NO_INDEX = "no-index"
INDEX_REBUILT = "index-rebuilt"

INDEX_WAS_REBUILT = "the index was made again while it was read, so nothing is known of it: audit it again"
WRONG_ENDS = "its begin and end offset are not those of its first and last entry"


class WrongLink(NamedTuple):
    """An entry that does not name the previous one of its slot: its number, the number that it names and the
    right one."""

    number: int
    named: int
    expected: int


class StepBack(NamedTuple):
    """An entry that points before the preceding entry: its number, and the log offsets of both."""

    number: int
    log_offset: int
    before: int


def pairs(offsets: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return one comparable value for each (log offset, hash) of keys or entries."""
    found = np.empty(len(offsets), dtype=[("offset", np.int64), ("hash", np.int64)])
    found["offset"], found["hash"] = offsets, hashes
    return found


def entry_seconds(store_ms: np.ndarray, begin_ms: np.ndarray | int) -> np.ndarray:
    """Return the seconds that index entries state, for records stored at `store_ms` in files that begin at
    `begin_ms`; as `seconds_since` of kernels/index.py computes them."""
    return np.where(begin_ms > 0, np.clip((store_ms - begin_ms) // 1000, 0, index_file.MAX_SECONDS), 0)


def wrong_links(
    entries: np.ndarray, first: int, heads: np.ndarray, room: np.ndarray
) -> tuple[list[WrongLink], int]:
    """Return (the entries that name a wrong previous entry of their slot, how many there are).

    `first` is the number of the first of `entries`. `heads` has the newest entry of each slot before them,
    and after them when this returns. At most as many are returned as `room`, rows of two numbers, has rows.
    """
    count = compare.wrong_links(
        entries.ctypes.data,
        first,
        len(entries),
        len(heads),
        heads.ctypes.data,
        room.ctypes.data,
        len(room),
    )
    found = [
        WrongLink(number, int(entries["previous"][number - first]), expected)
        for number, expected in room[: min(count, len(room))].tolist()
    ]
    return found, count


def steps_back(entries: np.ndarray, first: int, before: int) -> Iterator[StepBack]:
    """Yield the entries that point before the preceding one. Entries are in the order of the log, over all
    files of the index.

    `first` is the number of the first of `entries`, `before` the log offset of the entry before it.
    """
    offsets = entries["log_offset"].astype(np.int64)
    previous = np.concatenate(([before], offsets[:-1]))
    for place in np.flatnonzero(offsets < previous):
        yield StepBack(first + int(place), int(offsets[place]), int(previous[place]))


# Sentences ----------------------------------------------------------------------------------------


def wrong_link(link: WrongLink) -> str:
    return f"entry {link.number} names {link.named} as the one before it in its slot, that is {link.expected}"


def wrong_slot(slot: int, named: int, newest: int) -> str:
    return f"slot {slot} names entry {named}, its newest is {newest}"


def wrong_slots_used(stated: int, used: int) -> str:
    return f"states {stated} slots in use, there are {used}"


def wrong_stamp(name: str, stated_ms: int, record_ms: int) -> str:
    return f"{name} is {stated_ms}, its record was stored at {record_ms}"


def points_back(to: int, before: int) -> str:
    return f"points back to {to} after {before}"


def keys_not_in_index(keys: int, log_offset: int) -> str:
    return f"{keys} keys of the records from {log_offset} on are not in the index"


def keys_without_index(keys: int) -> str:
    return f"there is no index: {keys} keys cannot be looked up"
