"""What is measured of writing, and that measuring a group changes nothing of it."""

from __future__ import annotations

from functools import partial

import pytest

from broker_store.engine.log import write_path as w
from broker_store.engine.log.write_path import MeasuredGroup, WritePath
from broker_store.messages import PutStatus
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import HandStore, message, small_settings


def groups(path: WritePath, count: int) -> int:
    """So many groups are made; how many are measured."""
    measured = 0
    for _ in range(count):
        path.groups += 1
        if path.groups >= path.due:
            path.end(path.begin(1.0, 1.0), 1, 1.0, 1.0)
            measured += 1
    return measured


def test_every_group_is_measured_while_they_are_few():
    path = WritePath(lambda: 0)
    for second in range(1, 10):
        assert groups(path, 60) == 60
        path.tick(second * 1_000)


def test_of_many_groups_some_are_measured_and_stand_for_all():
    path = WritePath(lambda: 0)
    for second in range(1, 11):
        measured = groups(path, 6_400)
        path.tick(second * 1_000)
    assert measured == w.MEASURED_PER_SECOND
    assert path.histograms.since_start(w.WHOLE).count == pytest.approx(64_000, rel=0.01)


def test_a_rush_that_ends_does_not_leave_the_next_groups_unmeasured():
    path = WritePath(lambda: 0)
    groups(path, 100_000)
    path.tick(1_000)
    assert path.every > 1_000
    path.tick(2_000)
    assert groups(path, 3) == 3


def test_the_stages_of_a_group_add_up_to_the_whole():
    path = WritePath(lambda: 0)
    measured = MeasuredGroup(3, 1.0, 1.001, appended_s=1.003, dispatch_s=0.004, size=500)
    path.end(measured, 7, 1.012, 1.020)
    found = {line: path.histograms.since_start(line) for line in range(w.WHOLE + 1)}
    assert [
        round(found[line].mean / 1e6) for line in (w.GATHER, w.APPEND, w.DISPATCH, w.FLUSH, w.ANSWER)
    ] == [1, 2, 4, 5, 8]
    assert found[w.WHOLE].mean == pytest.approx(sum(found[line].mean for line in range(w.WHOLE)))
    assert path.histograms.since_start(w.GROUP_MESSAGES).total == 21


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_group_that_is_measured_is_stored_as_any_other(tmp_path, flush):
    """The same messages, measured and not: the same log, queues and index, over rolled files and new
    queues."""
    logs = []
    for kind in ("plain", "apart"):
        store = HandStore(small_settings(tmp_path / kind / "store", flush_disk_type=flush)).begin()
        heard = []
        store.confirmation.arrival_listener = heard.extend
        store.confirmation.watch("topic", 0)
        for number in range(40):
            group = [
                message(
                    queue_id=number % 3,
                    body=b"x" * 300,
                    keys=(f"k{number}", f"k{number}b"),
                    unique=f"{number}{at}",
                )
                for at in range(5)
            ]
            group.append(message(body=b"x" * 20_000))  # larger than a file: refused
            if kind == "plain":
                results = list(store.appender.put_many(group))
            else:
                measured = MeasuredGroup(1, 0.0, 0.0)
                results = store.appender.put_measured(partial(store.appender.put_many, group), measured)
                assert measured.size == sum(result.log_end - result.log_offset for result in results[:5])
                assert (measured.dispatch_s > 0) is (flush == "ASYNC_FLUSH")
            assert [result.status for result in results] == [PutStatus.PUT_OK] * 5 + [
                PutStatus.MESSAGE_ILLEGAL
            ]
            if flush == "SYNC_FLUSH":
                store.flush()
            assert (
                store.status.positions().dispatched
                == store.status.positions().confirmed
                == store.status.positions().wrote
            )
        assert heard
        logs.append(
            (
                store.reads.records.log_bytes(0, store.confirmed),
                [store.reads.read_units("topic", queue, 0, 1_000) for queue in range(3)],
                [
                    len(store.reads.query_keys("topic", f"k{number}b", 32, 0, 1 << 62).records)
                    for number in range(40)
                ],
            )
        )
        store.close()
    assert logs[0] == logs[1]


def test_a_refused_group_moves_nothing(open_store):
    store = open_store()
    store.set_flag("no_room", "for the test")
    measured = MeasuredGroup(1, 0.0, 0.0)
    [result] = store.appender.put_measured(lambda: list(store.appender.put_many([message()])), measured)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert (measured.size, measured.dispatch_s, store.confirmed) == (0, 0.0, 0)


def test_syncs_and_waits_for_room_are_all_measured(open_store):
    store = open_store()
    for _ in range(200):
        store.appender.put(message(body=b"x" * 200))
        store.flush()
    lines = store.write_path.histograms
    assert lines.since_start(w.SYNC).count == store.status.snapshot().flush.count == 200
    assert lines.since_start(w.SYNC_BYTES).total == store.status.positions().wrote
    assert lines.since_start(w.LOG_ROLL).count == len(store.log.files) - 1 > 0
    assert lines.since_start(w.QUEUE_ROOM).count > 0
    assert store.write_path.waits[w.LOG_ROLL].at_ms == store.clock()


def test_a_paused_flusher_shows_as_what_is_not_on_the_disk_and_its_age(open_store, clock):
    store = open_store()
    store.appender.put(message())
    store.flush()
    lag = store.status.snapshot().lag
    assert (lag.unflushed_bytes, lag.unflushed_messages, lag.oldest_unflushed_ms) == (
        0,
        0,
        0,
    )
    clock.advance(60_000)  # it was quiet; what came then is not as old as that
    for _ in range(3):
        store.appender.put(message())
        clock.advance(40)
    lag = store.status.snapshot().lag
    assert (lag.unflushed_messages, lag.oldest_unflushed_ms) == (3, 120)
    store.flush()
    assert store.status.snapshot().lag.oldest_unflushed_ms == 0


def test_the_age_of_what_is_not_on_the_disk_is_known_behind_a_roll(open_store, clock):
    store = open_store()
    while store.log.file_size - store.status.positions().wrote > 1_000:
        store.appender.put(message(body=b"x" * 500))
    store.flush()
    clock.advance(1_000)
    # Into the next file: a blank closes the first, which begins where the flush ended
    store.appender.put(message(body=b"x" * 2_000))
    clock.advance(70)
    assert store.status.positions().flushed < store.log.file_size < store.status.positions().wrote
    assert store.status.snapshot().lag.oldest_unflushed_ms == 70


def test_how_many_messages_are_at_risk_is_not_known_of_what_a_crash_left_until_it_is_on_the_disk(open_store):
    store = open_store()
    store.appender.put(message())
    store.die()
    again = open_store()
    assert again.status.snapshot().lag.unflushed_bytes > 0
    assert again.status.snapshot().lag.unflushed_messages is None
    again.flush()
    assert again.status.snapshot().lag.unflushed_messages == 0


def test_a_failed_sync_is_not_taken_for_one(directory, clock):
    def on_call(name):
        if failing and name == "sync":
            raise OSError(5, "Input/output error")

    failing = False
    store = HandStore(small_settings(directory / "store"), clock, FailingDisk(on_call)).begin()
    store.appender.put(message())
    failing = True
    store.flush()
    clock.advance(10)
    assert store.write_path.histograms.since_start(w.SYNC).count == 0
    assert store.status.snapshot().lag.unflushed_messages == 1
    assert store.status.snapshot().lag.oldest_unflushed_ms == 10
    failing = False
    store.close()
