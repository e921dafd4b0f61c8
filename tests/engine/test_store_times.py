"""Store times that go back: a start notes where, searches by time find all of them, and what is not known is
said."""

from __future__ import annotations

import json

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.store_times import FILE_NAME
from broker_store.formats import record
from broker_store.messages import Message
from broker_store.pipeline.splits import time_doubt

MINUTE = 60_000


@pytest.fixture
def stored(open_store, clock):
    """A closed store of 60 messages, a minute apart, and `set_times(store times by offset)`, as another
    broker may have written them."""
    store, begin_ms = open_store(), clock.now_ms
    places = []
    for number in range(60):
        clock.advance(MINUTE)
        places.append(store.appender.put(Message("topic", 0, b"%02d" % number)).log_offset)
    times = [store.reads.times.store_time_at("topic", 0, number) for number in range(60)]
    store.close()
    assert times[0] == begin_ms + MINUTE

    def set_times(changed: dict[int, int]) -> list[int]:
        path = store.root / "commitlog" / f"{0:020d}"
        with open(path, "r+b") as log:
            for number, store_ms in changed.items():
                log.seek(places[number] + record.FIXED_IPV4.offset["store_timestamp"])
                log.write(store_ms.to_bytes(8, "big"))
        return [changed.get(number, time_ms) for number, time_ms in enumerate(times)]

    return store.root, places, times, set_times


def by_definition(times: list[int], at_ms: int) -> tuple[int, int]:
    lower = min((number for number, time_ms in enumerate(times) if time_ms >= at_ms), default=len(times))
    return lower, max((number for number, time_ms in enumerate(times) if time_ms <= at_ms), default=0)


