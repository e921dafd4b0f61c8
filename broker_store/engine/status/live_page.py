"""The live page: one page of a file in the run directory that shows other processes the positions of the
running store.

    0 magic | 8 sequence | 16 pid | 24 updated ms | 32 minimum | 40 wrote | 48 confirmed | 56 dispatched | 64
    flushed
    | 72 checkpointed | 80 state | 88 recovery step done | 96 recovery step of

All native int64. The sequence is odd during a write: a reader accepts the page only if it found the same even
sequence before and after. Readers (`StoreReader`) never read the log beyond `dispatched`.

The page is written by position, never through a map: a failed write is then an error that can be reported,
and messages do not depend on it.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from broker_store import processes
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Writer
from broker_store.engine.disk.system import PAGE

_MAGIC = 0x42524B4C49564531
_FIELDS = struct.Struct("=13q")
_SEQUENCE_AT = 8
_TRIES = 1000
STATES = ("opening", "recovering", "running", "read_only", "closed", "failed")


class LivePosition(NamedTuple):
    """The content of the page; offsets are log offsets, `state` is one of STATES."""

    pid: int
    updated_ms: int
    minimum: int
    wrote: int
    confirmed: int
    dispatched: int
    flushed: int
    checkpointed: int
    state: str
    step_done: int
    step_of: int

    @property
    def is_alive(self) -> bool:
        """True if the writer's process exists; a page that a dead process left is ignored."""
        return processes.exists(self.pid)


class LivePage:
    """The writer's side. The first `publish` that succeeds creates the file."""

    def __init__(self, disk: Disk, path: Path):
        self._disk, self._path = disk, path
        self._writer: Writer | None = None
        self._sequence = 0

    def _open(self) -> Writer:
        self._disk.make_directory(self._path.parent)
        self._disk.unlink(self._path, missing_ok=True)
        writer = self._disk.create_writer(self._path)
        writer.write(0, bytes(PAGE))
        return writer

    def publish(
        self, minimum, wrote, confirmed, dispatched, flushed, checkpointed, state, step_done=0, step_of=0
    ) -> None:
        """Write the page. Raises StoreError when it cannot be written; the next call tries again."""
        if self._writer is None:
            self._writer = self._open()
        # A write that failed half way leaves an odd sequence, or less than a page: readers accept neither.
        fields = _FIELDS.pack(
            _MAGIC,
            self._sequence + 1,
            os.getpid(),
            int(time.time() * 1000),
            minimum,
            wrote,
            confirmed,
            dispatched,
            flushed,
            checkpointed,
            STATES.index(state),
            step_done,
            step_of,
        )
        self._writer.write(0, fields)
        self._sequence += 2
        self._writer.write(_SEQUENCE_AT, struct.pack("=q", self._sequence))

    def close(self) -> None:
        """Remove the page: a stopped store has none. Raises StoreError."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._disk.unlink(self._path, missing_ok=True)


def read_live_page(disk: Disk, path: Path) -> LivePosition | None:
    """Return the positions of a running store; None without a page or when its writer is dead."""
    if not disk.exists(path):
        return None
    with disk.open_reader(path) as reader:
        for _ in range(_TRIES):
            raw = reader.read(0, _FIELDS.size)
            if len(raw) < _FIELDS.size:
                return None
            magic, before, pid, updated_ms, *positions, state, step_done, step_of = _FIELDS.unpack(raw)
            (after,) = struct.unpack("=q", reader.read(8, 8))
            if magic == _MAGIC and before == after and after % 2 == 0 and 0 <= state < len(STATES):
                minimum, wrote, confirmed, dispatched, flushed, checkpointed = positions
                found = LivePosition(
                    pid,
                    updated_ms,
                    minimum,
                    wrote,
                    confirmed,
                    dispatched,
                    flushed,
                    checkpointed,
                    STATES[state],
                    step_done,
                    step_of,
                )
                return found if found.is_alive else None
    return None
