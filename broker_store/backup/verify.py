"""Verification of a backup: each file is there with the sum that the manifest states, and no other file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker_store.backup import manifest
from broker_store.backup.copying import Copier
from broker_store.backup.manifest import Manifest
from broker_store.engine.disk.disk import Disk
from broker_store.errors import StoreError
from broker_store.units import Small


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    ok: bool
    backup: str  # its directory
    files: Small
    data_bytes: int
    faults: list[str]  # a sentence for each file


def verify(disk: Disk, directory: Path, copier: Copier) -> Verification:
    """Read a whole backup and compare it with its manifest. Raises StoreError where there is none."""
    made = manifest.read(disk, directory)
    copier.total_bytes = sum(file.data_bytes for file in made.files)
    copier.begin("sums")
    faults = list(_faults(disk, directory, made, copier))
    return Verification(
        ok=not faults,
        backup=str(directory),
        files=len(made.files),
        data_bytes=copier.total_bytes,
        faults=faults,
    )


def _faults(disk: Disk, directory: Path, made: Manifest, copier: Copier) -> Iterator[str]:
    for saved in made.files:
        path = directory / saved.path
        if not disk.exists(path):
            yield f"{path}: is missing"
            continue
        try:
            found = copier.sum_of(path)
        except StoreError as error:
            yield str(error)
            continue
        if found.size_bytes != saved.size_bytes:
            yield f"{path}: has {found.size_bytes:,} bytes, not {saved.size_bytes:,}"
        elif (found.data_bytes, found.crc) != (saved.data_bytes, saved.crc):
            yield f"{path}: its bytes are not those that were saved"
    named = {manifest.FILE_NAME, *made.by_path}
    for path in _files(disk, directory):
        if str(path.relative_to(directory)) not in named:
            yield f"{path}: is not in the manifest: it was added later"


def _files(disk: Disk, directory: Path) -> Iterator[Path]:
    for name in disk.list_names(directory):
        path = directory / name
        if disk.is_directory(path):
            yield from _files(disk, path)
        else:
            yield path
