"""Files of the log, of queues and of the timer log: the name of each is the offset at which it begins.

A directory is processed in two steps: `listed` reads the names, `in_order` compares the lengths. Between them
the check determines how long the files should be, and which of them have a wrong name (`places.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker_store.check.report import ERROR, WARNING, CheckReport
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import NamedFile, likely_size
from broker_store.errors import StoreError

NAME_DIGITS = 20


@dataclass(slots=True)
class StoreFile:
    """A file of a sequence, named by its start offset. It should have `size` bytes and has `actual`."""

    path: Path
    base: int
    size: int
    actual: int

    @property
    def end(self) -> int:
        """The offset at which the next file of the sequence begins."""
        return self.base + self.size


def named(files: list[StoreFile]) -> list[NamedFile]:
    """Return names and lengths, as `likely_size` takes them."""
    return [NamedFile(file.base, file.actual) for file in files]


def data_end(disk: Disk, file: StoreFile) -> int:
    """Return the position after the last byte of a file that was ever written. Holes, which are zero, are not
    read."""
    if not file.actual:
        return 0
    region = disk.open_region(file.path, writable=False)
    try:
        return min(region.data_end(), file.size)
    finally:
        region.close()


class FileLists:
    """Lists the files of directories and reports what does not belong there.

    `sizes` has the length of the files of each directory, in bytes; `misnamed` the queue files whose name is
    no multiple of it, by topic and queue id.
    """

    def __init__(self, disk: Disk, report: CheckReport):
        self._disk, self._report = disk, report
        self.sizes: dict[Path, int] = {}
        self.misnamed: dict[tuple[str, int], list[StoreFile]] = {}

    def sequence(self, directory: Path, what: str, wanted: int | None) -> list[StoreFile]:
        """Return the files of a directory in order. Each should have `wanted` bytes; if that is None, their
        lengths show it."""
        files = self.listed(directory, what)
        return self.in_order(directory, files, wanted or likely_size([named(files)]))

    def listed(self, directory: Path, what: str, queue: tuple[str, int] | None = None) -> list[StoreFile]:
        """Return the files of a directory by name; their `size` is not known yet."""
        files: list[StoreFile] = []
        for name in self._disk.list_names(directory):
            path = directory / name
            is_named = len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
            if not is_named and self._disk.is_directory(path):
                # Apache skips directories; one in the place of a file prevents a broker from making that file
                continue
            if not is_named:
                sentence = f"does not belong into {what}/, Apache refuses to start with it"
                self._report.add(ERROR, "stray-file", str(path), None, sentence)
                continue
            size = self.size_of(path, queue)
            if size is not None:
                files.append(StoreFile(path, int(name), size, size))
        if files and files[-1].actual == 0:
            path = files.pop().path
            sentence = "has no bytes, the next start deletes it"
            self._report.add(WARNING, "empty-file", str(path), None, sentence, queue=queue)
        return files

    def in_order(
        self, directory: Path, files: list[StoreFile], size: int | None, queue: tuple[str, int] | None = None
    ) -> list[StoreFile]:
        """Return the files of a directory, each of which should have `size` bytes; None when nothing shows
        the size. Files whose name is no multiple of it are left out."""
        if size is None:
            for file in files:
                sentence = f"is {file.actual} bytes long, and no file shows how long it should be"
                self._report.add(ERROR, "file-length", str(file.path), None, sentence, queue=queue)
            return []
        if files:
            self.sizes[directory] = size
        sound: list[StoreFile] = []
        for file in files:
            file.size = size
            if file.actual != size:
                # A start makes a queue file of no bytes again; it refuses any other length
                outcome = (
                    "a start makes it again from the log"
                    if queue is not None and not file.actual
                    else "a start is refused until it has its length again or is moved away"
                )
                sentence = f"is {file.actual} bytes long, not {size}; {outcome}"
                self._report.add(ERROR, "file-length", str(file.path), None, sentence, queue=queue)
            if file.base % size:
                sentence = f"its name is no multiple of the file size {size}"
                self._report.add(ERROR, "file-name", str(file.path), None, sentence, queue=queue)
                if queue is not None:
                    self.misnamed.setdefault(queue, []).append(file)
                continue
            if sound and file.base != sound[-1].base + size:
                sentence = f"the file before it ends at {sound[-1].base + size}, this begins at {file.base}"
                self._report.add(ERROR, "file-missing", str(file.path), None, sentence, queue=queue)
            sound.append(file)
        return sound

    def size_of(self, path: Path, queue: tuple[str, int] | None = None) -> int | None:
        """Return the length of a file in bytes; None, with a finding, where there is no regular file."""
        try:
            return self._disk.size_of(path)
        except StoreError as error:
            what = getattr(error, "what", str(error))
            self._report.add(ERROR, "unreadable", str(path), None, what, queue=queue)
            return None
