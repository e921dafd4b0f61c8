"""Recovery of a copied store: it becomes one that was closed in order, for this broker and for Apache's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.store import MessageStore
from broker_store.errors import StoreError

# Of a body; so large that recovery accepts every record that a broker accepted
_MAX_MESSAGE_BYTES = (16 << 20) - (64 << 10)


class LogRange(NamedTuple):
    """Where a log begins and ends."""

    begin: int
    end: int


def recover(
    disk: Disk,
    root: Path,
    settings: StoreSettings,
    change: Callable[[MessageStore], None] = lambda store: None,
) -> LogRange:
    """Open a store as a start does, call `change` with it, and close it. No worker runs, so no file is
    deleted by retention. Raises StoreError where a start would stop."""
    settings = dataclasses.replace(
        settings,
        store_path_root_dir=root,
        store_path_commit_log=root / "commitlog",
        max_message_size=max(settings.max_message_size, _MAX_MESSAGE_BYTES),
        accept_damage=False,
        inspect=False,
    )
    store = MessageStore(settings, disk=disk)
    store.open()
    try:
        change(store)
    except BaseException:
        store.close()
        raise
    found, current = LogRange(store.log.minimum, store.log.wrote), store.log.current.path
    store.close()
    if disk.exists(root / "abort"):
        raise StoreError(f"{root}: the copy was not closed in order: {'; '.join(store.flags.values())}")
    disk.unlink(root / "lock", missing_ok=True)
    # The blocks that a writer would use next
    region = disk.open_region(current)
    try:
        region.punch(found.end - int(current.name))
    finally:
        region.close()
    return found
