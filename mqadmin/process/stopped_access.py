"""Users and rules of a store on which no broker runs: its file is read and replaced under the lock of the
store, as the broker does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from broker_store.access.imported import Imported, with_imported
from broker_store.access.policies import Policy
from broker_store.access.state import FILE_NAME, AccessState, read_file
from broker_store.access.users import User
from broker_store.backup.manifest import require_no_backup
from broker_store.engine.config_files import ConfigFiles
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.report import RecoveryReport
from broker_store.errors import StoreError


def import_into(root: Path, given: Sequence[tuple[User, Sequence[Policy]]], *, dry_run: bool) -> Imported:
    """Add users with their rules to the file of a store; with `dry_run` only return what that would add.
    Raises ChangeRefused; StoreError, also while a process has the store; then nothing is changed."""
    disk = Disk()
    if not disk.is_directory(root / "commitlog"):
        raise StoreError(
            f"{root} is no store: it has no directory commitlog. Name the data directory of a broker with "
            f"--data; the first start of a broker makes it"
        )
    require_no_backup(disk, root)
    lock = disk.lock(root / "lock")
    try:
        files = ConfigFiles(disk, root, RecoveryReport(time.time_ns() // 1_000_000))
        read = [AccessState()]
        files.load(FILE_NAME, lambda text: read.append(read_file(text)), takes_backup=False)
        found = with_imported(read[-1], given)
        if found.created and not dry_run:
            files.write(FILE_NAME, found.state.text())
        return found
    finally:
        lock.release()
