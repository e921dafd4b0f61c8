"""The cluster of a broker that runs in this process.

Plain methods run on the thread of the event loop; another thread (sync views, the admin) runs one there with
`call`. Coroutines run on the loop too, and read what may not be in memory in threads of their own. Nothing
here keeps what it measured, except scans of the store's files, which are shared (cached_scans.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from broker_store.assembly import BrokerProcess
from broker_store.units import fields_of
from mqadmin.cluster.embedded import condition, signs
from mqadmin.cluster.embedded.access import EmbeddedAccess
from mqadmin.cluster.embedded.cached_scans import CachedScans
from mqadmin.cluster.embedded.dead_letters import EmbeddedDeadLetters
from mqadmin.cluster.embedded.files import EmbeddedFiles
from mqadmin.cluster.embedded.groups import EmbeddedGroups
from mqadmin.cluster.embedded.host import Host, identity_of
from mqadmin.cluster.embedded.index import EmbeddedIndex
from mqadmin.cluster.embedded.metrics import EmbeddedMetrics
from mqadmin.cluster.embedded.pops import EmbeddedPops
from mqadmin.cluster.embedded.pulls import EmbeddedPulls
from mqadmin.cluster.embedded.search import EmbeddedSearch
from mqadmin.cluster.embedded.sends import EmbeddedSends
from mqadmin.cluster.embedded.store import EmbeddedStore, refusals_of
from mqadmin.cluster.embedded.topics import EmbeddedTopics
from mqadmin.cluster.embedded.waiting import EmbeddedWaiting
from mqadmin.facts.children import RunningChildren
from mqadmin.facts.condition import Condition
from mqadmin.facts.overview import Counts, Overview, Rates, State
from mqadmin.facts.sends import Refused

CACHED_S_PER_CPU_S = 50  # pages that show the condition take at most a fiftieth of a core

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class EmbeddedCluster:
    """See mqadmin.cluster.protocol.Cluster.

    The store of `process` exists from the beginning, its parts while the broker runs. Without a process (the
    dashboard alone) no broker ever runs. `children` returns the state of the child processes, `jobs` counts
    of jobs.
    """

    def __init__(self, process: BrokerProcess | None = None, loop: asyncio.AbstractEventLoop | None = None):
        host = self._host = Host(process, loop)
        self.topics = EmbeddedTopics(host)
        self.groups = EmbeddedGroups(host)
        self.dead_letters = EmbeddedDeadLetters(host, self.groups)
        self.search = EmbeddedSearch(host)
        self.sends = EmbeddedSends(host)
        self.pulls = EmbeddedPulls(host, self.search)
        self.waiting = EmbeddedWaiting(host)
        self.pops = EmbeddedPops(host)
        self.store = EmbeddedStore(host, self.groups)
        self.files = EmbeddedFiles(host)
        self.index = EmbeddedIndex(host)
        self.access = EmbeddedAccess(host)
        self.metrics = EmbeddedMetrics(host)
        self.children: Callable[[], RunningChildren] | None = None
        self.jobs: signs.JobCounts | None = None  # of mqadmin/jobs/, which imports this package
        self._conditions = CachedScans(CACHED_S_PER_CPU_S)

    def call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        return self._host.call(function, *arguments, **named)

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        return self._host.run(coroutine)

    def state(self) -> State:
        return self._host.state()

    def condition(self) -> Condition:
        state, is_open = self._host.call(lambda: (self._host.state(), self._host.is_open))
        if not is_open:
            return condition.judge_state(int(time.time() * 1000), state.state, state.sentence)
        return self._conditions.of(
            None, lambda: condition.judge(signs.measure(self._host, self.store, self.children, self.jobs))
        )

    def refusals(self) -> list[Refused]:
        return refusals_of(self._host.parts)

    def refuse(self, cause: str, **case: Any) -> None:
        self._host.parts.statistics.refuse(cause, **case)

    def longest_pause_s(self) -> float | None:
        pause = self._host.parts.pauses.longest()
        return None if pause is None else pause.seconds

    def overview(self) -> Overview:
        parts, store = self._host.parts, self.store.snapshot()
        put, got = parts.statistics.put.rates(1_000), parts.statistics.got.rates(1_000)
        producers = {
            client.client_id for clients in parts.clients.producer_groups().values() for client in clients
        }
        consumers = {
            member.client_id for group in parts.clients.consumer_groups() for member in group.members.values()
        }
        return Overview(
            at_ms=store.at_ms,
            **fields_of(self.state()),
            broker=identity_of(parts),
            positions=store.positions,
            lag=store.lag,
            flags=store.flags,
            flush=store.flush,
            totals=store.totals,
            disk=store.disk,
            rates=Rates(in_per_s=put[0], out_per_s=got[0], in_bytes_per_s=put[1], out_bytes_per_s=got[1]),
            counts=Counts(
                topics=parts.topics.names.count("normal"),
                groups=parts.groups.names.count("normal"),
                producers=len(producers),
                consumers=len(consumers),
            ),
            worst_lag=self._host.listings.worst_lag(),
            top_topics=self._host.listings.top_topics(),
        )
