"""The offset timeline: the cliff reaches a group when a file goes that it has not read, and not before."""

from __future__ import annotations

import pytest

from broker_store.engine.status.samples import Sample, maximum_of, position_of
from broker_store.facts.growth import HOUR_MS, MINUTE_MS
from broker_store.facts.progress import SPEED_MS, recent, speed
from broker_store.facts.timeline import MAX_POINTS, Cliff
from tests.facts.test_disk import QUEUES, World, world
from tests.support import plain_forecast as plain

__all__ = ["world"]  # the fixture


def reading(
    world: World, group: str, per_s: float, arrives_per_s: float, minutes: int = 30, gap_at: int | None = None
):
    """Samples in which a group reads (topic, 0) so fast, up to where it is now: slowly enough for parts of a
    message."""
    at, end = (
        next(queues[0] for name, _, queues in world.offsets if name == group),
        world.store.reads.max_offset("topic", 0),
    )
    taken = []
    for ago in range(minutes, -1, -1):
        if gap_at is None or not gap_at <= ago < gap_at + 5:
            values = {
                position_of(group, "topic", 0): at - per_s * ago * 60,
                maximum_of("topic", 0): end - arrives_per_s * ago * 60,
            }
            taken.append(Sample(world.clock() - ago * MINUTE_MS, MINUTE_MS, values))

    def read(wanted, from_ms):
        return [
            sample._replace(values={name: value for name, value in sample.values.items() if wanted(name)})
            for sample in taken
            if sample.at_ms >= from_ms
        ]

    return read


def test_each_queue_has_its_span_its_position_and_its_lag(world):
    world.position("slow", "topic", 0, 20)
    world.position("slow", "rare", 0, 1)
    root = world.store.root
    with world.look() as view:
        facts = view.timeline("slow")
    times = {place: stored_ms for place, _, stored_ms in plain.records(root)}
    assert [(queue.topic, queue.queue_id) for queue in facts.queues] == [("rare", 0), ("topic", 0)]
    for queue in facts.queues:
        known = plain.units(root, queue.topic, queue.queue_id)
        assert (queue.min_offset, queue.max_offset) == (known[0][0], known[-1][0] + 1)
        assert (queue.earliest_ms, queue.latest_ms) == (times[known[0][1]], times[known[-1][1]])
        assert queue.position_ms == times[known[queue.consumer_offset][1]]
        assert (
            queue.lag == known[-1][0] + 1 - queue.consumer_offset
            and queue.lag_ms == world.clock() - queue.position_ms
        )
        assert queue.read_per_s is None and queue.cliff.verdict == "unknown", "no samples, no speed"
    assert (
        facts.from_ms
        == min(times[plain.units(root, *queue)[0][1]] for queue in QUEUES if queue != ("topic", 1))
        and facts.to_ms == world.clock()
    )


def test_a_group_that_stands_still_falls_when_it_was_said_and_not_a_look_before(world):
    world.position("stands", "topic", 0, 20)
    with world.look(read_samples=reading(world, "stands", 0, 0.01)) as view:
        (queue,) = view.timeline("stands").queues
    cliff = queue.cliff
    assert (cliff.verdict, cliff.at_ms) == ("falls", cliff.if_it_stops_ms)
    world.clock.now_ms = cliff.at_ms - HOUR_MS
    for _ in range(10):
        world.store.look_at_disk()
    assert world.store.reads.min_offset("topic", 0) <= 20
    world.clock.now_ms = cliff.at_ms
    for _ in range(10):
        world.store.look_at_disk()
    assert world.store.reads.min_offset("topic", 0) > 20
    with world.look() as view:
        (queue,) = view.timeline("stands").queues
    assert (queue.cliff.verdict, queue.lost) == ("lost", world.store.reads.min_offset("topic", 0) - 20)


