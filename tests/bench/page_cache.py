"""Every measurement of a rate begins with memory full of file cache, as it is on a machine that has been up
for a day.

Free memory is no fair ground: a virtual machine gives it back to its host within seconds, and the host hands
it out again at a tenth of the speed of memory. What a measurement takes of it depends on what ended shortly
before; file cache stays. Times of single requests are taken on still ground instead (`Run.still_ground`).
"""

import os
from pathlib import Path

FREE_PER_CENT = 2  # the kernel keeps nearly as much free by itself
CHUNK = 64 << 20
STEP = 128 << 10  # one read-ahead never reads more at once


def free_bytes() -> int:
    line = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemFree:")
    )
    return int(line.split()[1]) * 1024


class PageCache:
    """A file of holes, twice as long as memory, that is read ahead until little memory is free. It takes no
    disk."""

    def __init__(self, path: Path):
        self._path = path
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._chunks = 2 * memory // CHUNK
        self._next = 0
        self._free_at_most = memory * FREE_PER_CENT // 100

    def fill(self) -> None:
        """Goes on where it ended the last time; what is still cached costs nothing. Raises RuntimeError when
        memory stays free."""
        with open(self._path, "a+b") as file:
            file.truncate(self._chunks * CHUNK)
            for _ in range(self._chunks):
                if free_bytes() <= self._free_at_most:
                    return
                for at in range(self._next * CHUNK, (self._next + 1) * CHUNK, STEP):
                    os.posix_fadvise(file.fileno(), at, STEP, os.POSIX_FADV_WILLNEED)
                self._next = (self._next + 1) % self._chunks
        raise RuntimeError(
            f"{free_bytes() >> 20} MB of memory stay free though {self._path} was read ahead: does "
            f"its file system cache files?"
        )

    def remove(self) -> bool:
        """Whether there was one: then all of that memory is free now."""
        was_there = self._path.exists()
        self._path.unlink(missing_ok=True)
        return was_there
