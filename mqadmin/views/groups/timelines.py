"""A group's timeline as things to draw: places in per cent of the axis, and lines in a box of 1000 by 100."""

from __future__ import annotations

from broker_store.facts.timeline import MAX_SERIES, GroupTimeline, QueueTimeline
from broker_store.units import fields_of

VERDICTS = {
    "nothing_unread": ("nothing unread", "good"),
    "keeps_ahead": ("reads in time", "good"),
    "falls": ("falls off", "bad"),
    "lost": ("has fallen off", "bad"),
    "unknown": ("not known yet", ""),
}
MIN_SHARE = 0.25  # per cent of a span that can be seen


def picture(facts: GroupTimeline) -> dict:
    """The context of groups/timeline.html."""
    axis = _axis(facts)
    queues = [
        fields_of(queue)
        | {"said": VERDICTS[queue.cliff.verdict]}
        | ({} if axis is None else _places(queue, *axis))
        for queue in facts.queues
    ]
    said, tone = VERDICTS[facts.cliff.verdict]
    return {
        "timeline": facts,
        "most_series": MAX_SERIES,
        "timeline_queues": queues,
        "is_drawn": axis is not None,
        "verdict": said,
        "verdict_tone": tone,
        "ticks": [] if axis is None else _ticks(*axis),
        "history": _history(facts),
        "events": [event | {"said": _event(event)} for event in reversed(facts.events)],
    }


def _axis(facts: GroupTimeline) -> tuple[int, int] | None:
    """The begin and the end of the axis, in ms; None when there is nothing to draw."""
    begin, end = facts.from_ms, facts.to_ms
    return None if begin is None or end is None or end <= begin else (begin, end)


def _ticks(begin: int, end: int) -> list[int]:
    return [begin + (end - begin) * part // 4 for part in range(5)]


def _places(queue: QueueTimeline, begin: int, end: int) -> dict:
    """Where each part of a queue's strip begins and how wide it is, in per cent."""

    def place(time_ms: int) -> float:
        return min(100.0, max(0.0, (time_ms - begin) * 100 / (end - begin)))

    if queue.earliest_ms is None or queue.latest_ms is None:
        return {}
    first, last = place(queue.earliest_ms), place(queue.latest_ms)
    at = last if queue.position_ms is None else place(queue.position_ms)
    strips = {
        "kept": (first, last),
        "unread": (at, last) if queue.lag else None,
        "goes": (first, place(queue.goes_next_ms)) if queue.goes_next_ms else None,
    }
    found = {
        f"{name}_strip": None
        if ends is None
        else {"x": f"{ends[0]:.3f}", "width": f"{max(MIN_SHARE, ends[1] - ends[0]):.3f}"}
        for name, ends in strips.items()
    }
    return found | {"at_x": f"{min(at, 99.6):.3f}"}


def _history(facts: GroupTimeline) -> dict | None:
    """The lag as lines that break where nothing was sampled, and the events that fall into that time."""
    points, end = facts.history.points, facts.at_ms
    known = [(point.at_ms, point.lag) for point in points if point.lag is not None]
    if len(known) < 2:
        return None
    begin = known[0][0]
    most, span = max(1, *(lag for _, lag in known)), max(1, end - begin)

    def x(time_ms: int) -> float:
        return (time_ms - begin) * 1000 / span

    lines: list[list[str]] = [[]]
    for point in points:
        if point.lag is None:
            lines.append([])
        else:
            lines[-1].append(f"{x(point.at_ms):.1f},{97 - point.lag * 92 / most:.2f}")
    marks = [
        {"x": f"{x(event['at_ms']):.1f}", "kind": event["kind"], "said": _event(event)}
        for event in facts.events
        if begin <= event["at_ms"] <= end
    ]
    return {
        "lines": [" ".join(line) for line in lines if len(line) > 1],
        "dots": [line[0].split(",") for line in lines if len(line) == 1],
        "most": most,
        "marks": marks,
        "ticks": _ticks(begin, begin + span),
    }


def _event(event: dict) -> str:
    if event["kind"] == "reset":
        before = "no position" if event["before"] is None else f"{event['before']:,}"
        return f"{event['topic']}, queue {event['queue_id']}: set from {before} to {event['after']:,}"
    came = [f"{who} came" for who in _named(event["joined"], event["came"])]
    went = [f"{who} went" for who in _named(event["left"], event["went"])]
    return (
        ", ".join([*came, *went])
        + f"; {event['clients'] or 'no client is'} {'left' if not event['clients'] else 'connected'}"
    )


def _named(named: list[str], count: int) -> list[str]:
    return [*named, *([f"{count - len(named)} more"] if count > len(named) else [])]
