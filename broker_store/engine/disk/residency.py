"""Which pages of a mapped file are known to be in memory, and which of its records were found sound.

A page fault that reads the disk would stop every connection, so the loop touches older pages only when the
system says that they are in memory. To ask costs 2 to 6 µs, as much as a whole read, so the answer for a
block is used for a round: about a second (Reads.tick). A page that is evicted within it costs one wait, which
needs a severe shortage of memory. Nothing is kept about a page that was not in memory: it is asked about
again, since a reader's thread may have read it meanwhile.

The answers belong to a map: `MappedFile.unmap` drops them.
"""

from __future__ import annotations

import numpy as np

from broker_store.engine.disk.region import Region
from broker_store.kernels.residency import BLOCK_BYTES, BYTES_PER_BIT, PAGE_BITS, PAGES_PER_BLOCK, STRIDE

_WORDS_PER_BLOCK = STRIDE // 8


class Residency:
    """What is known of one region's pages; `address` is passed to kernels. Loop thread."""

    def __init__(self, region: Region):
        self._region = region
        # Entries of pages that are never asked about take no memory: the system supplies zeros on first
        # touch.
        words = np.zeros(
            -(-region.size // BLOCK_BYTES) * _WORDS_PER_BLOCK + region.size // (64 * BYTES_PER_BIT) + 1,
            dtype=np.int64,
        )
        self.address = words.ctypes.data
        self._words = memoryview(words)
        self._pages = self._words.cast("B")

    def ask(self, place: int, size: int, round_number: int) -> bool:
        """Ask about the blocks of [place, place + size), for this round; return whether all its own pages are
        in memory."""
        last = place + size - 1
        for block in range(place // BLOCK_BYTES, last // BLOCK_BYTES + 1):
            known = self._region.ask_pages(
                block * BLOCK_BYTES, BLOCK_BYTES, self.address + block * STRIDE + 8
            )
            self._words[block * _WORDS_PER_BLOCK] = round_number if known else 0
            if not known:
                return False
        for page in range(place >> PAGE_BITS, (last >> PAGE_BITS) + 1):
            block, number = divmod(page, PAGES_PER_BLOCK)
            if not self._pages[block * STRIDE + 8 + number] & 1:
                return False
        return True
