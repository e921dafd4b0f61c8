"""What the memory of the broker's process is used for, by part.

    VmRSS = anonymous + file + shared          /proc/self/status
    file     by mapped file                    /proc/self/smaps: files of the store, and the other files
    anonymous = at the start                   counted once, when the ports opened
              + parts that grow                counted, or their number times what one was measured to take
              + not assigned                   the rest; below 0 where the estimates are too high

The system takes pages of files back when memory is short, unlike anonymous memory. Page tables are memory of
the kernel and no part of VmRSS, but count for a control group.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.system import max_maps
from broker_store.memory_limit import MemoryLimit, memory_limit
from broker_store.units import Moment, Small

ANONYMOUS, FILE, SHARED = "anonymous", "file", "shared"
COUNTED, ESTIMATED, REST = "counted", "estimated", "the rest"
AT_START = "the program at its start"
CODE = "compiled code of kernels"
NOT_ASSIGNED = "not assigned"
OTHER_FILES = "programs and libraries"
STORE_FILES = {  # by directory or file of the store
    "commitlog": "pages of the log",
    "consumequeue": "pages of queues",
    "index": "pages of the index",
    "timerlog": "pages of the timer",
    "timerwheel": "pages of the timer",
}
OTHER_STORE_FILES = "pages of other files of the store"
TAKEN_BACK = "the system takes them back when memory is short"
LARGEST = 4  # bounds that a warning names
_FRESH_S = 5.0
_CHUNK = 256 << 10
_STATUS = ("RssAnon", "RssFile", "RssShmem", "VmPTE")
_PROC = Path("/proc/self")
_HEAD = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ (\d+) *(.*)$", re.MULTILINE)
_RSS = re.compile(rb"^(Rss|Anonymous): +(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """A part of the memory of the process."""

    name: str
    kind: str  # anonymous, file or shared
    bytes: int
    how: str  # counted, estimated or the rest
    bound_bytes: int | None  # None: without a bound
    bound: str | None  # the setting or limit that bounds it
    at_bound: str | None  # what happens then


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """The memory of the broker's process. The bytes of the parts of a kind add up to the bytes of the kind,
    and those of all kinds to `rss_bytes`."""

    at_ms: Moment
    rss_bytes: int
    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int
    page_table_bytes: int  # of the kernel, beside rss_bytes
    maps: Small
    max_maps: Small  # that the system allows
    descriptors: Small
    max_descriptors: int
    limit_bytes: int  # that the process and its children may use
    limit_source: str  # a file of the control group, or "memory of the machine"
    bounds_bytes: int  # what the bounded anonymous parts may take together, with the program at its start
    warning: str | None  # when that exceeds the limit
    parts: list[MemoryPart]  # largest first in each kind, the rest last


@dataclass(frozen=True, slots=True)
class Growing:
    """An anonymous part that grows. `measure` returns its bytes; the loop changes what it counts, so it reads
    lengths and sums only."""

    name: str
    measure: Callable[[], int]
    how: str
    bound_bytes: int | None
    bound: str | None
    at_bound: str | None


class _Status(NamedTuple):
    """Bytes of the process; a number that the system does not give is 0."""

    anonymous: int
    file: int
    shared: int
    page_tables: int


_current: MemoryWatch | None = None  # of this process, between its `start` and its `stop`
_beside: list[Growing] = []  # parts that do not belong to the broker, as the dashboard's


def of_process() -> MemoryFacts | None:
    """The facts of this process, not older than some seconds; None when nothing measures it. For threads:
    with 40,000 maps it takes tenths of a second."""
    watch = _current
    return None if watch is None else watch.facts()


def count_beside(parts: list[Growing]) -> Callable[[], None]:
    """Count further parts of this process, until the returned function is called. Loop's thread."""
    _beside.extend(parts)

    def end() -> None:
        for part in parts:
            if part in _beside:
                _beside.remove(part)

    return end


def latest() -> MemoryFacts | None:
    """The facts that were measured last; a thread measures them again when they are older. None when nothing
    measures them, and before the first time. For the loop."""
    watch = _current
    return None if watch is None else watch.latest()


