"""Scans of the places of topics in the log of the running broker's store.

A scan from a start that the caller chose ends when the caller does not wait any more. A scan from the begin
of each queue serves all callers.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from broker_store.facts.directory import GroupOffsets
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics, LayoutScan, Start
from mqadmin.cluster.embedded.cached_scans import CachedScans
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.reading import ReadingFacts, reading_facts
from mqadmin.facts.cache import ReadTotals
from mqadmin.facts.layout import Both, chosen_of, each_of

Value = TypeVar("Value")

CACHED_S_PER_CPU_S = 100  # so these scans take at most a hundredth of a core


class LayoutScans:
    """Scans from the begin of each queue: they are the same for all callers. `scan` and `scan_both` are those
    of mqadmin/facts/layout.py. For threads."""

    def __init__(self, host: Host):
        self._host = host
        self._scans = CachedScans(CACHED_S_PER_CPU_S)

    def layout(self, topic: str | None, group: str | None) -> LayoutOfTopics | LayoutOfEach:
        """Return what `mqadmin.facts.layout.scan` returns."""
        begin = self._begin()
        chosen = self._kept_choice(topic, group, begin)
        return self._kept_each(begin) if chosen is None else chosen

    def both(self, topic: str | None, group: str | None) -> Both:
        """Return what `mqadmin.facts.layout.scan_both` returns; `each` is the same scan for every choice."""
        begin = self._begin()
        return Both(one=self._kept_choice(topic, group, begin), each=self._kept_each(begin))

    def _kept_choice(
        self, topic: str | None, group: str | None, begin: Callable[[], tuple[LayoutScan, GroupOffsets]]
    ) -> LayoutOfTopics | None:
        if not topic and not group:
            return None
        return self._scans.of((topic, group), lambda: chosen_of(*begin(), topic, group))

    def _kept_each(self, begin: Callable[[], tuple[LayoutScan, GroupOffsets]]) -> LayoutOfEach:
        return self._scans.of(None, lambda: each_of(begin()[0]))

    def _begin(self) -> Callable[[], tuple[LayoutScan, GroupOffsets]]:
        """Return a function that makes the scan and the groups' offsets. It reads what is in memory once, and
        only when something has to be scanned."""

        @functools.cache
        def begin() -> tuple[LayoutScan, GroupOffsets]:
            known = reading_facts(self._host)
            return LayoutScan(self._host.directory(), Start(), **_known(known)), known.offsets

        return begin


async def of_running(host: Host, function: Callable[..., Value], *asked) -> Value:
    """Run `scan` or `scan_both` on the running broker's store, in a thread that stops when the caller no
    longer waits."""
    known = await asyncio.to_thread(reading_facts, host)
    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            function, host.directory(), known.offsets, *asked, stopped=stop.is_set, **_known(known)
        )
    finally:
        stop.set()


def _known(facts: ReadingFacts) -> Mapping[str, Any]:
    """Return the arguments of LayoutScan that come from a running store."""
    return {
        "wrote": facts.wrote,
        "cold_rate": cold_rate(facts.totals),
        "messages_in": facts.messages_in,
    }


def cold_rate(totals: ReadTotals) -> float | None:
    """Return the bytes that one reader's thread reads a second, measured by all cold reads since the start;
    None before the first."""
    return totals.cold_bytes / totals.cold_ms * 1000 if totals.cold_ms else None
