"""How far the chain of records reaches, from the log's first byte, as a start reads it.

A start ends the log at the first record that is not good, and takes away what follows. So a repair checks
here, after its last change of the log and before a start, that the chain still reaches all good records.
"""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.engine.rows import Words
from broker_store.kernels import context as c
from broker_store.kernels.scan import scan

_NEVER_MS = 1 << 62


def chain_end(disk: Disk, directory: Path, file_size: int) -> int:
    """Return the log offset after the last record that is reached. Files are those of `file_size` bytes that
    follow one another."""
    bases = [
        int(name)
        for name in disk.list_names(directory)
        if len(name) == 20 and name.isascii() and name.isdigit()
    ]
    end = bases[0] if bases else 0
    for base in bases:
        if base != end or disk.size_of(directory / f"{base:020d}") != file_size:
            break
        closed, at = _walk(disk, directory / f"{base:020d}", base, file_size)
        end = base + (file_size if closed else at)
        if not closed:
            break
    return end


def _walk(disk: Disk, path: Path, base: int, file_size: int) -> tuple[bool, int]:
    """Return (whether a blank closes the file, the position after its last good record)."""
    region = disk.open_region(path, writable=False)
    try:
        words = Words(c.S_WORDS)
        words[c.S_ADDRESS], words[c.S_BASE], words[c.S_SIZE], words[c.S_SLICE_END] = (
            region.address,
            base,
            file_size,
            file_size,
        )
        words[c.S_CHECK_CRC], words[c.S_MAX_RECORD], words[c.S_STRICT_ABOVE_MS] = 1, MAX_RECORD, _NEVER_MS
        return scan(words.address) == c.LOG_FILE_END, words[c.S_AT]
    finally:
        region.close()
