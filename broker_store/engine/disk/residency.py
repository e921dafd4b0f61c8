"""Which pages of a mapped file are in memory, as far as was heard: a touch of them will not wait for the
disk. And which of its records were looked at and found sound.

A page fault that reads the disk would stop every connection, so the loop touches older pages only when the
system says that they are in memory. Asking costs 2 to 6 µs, as much as a whole read, so the answer for a
block counts for a round: about a second (Reads.tick). A page that goes within it costs one wait; memory would
have to be that short. Nothing is remembered of a page that was not in memory: it is asked about again, since
a reader's thread may have brought it in.

What was heard belongs to a map: `MappedFile.unmap` drops it.
"""

from __future__ import annotations

import numpy as np

from broker_store.engine.disk.region import Region
from broker_store.kernels.residency import BLOCK_BYTES, BYTES_PER_BIT, PAGE_BITS, PAGES_PER_BLOCK, STRIDE

_WORDS_A_BLOCK = STRIDE // 8


class Residency:
    """The memory of one region; `address` is what kernels get. Loop thread."""

    def __init__(self, region: Region):
        self._region = region
        # What nobody asks about takes no memory: zeros come from the system as they are touched.
        words = np.zeros(
            -(-region.size // BLOCK_BYTES) * _WORDS_A_BLOCK + region.size // (64 * BYTES_PER_BIT) + 1,
            dtype=np.int64,
        )
        self.address = words.ctypes.data
        self._words = memoryview(words)
        self._pages = self._words.cast("B")

    def ask(self, place: int, size: int, round_number: int) -> bool:
        """Ask about the blocks of [place, place + size), for this round; whether all its own pages are in
        memory."""
        last = place + size - 1
        for block in range(place // BLOCK_BYTES, last // BLOCK_BYTES + 1):
            known = self._region.ask_pages(
                block * BLOCK_BYTES, BLOCK_BYTES, self.address + block * STRIDE + 8
            )
            self._words[block * _WORDS_A_BLOCK] = round_number if known else 0
            if not known:
                return False
        for page in range(place >> PAGE_BITS, (last >> PAGE_BITS) + 1):
            block, number = divmod(page, PAGES_PER_BLOCK)
            if not self._pages[block * STRIDE + 8 + number] & 1:
                return False
        return True
