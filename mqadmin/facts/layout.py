"""How topics lie in the log and what a replay costs: of a topic, of what a group reads, or of each topic.

The scans are of a store's files: those of a running broker's store, or of one that no broker has open.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.errors import NotFoundError
from broker_store.facts.directory import GroupOffsets, StoreDirectory
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics, LayoutScan, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """What was chosen and every topic, of one moment."""

    one: LayoutOfTopics | None  # None: nothing was chosen
    each: LayoutOfEach


def check(topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None) -> None:
    """Raise ValueError when the question contradicts itself."""
    if topic and group:
        raise ValueError("Choose a topic or a group: what a group reads names its topics.")
    if from_ms is not None and from_offset is not None:
        raise ValueError("Choose a time or a place of the log to begin from, not both.")


def scan(
    store: StoreDirectory,
    offsets: GroupOffsets,
    topic: str | None,
    group: str | None,
    from_ms: int | None,
    from_offset: int | None,
    **known,
) -> LayoutOfTopics | LayoutOfEach:
    """Return a LayoutScan of a topic, or of what a group reads from where it stands unless a start is given;
    of each topic without both."""
    check(topic, group, from_ms, from_offset)
    layout = LayoutScan(store, Start(from_ms, from_offset), **known)
    chosen = chosen_of(layout, offsets, topic, group, from_ms, from_offset)
    return each_of(layout, from_ms, from_offset) if chosen is None else chosen


def chosen_of(
    layout: LayoutScan,
    offsets: GroupOffsets,
    topic: str | None,
    group: str | None,
    from_ms: int | None = None,
    from_offset: int | None = None,
) -> LayoutOfTopics | None:
    """Return the layout of the topic, or of what the group reads; None when neither was chosen."""
    if topic:
        return layout.beginning(Start(from_ms, from_offset)).of([topic])
    if not group:
        return None
    if group not in offsets:
        raise NotFoundError(f"group {group} has committed nothing: what it reads is not known")
    at_offsets = offsets if from_ms is None and from_offset is None else None
    return layout.beginning(Start(from_ms, from_offset, at_offsets, group)).of(sorted(offsets[group]))


def each_of(layout: LayoutScan, from_ms: int | None = None, from_offset: int | None = None) -> LayoutOfEach:
    """Return the layout of every topic."""
    return layout.beginning(Start(from_ms, from_offset)).of_each()


def scan_both(
    store: StoreDirectory,
    offsets: GroupOffsets,
    topic: str | None,
    group: str | None,
    from_ms: int | None,
    from_offset: int | None,
    **known,
) -> Both:
    """Return the `scan` of what was chosen, and of every topic."""
    check(topic, group, from_ms, from_offset)
    layout = LayoutScan(store, Start(), **known)
    return Both(
        one=chosen_of(layout, offsets, topic, group, from_ms, from_offset),
        each=each_of(layout, from_ms, from_offset),
    )
