"""broker.property_filters: the table and its file."""

import json

import pytest

from broker_store.broker.filters import parse
from broker_store.broker.property_filters import PropertyFilters
from broker_store.errors import DamagedStoreError

NOW_MS = 1_795_365_905_049
# As a broker of Apache's wrote the filter of G1 (tests/golden/sql92-live.jsonl, answer to 321).
ENTRY = (
    '{\n\t\t\t\t\t"bloomFilterData":{\n\t\t\t\t\t\t"bitNum":112,\n\t\t\t\t\t\t"bitPos":[8,60,14]\n\t\t\t\t\t},\n'
    '\t\t\t\t\t"bornTime":1795365905049,\n\t\t\t\t\t"clientVersion":102,\n\t\t\t\t\t"consumerGroup":"G1",\n'
    '\t\t\t\t\t"dead":false,\n\t\t\t\t\t"deadTime":0,\n\t\t\t\t\t"expression":"a < 2",\n'
    '\t\t\t\t\t"expressionType":"SQL92",\n\t\t\t\t\t"topic":"S1"\n\t\t\t\t}'
)
FILE = f'{{\n\t"filterDataByTopic":{{\n\t\t"S1":{{\n\t\t\t"groupFilterData":{{\n\t\t\t\t"G1":{ENTRY}\n\t\t\t}},\n\t\t\t"topic":"S1"\n\t\t}}\n\t}}\n}}'


@pytest.fixture
def filters():
    return PropertyFilters(clock=lambda: NOW_MS)


def test_the_file_is_as_apache_writes_it(filters):
    filters.register("G1", [parse("S1", "a < 2", "SQL92", 102)])
    assert filters.dirty
    assert json.loads(filters.picture()()) == json.loads(FILE)
    assert not filters.dirty


def test_a_loaded_filter_acts_and_counts_as_gone(filters):
    filters.load(FILE)
    entry = filters.get("S1", "G1")
    assert entry.filter.passes(b"a\x011\x02") and not entry.filter.passes(b"a\x012\x02")
    assert (entry.is_dead, entry.dead_ms, entry.version) == (True, NOW_MS, 102)
    filters.register("G1", [parse("S1", "a < 2", "SQL92", 102)])
    assert not entry.is_dead and filters.get("S1", "G1") is entry


def test_a_loaded_filter_that_does_not_compile_is_left_out(filters):
    filters.load(FILE.replace("a < 2", "a <"))
    assert filters.all() == []


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"filterDataByTopic":[]}', FILE.replace('"a < 2"', "7"), FILE.replace(":102", ':"x"'),
     FILE.replace("groupFilterData", "other")],
)  # fmt: skip
def test_a_bad_file_is_refused_as_a_whole(filters, text):
    with pytest.raises(DamagedStoreError):
        filters.load(text)
    assert filters.all() == []


def register(filters, text, version, topic="S1"):
    filters.register("G1", [parse(topic, text, "SQL92", version)])
    entry = filters.get("S1", "G1")
    return entry and (entry.expression, entry.version, entry.is_dead)


def test_versions_decide(filters):
    assert register(filters, "a = 1", 5) == ("a = 1", 5, False)
    assert register(filters, "a = 2", 5) == ("a = 1", 5, False)
    assert register(filters, "a = 2", 4) == ("a = 1", 5, False)
    assert register(filters, "a = 1", 6) == ("a = 1", 6, False)
    assert register(filters, "a = 2", 7) == ("a = 2", 7, False)
    assert register(filters, "b = 1", 8, topic="S2") == ("a = 2", 7, True)
    assert register(filters, "a = 3", 7) == ("a = 2", 7, False)
    assert register(filters, "a =", 9) is None
    assert register(filters, "a = 1", 1) == ("a = 1", 1, False)


def test_the_table_is_bounded_by_filters_and_by_characters():
    few = PropertyFilters(clock=lambda: NOW_MS, max_filters=2)
    few.register("G", [parse(f"S{number}", "a < 2", "SQL92", 1) for number in range(3)])
    assert [entry.topic for entry in few.all()] == ["S0", "S1"]
    few.register("G", [parse("S0", "a <", "SQL92", 2)])  # removes the first
    few.register("H", [parse("S3", "a < 2", "SQL92", 1)])
    assert [(entry.group, entry.topic) for entry in few.all()] == [("G", "S1"), ("H", "S3")]
    short = PropertyFilters(clock=lambda: NOW_MS, max_characters=9)
    short.register("G", [parse(f"S{number}", "a < 2", "SQL92", 1) for number in range(2)])
    assert [entry.topic for entry in short.all()] == ["S0"]
