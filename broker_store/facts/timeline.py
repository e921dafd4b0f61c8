"""A group's queues on an axis of time: what is kept of each, how far the group is, and when retention comes
to where it reads.

    oldest kept ══ goes next ══╪════════ read ════════▼ ─ ─ ─ unread ─ ─ ─ newest          store time ──►
                               └ the cliff: it moves right when a log file goes

The cliff reaches a group in the queue when a log file goes that holds a message which the group has not read
until then. Where it stands now is in the files, and when each file goes in `disk.py`; how fast it reads is
known from samples only. Without them only what happens if it stands still is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from broker_store.engine.status import samples
from broker_store.engine.status.samples import Sample
from broker_store.facts.deletion import Offsets, Rules
from broker_store.facts.disk import DiskView
from broker_store.facts.growth import HOUR_MS
from broker_store.facts.positions import LogFile, Positions, Queue
from broker_store.facts.progress import ReadSamples, is_gap, no_samples, recent, speed
from broker_store.units import Moment, Small, fact_of

MAX_QUEUES = 64
MAX_POINTS = 360
HISTORY_MS = 6 * HOUR_MS
MAX_SERIES = samples.MAX_SERIES  # offsets that are sampled: groups and queues after these have no history
LAGS_BELOW = 0.95  # of what arrives: a group that keeps up is measured a little below or above it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """When retention comes to where a group reads.

    The verdict is `falls` (at a time), `keeps_ahead`, `nothing_unread`, `lost` when it fell already, or
    `unknown`.
    """

    verdict: str
    at_ms: Moment | None = None  # of `falls`
    if_it_stops_ms: Moment | None = None  # when a group that reads no more falls


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCliff(Cliff):
    """The same of one queue."""

    file: str | None = None  # the name of the log file with which its message goes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimeline:
    """A queue of a group over store time. Store times are None of what is not kept."""

    topic: str
    queue_id: Small
    min_offset: int
    max_offset: int  # of the next message
    consumer_offset: int  # that the group reads next
    lag: int  # messages
    lag_ms: int | None  # since the message at its position was stored
    lost: int  # messages that were deleted unread
    earliest_ms: Moment | None  # of the first message
    latest_ms: Moment | None  # of the last
    position_ms: Moment | None  # of the first unread
    read_per_s: float | None  # messages, by samples
    arrives_per_s: float | None
    goes_next_ms: Moment | None  # of the first message that the next cleaning leaves
    cliff: QueueCliff


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFile:
    """The log file that goes next."""

    name: str
    expires_ms: Moment | None  # from when on it may go
    goes_ms: Moment | None  # when it does; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPoint:
    """The lag at a moment; None where nothing was sampled, so that a line drawn through it breaks there."""

    at_ms: Moment
    lag: int | None  # messages


@dataclass(frozen=True, slots=True, kw_only=True)
class LagHistory:
    """The lag over time."""

    from_ms: Moment
    points: list[LagPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """An offset of a group was set by a reset, not by its consumers."""

    at_ms: Moment
    group: str
    kind: Literal["reset"] = "reset"
    topic: str
    queue_id: Small
    before: int | None  # None: the group had no position
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChange:
    """Members of a group joined or left, after which its members distribute the queues again."""

    at_ms: Moment
    group: str
    kind: Literal["rebalance"] = "rebalance"
    clients: Small  # that are left
    came: Small
    went: Small
    joined: list[str]  # names of the first that came
    left: list[str]  # names of the first that went


GroupEvent: TypeAlias = OffsetReset | MembersChange
_EVENTS: dict[object, type[OffsetReset | MembersChange]] = {
    "reset": OffsetReset,
    "rebalance": MembersChange,
}


def event_of(document: dict[str, Any]) -> GroupEvent | None:
    """Return an event as samples keep it; None for one of another kind or version."""
    kind = _EVENTS.get(document.get("kind"))
    try:
        return None if kind is None else fact_of(kind, document)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimeline:
    """A group's queues over store time."""

    at_ms: Moment
    group: str
    is_running: bool
    from_ms: Moment | None  # of the axis; None: nothing is kept
    to_ms: Moment | None
    retention_hours: Small
    next_file: NextFile | None
    cliff: Cliff
    queues: list[QueueTimeline]
    queues_left_out: Small
    queues_not_sampled: Small | None  # for which the samples have no room; None while no sample is taken
    history: LagHistory
    events: list[GroupEvent]  # oldest first


