"""Lists of topics and groups: pages of them in an order, their numbers, and those with the largest values.

A broker may have 100,000 topics and groups, and a page shares one loop with all senders. So the cost of a
page depends on what it shows: the broker keeps names in order (broker_store/broker/names.py), and rows are
made only of the names shown. A list that needs a number of every group or queue collects these in turns
(broker_store/turns.py), and is sorted in a thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns
from mqadmin.facts.overview import Traffic, WorstLag

KEPT_SECONDS = 5.0  # lags of all groups: pages and scrapes that come together share one walk
GROUPS_PER_OVERVIEW = 50  # groups whose lag is measured for one overview
MAX_KEPT_LAGS = 64  # the largest lags, which are measured again
TOP_TOPICS = 8
TOP_SECONDS = 2.0  # between two measurements of the top topics; their rates are over 10 s
MAX_RANKED_AT_ONCE = 200  # topics; more than twice that are ranked in turns of the loop
MAX_OFFERED = 500  # names in a form's list
NAMES_PER_SORT = 2_000  # names sorted by one call
TOPIC_SORTS = ("messages", "in", "out")


class Listings:
    """Lists over the parts of a broker. For the thread of the loop."""

    def __init__(self, parts: BrokerParts):
        self.parts = parts
        self._lags: dict[str, int] = {}
        self._lags_until = 0.0
        self._lag_scan: asyncio.Task | None = None
        self._largest: dict[str, int] = {}
        # Groups whose lag is measured GROUPS_PER_OVERVIEW at a time, from the last to the first
        self._turn: Sequence[str] = []
        self._turn_left = 0
        self._top: list[Traffic] = []
        self._top_until = 0.0
        self._top_ranking: asyncio.Task | None = None

    # -- topics

    def topic_counts(self) -> dict[str, int]:
        """Return the number of topics by kind."""
        names = self.parts.topics.names
        return {kind: names.count(kind) for kind in ("normal", "retry", "dlq", "system")}

    def offered_topics(self) -> list[str]:
        """Return the first MAX_OFFERED names that a form offers, without topics of the broker's own."""
        names = self.parts.topics.names
        return list(
            itertools.islice(
                itertools.chain.from_iterable(
                    names.slice(0, MAX_OFFERED, kind) for kind in ("normal", "retry", "dlq")
                ),
                MAX_OFFERED,
            )
        )

    async def topic_names(
        self, kind: str, search: str, sort: str, begin: int, count: int
    ) -> tuple[Sequence[str], int]:
        """Return `count` names from number `begin` on, of those of a kind ("all") that contain `search`, and
        the number of all these."""
        names = self.parts.topics.names
        kind_wanted = None if kind == "all" else kind
        if not search and sort not in TOPIC_SORTS:
            return names.slice(begin, count, kind_wanted), names.count(kind_wanted)
        numbers = await self._topic_numbers(sort)
        return await asyncio.to_thread(_arranged, names.all(kind_wanted), search, numbers, begin, count)

    async def _topic_numbers(self, sort: str) -> dict[str, float]:
        """Return the numbers by which topics are sorted, of the topics that have one other than 0."""
        numbers: dict[str, float] = {}
        store, statistics = self.parts.store, self.parts.statistics
        if sort == "messages":
            async for queues in in_turns(store.queues()):
                for topic, queue_id in queues:
                    numbers[topic] = (
                        numbers.get(topic, 0)
                        + store.reads.max_offset(topic, queue_id)
                        - store.reads.min_offset(topic, queue_id)
                    )
        elif sort in ("in", "out"):
            rate_of = statistics.put_rate if sort == "in" else statistics.out_rate
            async for topics in in_turns(statistics.active_topics()):
                numbers |= {topic: rate for topic in topics if (rate := rate_of(topic))}
        return numbers

    async def busiest_topics(self, limit: int) -> list[str]:
        """Return the topics with the highest rate of sends, then those with most messages, then the first by
        name."""
        into, held = await self._topic_numbers("in"), await self._topic_numbers("messages")

        def ranked() -> list[str]:
            keys = into.keys() | held.keys()
            first = heapq.nsmallest(
                limit, keys, key=lambda name: (-into.get(name, 0), -held.get(name, 0), name)
            )
            return first

        first = await asyncio.to_thread(ranked)
        first = [name for name in first if name in self.parts.topics.names]
        more = self.parts.topics.names.slice(0, 2 * limit)
        return [*first, *(name for name in more if name not in into and name not in held)][:limit]

    def top_topics(self) -> list[Traffic]:
        """Return the topics with most traffic over 10 s, of those that had any since the start. They are
        measured every TOP_SECONDS."""
        if time.monotonic() >= self._top_until and (self._top_ranking is None or self._top_ranking.done()):
            statistics = self.parts.statistics
            lately = statistics.recent_topics()
            if len(lately) < TOP_TOPICS:
                lately = list(
                    dict.fromkeys(
                        [
                            *lately,
                            *(row.name for row in self._top),
                            *statistics.some_topics(MAX_RANKED_AT_ONCE),
                        ]
                    )
                )
            if len(lately) <= 2 * MAX_RANKED_AT_ONCE:
                self._top = _top(map(self._traffic, lately))
                self._top_until = time.monotonic() + TOP_SECONDS
            else:
                self._top_ranking = asyncio.get_running_loop().create_task(
                    self._rank(lately), name="top topics"
                )
        return self._top

    async def _rank(self, topics: list[str]) -> None:
        rows: list[Traffic] = []
        async for some in in_turns(topics, 16):
            rows = _top([*rows, *map(self._traffic, some)])
        self._top, self._top_until = rows, time.monotonic() + TOP_SECONDS

    def _traffic(self, name: str) -> Traffic | None:
        topics, statistics = self.parts.topics, self.parts.statistics
        if topics.get(name) is None or topics.is_system(name):
            return None
        return Traffic(name=name, in_per_s=statistics.put_rate(name), out_per_s=statistics.out_rate(name))

    # -- groups

    def group_counts(self) -> dict[str, int]:
        """Return the number of groups by kind."""
        names = self.parts.groups.names
        return {kind: names.count(kind) for kind in ("normal", "system")}

    async def group_names(
        self, kind: str, search: str, sort: str, begin: int, count: int
    ) -> tuple[Sequence[str], int]:
        """Return names of groups as `topic_names` does. Sorted by lag, groups without one are last."""
        names = self.parts.groups.names
        kind_wanted = None if kind == "all" else kind
        if not search and sort == "name":
            return names.slice(begin, count, kind_wanted), names.count(kind_wanted)
        if sort == "clients":
            numbers: Mapping[str, float] = {
                group.name: len(group.members) for group in self.parts.clients.consumer_groups()
            }
        else:
            numbers = {} if sort == "name" else {name: lag + 1 for name, lag in (await self.lags()).items()}
        return await asyncio.to_thread(_arranged, names.all(kind_wanted), search, numbers, begin, count)

    async def lags(self) -> dict[str, int]:
        """Return the lag in messages of each group that has one, at most KEPT_SECONDS old."""
        if time.monotonic() >= self._lags_until:
            if self._lag_scan is None or self._lag_scan.done():
                self._lag_scan = asyncio.get_running_loop().create_task(self._measure_lags(), name="lags")
            await asyncio.shield(self._lag_scan)
        return self._lags

    async def _measure_lags(self) -> None:
        offsets, lags = self.parts.offsets, {}
        async for names in in_turns(self.parts.groups.names.all(), 16):
            for name in names:
                topics = offsets.topics_of(name)
                if len(topics) > NAMES_PER_SORT:
                    lag = self.unread(name, self.parts.lag_offsets.retry_topics(name, ()))
                    async for some in in_turns(topics):
                        lag = _sum(lag, *(self.lag(name, topic) for topic in some))
                        retries = self.parts.lag_offsets.pop_retry_topics(name, some)
                        lag = _sum(lag, self.unread(name, retries))
                else:
                    lag = self.lag(name)
                if lag is not None:
                    lags[name] = lag
        self._lags, self._lags_until = lags, time.monotonic() + KEPT_SECONDS

    async def most_behind(self, limit: int) -> list[str]:
        """Return the groups with the largest lags, then the first by name."""
        lags = await self.lags()
        first = await asyncio.to_thread(heapq.nsmallest, limit, lags, lambda name: (-lags[name], name))
        names = self.parts.groups.names
        first = [name for name in first if name in names]
        return [*first, *(name for name in names.slice(0, 2 * limit) if name not in lags)][:limit]

    def lag(self, group: str, topic: str | None = None) -> int | None:
        """Return the lag in messages, over the queues in which the group, or its slowest broadcasting client,
        has an offset, and over those of its retry topics in which it has none; None without both. With a
        topic: over the queues of it in which the group has an offset."""
        offsets, store, total, known = self.parts.offsets, self.parts.store, 0, False
        for holder in (group, offsets.broadcasting(group)):
            for name in offsets.topics_of(holder) if topic is None else (topic,):
                for queue_id, at in offsets.of(holder, name).items():
                    known = True
                    total += max(0, store.reads.max_offset(name, queue_id) - at)
            if known or offsets.topics_of(group):
                break  # a group that commits offsets itself is measured by these
        lag = total if known else None
        if topic is None:
            retries = self.parts.lag_offsets.retry_topics(group, offsets.topics_of(group))
            lag = _sum(lag, self.unread(group, retries))
        return lag

    def unread(self, group: str, retries: Iterable[str]) -> int | None:
        """Return the messages of queues of retry topics in which a group has no offset; None without any."""
        reads = self.parts.store.reads
        return (
            sum(
                reads.max_offset(name, queue_id) - low
                for name in retries
                for queue_id, low in self.parts.lag_offsets.unread(group, name).items()
            )
            or None
        )

    def worst_lag(self) -> WorstLag | None:
        """Return the largest known lag of a group that is not the broker's own. Each call measures the next
        GROUPS_PER_OVERVIEW groups, and the largest of earlier calls again."""
        if not self._turn_left:
            self._turn = self.parts.groups.names.all("normal")
            self._turn_left = len(self._turn)
        end, self._turn_left = self._turn_left, max(0, self._turn_left - GROUPS_PER_OVERVIEW)
        next_groups = self._turn[self._turn_left : end]
        for name in itertools.chain(
            next_groups, heapq.nlargest(TOP_TOPICS, self._largest, key=self._largest.__getitem__)
        ):
            lag = self.lag(name)
            if lag is None:
                self._largest.pop(name, None)
            else:
                self._largest[name] = lag
        if len(self._largest) > 2 * MAX_KEPT_LAGS:
            kept = heapq.nlargest(MAX_KEPT_LAGS, self._largest, key=self._largest.__getitem__)
            self._largest = {name: self._largest[name] for name in kept}
        worst = max(self._largest, key=self._largest.__getitem__, default=None)
        return None if worst is None else WorstLag(group=worst, lag=self._largest[worst])


