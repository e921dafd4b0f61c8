"""The checkpoint against the log: it must not state more than the log holds."""

from __future__ import annotations

from pathlib import Path

from broker_store.check.log import Log
from broker_store.check.report import ERROR, WARNING
from broker_store.check.store import CheckedStore
from broker_store.engine.disk.disk import Disk
from broker_store.errors import StoreError
from broker_store.formats import checkpoint
from broker_store.formats.checkpoint import Checkpoint

FILE_NAME = "checkpoint"


def read_stamps(disk: Disk, root: Path) -> tuple[bytes | None, Checkpoint]:
    """Return the content of the checkpoint (None: there is none) and its stamps, which are zero where it
    cannot be read."""
    try:
        content = disk.read_file(root / FILE_NAME)
    except StoreError:
        content = b""
    if content is None or len(content) < checkpoint.LAYOUT.size:
        return content, Checkpoint()
    return content, checkpoint.decode(content)


class CheckpointCheck:
    """Run after the walk of the log. `is_synced_beyond`: the checkpoint states that a record younger than all
    that are left was on the disk."""

    def __init__(self, store: CheckedStore, log: Log):
        self._store, self._report, self._log = store, store.report, log
        self._path = str(store.root / FILE_NAME)
        self.is_synced_beyond = False

    def run(self) -> None:
        """Report a checkpoint that is missing, of a wrong length, or ahead of the log."""
        try:
            content = self._store.disk.read_file(self._store.root / FILE_NAME)
        except StoreError as error:
            self._report.add(ERROR, "checkpoint", self._path, None, getattr(error, "what", str(error)))
            return
        if content is None:
            if self._log.files:
                what = "is missing: an unclean start would read the whole log"
                self._report.add(WARNING, "checkpoint", self._path, None, what)
            return
        if len(content) != checkpoint.FILE_BYTES:
            what = f"is {len(content)} bytes long, not {checkpoint.FILE_BYTES}"
            self._report.add(ERROR, "checkpoint", self._path, None, what)
            if len(content) < checkpoint.LAYOUT.size:
                return
        if not self._store.is_in_use:
            self._check_stamps(checkpoint.decode(content))

    def _check_stamps(self, stamps: Checkpoint) -> None:
        log, report = self._log, self._report
        known_ms = (
            stamps.physic_msg_timestamp
            if self._store.is_unclean
            else max(stamps.physic_msg_timestamp, stamps.logics_msg_timestamp)
        )
        has_records = log.end > log.start
        self.is_synced_beyond = has_records and known_ms > log.newest_ms
        for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"):
            at, value = checkpoint.LAYOUT.offset[name], getattr(stamps, name)
            if value > log.newest_ms and has_records:
                what = (
                    f"{name} is {value}, newer than the newest record ({log.newest_ms}): what was "
                    f"synced is gone"
                )
                report.add(ERROR, "checkpoint-ahead", self._path, at, what)
        at, value = checkpoint.LAYOUT.offset["logics_physical_offset"], stamps.logics_physical_offset
        if value > report.log_end:
            what = f"logics_physical_offset is {value}, after the end of the log ({report.log_end})"
            report.add(ERROR, "checkpoint-ahead", self._path, at, what)
