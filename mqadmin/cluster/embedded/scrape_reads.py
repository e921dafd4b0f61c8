"""What a scrape reads from the store: store times of single records, and slots of the timer wheel.

Records are read in a thread, 76 bytes of each. A scrape reads at most MAX_TIMED_QUEUES queues for lags and as
many for what is ready, of the largest lags, and begins no read after MAX_READ_S: with a slow disk values are
absent, and the scrape is not late. What is cut off and what cannot be read is None, and is counted in
`NotMeasured`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from broker_store.engine.store_protocol import Store
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.turns import in_turns
from mqadmin.cluster.embedded.topics import known_time
from mqadmin.facts.scrape import DueWithin, NotMeasured, PairFlow, ReviveWait

MAX_TIMED_QUEUES = 64  # of lags, and again of what is ready
MAX_READ_S = 0.25
# The bounds of Apache's TimerMetrics: 5 s, 1, 5 and 15 minutes, 1, 4, 8 and 24 hours
DUE_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)

Starts = list[tuple[int, int]]  # (queue id, offset) of the first message of each queue that has one


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read for a group with a topic. `ready` is None if it is not known what the group was given."""

    pair: PairFlow
    lags: Starts
    ready: Starts | None


@dataclass(frozen=True, slots=True)
class Waits:
    """What was read. Times in ms, up to the scrape."""

    pairs: list[PairFlow]
    timer_ms: int | None
    revive: list[ReviveWait]
    not_measured: NotMeasured


def read_waits(
    store: Store,
    now_ms: int,
    wanted: Sequence[Wanted],
    timer: tuple[int, int],
    revive_topic: str,
    revive: Sequence[tuple[int, int, int]],
    clock: Callable[[], float] = time.monotonic,
) -> Waits:
    """Return how long messages and records that are left have waited. In a thread.

    `timer` is (messages that are left, offset of the first) of the timer topic, `revive` (queue, records that
    are left, offset of the first) of the revive log. `clock` is in seconds.
    """
    reads = _Reads(store, now_ms, clock)
    left, at = timer
    timer_ms = reads.wait_ms(TIMER_TOPIC, [(0, at)] if left else [])
    waits = [
        ReviveWait(
            queue_id=queue_id,
            wait_ms=reads.wait_ms(revive_topic, [(queue_id, at)] if left else []),
        )
        for queue_id, left, at in revive
    ]
    order = sorted(range(len(wanted)), key=lambda number: -(wanted[number].pair.lag or 0))
    lags = _in_order(reads, [(wanted[n].pair.topic, wanted[n].lags) for n in order])
    ready = _in_order(reads, [(wanted[n].pair.topic, wanted[n].ready) for n in order])
    pairs = [one.pair for one in wanted]
    for number, lag_ms, ready_ms in zip(order, lags, ready, strict=True):
        if pairs[number].lag is not None:
            pairs[number] = replace(pairs[number], lag_ms=lag_ms, ready_ms=ready_ms)
    has_offset = [pair for pair in pairs if pair.lag is not None]
    return Waits(
        pairs,
        timer_ms,
        waits,
        NotMeasured(
            lags=sum(pair.lag_ms is None for pair in has_offset),
            ready=sum(pair.ready is not None and pair.ready_ms is None for pair in has_offset),
            timer=int(timer_ms is None),
            revive=sum(wait.wait_ms is None for wait in waits),
        ),
    )


def _in_order(reads: _Reads, wanted: Sequence[tuple[str, Starts | None]]) -> list[int | None]:
    """Return the waits, and None for those after MAX_TIMED_QUEUES queues."""
    found: list[int | None] = []
    left = MAX_TIMED_QUEUES
    for topic, starts in wanted:
        is_left_out = starts is None or (starts and left <= 0)
        found.append(None if is_left_out else reads.wait_ms(topic, starts or []))
        left -= 0 if is_left_out else len(starts or ())
    return found


class _Reads:
    """Reads of one scrape, none of them twice."""

    def __init__(self, store: Store, now_ms: int, clock: Callable[[], float]):
        self._reads, self._now_ms, self._clock = store.reads, now_ms, clock
        self._until_s = clock() + MAX_READ_S
        self._known: dict[tuple[str, int, int], int | None] = {}

    def wait_ms(self, topic: str, starts: Starts) -> int | None:
        """Return the time since the oldest of the messages was stored: 0 without one, None if one of them
        could not be read."""
        times: list[int] = []
        for queue_id, offset in starts:
            at = max(offset, self._reads.min_offset(topic, queue_id))
            if at >= self._reads.max_offset(topic, queue_id):
                continue  # deleted meanwhile
            stored_ms = self._store_ms(topic, queue_id, at)
            if stored_ms is None:
                return None
            times.append(stored_ms)
        return max(0, self._now_ms - min(times)) if times else 0

    def _store_ms(self, topic: str, queue_id: int, at: int) -> int | None:
        place = topic, queue_id, at
        if place not in self._known:
            if self._clock() >= self._until_s:
                return None
            self._known[place] = known_time(self._reads.times.store_time_at(topic, queue_id, at))
        return self._known[place]


async def due_within(store: Store, now_ms: int) -> list[DueWithin]:
    """Return the messages of the timer wheel by how soon they are due. On the loop: no record is read."""
    now_s = now_ms // PRECISION_MS
    found: list[DueWithin] = []
    async for (bound_s,) in in_turns(DUE_BOUNDS_S, 1):
        before_s = found[-1].bound_s if found else 0
        messages = store.timer_files.count_between(now_s + before_s, now_s + bound_s)
        found.append(DueWithin(bound_s=bound_s, messages=messages))
    return found
