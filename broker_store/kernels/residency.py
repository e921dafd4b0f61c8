"""What is known about which pages of a mapped file are in memory (engine/residency.py), as kernels see it.

    a block of 256 KiB: int64 the round in which it was asked about | a byte a page, lowest bit 1: in memory then

A kernel touches a page of older log only when it was in memory in this round; for others it stops and lets Python ask.
"""

from __future__ import annotations

from broker_store.kernels.memory import inlined, load64, load_u8

PAGE_BITS = 12
PAGES_A_BLOCK = 64
BLOCK_BYTES = PAGES_A_BLOCK << PAGE_BITS
STRIDE = 8 + PAGES_A_BLOCK


@inlined
def is_in_memory(known, place, size, round_number):
    """Whether every page of [place, place + size) of the file was in memory when it was asked about in this round."""
    last = (place + size - 1) >> PAGE_BITS
    for page in range(place >> PAGE_BITS, last + 1):
        block = known + page // PAGES_A_BLOCK * STRIDE
        if load64(block) != round_number or load_u8(block + 8 + page % PAGES_A_BLOCK) & 1 == 0:
            return False
    return True
