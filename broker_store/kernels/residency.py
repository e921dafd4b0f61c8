"""The residency bytes of a mapped file (engine/disk/residency.py), as kernels read them: pages in memory,
sound records.

    for each block of 256 KiB:  int64 the round in which it was asked about | a byte for each page, lowest
                                bit 1: in memory at that time
    after all blocks:           a bit for every 64 bytes of the file, 1: the record that begins there was
                                found as it was stored

A kernel touches a page of older log only when it was in memory in this round; at another page it stops and
Python asks. A record of older log is checked when it is first read. A record is longer than 64 bytes, so a
bit belongs to one record.

`fold_pages` is for scans of whole files (facts/cache.py).
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels.memory import inlined, load64, load_u8, store64, store_u8
from broker_store.kernels.scan import is_as_stored

PAGE_BITS = 12
PAGES_PER_BLOCK = 64
BLOCK_BYTES = PAGES_PER_BLOCK << PAGE_BITS
STRIDE = 8 + PAGES_PER_BLOCK
BYTES_PER_BIT = 64


@inlined
def is_in_memory(known, place, size, round_number):
    """True if every page of [place, place + size) of the file was in memory when it was asked about in this
    round."""
    last = (place + size - 1) >> PAGE_BITS
    for page in range(place >> PAGE_BITS, last + 1):
        block = known + page // PAGES_PER_BLOCK * STRIDE
        if load64(block) != round_number or load_u8(block + 8 + page % PAGES_PER_BLOCK) & 1 == 0:
            return False
    return True


@inlined
def is_checked(known, file_size, place):
    """True if the record at `place` of the file was found as it was stored."""
    cell = place // BYTES_PER_BIT
    byte = known + (file_size + BLOCK_BYTES - 1) // BLOCK_BYTES * STRIDE + (cell >> 3)
    return load_u8(byte) & (1 << (cell & 7)) != 0


@inlined
def mark_checked(known, file_size, place):
    """Note that the record at `place` of the file was found as it was stored."""
    cell = place // BYTES_PER_BIT
    byte = known + (file_size + BLOCK_BYTES - 1) // BLOCK_BYTES * STRIDE + (cell >> 3)
    store_u8(byte, load_u8(byte) | 1 << (cell & 7))


@inlined
def is_sound(known, file_size, place, address, size, log_offset):
    """True if the record at `place` of the file, at address `address`, is as it was stored; checked once."""
    if not is_checked(known, file_size, place):
        if not is_as_stored(address, size, log_offset):
            return False
        mark_checked(known, file_size, place)
    return True


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def fold_pages(answers, pages, cells, counts):
    """Count the pages in memory of `pages` answers, a byte each, in `cells` parts of the file; return their
    sum.

    Part n begins with page n * pages // cells. One int64 for each part is written to `counts`.
    """
    total = 0
    page = 0
    for cell in range(cells):
        end = (cell + 1) * pages // cells
        found = 0
        while page < end:
            found += load_u8(answers + page) & 1
            page += 1
        store64(counts + 8 * cell, found)
        total += found
    return total