class Timeline:
    """One scan of one group. `disk` knows when files go; `offsets` are the group's own. `samples_are_full`
    says that samples have no room for all that could be sampled; None of a store without a broker."""

    def __init__(
        self,
        group: str,
        positions: Positions,
        disk: DiskView,
        rules: Rules,
        now_ms: int,
        offsets: Offsets,
        *,
        is_running: bool,
        read_samples: ReadSamples = no_samples,
        samples_are_full: bool | None = None,
    ):
        self._group, self._positions, self._rules, self._now_ms, self._is_running = (
            group,
            positions,
            rules,
            now_ms,
            is_running,
        )
        self._schedule = disk.schedule()
        self._places = sorted(
            ((topic, queue_id), at)
            for reader, topic, queues in offsets
            if reader in (group, f"{group}@broadcast")
            for queue_id, at in queues.items()
        )
        self._readers = {
            topic: reader for reader, topic, _ in offsets if reader in (group, f"{group}@broadcast")
        }
        self._read_samples, self._samples_are_full = read_samples, samples_are_full

    def facts(self, events: Iterable[dict[str, Any]] = (), history_ms: int = HISTORY_MS) -> GroupTimeline:
        wanted = {name for queue, _ in self._places for name in self._names(queue)}
        history = self._read_samples(lambda name: name in wanted, self._now_ms - history_ms)
        now = recent(history, self._now_ms)
        queues = [self._queue(queue, at, now) for queue, at in self._places[:MAX_QUEUES]]
        times = [queue.earliest_ms for queue in queues if queue.earliest_ms is not None]
        last = [queue.latest_ms for queue in queues if queue.latest_ms is not None]
        falls = [queue.cliff.at_ms for queue in queues if queue.cliff.at_ms is not None]
        stops = [queue.cliff.if_it_stops_ms for queue in queues]
        return GroupTimeline(
            at_ms=self._now_ms,
            group=self._group,
            is_running=self._is_running,
            from_ms=min(times, default=None),
            to_ms=self._now_ms if self._is_running and times else max(last, default=None),
            retention_hours=self._rules.reserved_hours,
            next_file=self._next_file(),
            cliff=Cliff(
                verdict=self._verdict([queue.cliff.verdict for queue in queues]),
                at_ms=min(falls, default=None),
                if_it_stops_ms=min((stop for stop in stops if stop is not None), default=None),
            ),
            queues=queues,
            queues_left_out=max(0, len(self._places) - MAX_QUEUES),
            queues_not_sampled=self._not_sampled(now),
            history=LagHistory(from_ms=self._now_ms - history_ms, points=self._history(history)),
            events=[event for event in map(event_of, events) if event is not None],
        )

    def _names(self, queue: Queue) -> tuple[str, str]:
        return samples.position_of(self._readers[queue[0]], *queue), samples.maximum_of(*queue)

    def _not_sampled(self, now: Sequence[Sample]) -> int | None:
        """Queues for which the samples have no room; unknown while no sample is taken."""
        if self._samples_are_full is None or not now:
            return None
        return (
            sum(self._names(queue)[0] not in now[-1].values for queue, _ in self._places)
            if self._samples_are_full
            else 0
        )

    def _next_file(self) -> NextFile | None:
        if not self._schedule:
            return None
        planned = self._schedule[0]
        return NextFile(name=planned.file.path.name, expires_ms=planned.expires_ms, goes_ms=planned.goes_ms)

    def _verdict(self, verdicts: list[str]) -> str:
        """Of the group: the worst of its queues."""
        return next(
            (
                verdict
                for verdict in ("lost", "falls", "unknown", "keeps_ahead", "nothing_unread")
                if verdict in verdicts
            ),
            "unknown",
        )

    def _queue(self, queue: Queue, at: int, now: Sequence[Sample]) -> QueueTimeline:
        positions = self._positions
        low, high = positions.ends(queue)
        lag = max(0, high - at)
        unread_ms = positions.stored_ms(queue, max(at, low)) if lag and high > low else None
        name, end_name = self._names(queue)
        per_s, arrivals = speed(now, name), speed(now, end_name)
        lag_ms = 0 if not lag else None if unread_ms is None else max(0, self._now_ms - unread_ms)
        return QueueTimeline(
            topic=queue[0],
            queue_id=queue[1],
            min_offset=low,
            max_offset=high,
            consumer_offset=at,
            lag=lag,
            lag_ms=lag_ms,
            lost=max(0, low - at),
            earliest_ms=positions.stored_ms(queue, low) if high > low else None,
            latest_ms=positions.stored_ms(queue, high - 1) if high > low else None,
            position_ms=unread_ms,
            read_per_s=per_s,
            arrives_per_s=arrivals,
            goes_next_ms=self._edge_ms(queue),
            cliff=self._cliff(queue, at, low, high, per_s, arrivals, lag_ms),
        )

    def _edge_ms(self, queue: Queue) -> int | None:
        """When the first message was stored that stays once the files have gone that go at the next
        cleaning."""
        first_ms = self._schedule[0].goes_ms if self._schedule else None
        if first_ms is None:
            return None
        together = [
            planned.file
            for planned in self._schedule
            if planned.goes_ms is not None and planned.goes_ms < first_ms + HOUR_MS
        ]
        number = self._positions.first_from(queue, self._end(together[-1]))
        low, high = self._positions.ends(queue)
        return (
            None if number <= low else self._positions.stored_ms(queue, number if number < high else high - 1)
        )

    def _end(self, file: LogFile) -> int:
        return min(file.end, self._positions.log_end)

    def _cliff(
        self,
        queue: Queue,
        at: int,
        low: int,
        high: int,
        per_s: float | None,
        arrivals: float | None,
        lag_ms: int | None,
    ) -> QueueCliff:
        if at < low:
            return QueueCliff(verdict="lost")
        if at >= high:
            return QueueCliff(verdict="nothing_unread")
        unit = self._positions.unit(queue, at)
        ahead = [
            planned
            for planned in self._schedule
            if unit is not None and self._end(planned.file) > unit.log_offset
        ]
        unknown = QueueCliff(
            verdict="unknown",
            if_it_stops_ms=ahead[0].goes_ms if ahead else None,
            file=ahead[0].file.path.name if ahead else None,
        )
        if per_s is None or not ahead:
            return unknown
        for file, _, _, goes in ahead:
            after = self._positions.first_from(queue, self._end(file))
            if goes is None:
                # Only a group that does not read at all is sure to have its message deleted with its file,
                # whenever that is.
                return unknown
            if at + per_s * max(0, goes - self._now_ms) / 1000 < after:
                return replace(unknown, verdict="falls", at_ms=goes, file=file.path.name)
        last_ms = ahead[-1].goes_ms
        if (
            arrivals is not None
            and per_s < LAGS_BELOW * arrivals
            and lag_ms is not None
            and last_ms is not None
        ):
            # What is stored now is read in time, and yet the lag grows, until it is as old as a file may be.
            left_ms = max(0, self._rules.reserved_hours * HOUR_MS - lag_ms) / (1 - per_s / arrivals)
            at_ms = max(self._now_ms + round(left_ms), last_ms)
            return replace(unknown, verdict="falls", at_ms=at_ms, file=None)
        return replace(unknown, verdict="keeps_ahead")

    def _history(self, history: Sequence[Sample]) -> list[LagPoint]:
        found: list[LagPoint] = []
        stride = max(1, -(-len(history) // MAX_POINTS))
        before: Sample | None = None
        for number, sample in enumerate(history):
            hole = before is not None and is_gap(before, sample)
            lags = [
                sample.values[end] - sample.values[at]
                for at, end in map(self._names, (queue for queue, _ in self._places))
                if at in sample.values and end in sample.values
            ]
            if before is not None and hole and found:
                found.append(LagPoint(at_ms=before.at_ms + 1, lag=None))
            # The last points are finer, and every one beside a gap stays.
            if hole or number % stride == 0 or number == len(history) - 1:
                lag = sum(max(0, lag) for lag in lags) if lags else None
                found.append(LagPoint(at_ms=sample.at_ms, lag=lag))
            before = sample
        return found
