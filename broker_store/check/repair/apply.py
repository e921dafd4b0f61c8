"""Execution of a plan: each action keeps a copy of what it changes, changes it and syncs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from broker_store.check.log_chain import chain_end
from broker_store.check.repair import actions as a
from broker_store.check.repair.actions import Action, Plan
from broker_store.check.repair.pieces import Piece, encode_piece
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.disk.mapped_file import file_name
from broker_store.engine.disk.region import Region
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.file_facts import LOST_AND_FOUND
from broker_store.engine.store import MessageStore
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import checkpoint

_MANIFEST = "manifest.json"
# Of a body; so large that the start accepts every record that a check accepts
_MAX_MESSAGE_BYTES = (16 << 20) - (64 << 10)


class Repair:
    """Execution of a plan on a store that no broker runs on. Raises StoreError; what was done until then
    stays, and is in the manifest. `kept_in` is the directory of the copies, None before the first."""

    def __init__(
        self,
        plan: Plan,
        disk: Disk | None = None,
        on_step: Callable[[int, Action], None] | None = None,
        now_ms: int | None = None,
    ):
        self._plan, self._disk = plan, disk or Disk()
        self._on_step = on_step or (lambda number, action: None)
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._manifest: list[dict[str, object]] = []
        self._lock: StoreLock | None = None
        self.kept_in: Path | None = None

    def run(self) -> None:
        if not self._plan.actions:
            return
        self._lock = self._disk.lock(self._plan.root / "lock")
        try:
            for number, action in enumerate(self._plan.actions, 1):
                self._on_step(number, action)
                self._execute(action)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _execute(self, action: Action) -> None:
        match action:
            case a.Mark():
                self._mark(action)
            case a.WriteCheckpoint():
                self._replace(action, checkpoint.encode(action.stamps))
            case a.Replace():
                self._replace(action, action.content)
            case a.SetLength():
                self._set_length(action)
            case a.Bridge():
                self._bridge(action)
            case a.Rename():
                self._rename(action)
            case a.Create():
                self._create(action)
            case a.Restore():
                self._restore(action)
            case a.Cut():
                self._cut(action)
            case a.Move():
                self._move(action)
            case a.MakeWheel():
                self._make_wheel(action)
            case a.Bound():
                self._bound(action)
            case a.Rebuild():
                self._rebuild(action)
            case _:
                raise AssertionError(action)

    # What is kept ---------------------------------------------------------------------------------

    def _directory(self) -> Path:
        if self.kept_in is None:
            parent = self._plan.root.parent / LOST_AND_FOUND
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._now_ms / 1000)) + "-repair"
            number = 0
            while self._disk.exists(path := parent / (stamp + (f"-{number}" if number else ""))):
                number += 1
            self._disk.make_directory(path)
            self.kept_in = path
        return self.kept_in

    def _note(self, action: Action, kept: Path | None, offset: int | None, length: int) -> None:
        """Write an entry to the manifest, before anything is changed."""
        entry: dict[str, object] = {
            "action": action.kind,
            "file": self._plan.name_of(action.path),
            "offset": offset,
            "bytes": length,
            "kept": kept and kept.name,
            "what": action.what,
        }
        self._manifest.append(entry)
        text = json.dumps(
            {"store": str(self._plan.root), "started_ms": self._now_ms, "actions": self._manifest}, indent=1
        )
        self._disk.replace_file(self._directory() / _MANIFEST, text.encode())

    def _kept_name(self, action: Action, suffix: str = "") -> Path:
        return self._directory() / (self._plan.name_of(action.path).replace("/", ".") + suffix)

    def _keep(self, action: Action, offset: int, length: int) -> None:
        """Keep a copy of a part of a file."""
        if length <= 0:
            self._note(action, None, offset, 0)
            return
        kept = self._kept_name(action, f".from-{offset}")
        region = self._disk.open_region(action.path, writable=False)
        try:
            self._disk.copy_range(region, offset, length, kept)
        finally:
            region.close()
        self._disk.sync_directory(kept.parent)
        self._note(action, kept, offset, length)

    # The actions ----------------------------------------------------------------------------------

    def _mark(self, action: Action) -> None:
        self._note(action, None, None, 0)
        self._disk.write_file(action.path, b"repair")
        self._disk.sync_directory(action.path.parent)

    def _replace(self, action: Action, content: bytes) -> None:
        if self._disk.exists(action.path):
            self._keep(action, 0, self._disk.size_of(action.path))
        else:
            self._note(action, None, None, 0)
        self._disk.make_directory(action.path.parent)
        self._disk.replace_file(action.path, content)

    def _set_length(self, action: a.SetLength) -> None:
        self._keep(action, action.length, action.bytes)
        self._disk.own(action.path)
        self._disk.set_length(action.path, action.length)

    def _bridge(self, action: a.Bridge) -> None:
        self._keep(action, action.offset, action.bytes)
        self._disk.own(action.path)
        region = self._disk.open_region(action.path)
        try:
            self._write(region, action.base, action.store_ms, action.pieces)
        finally:
            region.close()

    def _write(self, region: Region, base: int, store_ms: int, pieces: list[Piece]) -> None:
        low, high = pieces[0].at - base, pieces[-1].at + pieces[-1].size - base
        region.allocate(low, high - low)
        for piece in pieces:
            content = encode_piece(piece, store_ms)
            region.write(piece.at - base, content)
            if piece.is_blank:
                region.punch(piece.at - base + len(content))
        region.sync(low, high - low)

    def _rename(self, action: a.Rename) -> None:
        """Give each file of the chain its right name. If they change places, the last one belongs where the
        first one lies.

        The first file is then renamed to a name that no file has, in the same directory: after an interrupted
        repair a file has a wrong name, which the next repair finds.
        """
        chain = action.chain
        self._note(action, None, None, 0)
        (first, right), *others = chain
        waiting = self._free_name(first.parent)
        moves = [(first, waiting), *reversed(others), (waiting, right)] if others else chain
        for source, target in moves:
            if self._disk.exists(target):
                raise StoreError(
                    f"{source} belongs at {target}, where a file lies now: check again, and repair "
                    f"what is found then"
                )
            self._disk.make_directory(target.parent)
            self._disk.rename(source, target)
            self._disk.sync_directory(target.parent)
            self._disk.sync_directory(source.parent)

    def _free_name(self, directory: Path) -> Path:
        """Return a name after all others of a directory of the log or of a queue."""
        sizes = self._plan.sizes
        size = (
            sizes.mapped_file_size_commit_log
            if directory == self._plan.log_directory
            else sizes.mapped_file_size_consume_queue
        )
        assert size is not None  # otherwise no file is known to be misplaced
        last = max(int(name) for name in self._disk.list_names(directory) if name.isdigit())
        return directory / file_name((last // size + 1) * size)

    def _create(self, action: a.Create) -> None:
        """Make a log file, under another name until it is whole: a part of it would be a log that ends
        there."""
        if self._disk.exists(action.path):
            raise StoreError(
                f"{action.path} is to be made again, and a file lies there now: check again, and "
                f"repair what is found then"
            )
        self._note(action, None, None, 0)
        fresh = action.path.parent.parent / (action.path.name + ".tmp")
        self._disk.unlink(fresh, missing_ok=True)
        region = self._disk.create_region(fresh, action.size)
        try:
            if action.pieces:
                self._write(region, action.base, action.store_ms, action.pieces)
            region.sync(0, action.size)
        finally:
            region.close()
        self._disk.rename(fresh, action.path)
        self._disk.sync_directory(action.path.parent)

    def _restore(self, action: a.Restore) -> None:
        first = min(at for at, _ in action.patches)
        self._keep(action, first, max(at + len(data) for at, data in action.patches) - first)
        self._disk.own(action.path)
        for offset, content in action.patches:
            region = self._disk.open_region(action.path)
            try:
                region.write(offset, content)
                region.sync(offset, len(content))
            finally:
                region.close()

    def _cut(self, action: a.Cut) -> None:
        self._keep(action, action.offset, action.bytes)
        self._disk.own(action.path)
        region = self._disk.open_region(action.path)
        try:
            region.punch(action.offset)
            region.sync(action.offset, region.size - action.offset)
        finally:
            region.close()

    def _move(self, action: a.Move) -> None:
        kept = self._kept_name(action)
        self._note(action, kept, None, action.bytes)
        self._disk.move(action.path, kept)
        self._disk.sync_directory(action.path.parent)

    def _make_wheel(self, action: a.MakeWheel) -> None:
        """Make the wheel from the timer log, as a start does."""
        self._keep(action, 0, action.bytes)
        files = TimerFiles(self._disk, self._plan.root, action.file_size, lambda: 0)
        try:
            files.open(action.log_end, lambda offset: None)
            files.sync()
        finally:
            files.close()

    def _bound(self, action: a.Bound) -> None:
        """Note next offsets, before the units with these numbers are changed: no other file may have them."""
        self._note(action, None, None, 0)
        ends = EndsFile(self._disk, action.path)
        ends.load()
        ends.bound(action.next_offsets, action.log_end, action.remade)

    def _give_up_lost(self) -> None:
        """Remove from the record of ends what the plan counts as lost: a start would report it as missing.
        Next offsets stay in the record, so none is given twice."""
        ends = EndsFile(self._disk, self._plan.root / ENDS)
        ends.load()
        if ends.found:
            first = min(
                (int(name) for name in self._disk.list_names(self._plan.log_directory) if name.isdigit()),
                default=0,
            )
            # Not below the log's end: a queue with records after the position would count as made again.
            ends.lower(min(ends.position, self._plan.log_end), first)

    def _rebuild(self, action: a.Rebuild) -> None:
        """Build queues and index from the log, by a start of the engine.

        A start ends the log at the first record that is not good, and takes away what follows. So the chain
        of records must reach all good records; otherwise DamagedStoreError is raised before the start.
        """
        self._note(action, None, None, 0)
        plan, sizes = self._plan, self._plan.sizes
        file_size = sizes.mapped_file_size_commit_log
        if action.reach is None or file_size is None:
            self._give_up_lost()
            return
        reached = chain_end(self._disk, plan.log_directory, file_size)
        if reached < action.reach:
            raise DamagedStoreError(
                f"the log leads to {reached:,} only, and good records lie up to {action.reach:,}: a "
                f"start would take away what lies between",
                file=str(plan.log_directory / file_name(reached // file_size * file_size)),
                offset=reached % file_size,
                advice="Nothing more was changed. Check again, and repair what is found then; what was "
                "changed until here is kept in lost+found.",
            )
        self._give_up_lost()
        settings = StoreSettings(
            store_path_root_dir=plan.root,
            store_path_commit_log=plan.log_directory,
            max_message_size=_MAX_MESSAGE_BYTES,
            timer_wheel_enable=False,
            message_delay_level=" ".join(f"{ms // 1000}s" for ms in plan.delay_levels_ms),
            **asdict(sizes),
        )
        store = MessageStore(settings, disk=self._disk, lock=self._lock)
        self._lock = None  # the store releases it
        store.open()
        store.close()