def _sum(*lags: int | None) -> int | None:
    """Return the sum of the lags that are known; None if none is."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _top(rows: Iterable[Traffic | None]) -> list[Traffic]:
    return heapq.nlargest(
        TOP_TOPICS, filter(None, rows), key=lambda row: (row.in_per_s + row.out_per_s, row.name)
    )


def _arranged(
    names: Sequence[str], search: str, numbers: Mapping[str, float], begin: int, count: int
) -> tuple[Sequence[str], int]:
    """Return a slice of the names that contain `search`, and the number of all these. Names with a number
    come first, the largest first; the others follow in their present order. For a thread."""
    found = [name for name in names if search in name.lower()] if search else names
    if not numbers:
        return found[begin : begin + count], len(found)
    numbered = [name for name in found if numbers.get(name)]
    rest = (name for name in found if not numbers.get(name))
    order = itertools.chain(_sorted(numbered, lambda name: -numbers[name]), rest)
    return list(itertools.islice(order, begin, begin + count)), len(found)


def _sorted(names: list[str], key: Callable[[str], float]) -> Iterable[str]:
    """Return the names sorted by a key; equal ones keep their order. They are sorted in pieces of
    NAMES_PER_SORT, so that no call holds up other threads for long."""
    pieces = [sorted(names[at : at + NAMES_PER_SORT], key=key) for at in range(0, len(names), NAMES_PER_SORT)]
    return heapq.merge(*pieces, key=key)
