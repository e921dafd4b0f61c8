"""What a backup saves of a data directory: its store as the last broker used it, and what belongs to the
dashboard and the name server."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from urllib.parse import quote

from django.db import connection

from broker_store.backup.source import Source
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.disk.mapped_file import is_file_name
from broker_store.errors import StoreError
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import timer_log
from mqadmin.process import run_file
from mqadmin.process.first_start import KEY_FILE

DATABASE = "mqadmin.sqlite3"
# In a data directory and in a backup of it
OTHERS = (
    KEY_FILE,
    "namesrv/kvConfig.json",
    "namesrv/kvConfig.json.bak",
    "tls/self-signed.pem",
    "tls/self-signed.crt",
)
_PAGES_AT_ONCE = 256
_PAUSE_S = 0.01  # between them, so that the dashboard can write meanwhile


def source_of(data: Path, store: Path | None = None, log: Path | None = None) -> Source:
    """Return what a backup of a data directory saves; `store` and `log` where they are elsewhere. Raises
    StoreError."""
    root = (store or run_file.store_directory(data)).absolute()
    notes = []
    if connection.vendor != "sqlite":
        notes.append(
            f"the dashboard's database is {connection.vendor}, which is not in the backup: save it with its "
            f"own tools"
        )
    return Source(
        settings=_settings(root, data, (log or root / "commitlog").absolute()),
        live=lambda: run_file.live_position(root, data),
        others=[(data / name, name) for name in OTHERS],
        save_database=lambda directory: _save_database(data / DATABASE, directory),
        notes=notes,
    )


def _settings(root: Path, data: Path, log_directory: Path) -> StoreSettings:
    """Return the settings of a store: those of the broker that runs on it or was killed, else the sizes that
    its last start noted, else those that its files show."""
    settings = run_file.store_settings(root, data)
    noted = run_file.noted_sizes(root, data)
    shown = StoreDirectory(root, log_directory=log_directory).sizes()
    sizes = [
        getattr(noted, one.name) or getattr(shown, one.name) or getattr(settings, one.name)
        for one in fields(FileSizes)
    ]
    log_bytes, queue_bytes, slots, entries = sizes
    return replace(
        settings,
        store_path_root_dir=root,
        store_path_commit_log=log_directory,
        mapped_file_size_commit_log=log_bytes,
        mapped_file_size_consume_queue=queue_bytes,
        max_hash_slot_num=slots,
        max_index_num=entries,
        mapped_file_size_timer_log=_timer_log_bytes(root) or settings.mapped_file_size_timer_log,
        message_delay_level=run_file.delay_levels(root, data) or settings.message_delay_level,
    )


def _timer_log_bytes(root: Path) -> int | None:
    """Return the length of the files of the timer log, which no start notes; None without a file."""
    disk, directory = Disk(), root / timer_log.PATH
    names = filter(is_file_name, disk.list_names(directory))
    return next((disk.size_of(directory / name) for name in names), None)


def _save_database(path: Path, directory: Path) -> str | None:
    """Save the dashboard's database by SQLite's own backup, while it is used; return the name of the copy,
    None without a database. Raises StoreError."""
    if connection.vendor != "sqlite" or not Disk().exists(path):
        return None
    target = directory / DATABASE
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=20)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy, pages=_PAGES_AT_ONCE, sleep=_PAUSE_S)
    except sqlite3.Error as error:
        raise StoreError(
            f"{path}: the dashboard's database cannot be saved: {error}. Repair it, or move it out of the "
            f"data directory: the next start creates an empty one"
        ) from error
    return DATABASE
