"""The files of `config/`: each is replaced as a whole, the version before is kept as `.bak`, and a bad one is
never believed.

A file that is missing, empty, torn or of a wrong content is taken from its `.bak`, as by Apache's
`ConfigManager.loadBak`, and the start's report says which and why. The bad file is copied to `lost+found/`
and replaced by the sound text at once: the next change would make it the `.bak`. When both are bad, the start
stops if messages depend on the file. A file that is there and bad never counts as an empty table.

What was taken from a `.bak` is older: a group's offsets then lie further back, and messages are delivered
again.
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


class ConfigReader(NamedTuple):
    """How a start reads a file: `read` raises FormatError for a bad one. One that is not needed never stops a
    start.

    `without` says what happens without the file; `is_of_each_stop`: a stop always writes it. `of_topic`:
    nothing depends on the file while this topic has no queue.
    """

    read: Callable[[str], object]
    is_needed: bool = True
    without: str = ""
    is_of_each_stop: bool = False
    of_topic: str = ""

    def gone(self, topics: Container[str]) -> str:
        """Say that the file is not there though the last stop wrote it; "" where that means nothing. `topics`
        are those that have queues."""
        if not self.is_of_each_stop or (self.of_topic and self.of_topic not in topics):
            return ""
        return f"{_MISSING}, though each stop writes it: {self.without}"


class Judged(NamedTuple):
    """A file that is bad, and its .bak. `backup` is the content of the .bak when that is sound."""

    raw: bytes | None
    problem: str
    backup: bytes | None
    both: str  # what is wrong with the file and with its .bak
    advice: str
    is_in_the_way: bool  # it is no regular file, so nothing can be put in its place


def judged(disk: Disk, path: Path, read: Callable[[str], object]) -> Judged | None:
    """What is wrong with a file of config/; None when it is sound, or when neither it nor its .bak is there.

    The last text that is given to `read` is the sound one, if there is one.
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
    return Judged(
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
    """(the bytes, what is wrong with them or None, advice)."""
    raw = None
    try:
        raw = disk.read_file(path)
        if not raw:
            return raw, _MISSING if raw is None else "is empty", f"Put a sound copy in the place of {path}."
        read(raw.decode())
    except UnicodeDecodeError as error:
        return raw, f"is no UTF-8 at {error.start}", f"Put a sound copy in the place of {path}."
    except FormatError as error:
        return raw, str(error), f"Put a sound copy in the place of {path}."
    except DamagedStoreError as error:
        return raw, error.what, error.advice
    return raw, None, ""


class ConfigFiles:
    """Reads for a start, which go into its report, and writes of any thread."""

    def __init__(self, disk: Disk, root: Path, report: RecoveryReport):
        self._disk, self._root, self._report = disk, root, report
        self._directory = root / DIRECTORY
        self._lock = threading.Lock()
        self._kept_in: Path | None = None
        # Whether a broker closed the store: then all files are there that its stop writes
        self.expects_all = False

    def is_there(self, name: str) -> bool:
        """Whether config/<name> or its .bak is there. Any thread."""
        return any(self._disk.exists(self._directory / each) for each in (name, f"{name}{BACKUP}"))

    def load(
        self, name: str, take: Callable[[str], None], *, is_needed: bool = True, when_gone: str = ""
    ) -> str | None:
        """Give the text of config/<name> to `take`, that of its .bak when `take` or the file fails; what was
        found, if anything was.

        `take` raises DamagedStoreError or FormatError and then has changed nothing. It is not called when
        neither file is there; after a stop in order `when_gone` is the finding then, if it is given. When
        both are bad: DamagedStoreError, or, of a file that is not needed, no call and a finding.
        DamagedStoreError too where the file is no regular file, but for an inspection.
        """
        path = self._directory / name
        found = judged(self._disk, path, take)
        if found is None:
            if not (when_gone and self.expects_all) or self.is_there(name):
                return None
            self._report.finding("warning", when_gone, f"{DIRECTORY}/{name}")
            return f"{DIRECTORY}/{name} {when_gone}"
        if (found.backup is None and is_needed) or (found.is_in_the_way and not self._disk.is_inspecting):
            raise DamagedStoreError(
                found.both if found.backup is None else found.problem,
                file=f"{DIRECTORY}/{name}",
                advice=found.advice,
            )
        self._keep(name, found.raw)
        if found.backup is None:
            what = f"{found.both}: what it says is counted from now on"
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
    """The text of config/<name> when it is JSON, else that of its .bak; None when neither is there. Changes
    nothing.

    When both are bad: the text of the first, for the message about what is wrong with it.
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
