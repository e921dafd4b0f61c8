"""The values of one scrape.

The number of series by topic, by group and by both is bounded, since a scraper keeps each series for ever.
The busiest topics and the groups with the largest lags come first, and the number of those left out is a
metric of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.store_state import Snapshot
from broker_store.facts import memory
from broker_store.facts.memory import MemoryFacts
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.groups import Group
from mqadmin.facts.overview import Overview
from mqadmin.facts.scrape import Scrape
from mqadmin.facts.sends import Refused
from mqadmin.facts.topics import Topic
from mqadmin.facts.waiting import Waiting
from mqadmin.metrics.otlp_facts import Exports, exports

MAX_NAMES = 500  # topics and groups with series of their own
MAX_PAIRS = 2_000  # groups with a topic


@dataclass(frozen=True, slots=True)
class Measured:
    """The values of one scrape. Those after `exports` are None while they are unknown."""

    names: frozenset[str]  # the families that are wanted: ours, apache, exporter
    state: str
    store: Snapshot
    exports: Exports | None  # of OpenTelemetry; None: it is off
    overview: Overview | None = None
    refusals: list[Refused] | None = None
    topics: tuple[list[Topic], int] | None = None  # topics that are shown, and the number of all
    groups: tuple[list[Group], int] | None = None
    waiting: Waiting | None = None
    pause_s: float | None = None
    scrape: Scrape | None = None  # None as well where only our names are wanted
    memory: MemoryFacts | None = None  # as it was measured last


async def measure(cluster: Cluster) -> Measured:
    """Return the values of now. On the loop."""
    names, state, store = cluster.metrics.families(), cluster.state().state, cluster.store.snapshot()
    if state not in ("running", "read_only"):
        return Measured(names, state, store, exports(), memory=memory.latest())
    topics, groups = await cluster.topics.busiest(MAX_NAMES), await cluster.groups.most_behind(MAX_NAMES)
    totals = sum(cluster.topics.counts().values()), sum(cluster.groups.counts().values())
    scrape = None
    if names & {"apache", "exporter"}:
        scrape = await cluster.metrics.measure(
            [topic.name for topic in topics], [group.name for group in groups], MAX_PAIRS, MAX_NAMES
        )
    return Measured(
        names,
        state,
        store,
        exports(),
        cluster.overview(),
        cluster.refusals(),
        (topics, totals[0]),
        (groups, totals[1]),
        cluster.waiting.facts(),
        cluster.longest_pause_s(),
        scrape,
        memory.latest(),
    )