class MemoryWatch:
    """Measures the process from `start` to `stop`; one at a time. `proc` is /proc/self."""

    def __init__(self, store: Path, growing: list[Growing], *, proc: Path = _PROC):
        self._store, self._growing, self._proc = str(store), growing, proc
        self._at_start = self._maps = 0
        self._lock = threading.Lock()
        self._known: tuple[float, MemoryFacts] | None = None

    def start(self) -> None:
        global _current
        self._at_start = _status(self._proc).anonymous
        _current = self

    def stop(self) -> None:
        """End what `start` began; idempotent."""
        global _current
        if _current is self:
            _current = None

    @property
    def bounds_bytes(self) -> int:
        return self._at_start + sum(one.bound_bytes or 0 for one in self.growing)

    @property
    def growing(self) -> list[Growing]:
        """The parts that grow, with those beside the broker."""
        return [*self._growing, *_beside]

    def facts(self) -> MemoryFacts:
        with self._lock:
            now = time.monotonic()
            if self._known is None or now - self._known[0] > _FRESH_S:
                self._known = (now, self._measure())
            return self._known[1]

    def latest(self) -> MemoryFacts | None:
        known = self._known
        if (known is None or time.monotonic() - known[0] > _FRESH_S) and not self._lock.locked():
            threading.Thread(target=self.facts, name="memory", daemon=True).start()
        return None if known is None else known[1]

    def _measure(self) -> MemoryFacts:
        files, code = self._mapped()
        status = _status(self._proc)
        limit = memory_limit()
        parts = self._anonymous(status.anonymous, min(code, self._at_start))
        bounds = self.bounds_bytes
        parts += _with_rest(
            FILE, status.file, [_file_part(name, size) for name, size in files.items()], OTHER_FILES
        )
        parts += _with_rest(SHARED, status.shared, [], "shared memory")
        return MemoryFacts(
            at_ms=int(time.time() * 1000),
            rss_bytes=status.anonymous + status.file + status.shared,
            anonymous_bytes=status.anonymous,
            file_bytes=status.file,
            shared_bytes=status.shared,
            page_table_bytes=status.page_tables,
            maps=self._maps,
            max_maps=max_maps(),
            descriptors=len(os.listdir(self._proc / "fd")),
            max_descriptors=_max_descriptors(self._proc),
            limit_bytes=limit.bytes,
            limit_source=limit.source,
            bounds_bytes=bounds,
            warning=bounds_warning(bounds, limit, self.growing),
            parts=parts,
        )

    def _anonymous(self, total: int, code: int) -> list[MemoryPart]:
        parts = [
            _part(AT_START, ANONYMOUS, self._at_start - code, COUNTED),
            _part(CODE, ANONYMOUS, code, COUNTED),
        ]
        for one in self.growing:
            parts.append(
                MemoryPart(
                    name=one.name,
                    kind=ANONYMOUS,
                    bytes=one.measure(),
                    how=one.how,
                    bound_bytes=one.bound_bytes,
                    bound=one.bound,
                    at_bound=one.at_bound,
                )
            )
        return _with_rest(ANONYMOUS, total, parts, NOT_ASSIGNED)

    def _mapped(self) -> tuple[dict[str, int], int]:
        """Return (resident bytes by part of the store's files, those of anonymous executable maps)."""
        files: dict[str, int] = {}
        code = maps = 0
        name: str | None = None
        is_code = False
        for head, field, kib in _lines(self._proc / "smaps"):
            if head is not None:
                rights, inode, path = head
                maps += 1
                name = self._part_of(path) if inode else None
                is_code = not inode and "x" in rights and not path
            elif field == b"Rss":
                if name is not None:
                    files[name] = files.get(name, 0) + kib * 1024
                elif is_code:
                    code += kib * 1024
            elif name is not None:  # pages of a private map that were written are anonymous
                files[name] -= kib * 1024
        self._maps = maps
        return files, code

    def _part_of(self, path: str) -> str | None:
        if not path.startswith(self._store + "/"):
            return None
        return STORE_FILES.get(path[len(self._store) + 1 :].split("/", 1)[0], OTHER_STORE_FILES)


def _lines(path: Path) -> Iterator[tuple[tuple[str, int, str] | None, bytes | None, int]]:
    """Give (head, None, 0) of each map and (None, field, KiB) of its numbers, in their order. The interpreter
    lock is given away between pieces: the file has 700 bytes a map."""
    left = b""
    with path.open("rb", buffering=0) as file:
        while True:
            chunk = file.read(_CHUNK)
            text = left + chunk
            cut = len(text) if not chunk else text.rfind(b"\n") + 1
            text, left = text[:cut], text[cut:]
            for line in text.splitlines():
                if match := _RSS.match(line):
                    yield None, match[1], int(match[2])
                elif match := _HEAD.match(line):
                    yield (match[1].decode(), int(match[2]), os.fsdecode(match[3])), None, 0
            if not chunk:
                return
            time.sleep(0)


def bounds_warning(bounds_bytes: int, limit: MemoryLimit, parts: Iterable[Growing] = ()) -> str | None:
    """Return why what the bounds allow is too much for the limit; None where it is not. The largest bounds of
    `parts` are named."""
    if bounds_bytes <= limit.bytes:
        return None
    largest = sorted(parts, key=lambda part: -(part.bound_bytes or 0))[:LARGEST]
    named = ", ".join(f"{part.name} {(part.bound_bytes or 0) >> 20:,} MiB ({part.bound})" for part in largest)
    return (
        f"the bounds allow {bounds_bytes >> 20:,} MiB of anonymous memory, and {limit.source} has "
        f"{limit.bytes >> 20:,} MiB; lower the settings of the largest bounds, or give more memory"
        + (f". The largest: {named}" if named else "")
    )


def _status(proc: Path) -> _Status:
    """Return the sizes of /proc/self/status that the facts need."""
    text = (proc / "status").read_text()
    found = [re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE) for name in _STATUS]
    return _Status(*(int(match[1]) * 1024 if match else 0 for match in found))


def _max_descriptors(proc: Path) -> int:
    for line in (proc / "limits").read_text().splitlines():
        if line.startswith("Max open files"):
            return int(line.split()[3])
    return 0


def _part(name: str, kind: str, size: int, how: str) -> MemoryPart:
    return MemoryPart(name=name, kind=kind, bytes=size, how=how, bound_bytes=None, bound=None, at_bound=None)


def _file_part(name: str, size: int) -> MemoryPart:
    return MemoryPart(
        name=name, kind=FILE, bytes=size, how=COUNTED, bound_bytes=None, bound=None, at_bound=TAKEN_BACK
    )


def _with_rest(kind: str, total: int, parts: list[MemoryPart], rest: str) -> list[MemoryPart]:
    """Return the parts, largest first, and what they leave of `total`."""
    left = total - sum(part.bytes for part in parts)
    return [*sorted(parts, key=lambda part: -part.bytes), _part(rest, kind, left, REST)]
