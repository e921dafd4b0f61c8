"""Which log files are deleted next, when, and which groups lose unread messages by that.

A file may be deleted when it is older than the retention time, and is at the next hour of cleaning; above the
first mark of the disk's use at any hour. `engine/retention/` has the rules; here they are applied to files
that are not due yet. A group loses what it has not read of a file when the file goes. How fast it reads is
known from samples.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_store.config.store import StoreSettings
from broker_store.engine.retention.retention import expires_ms, next_cleaning_ms
from broker_store.engine.status import samples
from broker_store.engine.status.lag_offsets import Entry, LagOffsets
from broker_store.engine.status.samples import Sample
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.positions import LogFile, Positions, Queue
from broker_store.facts.progress import speed
from broker_store.units import Moment, Small

MAX_LOSS_QUEUES = 16  # shown of one group's losses in one file
MAX_LOSS_GROUPS = 50  # shown of one file; the others are counted

Offsets = Sequence[Entry]


class Rules(NamedTuple):
    """The rules of retention."""

    reserved_hours: int
    hours: frozenset[int]  # of cleaning
    tight: int  # per cent of the disk's use, as the next two
    forced: int
    full: int
    is_forced: bool
    files_a_look: int  # that one cleaning deletes at most
    look_ms: int  # from one cleaning to the next

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


class Planned(NamedTuple):
    """A log file that may be deleted, and when."""

    file: LogFile
    modified_ms: int | None  # None: it is not full yet, as where the next two depend on when it will be
    expires_ms: int | None  # from when on it may be deleted
    goes_ms: int | None  # when it is deleted; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoss:
    """Messages of one queue that a group has not read of what is deleted."""

    topic: str
    queue_id: Small
    from_offset: int
    to_offset: int  # of the first that stays
    messages: int
    bytes: int | None  # None: too many to add up
    is_read_in_time: bool | None  # None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoss:
    """What a group has not read of what is deleted."""

    group: str
    is_broadcast: bool
    messages: int
    bytes: int | None
    is_read_in_time: bool | None  # False when one queue is not, else None when that is unknown of one
    queues: list[QueueLoss]
    queues_left_out: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedFile:
    """A log file that is deleted next, and who has not read all of it."""

    name: str
    base: int
    size: int
    wrote: int  # bytes
    is_full: bool
    first_ms: Moment | None
    modified_ms: Moment | None
    expires_ms: Moment | None
    goes_ms: Moment | None
    losses: list[GroupLoss]  # those that do not read it in time first
    losses_left_out: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedDeletion:
    """What the next forced cleaning would delete, were the disk that full now."""

    files: list[str]
    bytes: int
    losses: list[GroupLoss]
    losses_left_out: Small


def offsets_of(store: StoreDirectory, positions: Positions) -> list[Entry]:
    """The offsets from which the lags of groups are counted, as the store's files have them. Raises
    DamagedStoreError."""
    committed = store.group_offsets()
    groups = store.group_names() | committed.keys()
    queues: dict[str, list[int]] = {}
    for topic, queue_id in positions.queues():
        queues.setdefault(topic, []).append(queue_id)
    lag_offsets = LagOffsets(
        queue_ids=lambda topic: queues.get(topic, ()),
        ends=lambda topic, queue_id: positions.ends((topic, queue_id)),
        is_group=groups.__contains__,
        committed=lambda group, topic: committed.get(group, {}).get(topic, {}),
    )
    entries = ((group, *entry) for group, topics in committed.items() for entry in topics.items())
    return list(lag_offsets.of_all(entries, groups))


def schedule(
    log: Sequence[LogFile],
    modified_of: dict[LogFile, int],
    rules: Rules,
    now_ms: int,
    *,
    is_tight: bool,
    fills_ms: int | None,
) -> list[Planned]:
    """The files that may be deleted, in the order in which they are.

    `modified_of` has the times of the full files. The last file stays while it is written; `fills_ms` is when
    it will be full, None when that is not known.
    """
    found: list[Planned] = []
    ready: int | None = now_ms
    together = 0
    for file in log:
        is_last = file is log[-1]
        modified = modified_of.get(file)
        fills = fills_ms if is_last else modified
        if is_last and fills is None:
            break
        expires = None if fills is None else expires_ms(fills, rules.reserved_hours)
        if expires is None or ready is None:
            goes = None
        else:
            due = max(ready, expires)
            goes = due if is_tight else next_cleaning_ms(due, rules.hours)
        together = together + 1 if found and goes == ready else 0
        ready = goes
        later = None if goes is None else goes + together // rules.files_a_look * rules.look_ms
        found.append(Planned(file, modified, expires, later))
    return found


class Losses:
    """What groups have not read of parts of the log, for one scan. `speeds` are samples of the present."""

    def __init__(self, positions: Positions, offsets: Offsets, speeds: Sequence[Sample], now_ms: int):
        self._positions, self._offsets, self._speeds, self._now_ms = positions, offsets, speeds, now_ms
        # The same groups and queues are asked for with each file.
        self._unread_places: dict[tuple[Queue, int], int | None] = {}
        self._known_speeds: dict[str, float | None] = {}

    def look_ahead(self, files: Iterable[LogFile]) -> None:
        """Find what all files need of a queue while its own files are open: with thousands of queues not all
        can be open."""
        ends = [(file.base, self._end(file)) for file in files]
        lowest: dict[Queue, int] = {}
        for _, topic, queues in self._offsets:
            for queue_id, at in queues.items():
                lowest[topic, queue_id] = min(at, lowest.get((topic, queue_id), at))
        for queue, at in lowest.items():
            place = self._first_unread(queue, at)
            for begin, end in ends:
                if place is not None and place < end:
                    self._positions.bytes_between(
                        queue,
                        self._positions.first_from(queue, begin),
                        self._positions.first_from(queue, end),
                    )

    def of_file(self, planned: Planned) -> DeletedFile:
        """A file with what groups lose by it."""
        file = planned.file
        wrote = min(file.size, self._positions.log_end - file.base)
        losses, left_out = self._of(file.base, self._end(file), planned.goes_ms)
        return DeletedFile(
            name=file.path.name,
            base=file.base,
            size=file.size,
            wrote=wrote,
            is_full=wrote == file.size,
            first_ms=self._positions.store_ms(file.base),
            modified_ms=planned.modified_ms,
            expires_ms=planned.expires_ms,
            goes_ms=planned.goes_ms,
            losses=losses,
            losses_left_out=left_out,
        )

    def by_force(self, files: Sequence[LogFile]) -> ForcedDeletion:
        """What groups lose when these files, which follow each other, go at once."""
        losses, left_out = self._of(files[0].base, files[-1].end, None) if files else ([], 0)
        return ForcedDeletion(
            files=[file.path.name for file in files],
            bytes=sum(file.size for file in files),
            losses=losses,
            losses_left_out=left_out,
        )

    def _end(self, file: LogFile) -> int:
        return min(file.end, self._positions.log_end)

    def _of(self, begin: int, end: int, goes: int | None) -> tuple[list[GroupLoss], int]:
        """What groups have not read of the log's bytes [begin, end), and of how many more groups that is.

        Those that do not read it in time come first, then those of which that is unknown; of each the one
        that lacks most first.
        """
        found: dict[str, list[QueueLoss]] = {}
        for reader, topic, queues in self._offsets:
            for queue_id, at in queues.items():
                lost = self._unread(reader, (topic, queue_id), at, begin, end, goes)
                if lost is not None:
                    found.setdefault(reader, []).append(lost)
        order = {False: 0, None: 1, True: 2}
        named = heapq.nsmallest(
            MAX_LOSS_GROUPS,
            (_of_group(reader, lost) for reader, lost in found.items()),
            key=lambda loss: (order[loss.is_read_in_time], -loss.messages, loss.group),
        )
        return named, len(found) - len(named)

    def _unread(
        self, group: str, queue: Queue, at: int, begin: int, end: int, goes: int | None
    ) -> QueueLoss | None:
        place = self._first_unread(queue, at)
        if place is None or place >= end:
            return None
        after = self._positions.first_from(queue, end)
        from_offset = max(at, self._positions.first_from(queue, begin))
        if from_offset >= after:
            return None
        per_s = self._speed(samples.position_of(group, *queue))
        in_time = (
            None if goes is None or per_s is None else at + per_s * (goes - self._now_ms) / 1000 >= after
        )
        return QueueLoss(
            topic=queue[0],
            queue_id=queue[1],
            from_offset=from_offset,
            to_offset=after,
            messages=after - from_offset,
            bytes=self._positions.bytes_between(queue, from_offset, after),
            is_read_in_time=in_time,
        )

    def _first_unread(self, queue: Queue, at: int) -> int | None:
        """The log offset of the first message that a group at this offset has not read; None when there is
        none."""
        key = (queue, at)
        if key not in self._unread_places:
            low, high = self._positions.ends(queue)
            unit = self._positions.unit(queue, max(at, low)) if at < high and low < high else None
            self._unread_places[key] = None if unit is None else unit.log_offset
        return self._unread_places[key]

    def _speed(self, name: str) -> float | None:
        if name not in self._known_speeds:
            self._known_speeds[name] = speed(self._speeds, name)
        return self._known_speeds[name]


def _of_group(reader: str, lost: list[QueueLoss]) -> GroupLoss:
    group, _, broadcast = reader.partition("@")
    in_time = {loss.is_read_in_time for loss in lost}
    sizes = [loss.bytes for loss in lost if loss.bytes is not None]
    return GroupLoss(
        group=group,
        is_broadcast=bool(broadcast),
        messages=sum(loss.messages for loss in lost),
        bytes=sum(sizes) if len(sizes) == len(lost) else None,
        is_read_in_time=False if False in in_time else None if None in in_time else True,
        queues=lost[:MAX_LOSS_QUEUES],
        queues_left_out=max(0, len(lost) - MAX_LOSS_QUEUES),
    )
