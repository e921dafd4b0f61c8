"""broker.timer_counts: waiting messages by topic and hour, and lateness by minute."""

import json

from broker_store.broker.timer_counts import HOUR_MS, OnTheWheel, TimerCounts
from broker_store.formats.java_hash import java_hash

MINUTE_MS = 60_000


def test_messages_are_counted_by_topic_and_hour():
    counts = TimerCounts(lambda: 77)
    counts.start(["Orders"], {java_hash("Orders"): 2, 12345: 1}, {0: 2, HOUR_MS: 1})
    counts.add("Orders", HOUR_MS + 5, 3)
    counts.remove(java_hash("Orders"), 10)
    counts.remove(12345, HOUR_MS)
    assert counts.facts() == OnTheWheel(messages=4, hours=[(0, 1), (HOUR_MS, 3)], topics={"Orders": 4})


def test_the_file_is_written_after_a_change():
    counts = TimerCounts(lambda: 77)
    assert counts.metrics_picture() is None
    counts.learn_name(java_hash("T"), b"T")
    counts.add("T", 0, 1)
    value = json.loads(counts.metrics_picture()())
    assert value["timingCount"] == {"T": {"count": 1, "timeStamp": 77}} and counts.metrics_picture() is None


def test_lateness_is_that_of_this_minute_and_the_one_before():
    counts = TimerCounts(lambda: 0)
    counts.note_lateness(40, 5 * MINUTE_MS)
    counts.note_lateness(10, 6 * MINUTE_MS)
    assert counts.recent_lateness_ms(6 * MINUTE_MS) == 40
    assert counts.recent_lateness_ms(7 * MINUTE_MS) == 10
    assert counts.recent_lateness_ms(8 * MINUTE_MS) == 0
