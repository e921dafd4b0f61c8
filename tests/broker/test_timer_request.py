"""broker.timer_request: what a timer message requests, and its place on the wheel."""

import pytest

from broker_store.broker.timer_request import parse_long, requested_ms, row_due_ms, wheel_entry
from broker_store.engine.timer.timed import NO_NUMBER, Timed
from broker_store.formats import timer_log

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_300


def row(
    out_ms: int, asked_ms: int = NO_NUMBER, *, deletes: int = 0, topic_length: int = 6, sound: int = 1
) -> Timed:
    return Timed(sound, 0, 700, 120, NOW_MS, asked_ms, out_ms, 0, topic_length, 55, deletes, 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+12", 12), ("-12", -12), ("9223372036854775807", (1 << 63) - 1), ("9223372036854775808", None),
        ("", None), ("1.0", None), ("٣", None), (None, None),
    ],
)  # fmt: skip
def test_numbers_are_those_of_java(text, number):
    assert parse_long(text) == number


def test_seconds_come_before_milliseconds_and_those_before_a_time():
    pairs = {"TIMER_DELIVER_MS": "9"}
    assert requested_ms(pairs, 1_000) == 9
    pairs["TIMER_DELAY_MS"] = "50"
    assert requested_ms(pairs, 1_000) == 1_050
    pairs["TIMER_DELAY_SEC"] = "2"
    assert requested_ms(pairs, 1_000) == 3_000
    assert requested_ms({"TIMER_DELAY_SEC": "x", "TIMER_DELAY_MS": "50"}, 1_000) is None


def test_a_message_is_due_within_the_second_after_its_slot():
    assert row_due_ms(row(10_000, 10_400), 10_000) == 10_400
    assert row_due_ms(row(10_000, 99_000), 10_000) == 11_000
    assert row_due_ms(row(10_000), 10_000) == 11_000


def test_a_place_on_the_wheel_is_in_the_window_and_not_before_what_is_delivered():
    second_ms = NOW_MS // 1_000 * 1_000
    entry = wheel_entry(row(second_ms + 5_000), NOW_MS, 0, 2 * DAY_MS)
    assert (entry.slot_s * 1_000, entry.magic) == (second_ms + 5_000, timer_log.DEFAULT)
    late = wheel_entry(row(second_ms - 5_000), NOW_MS, second_ms, 2 * DAY_MS)
    assert late.slot_s * 1_000 == second_ms
    far = wheel_entry(row(second_ms + 9 * DAY_MS), NOW_MS, 0, 2 * DAY_MS)
    assert (far.slot_s * 1_000, far.magic) == (second_ms + 2 * DAY_MS, timer_log.DEFAULT | timer_log.ROLL)
    little_more = wheel_entry(row(second_ms + 2 * DAY_MS + 1_000), NOW_MS, 0, 2 * DAY_MS)
    assert little_more.slot_s * 1_000 == second_ms + DAY_MS, "so that the last roll has time left"


@pytest.mark.parametrize("wrong", [row(NO_NUMBER), row(10_000, topic_length=0), row(10_000, sound=0)])
def test_a_record_without_time_or_topic_has_no_place(wrong):
    assert wheel_entry(wrong, NOW_MS, 0, 2 * DAY_MS) is None
