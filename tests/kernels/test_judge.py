"""A filter's program, run by the kernel, gives the results of the closures for every expression of Apache's
results and every kind of value."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest
from numba import njit, types

from broker_store.engine.rows import Words
from broker_store.formats import properties
from broker_store.kernels import context as c
from broker_store.kernels.judge import judge
from broker_store.sql92.errors import ExpressionError
from broker_store.sql92.expression import Expression
from broker_store.sql92.property_filter import PropertyFilter
from tests.support.hand_store import Clock, HandStore, small_settings
from tests.support.stores import GOLDEN


@njit(types.int64(types.int64, types.int64, types.int64))
def run(program, at, length):
    return judge(program, at, length)


@pytest.fixture(scope="module")
def words_of(tmp_path_factory):
    """Return the words of a program as a store makes them."""
    store = HandStore(small_settings(tmp_path_factory.mktemp("judge") / "store"), Clock()).begin()
    yield store.reads._program
    store.close()


def verdict(words: Words, encoded: bytes) -> int:
    room = Words((len(encoded) + 7) // 8 + 1)
    room.array.view("u1")[: len(encoded)] = list(encoded)
    return run(words.address, room.address, len(encoded))


def test_every_expression_of_apaches_results_is_judged_alike(words_of):
    rows: dict[str, list[dict[str, str]]] = {}
    with gzip.open(GOLDEN / "sql92.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row.get("stage") != "compile":
                rows.setdefault(row["expr"], []).append(row["props"])
    wrong, judged, asked, with_program = [], 0, 0, 0
    for text, given in rows.items():
        judging = PropertyFilter(Expression(text))
        if judging.program is None:
            continue
        with_program += 1
        words = words_of(judging.program)
        for values in given:
            # Of a record: names and values are not empty, and have no separator.
            pairs = {name: value for name, value in values.items() if name and value}
            encoded = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
            found = verdict(words, encoded)
            if found == c.VERDICT_NONE:
                asked += 1
            elif found != judging.passes(encoded):
                wrong.append((text, pairs, found))
            judged += 1
    assert wrong == []
    assert with_program > 0.8 * len(rows)
    assert asked < 0.35 * judged and judged > 5_000


VALUES = [
    "0", "1", "-1", "+1", "01", "5", "1.0", "1.5", ".5", "5.", ".", "-", "+", "1e1", " 1", "abc", "true", "TRUE", "tRuE", "trueX",
    "NaN", "Infinity", "0x1p3", "-0", "0.0", "-0.0", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "999999999999999", "9999999999999999", "0.1", "123456789012345.6",
    "0.000000000000001", "00000000000000000000001", "١", "é", "x\x01y", "0.30000000000000004", "1.5.2", "--1",
]  # fmt: skip
EXPRESSIONS = [
    "a = 1", "1 = a", "a <> 1", "a > 1", "1 > a", "a <= 2147483647", "a >= -2147483648", "a = 9223372036854775807", "a = 2147483648",
    "a = 1.0", "a > 0.1", "a < 0.5", "0.1 <= a", "a = 0.3", "a BETWEEN 0 AND 5", "a NOT BETWEEN 0.5 AND 1.5", "a = b", "a <> b", "a > b", "a <= b",
    "a = 'abc'", "'abc' = a", "a IN ('1', 'abc', 'é')", "a NOT IN ('1')", "a CONTAINS '1'", "a NOT CONTAINS '1'", "a STARTSWITH '1'",
    "a NOT ENDSWITH '0'", "a CONTAINS 'é'", "a IS NULL", "a IS NOT NULL", "a = TRUE", "a = FALSE", "a <> TRUE", "a", "NOT a", "a OR b IS NULL",
    "a = 1 AND b = 1", "a = 1 OR b = 1", "NOT (a = 1 AND b = 1)", "a = 1 AND (b = 1 OR a > b) AND NOT (b = 2)", "1 = 1 OR a = 1", "NULL AND a = 1",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_every_kind_of_value_is_judged_as_by_the_closures(words_of, text):
    judging = PropertyFilter(Expression(text))
    assert judging.program is not None
    words = words_of(judging.program)
    asked = 0
    for mine, other in itertools.product([None, *VALUES], [None, "1", "-0", "abc", "1.5"]):
        pairs = [(name, value) for name, value in (("a", mine), ("b", other)) if value is not None]
        encoded = "".join(
            f"{name}\x01{value}\x02" for name, value in [("x", "y"), *pairs, ("ab", "1")]
        ).encode()
        found = verdict(words, encoded)
        asked += found == c.VERDICT_NONE
        assert found in (c.VERDICT_NONE, judging.passes(encoded)), (text, pairs)
    assert asked < 150


@pytest.mark.parametrize(
    "encoded",
    [
        b"", b"\x02", b"a", b"a\x01", b"\x01b\x02", b"a\x01\x02", b"a\x011", b"\x02\x02a\x011\x02", b"a\x012\x02a\x011\x02",
        b"a\x011\x02a\x012\x02", b"a\x011\x02a\x01\x02", b"b\x01a\x011\x02", b"aa\x011\x02", b"A\x011\x02", b"a\xff\x011\x02", b"a\x01\xff\x02b\x01\xfe\x02",
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", ["a = 1", "a = b", "a IS NULL", "a CONTAINS '1'"])
def test_odd_properties_are_read_as_elsewhere(words_of, encoded, text):
    judging = PropertyFilter(Expression(text))
    found = verdict(words_of(judging.program), encoded)
    wanted = judging.expression.matches(properties.decode(encoded))
    assert judging.passes(encoded) == wanted
    assert found in (c.VERDICT_NONE, wanted)


def test_long_searches_are_left_to_python(words_of):
    judging = PropertyFilter(Expression(f"a CONTAINS '{'x' * 2_000}y'"))
    assert verdict(words_of(judging.program), b"a\x01" + b"x" * 20_000 + b"\x02") == c.VERDICT_NONE


@pytest.mark.parametrize(
    "text", ["(a = 1) = (b = 1)", "a = '\ufffd'", " OR ".join(f"a{n} = 1" for n in range(17))]
)
def test_rare_filters_have_no_program(text):
    assert PropertyFilter(Expression(text)).program is None


def test_the_longest_filters_have_sound_programs(words_of):
    for text in (" AND ".join(["a = 1"] * 512), "(a = 1 AND (a = 2 OR " * 98 + "a = 1" + "))" * 98):
        try:
            judging = PropertyFilter(Expression(text))
        except ExpressionError:
            pytest.fail(text[:40])
        words = words_of(judging.program)
        assert [verdict(words, b"a\x01%d\x02" % value) for value in (1, 2)] == [1, 0]
