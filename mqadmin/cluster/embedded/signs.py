"""Measurement of the signs by which condition.py judges the broker. For a thread: the disk's forecast reads
files, jobs are in Redis.

A sign that cannot be measured is None; its error does not hide the other signs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from broker_store.engine.status import samples
from broker_store.engine.status.samples import Sample
from broker_store.errors import BrokerStoreError
from broker_store.facts import memory
from broker_store.facts.disk import DiskFacts
from broker_store.facts.progress import MIN_SPAN_MS, SPEED_MS, recent
from broker_store.formats.names import SYSTEM_GROUP_PREFIX
from broker_store.rest.problems import Problem
from mqadmin.cluster.embedded import write_routes
from mqadmin.cluster.embedded.condition import Growth, Refusal, Signs
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.replication import replication_of
from mqadmin.cluster.embedded.store import EmbeddedStore
from mqadmin.facts.children import RunningChildren
from mqadmin.web import failures

MIN_SAMPLES_FOR_THIRDS = 6  # two in each third
JOBS_MS = 24 * 3_600_000  # failures of jobs in this time are counted
REDIS = "Redis"
Sign = TypeVar("Sign")


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Functions that count jobs in Redis. They raise Problem."""

    failed_since: Callable[[int], int]  # number of jobs that failed since a time (ms since 1970)
    last_findings: Callable[
        [], int | None
    ]  # number of findings of the last check of the store; None: unknown


def measure(
    host: Host, store: EmbeddedStore, children: Callable[[], RunningChildren] | None, jobs: JobCounts | None
) -> Signs:
    """Return the signs of the broker of this process. `children` returns the state of its child processes."""
    parts, snapshot, state = host.call(lambda: (host.parts, store.snapshot(), host.state()))
    refusals = parts.statistics.refusals
    refused, refused_sends, pause = host.call(
        lambda: (refusals.recent(), refusals.recent_sends(), parts.pauses.longest())
    )
    configs, routes = host.call(write_routes.snapshot, parts)
    now_ms, history = parts.clock(), parts.history
    stopped_children = None if children is None else stopped(children())
    # A halted Redis accepts requests and does not answer them.
    if stopped_children is not None and REDIS in stopped_children:
        jobs = None
    return Signs(
        now_ms=now_ms,
        state=state.state,
        sentence=state.sentence,
        flags=tuple((flag.name, flag.cause) for flag in snapshot.flags),
        refused=refused,
        refused_sends=refused_sends,
        lags=None
        if history is None
        else _known(lambda: lags_of(history.read(_is_place, now_ms - SPEED_MS), now_ms)),
        disk=_known(lambda: refusal_of(store.disk())),
        failed_jobs=None
        if jobs is None
        else _known(lambda: jobs.failed_since(int(time.time() * 1000) - JOBS_MS)),
        stopped_children=stopped_children,
        findings=None if jobs is None else _known(jobs.last_findings),
        pause=pause,
        memory=memory.of_process(),
        withheld=write_routes.withheld(parts, configs, routes),
        database_failed=failures.database_failure(),
        replication=host.call(replication_of, parts),
        samples_failed="" if history is None else history.failed or "",
    )


def _known(measure: Callable[[], Sign]) -> Sign | None:
    try:
        return measure()
    except (BrokerStoreError, Problem, TimeoutError):
        return None


def _is_place(name: str) -> bool:
    return name.startswith(("at\t", "max\t"))


def lags_of(found: Sequence[Sample], now_ms: int) -> tuple[Growth, ...] | None:
    """Return each group's lag and its growth over the samples of the last SPEED_MS; None before there are two
    that are at least MIN_SPAN_MS apart.

    A queue counts from the first sample that has it: a group that is new in this time has a lag as well.
    """
    now = recent(found, now_ms)
    if len(now) < 2 or now[-1].at_ms - now[0].at_ms < MIN_SPAN_MS:
        return None
    last = now[-1].values
    lag: dict[str, int] = defaultdict(int)
    grown: dict[str, int] = defaultdict(int)
    came: dict[str, int] = defaultdict(int)
    since_ms: dict[str, int] = {}
    for group, name, end in _places(last):
        first = next(sample for sample in now if name in sample.values and end in sample.values)
        behind = max(0, last[end] - last[name])
        lag[group] += behind
        grown[group] += behind - max(0, first.values[end] - first.values[name])
        came[group] += max(0, last[end] - first.values[end])
        since_ms[group] = min(first.at_ms, since_ms.get(group, first.at_ms))
    thirds = _lags_by_third(now)
    return tuple(
        Growth(
            group,
            lag[group],
            grown[group],
            now[-1].at_ms - since_ms[group],
            came[group],
            _steadily_grown(thirds.get(group)),
            _has_stopped(thirds.get(group), lag[group]),
        )
        for group in sorted(lag)
    )


def _places(values: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
    """Yield (group, name of its offset, name of the queue's end) of each queue whose end was sampled too.

    The broker's own groups are left out: their offsets are progress of the broker, not a lag.
    """
    for name in values:
        if name.startswith("at\t"):
            _, group, topic, queue_id = name.split("\t")
            end = samples.maximum_of(topic, int(queue_id))
            if end in values and not group.startswith(SYSTEM_GROUP_PREFIX):
                yield group, name, end


def _lags_by_third(now: Sequence[Sample]) -> dict[str, list[list[int]]]:
    """Return the lags of each group, sample by sample, in three parts of the time; empty where there are too
    few samples."""
    if len(now) < MIN_SAMPLES_FOR_THIRDS:
        return {}
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for group, name, end in _places(now[-1].values):
        # A queue that is not in all samples is left out: it would count as growth
        if all(name in sample.values and end in sample.values for sample in now):
            places[group].append((name, end))
    third = len(now) // 3
    parts = now[:third], now[third:-third], now[-third:]
    return {
        group: [
            [sum(max(0, sample.values[end] - sample.values[name]) for name, end in pairs) for sample in part]
            for part in parts
        ]
        for group, pairs in places.items()
    }


def _steadily_grown(thirds: list[list[int]] | None) -> int:
    """Return by how much the least lag rose from the first third to the last, if it rose in the second as
    well; else 0."""
    if thirds is None:
        return 0
    first, second, last = map(min, thirds)
    return last - first if first < second < last else 0


def _has_stopped(thirds: list[list[int]] | None, lag: int) -> bool:
    """Return whether a lag that grew does not grow any more: its mean is smaller in the last third than in
    the second, or it is constant in the last.

    False where `lag` includes queues that are not in all samples, since then it is unknown.
    """
    if thirds is None or thirds[-1][-1] != lag:
        return False
    _, second, last = thirds
    return fmean(last) < fmean(second) or min(last) == max(last)


def refusal_of(disk: DiskFacts) -> Refusal | None:
    """Return the mark of the disk from which sends are refused (broker_store/facts/disk.py), None without
    one."""
    for mark in disk.marks:
        if mark.what == "refused":
            return Refusal(mark.percent, mark.is_reached, mark.at_ms)
    return None


def stopped(state: RunningChildren) -> tuple[str, ...]:
    """Return the children that do not run."""
    names = [REDIS] if state.redis == "stopped" else []
    return (*names, *(f"the worker {name}" for name, runs in sorted(state.workers.items()) if not runs))
