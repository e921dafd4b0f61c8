"""The manifest of a backup: which files it has, with a sum of each, and of which moment it is.

It is written last, as a whole, when all other files are on the disk. So a directory with a manifest is a
whole backup, and one without is what an interrupted backup left.

    {"crc": CRC-32 of the text of "backup", "backup": {...}}
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.errors import DamagedStoreError, ForeignStoreError, StoreError
from broker_store.excerpts import excerpt
from broker_store.units import Document, FactError, Moment, Small, document_of, fact_of

FILE_NAME = "manifest.json"
STORE = "store"  # the directory of the store, in a backup and in a data directory
VERSION = 1
_BEGIN = b'{\n "crc": '
_MAX_BYTES = 256 << 20  # 40,000 queues with two files each need 20 MB

# How a file came into a backup
LINKED = "linked"  # a second name of the store's file: it is closed, so it does not change
SHARED = "shared"  # a second name of the same file of an earlier backup
CLONED = "cloned"  # shares blocks with the store's file until one of them is written
COPIED = "copied"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """The store's file that a file of the backup was made of, as the file system knows it."""

    device: int
    inode: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    path: str  # in the backup
    size_bytes: int
    data_bytes: int  # up to the last byte that is not zero
    crc: int  # CRC-32 of these bytes
    how: str
    source: SourceFile | None = None  # of a closed log file


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    version: Small
    program: str  # version of the program that made it
    store: str  # directory of the store
    of_running_broker: bool
    started_ms: Moment
    # All that was acknowledged and on the disk by then is in the backup
    taken_ms: Moment
    finished_ms: Moment
    log_begin: int  # log offsets
    log_end: int
    sizes: FileSizes  # with which the store must be opened
    timer_log_file_bytes: int
    delay_levels: str
    earlier: str | None  # the backup whose files this one shares
    database: str | None  # its file in the backup; None where it is not in it
    notes: list[str] = field(default_factory=list)
    files: list[SavedFile] = field(default_factory=list)

    @property
    def by_path(self) -> dict[str, SavedFile]:
        return {file.path: file for file in self.files}


def write(disk: Disk, directory: Path, manifest: Manifest) -> None:
    """Write the manifest and sync it. Raises StoreError."""
    document = document_of(manifest)
    text = json.dumps({"crc": _crc(document), "backup": document}, indent=1)
    disk.replace_file(directory / FILE_NAME, text.encode())


def require_no_backup(disk: Disk, root: Path) -> None:
    """Check that a store is not that of a backup, whose files other backups share. Raises
    ForeignStoreError."""
    path = root.parent / FILE_NAME
    if not disk.exists(path) or disk.is_directory(path):
        return
    with disk.open_reader(path) as reader:
        is_ours = reader.read(0, len(_BEGIN)) == _BEGIN
    if is_ours:
        raise ForeignStoreError(
            f"{root} is the store of a backup, which is not written to: restore it into a directory of its "
            f"own (manage.py restore {root.parent} DATA), and use that"
        )


def read(disk: Disk, directory: Path) -> Manifest:
    """Return the manifest of a backup. Raises StoreError for a directory that is no whole backup,
    DamagedStoreError for a manifest that was changed."""
    path = directory / FILE_NAME
    raw = disk.read_file(path, _MAX_BYTES)
    if raw is None:
        if not disk.exists(directory):
            raise StoreError(f"{directory}: there is no such directory, so there is no backup")
        raise StoreError(
            f"{directory} has no {FILE_NAME}, which a backup writes last: it is no backup, or one that was "
            f"interrupted. Choose a whole one; remove what is left of an interrupted one"
        )
    try:
        document = json.loads(raw)
        version = document["backup"]["version"]
        if type(version) is int and version > VERSION:
            raise StoreError(
                f"{path} has version {version}, this program reads {VERSION}: use a newer one, of "
                f"{excerpt(str(document['backup'].get('program')))}"
            )
        manifest = fact_of(Manifest, document["backup"])
        is_whole = document["crc"] == _crc(document["backup"])
    except (ValueError, KeyError, TypeError, RecursionError, FactError) as error:
        raise _damaged(path, f"is no manifest ({error})") from None
    if not is_whole:
        raise _damaged(path, "has another sum than it states: it was changed")
    for file in manifest.files:
        if not _is_inside(file.path):
            raise _damaged(path, f"names the file {file.path!r}, which is outside of the backup")
    return manifest


def _is_inside(path: str) -> bool:
    """Return whether a path leads into its directory: a manifest may come from elsewhere."""
    parts = path.split("/")
    return "\0" not in path and not {"", ".", ".."} & {*parts}


def _damaged(path: Path, what: str) -> DamagedStoreError:
    return DamagedStoreError(what, file=str(path), advice="Choose another backup.")


def _crc(document: Document) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
