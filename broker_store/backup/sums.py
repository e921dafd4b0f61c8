"""The sums of a backup. Files that the earlier backup has too become second names of its files."""

from __future__ import annotations

import dataclasses

from broker_store.backup import manifest
from broker_store.backup.copying import Sum
from broker_store.backup.manifest import SavedFile, SourceFile
from broker_store.backup.target import Target, files_below


class Sums:
    """Sums the files of a backup when all of them are there."""

    def __init__(self, target: Target):
        self._target, self._disk = target, target.disk

    def files(self) -> list[SavedFile]:
        """Sum all files of the backup; those that the earlier one has too become names of its files."""
        self._target.copier.begin("sums")
        known = self._target.known
        files = []
        for path in files_below(self._disk, self._target.directory):
            name, how = (
                str(path.relative_to(self._target.directory)),
                self._target.how.get(str(path.relative_to(self._target.directory))),
            )
            saved, source = known.get(name), self._target.sources.get(name)
            found = self._disk.identity_of(path)
            if saved is not None and how in (manifest.SHARED, manifest.LINKED, manifest.CLONED):
                if saved.source == source and saved.size_bytes == found.size:
                    files.append(dataclasses.replace(saved, how=how, source=source))
                    continue
            found_sum = self._target.copier.sum_of(path)
            if saved is not None and (saved.size_bytes, saved.data_bytes, saved.crc) == found_sum:
                how = manifest.SHARED if self._share(name, found_sum, source) else how
            size, data, crc = found_sum
            files.append(
                SavedFile(
                    path=name,
                    size_bytes=size,
                    data_bytes=data,
                    crc=crc,
                    how=how or manifest.COPIED,
                    source=source,
                )
            )
        return files

    def _share(self, name: str, own: Sum, source: SourceFile | None) -> bool:
        """Replace a file by another name of the earlier backup's, where that has the same bytes and, for a
        backup that copies all, is not the store's own file."""
        assert self._target.earlier_directory is not None  # it has the file
        earlier, path = self._target.earlier_directory / name, self._target.directory / name
        if not self._disk.exists(earlier):
            return False
        found = self._disk.identity_of(earlier)[:2]
        if found == self._disk.identity_of(path)[:2]:
            return True
        if not self._target.may_link and source is not None and found == (source.device, source.inode):
            return False
        # It may have changed since it was saved, also after its data
        copier = self._target.copier
        if copier.sum_of(earlier) != own or not copier.are_equal(earlier, path, own.data_bytes):
            return False
        fresh = path.with_name(f"{path.name}.tmp")
        if not self._target.link(earlier, fresh):
            return False
        self._disk.rename(fresh, path)
        return True
