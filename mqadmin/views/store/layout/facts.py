"""How topics lie in the log and what a replay costs, asked of the running broker.

A scan from a start of the caller's own ends when the caller waits no more; those without serve all who ask.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from broker_store.errors import LookupNameError, NotFoundError
from broker_store.facts.directory import GroupOffsets, StoreDirectory
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics, LayoutScan, Start
from broker_store.formats import names
from broker_store.units import Small
from mqadmin.cached_scans import CachedScans
from mqadmin.views.store.cache.facts import ReadingFacts, ReadTotals

Value = TypeVar("Value")

CACHED_S_PER_CPU_S = 100  # pages that show it take at most a hundredth of a core
SHOWN_TOPICS = 100
CHECKS = {"topic": names.check_topic, "group": names.check_group}


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """What was chosen and every topic, of one moment."""

    one: LayoutOfTopics | None  # None: nothing was chosen
    each: LayoutOfEach


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Both):
    """What page and stream show."""

    more: Small  # topics that are left out of `each`


def cold_rate(totals: ReadTotals) -> float | None:
    """Bytes a second of one reader's thread, as measured by all cold reads since the start; None before there
    was one."""
    return totals.cold_bytes / totals.cold_ms * 1000 if totals.cold_ms else None


def check(topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None) -> None:
    """ValueError when the question contradicts itself."""
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
    """LayoutScan.of a topic, or of what a group reads from where it stands unless a start is given; of_each
    without both."""
    check(topic, group, from_ms, from_offset)
    layout = LayoutScan(store, Start(from_ms, from_offset), **known)
    chosen = _chosen(layout, offsets, topic, group, from_ms, from_offset)
    return _each(layout, from_ms, from_offset) if chosen is None else chosen


def _chosen(
    layout: LayoutScan,
    offsets: GroupOffsets,
    topic: str | None,
    group: str | None,
    from_ms: int | None = None,
    from_offset: int | None = None,
) -> LayoutOfTopics | None:
    """LayoutScan of the topic, or of what the group reads; None when neither was chosen."""
    if topic:
        return layout.beginning(Start(from_ms, from_offset)).of([topic])
    if not group:
        return None
    if group not in offsets:
        raise NotFoundError(f"group {group} has committed nothing: what it reads is not known")
    at_offsets = offsets if from_ms is None and from_offset is None else None
    return layout.beginning(Start(from_ms, from_offset, at_offsets, group)).of(sorted(offsets[group]))


def _each(layout: LayoutScan, from_ms: int | None = None, from_offset: int | None = None) -> LayoutOfEach:
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
        one=_chosen(layout, offsets, topic, group, from_ms, from_offset),
        each=_each(layout, from_ms, from_offset),
    )


async def of_running(store, function: Callable[..., Value], *asked) -> Value:
    """Run `scan` or `scan_both` on the running broker's store, in a thread that stops when the caller no
    longer waits."""
    known = await asyncio.to_thread(store.reading_facts)
    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            function, store.directory(), known.offsets, *asked, stopped=stop.is_set, **_known(known)
        )
    finally:
        stop.set()


def _known(facts: ReadingFacts) -> Mapping[str, Any]:
    """What a LayoutScan is given of a store that runs."""
    return {
        "wrote": facts.wrote,
        "cold_rate": cold_rate(facts.totals),
        "messages_in": facts.messages_in,
    }


class LayoutScans:
    """Scans from the begin of each queue: they are the same for all callers. For threads."""

    def __init__(self, store):
        self._store = store
        self._scans = CachedScans(CACHED_S_PER_CPU_S)

    def layout(self, topic: str | None, group: str | None) -> LayoutOfTopics | LayoutOfEach:
        """Return what `scan` gives."""
        begin = self._begin()
        chosen = self._kept_choice(topic, group, begin)
        return self._kept_each(begin) if chosen is None else chosen

    def both(self, topic: str | None, group: str | None) -> Both:
        """Return what `scan_both` gives; `each` is the same scan for every choice."""
        begin = self._begin()
        return Both(one=self._kept_choice(topic, group, begin), each=self._kept_each(begin))

    def _kept_choice(
        self, topic: str | None, group: str | None, begin: Callable[[], tuple[LayoutScan, GroupOffsets]]
    ) -> LayoutOfTopics | None:
        if not topic and not group:
            return None
        return self._scans.of((topic, group), lambda: _chosen(*begin(), topic, group))

    def _kept_each(self, begin: Callable[[], tuple[LayoutScan, GroupOffsets]]) -> LayoutOfEach:
        return self._scans.of(None, lambda: _each(begin()[0]))

    def _begin(self) -> Callable[[], tuple[LayoutScan, GroupOffsets]]:
        """A function that asks once for what is in memory, and only when something has to be scanned."""

        @functools.cache
        def begin() -> tuple[LayoutScan, GroupOffsets]:
            known = self._store.reading_facts()
            return LayoutScan(self._store.directory(), Start(), **_known(known)), known.offsets

        return begin


def check_choice(name: str) -> str:
    """The name of what is watched: "" for every topic, topic/NAME or group/NAME."""
    kind, _, chosen = name.partition("/")
    if name:
        if kind not in CHECKS:
            raise LookupNameError("it is topic/NAME or group/NAME, or nothing for every topic")
        CHECKS[kind](chosen)
    return name


def choice_of(name: str) -> tuple[str | None, str | None]:
    """(topic, group) of such a name."""
    kind, _, chosen = name.partition("/")
    return (chosen if kind == "topic" else None, chosen if kind == "group" else None)


def for_page(both: Both) -> Shown:
    """As page and stream show it: the topics that cost most to read."""
    each = both.each
    return Shown(
        one=both.one,
        each=replace(each, items=each.items[:SHOWN_TOPICS]),
        more=max(0, len(each.items) - SHOWN_TOPICS),
    )
