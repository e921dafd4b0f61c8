"""The actions of a repair, one type for each, and the plan that has them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from broker_store.check.losses import Losses
from broker_store.check.repair.pieces import Piece
from broker_store.check.results import PlannedAction, RepairPlan
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.status.file_facts import LOST_AND_FOUND
from broker_store.formats.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan. `offset` counts in the file, None where the step is about all of it. `bytes` is how
    many bytes of the store it changes or takes away; a copy of them is kept."""

    kind: ClassVar[str]
    path: Path
    offset: int | None
    bytes: int
    what: str


@dataclass(frozen=True, slots=True)
class Mark(Action):
    """Write `abort`."""

    kind = "mark"


@dataclass(frozen=True, slots=True)
class Replace(Action):
    """Put other content in the place of a file."""

    kind = "replace"
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Action):
    kind = "checkpoint"
    stamps: Checkpoint


@dataclass(frozen=True, slots=True)
class SetLength(Action):
    """Cut a file, or extend it with zeros, to `length` bytes."""

    kind = "length"
    length: int


@dataclass(frozen=True, slots=True)
class Bridge(Action):
    """Write `pieces`, stored at `store_ms`, into the log file that begins at log offset `base`."""

    kind = "bridge"
    offset: int
    base: int
    store_ms: int
    pieces: list[Piece] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Create(Action):
    """Make the log file of `size` bytes that begins at log offset `base`, with `pieces` stored at
    `store_ms`."""

    kind = "create"
    size: int
    base: int
    store_ms: int
    pieces: list[Piece] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rename(Action):
    """Rename the files of `chain`, (current path, right path). If they change places, the last one belongs
    where the first one lies."""

    kind = "rename"
    chain: list[tuple[Path, Path]]


@dataclass(frozen=True, slots=True)
class Restore(Action):
    """Write `patches`, (offset in the file, bytes), into the header of a record."""

    kind = "restore"
    patches: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Cut(Action):
    """Make a file zero from `offset` on."""

    kind = "cut"
    offset: int


@dataclass(frozen=True, slots=True)
class Move(Action):
    """Move a file out of the store."""

    kind = "move"


@dataclass(frozen=True, slots=True)
class MakeWheel(Action):
    """Make the wheel from a timer log whose files have `file_size` bytes, of a log that ends at `log_end`."""

    kind = "wheel"
    file_size: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Bound(Action):
    """Note `next_offsets`, the least numbers that next messages may have, in the record of ends.

    `log_end` is where the log ends without the messages that they count. `remade` are queues that another
    broker deleted and made again.
    """

    kind = "bound"
    next_offsets: Mapping[tuple[str, int], int] = field(repr=False)
    log_end: int
    remade: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Rebuild(Action):
    """Start the engine on the store, which builds queues and index. The chain of the log must reach `reach`
    before; None leaves all to the next start."""

    kind = "rebuild"
    reach: int | None


@dataclass
class Plan:
    """The actions in order; `left` are sentences about what it cannot repair, `losses` the messages that are
    lost."""

    root: Path
    actions: list[Action]
    left: list[str]
    sizes: FileSizes
    delay_levels_ms: tuple[int, ...]
    log_directory: Path
    log_end: int
    losses: Losses = Losses()

    def facts(self) -> RepairPlan:
        """Return the plan for pages and commands."""
        return RepairPlan(
            actions=[
                PlannedAction(
                    number=number,
                    action=action.kind,
                    file=self.name_of(action.path),
                    offset=action.offset,
                    bytes=action.bytes,
                    what=action.what,
                )
                for number, action in enumerate(self.actions, 1)
            ],
            left=self.left,
            lost=self.losses.facts(),
            bytes=sum(action.bytes for action in self.actions),
            kept_in=LOST_AND_FOUND if self.actions else None,
        )

    def name_of(self, path: Path) -> str:
        """Return a file's name relative to the store."""
        if path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        return f"commitlog/{path.name}" if path.parent == self.log_directory else str(path)


def move_away(disk: Disk, path: Path, what: str) -> Move:
    """Move a file, a directory or a link out of the store."""
    size = 0 if disk.is_directory(path) or path.is_symlink() else disk.size_of(path)
    return Move(path, None, size, what)


def written_end(disk: Disk, path: Path) -> int:
    """Return the position after the last byte of a file that was ever written."""
    region = disk.open_region(path, writable=False)
    try:
        return region.data_end()
    finally:
        region.close()
