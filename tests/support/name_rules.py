"""What a power cut leaves of changes of names and lengths that were not synced, by file system
(docs/durability.md section 3).

A `Change` is a name that was made, moved or removed, or a new file's length. Three questions decide what a
cut may leave: which changes a sync of a file brings to the disk, which a sync of a directory, and which sets
of the others may be there.

    rules      | a sync of a file brings           | a sync of a directory brings    | of the rest there may
                                                   be
    -----------+-----------------------------------+---------------------------------+----------------------------------
    ext4       | every change before it (journal)  | every change before it          | any first part of all
                                                   changes
    xfs        | all up to that file's last change | all up to the directory's last  | any first part of all
               changes
    btrfs      | the file's length and names       | the directory's names           | any first part of all
                                                   changes
    posix      | the file's length                 | the directory's names           | any set, and any file
                                                   empty
    directory  | the file's length                 | its names and their lengths     | a first part of each
                                                   directory's,
               |                                   |                                 | the last file of each
                                                   empty or not

posix is the least that is promised. In xfs and btrfs a name may be there whose length is not. btrfs writes
what is synced into a log of its own, and all else by whole transactions, one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LENGTH = "length"
MAX_CUTOFFS = 10  # first parts of a long list that are tried one by one; random ones come besides


@dataclass(frozen=True)
class Change:
    """`file` is the number of the file that a link or rename names, or whose length it is; `target` is where
    a name moves."""

    number: int
    kind: str  # link, unlink, rename, mkdir, rmdir, move, length
    path: Path
    file: int | None = None
    target: Path | None = None

    @property
    def directory(self) -> Path | None:
        """Where the name stands; None for a length."""
        return None if self.kind == LENGTH else self.path.parent


@dataclass(frozen=True)
class Outcome:
    """The numbers of the changes that are on the disk, and the files that are there without their length:
    empty."""

    done: frozenset[int] = frozenset()
    empty: frozenset[int] = field(default_factory=frozenset)


class NameRules:
    """`pending` is always in the order in which the changes were made."""

    name: str

    def by_file_sync(self, pending: Sequence[Change], file: int) -> list[Change]:
        raise NotImplementedError

    def by_directory_sync(self, pending: Sequence[Change], directory: Path) -> list[Change]:
        raise NotImplementedError

    def everything(self, pending: Sequence[Change]) -> Outcome:
        return Outcome(frozenset(change.number for change in pending))

    def nothing(self, pending: Sequence[Change]) -> Outcome:
        """No change is there. A file that is named nonetheless, by a sync that did not bring its length, is
        empty."""
        return Outcome(frozenset(), _files_without_length(pending))

    def singly(self, pending: Sequence[Change]) -> Iterator[Outcome]:
        """Outcomes with one thing lost or kept."""
        raise NotImplementedError

    def chance(self, pending: Sequence[Change], rng: random.Random, kept: float) -> Outcome:
        """Any outcome; with `kept` near 1 mostly the newest."""
        raise NotImplementedError


class _Journal(NameRules):
    """Changes reach the disk in their order."""

    def _first(self, pending: Sequence[Change], count: int) -> Outcome:
        return Outcome(
            frozenset(change.number for change in pending[:count]), _files_without_length(pending[count:])
        )

    def singly(self, pending: Sequence[Change]) -> Iterator[Outcome]:
        step = max(1, len(pending) // MAX_CUTOFFS)
        for count in range(1, len(pending), step):
            yield self._first(pending, count)

    def chance(self, pending: Sequence[Change], rng: random.Random, kept: float) -> Outcome:
        return self._first(pending, len(pending) if rng.random() < kept else rng.randint(0, len(pending)))


class Ext4(_Journal):
    name = "ext4"

    def by_file_sync(self, pending: Sequence[Change], file: int) -> list[Change]:
        return list(pending)

    def by_directory_sync(self, pending: Sequence[Change], directory: Path) -> list[Change]:
        return list(pending)


class Xfs(_Journal):
    name = "xfs"

    def by_file_sync(self, pending: Sequence[Change], file: int) -> list[Change]:
        last = max((number for number, change in enumerate(pending) if change.file == file), default=-1)
        return list(pending[: last + 1])

    def by_directory_sync(self, pending: Sequence[Change], directory: Path) -> list[Change]:
        last = max(
            (number for number, change in enumerate(pending) if change.directory == directory), default=-1
        )
        return list(pending[: last + 1])


class Btrfs(_Journal):
    name = "btrfs"

    def by_file_sync(self, pending: Sequence[Change], file: int) -> list[Change]:
        return [change for change in pending if change.file == file]

    def by_directory_sync(self, pending: Sequence[Change], directory: Path) -> list[Change]:
        return [change for change in pending if change.directory == directory]


class Posix(NameRules):
    name = "posix"

    def by_file_sync(self, pending: Sequence[Change], file: int) -> list[Change]:
        return [change for change in pending if change.kind == LENGTH and change.file == file]

    def by_directory_sync(self, pending: Sequence[Change], directory: Path) -> list[Change]:
        return [change for change in pending if change.directory == directory]

    def _of(self, pending: Sequence[Change], done: set[int]) -> Outcome:
        return Outcome(
            frozenset(done),
            frozenset(
                change.file for change in pending if change.kind == LENGTH and change.number not in done
            ),
        )

    def singly(self, pending: Sequence[Change]) -> Iterator[Outcome]:
        numbers = {change.number for change in pending}
        lengths = {change.number for change in pending if change.kind == LENGTH}
        if lengths:
            yield self._of(pending, numbers - lengths)
        for change in pending:
            yield self._of(pending, numbers - {change.number})
            yield self._of(pending, {change.number} | (lengths if change.kind != LENGTH else set()))

    def chance(self, pending: Sequence[Change], rng: random.Random, kept: float) -> Outcome:
        return self._of(pending, {change.number for change in pending if rng.random() < kept})


class Directory(NameRules):
    """Each directory has a journal of its own: between ext4 and posix. Lives that are known by their seed
    were led by it."""

    name = "directory"

    def by_file_sync(self, pending: Sequence[Change], file: int) -> list[Change]:
        return [change for change in pending if change.kind == LENGTH and change.file == file]

    def by_directory_sync(self, pending: Sequence[Change], directory: Path) -> list[Change]:
        names = [change for change in pending if change.directory == directory]
        files = {change.file for change in names}
        return [
            change
            for change in pending
            if change in names or (change.kind == LENGTH and change.file in files)
        ]

    def nothing(self, pending: Sequence[Change]) -> Outcome:
        return Outcome()

    def _by_directory(self, pending: Sequence[Change]) -> dict[Path, list[Change]]:
        found: dict[Path, list[Change]] = {}
        for change in pending:
            if change.directory is not None:
                found.setdefault(change.directory, []).append(change)
        return found

    def _of(self, pending: Sequence[Change], counts: dict[Path, int], is_last_empty: bool = False) -> Outcome:
        without = _files_without_length(pending)
        done, empty = set(), set()
        for directory, changes in self._by_directory(pending).items():
            first = changes[: counts[directory]]
            done |= {change.number for change in first}
            if first and first[-1].kind == "link" and is_last_empty and first[-1].file in without:
                empty.add(first[-1].file)
        return Outcome(frozenset(done), frozenset(empty))

    def everything(self, pending: Sequence[Change]) -> Outcome:
        return self._of(
            pending, {directory: len(changes) for directory, changes in self._by_directory(pending).items()}
        )

    def singly(self, pending: Sequence[Change]) -> Iterator[Outcome]:
        counts = {directory: len(changes) for directory, changes in self._by_directory(pending).items()}
        yield self._of(pending, counts, True)
        for directory in counts:
            yield self._of(pending, counts | {directory: 0})
            yield self._of(pending, dict.fromkeys(counts, 0) | {directory: counts[directory]})

    def chance(self, pending: Sequence[Change], rng: random.Random, kept: float) -> Outcome:
        counts = {
            directory: len(changes) if rng.random() < kept else rng.randint(0, len(changes))
            for directory, changes in self._by_directory(pending).items()
        }
        return self._of(pending, counts, rng.random() < 0.2)


RULES: dict[str, NameRules] = {rules.name: rules for rules in (Ext4(), Xfs(), Btrfs(), Posix(), Directory())}


def _files_without_length(pending: Sequence[Change]) -> frozenset[int]:
    return frozenset(change.file for change in pending if change.kind == LENGTH)
