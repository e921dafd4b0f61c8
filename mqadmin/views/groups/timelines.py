"""The drawing of a group's timeline: places in per cent of the axis, and lines in a box of 1000 by 100."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_store.facts.timeline import MAX_SERIES, GroupEvent, GroupTimeline, OffsetReset, QueueTimeline
from broker_store.units import Moment, fields_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict of a timeline as pages show it."""

    words: str
    tone: str  # good, bad, or "" for unknown


VERDICTS = {
    "nothing_unread": Verdict("nothing unread", "good"),
    "keeps_ahead": Verdict("reads in time", "good"),
    "falls": Verdict("falls off", "bad"),
    "lost": Verdict("has fallen off", "bad"),
    "unknown": Verdict("unknown yet", ""),
}
MIN_SHARE = 0.25  # per cent of a span that can be seen
MAX_AT = 99.6  # per cent, so that the mark of an offset at the end of a span is within it


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A part of a queue's span."""

    x: str  # where it begins, in per cent
    width: str  # in per cent


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpan:
    """The places of a queue on the axis. There are none if the queue holds no message."""

    kept_strip: Strip | None = None  # messages that are kept
    unread_strip: Strip | None = None  # those of them that the group has not read
    goes_strip: Strip | None = None  # those that the next cleaning deletes
    at_x: str = ""  # the group's offset, in per cent


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQueue(QueueTimeline):
    """A queue with its places on the axis."""

    said: Verdict
    span: QueueSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMark:
    """An event on the axis of the history."""

    x: str  # of 1000
    kind: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDrawing:
    """The lag over time in a box of 1000 by 100."""

    lines: list[str]  # points of polylines, which break where nothing was sampled
    dots: list[tuple[str, str]]  # samples without a neighbour
    most: int  # the largest lag, in messages
    marks: list[EventMark]
    ticks: list[Moment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvent:
    """A row of the table of events."""

    at_ms: Moment
    kind: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineDrawing:
    """The data of groups/timeline.html."""

    timeline: GroupTimeline
    most_series: int = MAX_SERIES
    timeline_queues: list[ShownQueue]
    is_drawn: bool  # there is an axis
    ticks: list[Moment] = field(default_factory=list)
    history: HistoryDrawing | None  # None: it was not sampled twice
    events: list[ShownEvent]  # the newest first


def drawing_of(facts: GroupTimeline) -> TimelineDrawing:
    axis = _axis(facts)
    queues = [
        ShownQueue(
            **fields_of(queue),
            said=VERDICTS[queue.cliff.verdict],
            span=QueueSpan() if axis is None else _span(queue, *axis),
        )
        for queue in facts.queues
    ]
    return TimelineDrawing(
        timeline=facts,
        timeline_queues=queues,
        is_drawn=axis is not None,
        ticks=[] if axis is None else _ticks(*axis),
        history=_history(facts),
        events=[
            ShownEvent(at_ms=event.at_ms, kind=event.kind, said=_said(event))
            for event in reversed(facts.events)
        ],
    )


def _axis(facts: GroupTimeline) -> tuple[int, int] | None:
    """Return begin and end of the axis, in ms; None when there is nothing to draw."""
    begin, end = facts.from_ms, facts.to_ms
    return None if begin is None or end is None or end <= begin else (begin, end)


def _ticks(begin: int, end: int) -> list[int]:
    return [begin + (end - begin) * part // 4 for part in range(5)]


def _span(queue: QueueTimeline, begin: int, end: int) -> QueueSpan:
    def place(time_ms: int) -> float:
        return min(100.0, max(0.0, (time_ms - begin) * 100 / (end - begin)))

    if queue.earliest_ms is None or queue.latest_ms is None:
        return QueueSpan()
    first, last = place(queue.earliest_ms), place(queue.latest_ms)
    at = last if queue.position_ms is None else place(queue.position_ms)
    return QueueSpan(
        kept_strip=_strip(first, last),
        unread_strip=_strip(at, last) if queue.lag else None,
        goes_strip=_strip(first, place(queue.goes_next_ms)) if queue.goes_next_ms else None,
        at_x=f"{min(at, MAX_AT):.3f}",
    )


def _strip(begin: float, end: float) -> Strip:
    return Strip(x=f"{begin:.3f}", width=f"{max(MIN_SHARE, end - begin):.3f}")


def _history(facts: GroupTimeline) -> HistoryDrawing | None:
    points, end = facts.history.points, facts.at_ms
    known = [(point.at_ms, point.lag) for point in points if point.lag is not None]
    if len(known) < 2:
        return None
    begin = known[0][0]
    most, span = max(1, *(lag for _, lag in known)), max(1, end - begin)

    def x(time_ms: int) -> str:
        return f"{(time_ms - begin) * 1000 / span:.1f}"

    lines: list[list[tuple[str, str]]] = [[]]
    for point in points:
        if point.lag is None:
            lines.append([])
        else:
            lines[-1].append((x(point.at_ms), f"{97 - point.lag * 92 / most:.2f}"))
    return HistoryDrawing(
        lines=[" ".join(map(",".join, line)) for line in lines if len(line) > 1],
        dots=[line[0] for line in lines if len(line) == 1],
        most=most,
        marks=[
            EventMark(x=x(event.at_ms), kind=event.kind, said=_said(event))
            for event in facts.events
            if begin <= event.at_ms <= end
        ],
        ticks=_ticks(begin, begin + span),
    )


def _said(event: GroupEvent) -> str:
    if isinstance(event, OffsetReset):
        before = "no offset" if event.before is None else f"{event.before:,}"
        return f"{event.topic}, queue {event.queue_id}: set from {before} to {event.after:,}"
    came = [f"{who} came" for who in _named(event.joined, event.came)]
    went = [f"{who} went" for who in _named(event.left, event.went)]
    connected = f"{event.clients} connected" if event.clients else "no client is left"
    return f"{', '.join([*came, *went])}; {connected}"


def _named(named: list[str], count: int) -> list[str]:
    return [*named, *([f"{count - len(named)} more"] if count > len(named) else [])]
