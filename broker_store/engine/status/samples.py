"""Numbers over time that outlive a restart: where the log ends, how full the disk is, where groups stand in
their queues.

    samples/<first sample's ms>-<seconds between samples>    frames, appended; a new file each hour and after
                                                             each start
    samples/events                                           JSON lines: resets of offsets, members of groups
                                                             that came and went

    frame    length of the body (4)   crc32 of the body (4)   body
    body     N, then JSON: the names of the next numbers, in order
             S, time in ms (8), then zlib of int64 words: for each name so far, what is added to its value of
             the sample before

A number that was not measured is MISSING, and a name that is not measured any more stays MISSING: it does not
become 0. A time without samples has no frame, and a reader draws a gap there. Nothing is synced: after a
power cut only charts lack the last minutes, and a torn frame ends its file.

The size is bounded: MAX_SERIES names, MAX_BYTES of files, MAX_AGE_MS. Files with samples too dense for their
age lose every second sample first, so yesterday is kept by the minute and last month by the hour.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.errors import StoreError
from broker_store.formats.layout import Layout

DIRECTORY = "samples"  # beside the store's directory
MAX_SERIES = 5_000
MAX_BYTES = 16 << 20
MAX_AGE_MS = 30 * 24 * 3_600_000
SAMPLES_PER_FILE = 60
FILE_BYTES = 512 << 10
MAX_STEP_S = 3_600
EVENT_BYTES = 512 << 10  # of the file of events: at this size the older half is dropped
MISSING = -(1 << 63)
_EVENTS = "events"
_HEAD = Layout(("length", "I"), ("crc", "I"))
_SAMPLE = Layout(("at_ms", "q"))
_MAX_FRAME_BYTES = 8 << 20

LOG_END, LOG_MINIMUM, DISK_FREE, DISK_TOTAL, OWN_BYTES = (
    "log.end",
    "log.min",
    "disk.free",
    "disk.total",
    "disk.own",
)


def position_of(group: str, topic: str, queue_id: int) -> str:
    """Return the name of a group's committed offset. No name of a group or topic holds a tab."""
    return f"at\t{group}\t{topic}\t{queue_id}"


def maximum_of(topic: str, queue_id: int) -> str:
    return f"max\t{topic}\t{queue_id}"


def minimum_of(topic: str, queue_id: int) -> str:
    return f"min\t{topic}\t{queue_id}"


class Sample(NamedTuple):
    """What was measured at a time; `step_ms` is the distance to the next one when none is missing."""

    at_ms: int
    step_ms: int
    values: dict[str, int]


