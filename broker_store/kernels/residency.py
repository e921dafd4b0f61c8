"""What is known about a mapped file (engine/residency.py), as kernels see it: which pages are in memory,
which records are sound.

    a block of 256 KiB: int64 the round in which it was asked about | a byte a page, lowest bit 1: in memory
    then
    behind all blocks:  a bit for every 64 bytes of the file, 1: the record that begins there was found as it
                        was stored

A kernel touches a page of older log only when it was in memory in this round; for others it stops and lets
Python ask. A record of older log is checked when it is first read; it is longer than 64 bytes, so that a bit
speaks of one.

`fold_pages` is for those who look at whole files from outside (facts/cache.py).
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels.memory import inlined, load64, load_u8, store64, store_u8
from broker_store.kernels.scan import is_as_stored

PAGE_BITS = 12
PAGES_A_BLOCK = 64
BLOCK_BYTES = PAGES_A_BLOCK << PAGE_BITS
STRIDE = 8 + PAGES_A_BLOCK
BYTES_A_BIT = 64


@inlined
def is_in_memory(known, place, size, round_number):
    """Whether every page of [place, place + size) of the file was in memory when it was asked about in this
    round."""
    last = (place + size - 1) >> PAGE_BITS
    for page in range(place >> PAGE_BITS, last + 1):
        block = known + page // PAGES_A_BLOCK * STRIDE
        if load64(block) != round_number or load_u8(block + 8 + page % PAGES_A_BLOCK) & 1 == 0:
            return False
    return True


@inlined
def is_checked(known, file_size, place):
    """Whether the record at `place` of the file was found as it was stored."""
    cell = place // BYTES_A_BIT
    byte = known + (file_size + BLOCK_BYTES - 1) // BLOCK_BYTES * STRIDE + (cell >> 3)
    return load_u8(byte) & (1 << (cell & 7)) != 0


@inlined
def mark_checked(known, file_size, place):
    """Note that the record at `place` of the file was found as it was stored."""
    cell = place // BYTES_A_BIT
    byte = known + (file_size + BLOCK_BYTES - 1) // BLOCK_BYTES * STRIDE + (cell >> 3)
    store_u8(byte, load_u8(byte) | 1 << (cell & 7))


@inlined
def is_sound(known, file_size, place, address, size, log_offset):
    """Whether the record at `place` of the file, which lies at `address`, is as it was stored; looked at
    once."""
    if not is_checked(known, file_size, place):
        if not is_as_stored(address, size, log_offset):
            return False
        mark_checked(known, file_size, place)
    return True


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def fold_pages(answers, pages, cells, counts):
    """Count the pages that are in memory of `pages` answers, a byte each, in `cells` parts of the file: part
    n begins with page n * pages // cells. One int64 a part goes to `counts`; their sum is returned."""
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
