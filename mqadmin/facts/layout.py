"""The places of topics in the log, and the cost of a replay: for a topic, for a group, or for each topic.

The files of a store are scanned: of a running broker's store, or of one that no broker has open.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.errors import NotFoundError
from broker_store.facts.directory import GroupOffsets, StoreDirectory
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics, LayoutScan, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """The layout of the chosen topic or group, and of every topic, at one moment."""

    one: LayoutOfTopics | None  # None: nothing was chosen
    each: LayoutOfEach


def check(topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None) -> None:
    """Raise ValueError when the parameters contradict each other."""
    if topic and group:
        raise ValueError(
            "Choose a topic or a group, not both: the topics of a group are those that it reads."
        )
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
    """Return the layout of a topic, or of the topics of a group from its offsets on (or from the given
    start); without both, of each topic."""
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
    """Return the layout of the topic, or of the topics of the group; None when neither is given. Raises
    NotFoundError for a group without offsets."""
    if topic:
        return layout.beginning(Start(from_ms, from_offset)).of([topic])
    if not group:
        return None
    if group not in offsets:
        raise NotFoundError(f"group {group} has committed no offset, so its topics are unknown")
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
    """Return the `scan` of the chosen topic or group, and of every topic."""
    check(topic, group, from_ms, from_offset)
    layout = LayoutScan(store, Start(), **known)
    return Both(
        one=chosen_of(layout, offsets, topic, group, from_ms, from_offset),
        each=each_of(layout, from_ms, from_offset),
    )
