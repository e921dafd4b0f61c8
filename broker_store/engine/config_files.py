"""The files of `config/`: each is replaced as a whole, the previous version is kept as `.bak`, and a bad file
is never used.

In place of a file that is missing, empty, torn or wrong in its content the `.bak` is used, as by Apache's
`ConfigManager.loadBak`. The start's report names the file and the reason. The bad file is copied to
`lost+found/` and replaced by the sound text at once, or the next change would make it the `.bak`. When both
are bad, the start stops if messages depend on the file. A bad file never counts as an empty table.

A `.bak` is older: a group's offsets in it are lower, so messages are delivered again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.status.file_facts import kept_directory
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.formats import config_json

DIRECTORY = "config"
BACKUP = ".bak"
_MISSING = "is missing"
# Takes the text of a file. Raises DamagedStoreError or FormatError for a bad one.
Take = Callable[[str], None]


class ConfigReader(NamedTuple):
    """How a start reads a file: `read` raises FormatError for a bad one. A file with `is_needed` False never
    stops a start.

    `without` says what follows when the file is missing. `is_of_each_stop`: every stop writes the file.
    `of_topic`: nothing depends on the file while this topic has no queue. `takes_backup` False: a bad file
    stops the start even if its .bak is sound.
    """

    read: Callable[[str], object]
    is_needed: bool = True
    without: str = ""
    is_of_each_stop: bool = False
    of_topic: str = ""
    takes_backup: bool = True

    def gone(self, topics: Container[str]) -> str:
        """Return a sentence for a file that is missing though the last stop wrote it; "" where that has no
        consequence. `topics` are those that have queues."""
        if not self.is_of_each_stop or (self.of_topic and self.of_topic not in topics):
            return ""
        return f"{_MISSING}, though each stop writes it: {self.without}"


class BadConfigFile(NamedTuple):
    """A bad file and its .bak. `backup` is the content of the .bak when that is sound."""

    raw: bytes | None
    problem: str
    backup: bytes | None
    both: str  # what is wrong with the file and with its .bak
    advice: str
    is_in_the_way: bool  # it is no regular file, so nothing can be put in its place


def find_bad(disk: Disk, path: Path, read: Callable[[str], object]) -> BadConfigFile | None:
    """Return what is wrong with a file of config/; None when it is sound, or when neither it nor its .bak
    exists.

    `read` is called with the text of the file, then of its .bak. The text of its last call is the sound one,
    if either is.
    """
    raw, problem, advice = _read(disk, path, read)
    if problem is None:
        return None
    backup = path.with_name(f"{path.name}{BACKUP}")
    backup_raw, backup_problem, _ = _read(disk, backup, read)
    if problem == backup_problem == _MISSING:
        return None
    both = (
        f"{problem}; and {backup.name} "
        f"{'has the same error' if backup_problem == problem else backup_problem}"
    )
    return BadConfigFile(
        raw,
        problem,
        backup_raw if backup_problem is None else None,
        both,
        advice,
        problem != _MISSING and not _is_regular(disk, path),
    )


def _is_regular(disk: Disk, path: Path) -> bool:
    try:
        disk.size_of(path)
    except DamagedStoreError:
        return False
    return True


def _read(disk: Disk, path: Path, read: Callable[[str], object]) -> tuple[bytes | None, str | None, str]:
    """Return (content, what is wrong with it or None, advice)."""
    raw = None
    try:
        raw = disk.read_file(path)
        if not raw:
            return raw, _MISSING if raw is None else "is empty", _advice(path, read)
        read(raw.decode())
    except UnicodeDecodeError as error:
        return raw, f"is no UTF-8 at {error.start}", _advice(path, read)
    except FormatError as error:
        return raw, str(error), f"Put a sound copy in the place of {path}."
    except DamagedStoreError as error:
        return raw, error.what, error.advice
    return raw, None, ""


def _advice(path: Path, read: Callable[[str], object]) -> str:
    """Return what to do about a file without a text: what its reader says about one that is torn."""
    try:
        read("")
    except DamagedStoreError as error:
        return error.advice
    except FormatError:
        pass
    return f"Put a sound copy in the place of {path}."


def not_taken(path: Path) -> str:
    """Return what to do about a bad file whose sound .bak is not taken by a start."""
    return (
        f"{path.name}{BACKUP} is sound, but may be older by a change, which it would undo. If that is right, "
        f"copy it to {path}; else put another sound copy there"
    )


class ConfigFiles:
    """Reads files for a start and reports what it finds. Writes files for any thread."""

    def __init__(self, disk: Disk, root: Path, report: RecoveryReport):
        self._disk, self._root, self._report = disk, root, report
        self._directory = root / DIRECTORY
        self._lock = threading.Lock()
        self._kept_in: Path | None = None
        # True if a broker closed the store: then all files that its stop writes must exist
        self.expects_all = False

    def is_there(self, name: str) -> bool:
        """Return whether config/<name> or its .bak exists. Any thread."""
        return any(self._disk.exists(self._directory / each) for each in (name, f"{name}{BACKUP}"))

    def load(
        self, name: str, take: Take, *, is_needed: bool = True, when_gone: str = "", takes_backup: bool = True
    ) -> str | None:
        """Call `take` with the text of config/<name>, or of its .bak when `take` or the file fails. Return
        what was found, None when nothing was.

        `take` raises DamagedStoreError or FormatError, and then has changed nothing. It is not called when
        neither file exists; after a stop in order that is the finding `when_gone`, if it is given. When both
        are bad: DamagedStoreError; for a file that is not needed, a finding and no call. DamagedStoreError
        too where the file is no regular file, except in an inspection, and with `takes_backup` False.
        """
        path = self._directory / name
        found = find_bad(self._disk, path, take)
        if found is None:
            if not (when_gone and self.expects_all) or self.is_there(name):
                return None
            self._report.finding("warning", when_gone, f"{DIRECTORY}/{name}")
            return f"{DIRECTORY}/{name} {when_gone}"
        if found.backup is not None and not takes_backup:
            raise DamagedStoreError(found.problem, file=f"{DIRECTORY}/{name}", advice=not_taken(path))
        if (found.backup is None and is_needed) or (found.is_in_the_way and not self._disk.is_inspecting):
            raise DamagedStoreError(
                found.both if found.backup is None else found.problem,
                file=f"{DIRECTORY}/{name}",
                advice=found.advice,
            )
        self._keep(name, found.raw)
        if found.backup is None:
            what = f"{found.both}: the broker begins without its content"
        else:
            what = f"{found.problem}; its .bak is taken, which is older by one change"
            self._disk.replace_file(path, found.backup)
        self._report.finding("warning", what, f"{DIRECTORY}/{name}")
        return f"{DIRECTORY}/{name}: {what}"

    def _keep(self, name: str, raw: bytes | None) -> None:
        if not raw:
            return
        if self._kept_in is None:
            self._kept_in = kept_directory(self._disk, self._root, self._report.started_ms)
        self._disk.write_file(self._kept_in / f"{DIRECTORY}.{name}", raw)
        self._disk.sync_directory(self._kept_in)

    def write(self, name: str, data: bytes) -> None:
        """Replace config/<name> atomically and keep the old one as .bak. Any thread. Raises StoreError."""
        with self._lock:
            self._disk.make_directory(self._directory)
            self._disk.replace_file(self._directory / name, data, self._directory / f"{name}{BACKUP}")


def read_sound(disk: Disk, root: Path, name: str) -> str | None:
    """Return the text of config/<name> if it is JSON, else of its .bak; None when neither exists. Changes
    nothing.

    When both are bad: the text of the file itself, for the message about what is wrong with it.
    """
    found = None
    for path in (root / DIRECTORY / name, root / DIRECTORY / f"{name}{BACKUP}"):
        raw = disk.read_file(path)
        if not raw:
            continue
        text = raw.decode("utf-8", "replace")
        found = found or text
        try:
            config_json.read(raw)
        except FormatError:
            continue
        return text
    return found
