"""A cut of the log that was decided before this start: a slave's log that went on without its master.

    note       file `cutLog` in the store: the log offset at which the log has to end
    carry out  by each start that finds it, before all else: nothing of the log after it, no record of ends,
               a checkpoint without stamps, `abort`
    recovery   cuts queues and index to the log, as after a crash
    done       the file goes away

Each step may be repeated, so a crash at any moment leaves a store that the next start brings to the same end.
What is cut is kept in lost+found.
"""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import is_file_name
from broker_store.engine.log.whole_records import data_end_from
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.kept_files import KeptFiles
from broker_store.engine.start.report import RecoveryReport
from broker_store.errors import DamagedStoreError
from broker_store.formats import checkpoint
from broker_store.formats.checkpoint import Checkpoint

FILE_NAME = "cutLog"


def note_cut(disk: Disk, root: Path, log_offset: int) -> None:
    """Note that the next start cuts the log at `log_offset`. Raises StoreError."""
    disk.replace_file(root / FILE_NAME, f"{log_offset}\n".encode())


def noted_cut(disk: Disk, root: Path) -> int | None:
    """Return the log offset at which the log has to be cut; None if nothing is noted. Raises
    DamagedStoreError."""
    raw = disk.read_file(root / FILE_NAME)
    if raw is None:
        return None
    text = raw.decode("ascii", "replace").strip()
    if not text.isdigit() or len(text) > 19:
        raise DamagedStoreError("is no log offset", file=str(root / FILE_NAME), advice="Remove the file.")
    return int(text)


def carry_out(disk: Disk, root: Path, directory: Path, log_offset: int, report: RecoveryReport) -> int:
    """Cut the log in `directory` at `log_offset`, and let this start recover the rest; return how many bytes
    were cut. Raises StoreError."""
    disk.write_file(root / "abort", b"0")
    disk.unlink(root / ENDS, missing_ok=True)
    disk.write_file(root / "checkpoint", checkpoint.encode(Checkpoint(0, 0, 0)))
    disk.sync_directory(root)
    kept, cut = KeptFiles(disk, root, report), 0
    # The newest first: a crash leaves no hole.
    for name in sorted(filter(is_file_name, disk.list_names(directory)), reverse=True):
        at = log_offset - int(name)
        if at <= 0:
            cut += disk.size_of(directory / name)
            kept.keep_away(directory / name)
            continue
        region = disk.open_region(directory / name)
        try:
            if at < region.size and (length := data_end_from(region, at) - at) > 0:
                where = kept.copy_range(region, at, length, f"commitlog.{name}.from-{at}")
                report.finding("warning", f"{length:,} bytes were cut, and are copied to {where}", name, at)
                region.punch(at)
                region.sync(0, region.size)
                cut += length
        finally:
            region.close()
    return cut


def cut_done(disk: Disk, root: Path) -> None:
    """Note that the start which cut the log is complete. Raises StoreError."""
    disk.unlink(root / FILE_NAME, missing_ok=True)
    disk.sync_directory(root)
