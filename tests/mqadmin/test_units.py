"""Numbers on pages: exact, with a unit, and unknown when they are not measured."""

from __future__ import annotations

import re

import pytest
from django.template import Context, Template

from broker_store.engine.status.store_state import LogPositions
from mqadmin.templatetags import units

# Read by test_browser.py too: the script that keeps numbers moving must write them the same way.
CASES = [
    ("count", 0, "0"),
    ("count", 1_804_221, "1,804,221"),
    ("count", (1 << 53) - 1, "9,007,199,254,740,991"),
    ("size", 0, "0 B"),
    ("size", 1_023, "1023 B"),
    ("size", 1_024, "1.0 KiB"),
    ("size", 356_912_001, "340.4 MiB"),
    ("size", 1_023 * 1_024, "1,023 KiB"),
    ("size", 5 << 40, "5.0 TiB"),
    ("size", 5 << 52, "20,480 TiB"),
    ("rate", 0, "0/s"),
    ("rate", 0.4, "0.4/s"),
    ("rate", 99.94, "99.9/s"),
    ("rate", 1_204.2, "1,204/s"),
    ("percent", 0.316, "31.6 %"),
    ("duration", 0, "0 ms"),
    ("duration", 0.04, "< 0.1 ms"),
    ("duration", 2.4, "2.4 ms"),
    ("duration", 999, "999 ms"),
    ("duration", 59_900, "59.9 s"),
    ("duration", 61_000, "1 min 1 s"),
    ("duration", 8_040_000, "2 h 14 min"),
    ("duration", 500_000_000, "5 d 18 h"),
    ("micros", 0, "0.0 µs"),
    ("micros", 9.94, "9.9 µs"),
    ("micros", 9.96, "10 µs"),
    ("micros", 999.4, "999 µs"),
    ("micros", 999.6, "1.0 ms"),
    ("micros", 41_000, "41 ms"),
]


@pytest.mark.parametrize(("name", "value", "text"), CASES)
def test_a_number_has_its_unit(name, value, text):
    assert getattr(units, name)(value) == text


@pytest.mark.parametrize(
    "name",
    ["count", "size", "rate", "duration", "micros", "percent", "moment", "ago", "permission", "running_for"],
)
def test_what_is_not_known_is_said_so(name):
    assert "unknown" in getattr(units, name)(None)


def test_a_difference_with_an_unknown_is_unknown():
    assert units.minus(5, None) is None and units.minus(None, 5) is None and units.minus(5, 3) == 2


def test_times_that_no_calendar_has_are_unknown():
    for impossible in (0, -1, 1 << 62):
        assert "unknown" in units.moment(impossible)


def test_a_bar_stays_within_its_frame():
    assert units.share(5, 0) == units.share(None, 5) == "0"
    assert units.share(50, 10) == "100.000"
    assert units.share(-5, 10) == "0.000"


def test_a_word_of_a_page_links_to_its_meaning_and_in_a_label_it_is_no_link():
    text = Template('{% load units %}{% word "Cold read" "cold" %}').render(Context())
    assert text.startswith('<a class="word" href="/glossary/#cold-read" data-tip="A read of bytes that')
    assert text.endswith(">cold</a>")
    label = Template('{% load units %}{% word "Lag" in_label=True %}').render(Context())
    assert label.startswith('<span class="word" tabindex="0" data-tip="How much') and "href" not in label


def test_tracks_are_drawn_from_the_checkpoint_to_the_end_of_the_log():
    positions = {
        "wrote": 300,
        "confirmed": 300,
        "dispatched": 250,
        "flushed": 200,
        "checkpoint_position": 100,
    }
    rows = {row["key"]: row for row in units.tracks(LogPositions(**positions))["rows"]}
    assert [rows[key]["width"] for key in positions] == ["100.000", "100.000", "75.000", "50.000", "0"]
    assert rows["flushed"]["lag"] == 100
    unknown = units.tracks(LogPositions())["rows"]
    assert all(row["at"] is None and row["lag"] is None for row in unknown)


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 1 << 30, "0.0 %"),
        (1, 1 << 30, "< 0.1 %"),
        (1, 8, "12.5 %"),
        (1, 0, units.UNKNOWN),
        (None, 8, units.UNKNOWN),
    ],
)
def test_a_share_that_is_small_is_not_said_to_be_nothing(part, whole, said):
    assert units.ratio(part, whole) == said


@pytest.mark.parametrize(
    ("moments", "shown"),
    [
        ([60_000, 120_000], ["1970-01-01 00:01", "1970-01-01 00:02"]),
        ([60_000, 119_999], ["00:01:00", "00:01:59"]),
        ([60_000, 60_999], ["00:01:00.000", "00:01:00.999"]),
        ([60_000, 60_000], ["00:01:00.000", "00:01:00.000"]),
    ],
)
def test_times_of_an_axis_are_as_long_as_they_must_be(moments, shown):
    assert [re.sub("<[^>]*>", "", units.moment_among(each, moments)) for each in moments] == shown
    assert units.moment_among(None, [None, 60_000]) == units.UNKNOWN
