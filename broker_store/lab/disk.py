"""The lab's disk: the real one, with a copy of what was synced of each file. A power cut leaves at least
that.

What a cut leaves of the rest is random: nothing (`all`), or each page with a probability of one half
(`some`).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.engine.disk.system import PAGE
from broker_store.lab.experiment import Experiment


def cut_power(root: Path, synced: Path, experiment: Experiment) -> None:
    """Reset the store to what was synced; with `some` also leave a random half of the other changed pages."""
    chance = random.Random(experiment.seed) if experiment.power_cut == "some" else None
    durable = {Path(path): inode for path, inode in json.loads((synced / "names.json").read_text()).items()}
    left: dict[Path, bytes] = {}
    for path, inode in durable.items():
        content = (
            bytearray((synced / str(inode)).read_bytes()) if (synced / str(inode)).exists() else bytearray()
        )
        if chance is not None and path.is_file() and path.stat().st_ino == inode:
            newest = path.read_bytes()
            for at in range(0, len(newest), PAGE):
                if newest[at : at + PAGE] != content[at : at + PAGE] and chance.random() < 0.5:
                    content[at : at + PAGE] = newest[at : at + PAGE]
        left[path] = bytes(content)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        path.unlink()
    for path, kept in left.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(kept)


class _LabRegion(Region):
    disk: LabDisk
    inode: int

    def sync(self, offset: int, length: int) -> None:
        self.disk.meet(
            "before-flush"
            if self.path.parent.name == "commitlog"
            else "checkpoint"
            if self.path.name == "checkpoint"
            else "",
            self.path,
        )
        super().sync(offset, length)
        start, end = offset // PAGE * PAGE, min(self.size, -(-(offset + length) // PAGE) * PAGE)
        self.disk.note_synced(self.inode, start, self.read(start, end - start))
        if self.path.parent.name == "commitlog":
            self.disk.meet("after-flush", self.path)


class LabDisk(Disk):
    """The real disk with copies of what was synced; it calls `meet(point, file)` at each point of an
    experiment."""

    def __init__(self, synced: Path, meet: Callable[[str, Path], None]):
        self._synced, self.meet = synced, meet
        self._names: dict[str, int] = {}
        synced.mkdir(mode=0o700)
        self._keep_names()

    def _map(self, path: Path, descriptor: int, size: int, writable: bool) -> _LabRegion:
        region = super()._map(path, descriptor, size, writable)
        region.__class__ = _LabRegion
        assert isinstance(region, _LabRegion)
        region.disk, region.inode = self, os.fstat(descriptor).st_ino
        return region

    def create_region(self, path: Path, size: int) -> Region:
        region = super().create_region(path, size)
        assert isinstance(region, _LabRegion)  # `_map` made it
        (self._synced / str(region.inode)).write_bytes(bytes(size))
        if path.parent.name == "commitlog" and path.name.strip("0"):
            self.meet("roll", path)
        return region

    def write_file(self, path: Path, data: bytes) -> None:
        super().write_file(path, data)
        (self._synced / str(path.stat().st_ino)).write_bytes(data)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        for name in [name for name in self._names if Path(name).parent == path]:
            del self._names[name]
        self._names |= {
            entry.path: entry.inode() for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)
        }
        self._keep_names()

    def note_synced(self, inode: int, at: int, content: bytes) -> None:
        descriptor = os.open(self._synced / str(inode), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, content, at)
        finally:
            os.close(descriptor)

    def _keep_names(self) -> None:
        fresh = self._synced / f"names.{time.monotonic_ns()}"
        fresh.write_text(json.dumps(dict(self._names)))
        os.replace(fresh, self._synced / "names.json")
