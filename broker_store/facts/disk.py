"""What the disk holds, how fast it fills, which log files go next, and which groups lose unread messages by
that.

    now ─ rate ──► 75 % expired files go at any hour ──► 85 % the oldest go at once ──► 90 % sends are refused
                                                         ──► full

The rate is that of the log: bytes between messages that were stored over several stretches of time, so that
it is known right after a start and without a broker. Queues and index grow with it; what others write on the
same file system is known from samples only, and counts when it is. A forecast lets use grow and files go by
age as retention.py has them go; it never deletes before the time, since what it forecasts is when that would
begin. The band is the slowest and the fastest stretch.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Usage
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.retention.retention import expires_ms, next_cleaning_ms
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status import samples
from broker_store.engine.status.file_facts import bytes_by_kind
from broker_store.engine.status.samples import Sample
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.positions import LogFile, Positions, Queue
from broker_store.facts.progress import ReadSamples, no_samples, recent, speed
from broker_store.formats import config_json

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
WINDOWS_MS = (10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS, 3 * DAY_MS)
BASIS_MS = DAY_MS  # the longest window up to this one is what is expected: it holds a day's ups and downs
LEAST_MS = MINUTE_MS  # a shorter history tells no rate
HORIZON_MS = 60 * DAY_MS
SHOWN_MS = 14 * DAY_MS  # of the way of use, when it reaches no mark
MOST_POINTS = 120  # of that way
MOST_STEPS = 6_000  # of one simulation
QUEUES_TIMED = 64  # with the most messages: each needs a search in the log
MOST_FILES = 20  # told of those that go next
MOST_QUEUES = 16  # told of one group's losses in one file
MOST_GROUPS = 50  # told of one file; the others are counted
INDEX_ENTRY_BYTES = 20
OFFSETS_FILE = "consumerOffset.json"

Offsets = Sequence[tuple[str, str, dict[int, int]]]  # group, topic, queue -> offset


class Rules(NamedTuple):
    """By what files go."""

    reserved_hours: int
    hours: frozenset[int]
    tight: int
    forced: int
    full: int
    is_forced: bool
    files_a_look: int
    look_ms: int

    @classmethod
    def of(cls, settings: StoreSettings) -> Rules:
        return cls(
            settings.file_reserved_time,
            settings.delete_hours,
            settings.disk_max_used_space_ratio,
            settings.disk_space_clean_forcibly_ratio,
            settings.disk_space_warning_level_ratio,
            settings.clean_file_forcibly_enable,
            settings.delete_file_batch_max,
            settings.clean_resource_interval,
        )


def offsets_of(store: StoreDirectory) -> list[tuple[str, str, dict[int, int]]]:
    """Where groups stand, from config/consumerOffset.json; nothing when there is none. Raises
    DamagedStoreError."""
    text = store.config(OFFSETS_FILE)
    if text is None:
        return []
    try:
        _, table, _ = config_json.read_table(text, "offsetTable")
        found = []
        for key, queues in table.items():
            topic, _, group = str(key).partition("@")
            found.append(
                (
                    group,
                    topic,
                    {
                        queue: at
                        for queue, at in config_json.int_keys(queues, str(key)).items()
                        if type(at) is int
                    },
                )
            )
        return found
    except FormatError as error:
        raise DamagedStoreError(str(error), file=f"config/{OFFSETS_FILE}") from error


class DiskView:
    """One look. `positions` is open as long as it is used; `until_ms` is when messages came last where no
    broker runs."""

    def __init__(
        self,
        store: StoreDirectory,
        positions: Positions,
        rules: Rules,
        now_ms: int,
        *,
        is_running: bool,
        offsets: Offsets,
        read_samples: ReadSamples = no_samples,
        safe_to: int | None = None,
    ):
        self._store, self._positions, self._rules, self._now_ms = store, positions, rules, now_ms
        self._is_running, self._offsets, self._safe_to = is_running, offsets, safe_to
        self._read_samples = read_samples
        # The same groups and queues are asked about for each file.
        self._unread_places: dict[tuple[Queue, int], int | None] = {}
        self._speeds: dict[str, float | None] = {}
        self._usage = max(
            (store.disk.usage(path) for path in (store.root, store.log_directory)),
            key=lambda usage: usage.used_ratio,
        )
        self._log = [file for file in positions.log if file.base <= positions.log_end]
        self._kinds = bytes_by_kind(store.disk, store.root, store.log_directory)
        self._queues = positions.queues()
        self._messages = sum(high - low for low, high in map(positions.ends, self._queues))
        self._first_ms = self._find_first_ms()
        self._knows_groups = is_running or store.knows_group_offsets()
        self._until_ms = now_ms if is_running else self._find_last_ms()
        self._rate = self._measure_rate()

    # What is --------------------------------------------------------------------------------------

    def facts(self) -> dict:
        """Use, rate and marks."""
        usage, positions = self._usage, self._positions
        return {
            "at_ms": self._now_ms,
            "is_running": self._is_running,
            "file_system": {
                "total_bytes": usage.total,
                "free_bytes": usage.free,
                "used_bytes": usage.total - usage.free,
                "used_ratio": usage.used_ratio,
            },
            "use": self._use(),
            "log": {
                "files": len(self._log),
                "begin": positions.log_minimum,
                "end": positions.log_end,
                "written_bytes": positions.log_end - positions.log_minimum,
                "messages": self._messages,
                "first_ms": self._first_ms,
                "last_ms": self._until_ms if not self._is_running else self._find_last_ms(),
            },
            "settings": {
                "retention_hours": self._rules.reserved_hours,
                "delete_hours": sorted(self._rules.hours),
                "time_zone": time.strftime("%Z", time.localtime(self._now_ms / 1000)),
                "tight_percent": self._rules.tight,
                "forced_percent": self._rules.forced,
                "full_percent": self._rules.full,
                "is_forced": self._rules.is_forced,
                "files_a_look": self._rules.files_a_look,
            },
            "rate": self._rate,
            **self._marks(),
        }

    def _use(self) -> list[dict]:
        kinds = dict(self._kinds)
        ahead = self._allocated_ahead()
        own = sum(kinds.values())
        kinds["commitlog"] -= ahead
        rows = [{"kind": kind, "bytes": size} for kind, size in kinds.items()]
        rows.insert(1, {"kind": "preallocated", "bytes": ahead})
        return [*rows, {"kind": "others", "bytes": max(0, self._usage.total - self._usage.free - own)}]

    def _allocated_ahead(self) -> int:
        """Blocks of the log behind its end."""
        total = 0
        for file in self._positions.log:
            if file.end > self._positions.log_end:
                wrote = max(0, self._positions.log_end - file.base)
                total += max(0, self._store.disk.allocated_bytes(file.path) - wrote)
        return total

    def _find_first_ms(self) -> int | None:
        at = self._positions.store_ms(self._positions.log_minimum)
        if at is not None:
            return at
        times = (self._positions.stored_ms(queue, low) for queue, (low, high) in self._ends() if low < high)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _find_last_ms(self) -> int | None:
        last = None
        for queue, (low, high) in self._ends():
            unit = self._positions.unit(queue, high - 1) if low < high else None
            if unit is not None and (last is None or unit.log_offset > last):
                last = unit.log_offset
        return None if last is None else self._positions.store_ms(last)

    def _ends(self) -> Iterable[tuple[Queue, tuple[int, int]]]:
        return ((queue, self._positions.ends(queue)) for queue in self._queues)

    # How fast -------------------------------------------------------------------------------------

    def _measure_rate(self) -> dict:
        windows = self._windows()
        expected = max(
            (window for window in windows if window["window_ms"] <= BASIS_MS),
            key=lambda window: window["window_ms"],
            default=None,
        )
        per_s = [window["bytes_per_s"] for window in windows]
        return {
            "until_ms": self._until_ms,
            "windows": windows,
            "doubt": self._doubt(windows),
            "bytes_per_s": None if expected is None else expected["bytes_per_s"],
            "basis_ms": None if expected is None else expected["window_ms"],
            "low_bytes_per_s": min(per_s) if len(per_s) > 1 else None,
            "high_bytes_per_s": max(per_s) if len(per_s) > 1 else None,
            "overhead": self._overhead(),
            "others_bytes_per_s": self._others_per_s(),
        }

    def _windows(self) -> list[dict]:
        """Bytes that came within each stretch before the end that the history covers, and within all of
        it."""
        until_ms, first_ms = self._until_ms, self._first_ms
        if until_ms is None or first_ms is None or until_ms - first_ms < LEAST_MS:
            return []
        span_ms = until_ms - first_ms
        lengths = [length for length in WINDOWS_MS if length <= span_ms]
        if (not lengths or span_ms > 1.5 * lengths[-1]) and span_ms < WINDOWS_MS[-1]:
            lengths.append(span_ms)
        largest = sorted(self._ends(), key=lambda item: item[1][0] - item[1][1])[:QUEUES_TIMED]
        found = []
        for length in lengths:
            begin = self._positions.log_end
            for queue, (_, high) in largest:
                number = self._positions.first_since(queue, until_ms - length)
                unit = self._positions.unit(queue, number) if number < high else None
                begin = begin if unit is None else min(begin, unit.log_offset)
            came = self._positions.log_end - begin
            found.append(
                {
                    "window_ms": length,
                    "from_ms": until_ms - length,
                    "bytes": came,
                    "bytes_per_s": came * 1000 / length,
                }
            )
        return found

    def _doubt(self, windows: list[dict]) -> str | None:
        """Why the rates may be wrong: they take store times for the time that passed. None where these are
        known to go up."""
        if not windows:
            return None
        order, end = (
            StoreTimes(self._store.disk, self._store.root / "config" / STORE_TIMES),
            self._positions.log_end,
        )
        order.load()
        own_position = end  # a running broker wrote all since its start, and that start wrote the note
        if not self._is_running:
            ends = EndsFile(self._store.disk, self._store.root / ENDS)
            ends.load()
            own_position = ends.position
        minimum, begin = self._positions.log_minimum, end - max(window["bytes"] for window in windows)
        # Each step between, and each for which a search for the begin of a window may have found another
        # part.
        steps = (step for step in order.steps if minimum < step.log_offset <= end)
        step = next(
            (
                step
                for step in steps
                if begin <= step.log_offset or any(step.parts(window["from_ms"]) for window in windows)
            ),
            None,
        )
        if step is None:
            if order.is_known(minimum, end, own_position):
                return None
            return "it is not known of the whole log whether store times go back, so these rates may be wrong"
        return (
            f"store times go back at {step.log_offset:,} of the log by {step.before_ms - step.own_ms:,} "
            f"ms, so these rates may be wrong"
        )

    def _overhead(self) -> float | None:
        """Bytes of queues and index for each byte of the log."""
        written = self._positions.log_end - self._positions.log_minimum
        if written <= 0:
            return None
        entries = sum(max(0, header.entries) for header in self._store.index())
        return (self._messages * 20 + entries * INDEX_ENTRY_BYTES) / written

    def _others_per_s(self) -> float | None:
        """What the rest of the file system grows by, from samples."""
        names = (samples.DISK_TOTAL, samples.DISK_FREE, samples.OWN_BYTES)
        found = self._read_samples(lambda name: name in names, self._now_ms - BASIS_MS)
        known = [
            Sample(at, step, {"others": values[names[0]] - values[names[1]] - values[names[2]]})
            for at, step, values in found
            if len(values) == 3
        ]
        if not known or known[-1].at_ms - known[0].at_ms < 10 * MINUTE_MS:
            return None
        return (
            (known[-1].values["others"] - known[0].values["others"])
            * 1000
            / (known[-1].at_ms - known[0].at_ms)
        )

    # When -----------------------------------------------------------------------------------------

    def _marks(self) -> dict:
        rules, rate = self._rules, self._rate
        usual, low, high = (
            self._simulate(rate[key]) for key in ("bytes_per_s", "low_bytes_per_s", "high_bytes_per_s")
        )
        used = self._usage.used_ratio * 100
        marks = []
        for percent, what in (
            (rules.tight, "expired"),
            (rules.forced, "forced"),
            (rules.full, "refused"),
            (100, "full"),
        ):
            marks.append(
                {
                    "percent": percent,
                    "what": what,
                    "is_reached": used > percent,
                    "bytes_left": max(
                        0, round(self._usage.total * percent / 100) - (self._usage.total - self._usage.free)
                    ),
                    "at_ms": None if usual is None else usual[0].get(percent),
                    "earliest_ms": None if high is None else high[0].get(percent),
                    "latest_ms": None if low is None else low[0].get(percent),
                }
            )
        known = [mark["at_ms"] - self._now_ms for mark in marks if mark["at_ms"] is not None]
        until_ms = self._now_ms + round(
            min(HORIZON_MS, max(DAY_MS / 4, 1.2 * max(known))) if known else SHOWN_MS
        )
        return {
            "marks": marks,
            "highest_ratio": None if usual is None else usual[1],
            "horizon_ms": HORIZON_MS,
            "paths": {
                "until_ms": until_ms,
                **{
                    name: _thinned(found, until_ms)
                    for name, found in (("usual", usual), ("low", low), ("high", high))
                },
            },
        }

    def _simulate(
        self, bytes_per_s: float | None
    ) -> tuple[dict[int, int], float, list[tuple[int, float]]] | None:
        """See `simulate`."""
        if bytes_per_s is None or not self._usage.total:
            return None
        return simulate(
            self._usage,
            deque(((file.size, modified) for file, modified in self._full_files())),
            self._log[-1].size if self._log else 0,
            self._rules,
            self._now_ms,
            bytes_per_s,
            self._rate["overhead"] or 0.0,
            self._rate["others_bytes_per_s"] or 0.0,
        )

    def _full_files(self) -> list[tuple[LogFile, int]]:
        return [
            (file, self._store.disk.modified_ms(file.path))
            for file in self._log
            if file.end <= self._positions.log_end
        ]

    # What goes ------------------------------------------------------------------------------------

    def forecast(self, most_files: int = MOST_FILES) -> dict:
        """The files that go next with what groups would lose, and what forced cleaning would do now."""
        speeds = recent(
            self._read_samples(lambda name: name.startswith("at\t"), self._now_ms - BASIS_MS // 24),
            self._now_ms,
        )
        schedule = self.schedule()
        self._look_ahead([file for file, *_ in schedule[:most_files]])
        told = [self._told(file, speeds) for file in schedule[:most_files]]
        held = [file for file, *_ in schedule if self._safe_to is None or file.end < self._safe_to]
        forced = held[: self._rules.files_a_look] if self._rules.is_forced else []
        return {
            "files": told,
            "files_left_out": max(0, len(schedule) - most_files),
            "knows_groups": self._knows_groups,
            "forced": {
                "files": [file.path.name for file in forced],
                "bytes": sum(file.size for file in forced),
                **(
                    self._losses(forced[0].base, forced[-1].end, None, speeds)
                    if forced
                    else {"losses": [], "losses_left_out": 0}
                ),
            },
        }

    def _look_ahead(self, files: list[LogFile]) -> None:
        """Find what all files need of a queue while its own files are open: with thousands of queues not all
        can be."""
        lowest: dict[Queue, int] = {}
        for _, topic, queues in self._offsets:
            for queue_id, at in queues.items():
                lowest[topic, queue_id] = min(at, lowest.get((topic, queue_id), at))
        for queue, at in lowest.items():
            place = self._first_unread(queue, at)
            for file in files:
                end = min(file.end, self._positions.log_end)
                if place is not None and place < end:
                    self._positions.bytes_between(
                        queue,
                        self._positions.first_from(queue, file.base),
                        self._positions.first_from(queue, end),
                    )

    def schedule(self) -> list[tuple[LogFile, int | None, int | None, int | None]]:
        """(file, last modified, expires, goes) of each file that may go, in the order in which they do. The
        last file stays."""
        is_tight = self._usage.used_ratio * 100 > self._rules.tight
        found: list[tuple[LogFile, int | None, int | None, int | None]] = []
        ready: int | None = self._now_ms
        together = 0
        modified_of = dict(self._full_files())
        for file in self._log:
            is_last = file is self._log[-1]
            modified = modified_of.get(file)
            # The file that is being written goes some day, too: when it is full, and has grown old.
            fills = self._fills_ms(file) if is_last else modified
            if is_last and fills is None:
                break
            expires = None if fills is None else expires_ms(fills, self._rules.reserved_hours)
            if expires is None or ready is None:
                goes = None
            else:
                due = max(ready, expires)
                goes = due if is_tight else next_cleaning_ms(due, self._rules.hours)
            together = together + 1 if found and goes == ready else 0
            ready = goes
            later = (
                None if goes is None else goes + together // self._rules.files_a_look * self._rules.look_ms
            )
            found.append((file, modified, expires, later))
        return found

    def _fills_ms(self, file: LogFile) -> int | None:
        """When the file that is being written will be full."""
        per_s = self._rate["bytes_per_s"]
        if not self._is_running or not per_s:
            return None
        return self._now_ms + round((file.end - self._positions.log_end) * 1000 / per_s)

    def _told(
        self, planned: tuple[LogFile, int | None, int | None, int | None], speeds: Sequence[Sample]
    ) -> dict:
        file, modified, expires, goes = planned
        wrote = min(file.size, self._positions.log_end - file.base)
        return {
            "name": file.path.name,
            "base": file.base,
            "size": file.size,
            "wrote": wrote,
            "is_full": wrote == file.size,
            "first_ms": self._positions.store_ms(file.base),
            "modified_ms": modified,
            "expires_ms": expires,
            "goes_ms": goes,
            **self._losses(file.base, min(file.end, self._positions.log_end), goes, speeds),
        }

    def _losses(self, begin: int, end: int, goes: int | None, speeds: Sequence[Sample]) -> dict:
        """What groups have not read of the log's bytes [begin, end): `losses` and `losses_left_out`, of how
        many more groups.

        Those that do not read it in time come first, then those of which that is unknown; of each the one
        that lacks most first.
        """
        found: dict[str, dict] = {}
        for reader, topic, queues in self._offsets:
            for queue_id, at in queues.items():
                lost = self._unread(reader, (topic, queue_id), at, begin, end, goes, speeds)
                if lost is None:
                    continue
                group, _, broadcast = reader.partition("@")
                of_group = found.setdefault(
                    reader,
                    {
                        "group": group,
                        "is_broadcast": bool(broadcast),
                        "messages": 0,
                        "bytes": 0,
                        "is_read_in_time": True,
                        "queues": [],
                        "queues_left_out": 0,
                    },
                )
                of_group["messages"] += lost["messages"]
                of_group["bytes"] = (
                    None
                    if lost["bytes"] is None or of_group["bytes"] is None
                    else of_group["bytes"] + lost["bytes"]
                )
                of_group["is_read_in_time"] = _both(of_group["is_read_in_time"], lost["is_read_in_time"])
                if len(of_group["queues"]) < MOST_QUEUES:
                    of_group["queues"].append(lost)
                else:
                    of_group["queues_left_out"] += 1
        order = {False: 0, None: 1, True: 2}
        named = heapq.nsmallest(
            MOST_GROUPS,
            found.values(),
            key=lambda losses: (order[losses["is_read_in_time"]], -losses["messages"], losses["group"]),
        )
        return {"losses": named, "losses_left_out": len(found) - len(named)}

    def _unread(
        self,
        group: str,
        queue: Queue,
        at: int,
        begin: int,
        end: int,
        goes: int | None,
        speeds: Sequence[Sample],
    ) -> dict | None:
        place = self._first_unread(queue, at)
        if place is None or place >= end:
            return None
        behind = self._positions.first_from(queue, end)
        from_offset = max(at, self._positions.first_from(queue, begin))
        if from_offset >= behind:
            return None
        per_s = self._speed(speeds, samples.position_of(group, *queue))
        in_time = (
            None if goes is None or per_s is None else at + per_s * (goes - self._now_ms) / 1000 >= behind
        )
        return {
            "topic": queue[0],
            "queue_id": queue[1],
            "from_offset": from_offset,
            "to_offset": behind,
            "messages": behind - from_offset,
            "bytes": self._positions.bytes_between(queue, from_offset, behind),
            "is_read_in_time": in_time,
        }

    def _first_unread(self, queue: Queue, at: int) -> int | None:
        """Where in the log the first message lies that a group at this offset has not read; None when there
        is none."""
        key = (queue, at)
        if key not in self._unread_places:
            low, high = self._positions.ends(queue)
            unit = self._positions.unit(queue, max(at, low)) if at < high and low < high else None
            self._unread_places[key] = None if unit is None else unit.log_offset
        return self._unread_places[key]

    def _speed(self, speeds: Sequence[Sample], name: str) -> float | None:
        if name not in self._speeds:
            self._speeds[name] = speed(speeds, name)
        return self._speeds[name]


def _both(one: bool | None, other: bool | None) -> bool | None:
    """False when one is, else unknown when one is."""
    return False if one is False or other is False else None if one is None or other is None else True


def simulate(
    usage: Usage,
    files: deque[tuple[int, int]],
    file_size: int,
    rules: Rules,
    now_ms: int,
    log_per_s: float,
    overhead: float,
    others_per_s: float,
) -> tuple[dict[int, int], float, list[tuple[int, float]]]:
    """(percent -> when it is passed, the highest ratio of use until the horizon, its way there): see the
    module.

    `files` are (bytes, last modified) of full log files. Each byte of the log takes `overhead` more for
    queues and index, which go with it.
    """
    all_per_s = log_per_s * (1 + overhead) + others_per_s
    used, total = float(usage.total - usage.free), usage.total
    waiting = [
        percent for percent in (rules.tight, rules.forced, rules.full, 100) if used * 100 / total <= percent
    ]
    passed: dict[int, int] = {}
    at_ms, end_ms, made, highest = float(now_ms), now_ms + HORIZON_MS, 0.0, used
    path = [(now_ms, used / total)]
    # A step is an hour, or less when use would grow by more than half a per cent in it.
    step_ms = HOUR_MS if all_per_s <= 0 else min(HOUR_MS, max(1_000.0, total * 0.005 * 1000 / all_per_s))
    for _ in range(MOST_STEPS):
        if at_ms >= end_ms or not waiting:
            break
        if used * 100 / total > rules.tight or next_cleaning_ms(int(at_ms), rules.hours) == int(at_ms):
            while files and expires_ms(files[0][1], rules.reserved_hours) <= at_ms:
                used -= files.popleft()[0] * (1 + overhead)
        grown = all_per_s * step_ms / 1000
        while waiting and used + grown > total * waiting[0] / 100:
            passed[waiting[0]] = round(at_ms + max(0.0, total * waiting[0] / 100 - used) * 1000 / all_per_s)
            waiting.pop(0)
        used = max(0.0, used + grown)
        highest = max(highest, used)
        at_ms += step_ms
        path.append((round(at_ms), min(1.0, used / total)))
        made += log_per_s * step_ms / 1000
        if file_size and made >= file_size:
            whole = made // file_size
            files.append((int(whole * file_size), int(at_ms)))
            made -= whole * file_size
    return passed, min(1.0, highest / total), path


def _thinned(
    found: tuple[dict[int, int], float, list[tuple[int, float]]] | None, until_ms: int
) -> list[dict]:
    """Points of a path to draw; none for a rate that is not known."""
    path = [] if found is None else [point for point in found[2] if point[0] <= until_ms]
    stride = max(1, len(path) // MOST_POINTS)
    return [
        {"at_ms": at_ms, "used_ratio": ratio}
        for number, (at_ms, ratio) in enumerate(path)
        if number % stride == 0 or number == len(path) - 1
    ]