class SampleFiles:
    """Writes and reads the directory. One thread writes; any thread reads, also of another process."""

    def __init__(self, disk: Disk, directory: Path, most_bytes: int = MAX_BYTES):
        self._disk, self.directory, self._most_bytes = disk, Path(directory), most_bytes
        self._path: Path | None = None
        self._names: dict[str, int] = {}
        self._last = np.zeros(0, np.int64)
        self._count = self._bytes = 0

    # Writing --------------------------------------------------------------------------------------

    def append(self, sample: Sample) -> None:
        """Add a sample. Raises StoreError; the next sample begins a new file then."""
        if (
            self._path is None
            or self._count >= SAMPLES_PER_FILE
            or self._bytes >= FILE_BYTES
            or len(self._names) > 2 * MAX_SERIES
        ):
            self._disk.make_directory(self.directory)
            self.thin(sample.at_ms)
            self._path = self.directory / _file_name(sample.at_ms, sample.step_ms)
            self._names, self._last, self._count, self._bytes = {}, np.zeros(0, np.int64), 0, 0
        raw = self._encode(sample)
        path, self._path = self._path, None
        self._disk.append(path, raw)
        self._path = path
        self._count += 1
        self._bytes += len(raw)

    def _encode(self, sample: Sample) -> bytes:
        new = [name for name in sample.values if name not in self._names]
        self._names |= {name: len(self._names) + number for number, name in enumerate(new)}
        values = np.fromiter(
            (sample.values.get(name, MISSING) for name in self._names), np.int64, len(self._names)
        )
        last = np.zeros(len(values), np.int64)
        last[: len(self._last)] = self._last
        self._last = values
        # int64 words of NumPy wrap around in both directions, so MISSING needs no special case.
        body = b"S" + _SAMPLE.pack(sample.at_ms) + zlib.compress((values - last).tobytes(), 1)
        return (_frame(b"N" + json.dumps(new).encode()) if new else b"") + _frame(body)

    def thin(self, now_ms: int) -> None:
        """Remove what is too old, then every second sample of what is densest for its age, until the size is
        within its bound."""
        sizes = {path: self._disk.size_of(path) for path in self._paths()}
        for path in [path for path in sizes if now_ms - _begin_ms(path) > MAX_AGE_MS]:
            self._disk.unlink(path, missing_ok=True)
            del sizes[path]
        while sum(sizes.values()) > self._most_bytes:
            path = max(sizes, key=lambda path: (now_ms - _begin_ms(path)) / _step_s(path))
            del sizes[path]
            thinned = self._halve(path)
            if thinned is not None:
                sizes[thinned] = self._disk.size_of(thinned)

    def _halve(self, path: Path) -> Path | None:
        """Write every second sample of a file to another, then remove it; return None when so few are not
        worth a file."""
        kept = [sample for number, sample in enumerate(self._samples_of(path, None)) if number % 2 == 0]
        step_s = 2 * _step_s(path)
        target = None
        if step_s <= MAX_STEP_S and len(kept) > 1:
            target = path.with_name(_file_name(_begin_ms(path), step_s * 1000))
            copy = SampleFiles(self._disk, self.directory)
            self._disk.replace_file(target, b"".join(copy._encode(sample) for sample in kept))
        self._disk.unlink(path, missing_ok=True)
        return target

    # Reading --------------------------------------------------------------------------------------

    def read(self, wanted: Callable[[str], bool], from_ms: int = 0) -> list[Sample]:
        """Return the samples since `from_ms` with the numbers whose names are `wanted`, in order of time."""
        found: list[Sample] = []
        paths = self._paths()
        for path, following in zip(paths, [*paths[1:], None], strict=False):
            if following is not None and _begin_ms(following) < from_ms:
                continue
            # A file that is being thinned exists twice for a short time.
            found += [
                sample
                for sample in self._samples_of(path, wanted)
                if sample.at_ms >= from_ms and (not found or sample.at_ms > found[-1].at_ms)
            ]
        return found

    def _samples_of(self, path: Path, wanted: Callable[[str], bool] | None) -> Iterator[Sample]:
        raw = self._read(path)
        step_ms = _step_s(path) * 1000
        names: list[str] = []
        chosen: list[int] = []
        values = np.zeros(0, np.int64)
        for body in _bodies(raw):
            if body[:1] == b"N":
                fresh = json.loads(body[1:])
                chosen += [
                    len(names) + number for number, name in enumerate(fresh) if wanted is None or wanted(name)
                ]
                names += fresh
                continue
            words = zlib.decompressobj().decompress(body[1 + _SAMPLE.size :], 8 * len(names))
            if len(words) != 8 * len(names):
                return
            added = np.frombuffer(words, np.int64).copy()
            added[: len(values)] += values
            values = added
            picked = zip(chosen, values[chosen].tolist() if chosen else [], strict=True)
            (at_ms,) = _SAMPLE.unpack(body, 1)
            yield Sample(
                at_ms, step_ms, {names[number]: value for number, value in picked if value != MISSING}
            )

    def _read(self, path: Path) -> bytes:
        try:
            return self._disk.read_file(path) or b""
        except StoreError:
            if self._disk.exists(path):
                raise
            return b""  # it was thinned away meanwhile

    def _paths(self) -> list[Path]:
        names = [
            name
            for name in self._disk.list_names(self.directory)
            if all(part.isascii() and part.isdigit() for part in name.split("-", 1)) and "-" in name
        ]
        return sorted(
            (self.directory / name for name in names), key=lambda path: (_begin_ms(path), _step_s(path))
        )

    # Events ---------------------------------------------------------------------------------------

    def append_events(self, events: list[dict]) -> None:
        """Add events, each with `at_ms` and `group`. Raises StoreError."""
        self._disk.make_directory(self.directory)
        path = self.directory / _EVENTS
        if self._disk.exists(path) and self._disk.size_of(path) > EVENT_BYTES:
            known = (self._disk.read_file(path) or b"").splitlines(keepends=True)
            self._disk.replace_file(path, b"".join(known[len(known) // 2 :]))
        self._disk.append(
            path, b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)
        )

    def events(self, group: str, from_ms: int = 0) -> list[dict]:
        """Return what happened to a group since `from_ms`, oldest first."""
        found = []
        for line in (self._disk.read_file(self.directory / _EVENTS) or b"").splitlines():
            event = _event(line)
            if event is not None and event["group"] == group and event["at_ms"] >= from_ms:
                found.append(event)
        return found


def _event(line: bytes) -> dict | None:
    """Return an event, None for a line that a power cut tore."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return (
        event
        if isinstance(event, dict) and isinstance(event.get("at_ms"), int) and "group" in event
        else None
    )


def _file_name(begin_ms: int, step_ms: int) -> str:
    return f"{begin_ms}-{max(1, step_ms // 1000)}"


def _begin_ms(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _step_s(path: Path) -> int:
    return max(1, int(path.name.partition("-")[2]))


def _frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _bodies(raw: bytes) -> Iterator[bytes]:
    """Yield the frames of a file up to the first that is not whole."""
    at = 0
    while at + _HEAD.size <= len(raw):
        length, crc = _HEAD.unpack(raw, at)
        body = raw[at + _HEAD.size : at + _HEAD.size + length]
        if not 1 <= length <= _MAX_FRAME_BYTES or len(body) != length or zlib.crc32(body) != crc:
            return
        yield body
        at += _HEAD.size + length