def test_one_that_reads_on_is_judged_by_its_speed(world):
    world.clock.advance(HOUR_MS)  # the hour of cleaning is over
    world.position("reads", "topic", 0, 0)
    end = world.store.reads.max_offset("topic", 0)

    def cliff(per_s, arrives_per_s=0.0):
        with world.look(read_samples=reading(world, "reads", per_s, arrives_per_s)) as view:
            return view.timeline("reads").queues[0].cliff

    with world.look() as view:
        schedule = [entry for entry in view.schedule() if entry.goes_ms is not None]
    # As fast as the first file's last message needs, and a little slower.
    behind = [
        sum(unit[1] < file.end for unit in plain.units(world.store.root, "topic", 0)) for file, *_ in schedule
    ]
    needed = [
        count / ((goes - world.clock()) / 1000)
        for count, (_, _, _, goes) in zip(behind, schedule, strict=True)
        if goes > world.clock()
    ]
    fast = max(needed) * 1.5
    assert cliff(fast).verdict == "keeps_ahead"
    slow = cliff(max(needed) * 0.5)
    worst = next(
        goes
        for count, (_, _, _, goes) in zip(behind, schedule, strict=True)
        if count > max(needed) * 0.5 * (goes - world.clock()) / 1000
    )
    assert (slow.verdict, slow.at_ms) == ("falls", worst)
    # Reads all there is in time, and yet more arrives than it reads: it falls later than what is stored now
    # could.
    losing = cliff(fast, fast * 3)
    assert losing.verdict == "falls" and losing.file is None and losing.at_ms > world.clock()
    assert cliff(fast, fast * 1.01).verdict == "keeps_ahead", "a hair's breadth is measured, not meant"
    assert end > 20


def test_who_has_read_everything_has_nothing_to_lose(world):
    world.position("done", "topic", 0, world.store.reads.max_offset("topic", 0))
    with world.look() as view:
        facts = view.timeline("done")
    assert facts.cliff == Cliff(verdict="nothing_unread")
    assert facts.queues[0].lag == facts.queues[0].lag_ms == 0 and facts.queues[0].position_ms is None


def test_the_history_breaks_where_nothing_was_sampled(world):
    world.position("reads", "topic", 0, 20)
    with world.look(read_samples=reading(world, "reads", 0.01, 0.02, minutes=60, gap_at=20)) as view:
        facts = view.timeline("reads")
    points = facts.history.points
    (hole,) = [number for number, point in enumerate(points) if point.lag is None]
    assert points[hole + 1].at_ms - points[hole - 1].at_ms == 6 * MINUTE_MS and len(points) == 61 - 5 + 1
    assert points[-1].lag == world.store.reads.max_offset("topic", 0) - 20
    with world.look(read_samples=reading(world, "reads", 0, 0, minutes=900)) as view:
        assert MAX_POINTS * 0.4 < len(view.timeline("reads").history.points) <= MAX_POINTS + 1


def test_queues_that_samples_have_no_room_for_are_counted(world):
    world.position("reads", "topic", 0, 20)
    world.position("reads", "rare", 0, 1)
    for are_full, expected in ((False, 0), (True, 1), (None, None)):
        with world.look(read_samples=reading(world, "reads", 0.01, 0.02), samples_are_full=are_full) as view:
            assert view.timeline("reads").queues_not_sampled == expected
    with world.look(samples_are_full=False) as view:
        assert view.timeline("reads").queues_not_sampled is None, "no sample was taken yet"


def test_a_group_without_positions_has_an_empty_timeline(world):
    with world.look() as view:
        facts = view.timeline("nobody")
    assert (
        facts.queues == []
        and facts.cliff.verdict == "unknown"
        and facts.from_ms is None
        and facts.to_ms is None
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 20, 40], 1.0),
        ([0, 50, 5, 25], 1.0),
        ([5], None),
        ([None, 5, None], None),
        ([50, 100, 7], None),
        ([4, 4, 4], 0.0),
        ([1, None, 3, 5], 0.1),
    ],
)
def test_a_speed_begins_anew_where_the_position_was_set_back_or_is_missing(values, expected):
    taken = [
        Sample(number * 20_000, 10_000, {} if value is None else {"n": value})
        for number, value in enumerate(values)
    ]
    assert speed(taken, "n") == (None if expected is None else pytest.approx(expected))


def test_the_present_does_not_reach_over_a_gap():
    now = 100 * MINUTE_MS
    taken = [Sample(now - ago * MINUTE_MS, MINUTE_MS, {}) for ago in (40, 5, 2, 1, 0)]
    assert [now - sample.at_ms for sample in recent(taken, now)] == [
        2 * MINUTE_MS,
        MINUTE_MS,
        0,
    ] and SPEED_MS == 5 * MINUTE_MS
