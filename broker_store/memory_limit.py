"""The memory that this process may use: of its control group, else of the machine.

A control group of version 2 has `memory.max` at each level, of version 1 `memory.limit_in_bytes`. A level
limits all below it, so the least of them holds. A container sees its own group as the root.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes, and where they are stated."""

    bytes: int
    source: str  # the path of a file of the control group, or "memory of the machine"
    is_of_group: bool


def memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """Return the least limit that holds for this process. `root` is where /proc and /sys are."""
    found = MemoryLimit(_of_machine(root), "memory of the machine", is_of_group=False)
    for path in _group_files(root):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < found.bytes:
            found = MemoryLimit(int(text), str(Path("/") / path.relative_to(root)), is_of_group=True)
    return found


def _of_machine(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemTotal":
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_files(root: Path) -> list[Path]:
    """Return the files with a limit of the process's group and of all groups above it that are visible."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    paths = {}  # of the process's group, by version
    for line in groups:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    found = []
    for line in mounts:
        before, separator, after = line.partition(" - ")
        if not separator:
            continue
        kind, _, options = after.split(" ", 2)
        mounted, point = before.split()[3:5]
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(" ")[-1].split(",")):
            continue
        group = paths[kind]
        # The mount shows the groups below `mounted`; a group that is not below it is seen as its root.
        parts = Path(group).relative_to(mounted).parts if Path(group).is_relative_to(mounted) else ()
        directory = root / point.lstrip("/")
        found += [directory.joinpath(*parts[:count], _FILES[kind]) for count in range(len(parts) + 1)]
    return found