def test_a_search_in_a_log_whose_clock_was_set_back_finds_the_first_and_the_last_and_says_so(
    stored, open_store
):
    _, places, times, set_times = stored
    times = set_times({number: times[number] - 25 * MINUTE for number in range(40, 59)})
    store = open_store()
    assert store.times.steps == ((places[40], times[39], times[40]),) and store.times.known_from == 0
    for at_ms in range(times[0] - MINUTE, times[-1] + 30 * MINUTE, MINUTE // 2):
        found = (
            store.reads.times.offset_by_time("topic", 0, at_ms),
            store.reads.times.offset_by_time("topic", 0, at_ms, upper=True),
        )
        assert found == by_definition(times, at_ms)
        order = store.reads.times.time_order("topic", 0, at_ms)
        assert (order is not None) == (times[40] < at_ms <= times[39])
    assert str(store.reads.times.time_order("topic", 0, times[30])) == (
        f"store times go back once, at {places[40]:,} of the log by {times[39] - times[40]:,} ms:"
        " messages of the time that was asked for lie in more than one part of the queue"
    )


def test_the_messages_of_a_time_are_found_in_each_part(stored, open_store):
    _, _, times, set_times = stored
    times = set_times({number: times[number] - 25 * MINUTE for number in range(40, 59)})
    store = open_store()
    for begin in range(0, 60, 7):
        for end in range(begin, 60, 5):
            ranges = store.reads.times.offset_ranges("topic", 0, times[begin], times[end])
            wanted = [number for number in range(60) if times[begin] <= times[number] <= times[end]]
            assert [number for first, following in ranges for number in range(first, following)] == wanted


@pytest.mark.parametrize("by", [-1, 1])
def test_a_record_that_states_another_time_is_noted_and_counts_with_its_time(stored, open_store, by):
    _, places, times, set_times = stored
    times = set_times({30: times[30] + by * 1000 * MINUTE})
    store = open_store()
    assert [step.log_offset for step in store.times.steps] == [places[30 if by < 0 else 31]]
    for at_ms in (times[3], times[29], times[30], times[30] + 1, times[31], times[50]):
        assert (
            store.reads.times.offset_by_time("topic", 0, at_ms),
            store.reads.times.offset_by_time("topic", 0, at_ms, upper=True),
        ) == by_definition(times, at_ms)


def test_what_a_start_noted_is_still_known_when_a_later_start_reads_only_the_end(stored, open_store, clock):
    root, places, times, set_times = stored
    set_times({number: times[number] - 25 * MINUTE for number in range(40, 59)})
    store = open_store()
    steps = store.times.steps
    while len(store.log.files) < 5:
        clock.advance(MINUTE)
        store.appender.put(Message("topic", 0, bytes(1000)))
    store.close()
    store = open_store()
    assert store.report.start["base"] > places[59]
    assert (store.times.steps, store.times.known_from) == (steps, 0)


def test_without_the_note_nothing_is_known_of_what_a_start_does_not_read(stored, open_store, clock):
    root, _, times, _ = stored
    store = open_store()
    while len(store.log.files) < 5:
        clock.advance(MINUTE)
        store.appender.put(Message("topic", 0, bytes(1000)))
    store.close()
    (root / "config" / FILE_NAME).write_text("{torn")
    store = open_store()
    begin = store.report.start["base"]
    assert begin > 0 and store.times.known_from == begin
    assert f"not known whether store times go back below {begin:,} of the log" in str(
        store.reads.times.time_order("topic", 0, times[3])
    )
    assert json.loads((root / "config" / FILE_NAME).read_text())["from"] == begin


@pytest.mark.parametrize(
    "change",
    ["a step is gone", "a digit of a step", "where known from", "no sum", "nested without end", "endless"],
)
def test_a_note_that_is_not_as_it_was_written_is_not_used_and_the_start_reports_it(
    stored, open_store, clock, change
):
    root, _, times, set_times = stored
    set_times({number: times[number] - 25 * MINUTE for number in range(40, 59)})
    store = open_store()
    while len(store.log.files) < 5:
        clock.advance(MINUTE)
        store.appender.put(Message("topic", 0, bytes(1000)))
    store.close()
    path = root / "config" / FILE_NAME
    value = json.loads(path.read_bytes())
    assert len(value["steps"]) == 1 and value["from"] == 0
    if change == "a step is gone":
        value["steps"] = []
    elif change == "a digit of a step":
        value["steps"][0][1] ^= 1
    elif change == "where known from":
        value["from"] += 1
    elif change == "no sum":
        del value["sum"]
    text = json.dumps(value)
    if change == "nested without end":
        text = "[" * 100_000
    elif change == "endless":
        text = text.replace('"from": 0', '"from": 1e400')
    path.write_text(text)
    store = open_store()
    begin = store.report.start["base"]
    assert begin > 0 and (store.times.known_from, store.times.steps) == (begin, ())
    assert [(one["severity"], one["file"]) for one in store.report.findings] == [
        ("warning", f"config/{FILE_NAME}")
    ]
    assert "not as this broker wrote it" in store.report.findings[0]["what"]


def test_more_steps_than_are_kept_leave_the_older_part_unknown(open_store, clock, monkeypatch):
    monkeypatch.setattr("broker_store.engine.log.store_times.MAX_STEPS", 4)
    store = open_store()
    places = []
    for _ in range(20):
        clock.advance(MINUTE)
        places.append(store.appender.put(Message("topic", 0, b"x")).log_offset)
    last_ms = store.reads.times.store_time_at("topic", 0, 19)
    root = store.root
    store.close()
    with open(root / "commitlog" / f"{0:020d}", "r+b") as log:
        for number, place in enumerate(places[:19]):
            log.seek(place + record.FIXED_IPV4.offset["store_timestamp"])
            log.write((last_ms - number * MINUTE).to_bytes(8, "big"))
    store = open_store()
    assert [step.log_offset for step in store.times.steps] == places[15:19]
    assert store.times.known_from == places[15]


def test_a_lookup_by_key_says_when_times_go_back_across_its_begin_or_end(stored, open_store):
    _, _, times, set_times = stored
    set_times({number: times[number] - 25 * MINUTE for number in range(40, 59)})
    store = open_store()
    assert "ask without times" in store.reads.times.key_times_doubt(times[30], times[50])
    assert store.reads.times.key_times_doubt(0, 1 << 62) is None
    assert store.reads.times.key_times_doubt(times[3], times[5]) is None


def test_an_archive_of_a_part_in_which_times_go_back_or_may_go_back_says_so(stored, open_store):
    """The day of a message in it is that of its own store time, which may be before that of the message
    before."""
    root, places, times, set_times = stored
    set_times({40: times[40] - 25 * MINUTE, 50: times[50] - 30 * MINUTE})
    store = open_store()
    end = store.log.wrote
    store.close()
    said = (
        f"store times go back 2 times, first at {places[40]:,} of the log by {24 * MINUTE:,} ms: each "
        f"message is in the day that its own store time says"
    )
    assert time_doubt(0, end, root, None, Disk()) == said
    assert time_doubt(places[41], places[49], root, None, Disk()) is None
    (root / "config" / FILE_NAME).unlink()
    assert "is not known" in time_doubt(places[41], places[49], root, None, Disk())
    assert time_doubt(end, end, root, None, Disk()) is None, "nothing was added"
