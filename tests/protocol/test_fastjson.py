import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FieldError
from broker_store.protocol import fastjson, fastjson_reader, fastjson_references
from broker_store.protocol.fastjson import dumps, dumps_strict, loads
from broker_store.protocol.fastjson_values import ObjectKey
from tests.support.wire_samples import all_samples

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "T"}

JSON_BODIES = [
    sample
    for sample in all_samples()
    if sample.body[:1] in (b"{", b"[") and len(sample.body) == sample.body_bytes
]


@pytest.mark.parametrize("sample", JSON_BODIES, ids=lambda sample: sample.name)
def test_every_body_of_a_real_broker_is_read_and_written_back(sample, json_library):
    value = loads(sample.body)
    assert loads(dumps(value)) == value
    assert len(dumps(value)) == len(sample.body)


def test_number_keys_and_object_keys_are_read_and_written(json_library):
    body = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7},"t":{0:"a",1:"b"}}'
    value = loads(body)
    assert value == {"offsetTable": {ObjectKey(QUEUE): 7}, "t": {0: "a", 1: "b"}}
    assert dumps(value) == body
    key = next(iter(value["offsetTable"]))
    assert (key["queueId"], key.get("topic"), key.get("none")) == (0, "T", None)


def test_blanks_and_all_kinds_of_values_are_read(json_library):
    assert loads(b' { 0 : [ 1 , -2.5e3 , true , null , "\\u00e4\\n" ] , "x" : { } } ') == {
        0: [1, -2500.0, True, None, "\u00e4\n"],
        "x": {},
    }


def test_references_share_what_they_point_to():
    value = loads(b'{"a":{"b":[{"x":1}]},"c":{"$ref":"$.a.b[0]"},"d":[{"$ref":"$.c"}]}')
    assert value["c"] is value["a"]["b"][0]
    assert value["d"][0] is value["c"]


def test_references_are_left_as_they_are_where_only_names_are_read():
    body = b'[{"a":1},{"$ref":"$[0]"}]'
    assert fastjson.loads_without_references(body) == [{"a": 1}, {"$ref": "$[0]"}]
    with pytest.raises(FieldError, match="fastjson text"):
        fastjson.loads_without_references(b"[")


def test_a_reference_finds_a_queue_by_its_java_text():
    body = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5},{"brokerName":"b","queueId":1,"topic":"T"}:'
        b'{"$ref":"$.offsetTable.MessageQueue\\\\ \\\\[topic\\\\=T\\\\,\\\\ '
        b'brokerName\\\\=b\\\\,\\\\ queueId\\\\=0\\\\]"}}}'
    )
    assert [item["maxOffset"] for item in loads(body)["offsetTable"].values()] == [5, 5]


@pytest.mark.parametrize("body", [b'{"a":{"$ref":"$"}}', b'{"a":{"b":[{"$ref":"$.a"}]}}', b'{"$ref":"$"}'])
def test_a_reference_to_what_contains_it_is_refused(body):
    with pytest.raises(FieldError):
        loads(body)


def shared_levels(levels: int) -> bytes:
    members = {"a0": ["x"] * 10}
    for level in range(1, levels):
        members[f"a{level}"] = [{"$ref": f"$.a{level - 1}"}] * 10
    return json.dumps(members).encode()


def test_a_small_body_cannot_stand_for_a_large_value_by_its_references():
    loads(shared_levels(3))
    with pytest.raises(FieldError, match="references that stand for more than"):
        loads(shared_levels(7))


def test_references_as_apache_writes_them_are_within_the_bounds():
    brokers = {
        "clusterName": "c",
        "brokerName": "b",
        "brokerAddrs": {"0": "127.0.0.1:10911", "1": "127.0.0.1:10912"},
    }
    value = loads(json.dumps({"s": brokers, "t": [{"$ref": "$.s"}] * 20_000}).encode())
    assert value["t"][19_999] is value["s"]
    queues = {
        str(n): {"q": {"topic": "T", "brokerName": "b", "queueId": n}, "again": {"$ref": f"$.t.{n}.q"}}
        for n in range(20_000)
    }
    assert loads(json.dumps({"t": queues}).encode())["t"]["19999"]["again"]["queueId"] == 19_999


def test_a_reference_that_stands_in_many_places_is_followed_once(monkeypatch):
    parsed = []
    steps = fastjson_references.read_steps
    monkeypatch.setattr(fastjson_references, "read_steps", lambda path: parsed.append(path) or steps(path))
    chain = {f"k{n}": {"$ref": f"$.k{n + 1}"} for n in range(50)} | {"k50": [1]}
    value = loads(json.dumps({"refs": [{"$ref": "$.k0"}] * 500, **chain}).encode())
    assert value["refs"][499] == [1]
    assert len(parsed) == 51  # each path once; without that it is 25,500


def test_the_steps_of_all_references_of_a_body_are_bounded(monkeypatch):
    monkeypatch.setattr(fastjson_references, "MAX_STEPS", 20)
    body = {"a": [[n] for n in range(11)], "refs": [{"$ref": f"$.a[{n}]"} for n in range(10)]}
    assert loads(json.dumps(body).encode())["refs"][9] == [9]
    body["refs"].append({"$ref": "$.a[10]"})
    with pytest.raises(FieldError, match="references of more than 20 steps"):
        loads(json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{1}",
        b'{"a":}',
        b'{"a":1,}',
        b"[1 2]",
        b"{[1]:2}",
        b"{null:1}",
        b"{{[]:1}:2}",
        b'{0:"\\ud800"}',
        b"\xff",
        b"NaN",
        b"{0:NaN}",
        b"{0:1}x",
        b"{0:" + b"[" * 100000,
        b"[" * 5000 + b"]" * 5000,
        b'{"a":{"$ref":"$.b"}}',
        b'{"a":{"$ref":"..x"}}',
        b'{"a":{"$ref":"$.a"}}',
        b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        b'{"a":[],"c":{"$ref":"$.a[9]"}}',
    ],
)
def test_what_cannot_be_read_is_refused(body, json_library):
    with pytest.raises(FieldError):
        loads(body)


def test_nulls_are_left_out_and_what_java_has_no_number_for_too(json_library):
    assert dumps({"a": None, "b": math.nan, "c": [None], "d": 0.0}) == b'{"b":null,"c":[null],"d":0.0}'


def test_names_are_sorted_and_text_is_plain_utf8(json_library):
    assert dumps({"b": "\u00e4\x01", "a": ObjectKey(QUEUE)}) == (
        '{"a":{"brokerName":"b","queueId":0,"topic":"T"},"b":"\u00e4\\u0001"}'.encode()
    )
    assert dumps_strict({"b": "\u00e4", "a": {0: 1}}) == b'{"a":{"0":1},"b":"\\u00e4"}'


@given(st.binary(max_size=60) | st.text('{}[]":,$ref.a0\\1-e tn', max_size=40).map(str.encode))
def test_any_bytes_are_a_value_or_a_field_error(data):
    try:
        loads(data)
    except FieldError:
        pass


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers(0, 9), inner, max_size=3)
        | st.dictionaries(
            st.builds(lambda q: ObjectKey(QUEUE | {"queueId": q}), st.integers(0, 3)), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


@given(values)
def test_what_is_written_is_read_again(value):
    assert loads(dumps(value)) == without_nulls(value)


@given(
    st.recursive(
        st.integers() | st.text(max_size=5),
        lambda i: st.dictionaries(st.text(max_size=3), i, max_size=3),
        max_leaves=5,
    )
)
def test_strict_json_is_json(value):
    assert json.loads(dumps_strict(value)) == value


@pytest.mark.parametrize("value", [
    {"a": 1, "t": {"x": {"y": [1, "zü\n", None, True, 1.5]}, "z": {}}, "e": {}, "l": []}, {}, {"t": {}}, {"long": "x" * 10_000, "t": {"deep": {"t": {"t": 1}}}},
    {"t": {f"n{n}": {"topicName": f"n{n}", "attributes": {"a": "b"}, "perm": 6} for n in range(2_000)}}, {"many": list(range(5_000)), "t": {"q": "\\\""}},
    {"t": {"large": {f"k{n}": "v" * 40 for n in range(500)}}, "n": 123456789012345678},
])  # fmt: skip
def test_what_is_read_in_pieces_is_what_is_read_at_once(value):
    for data in (
        json.dumps(value).encode(),
        json.dumps(value, indent=2).encode(),
        json.dumps(value, ensure_ascii=False).encode(),
    ):
        assert fastjson.loads_in_pieces(data, frozenset({"t"})) == fastjson.loads(data) == value


@pytest.mark.parametrize("data", [b"", b"{", b'{"t":{"a":}}', b'{"t":{"a":1}', b'{"t":{"a":1}}x', b'{"a":NaN}', b'{"t":{1:2}}', b'{"t" 1}', b"\xff", b'{"a":"\\ud800"}', b'{"t":{"a":' + b"[" * 5_000,
                                  b'{"a":' * 3_000])  # fmt: skip
def test_what_cannot_be_read_in_pieces_is_refused(data):
    with pytest.raises(FieldError):
        fastjson.loads_in_pieces(data, frozenset({"t"}))


def test_the_dialect_is_read_in_pieces_too():
    assert fastjson.loads_in_pieces(
        b'{"a":{0:"x",{"q":1}:2},"t":{"b":{1:2}}}', frozenset({"t"})
    ) == fastjson.loads(b'{"a":{0:"x",{"q":1}:2},"t":{"b":{1:2}}}')


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1_000])
def test_a_table_is_written_in_pieces(count):
    table = {f"n{number}": {0: number} for number in range(count)}
    assert loads(fastjson.dumps_table({"dataVersion": {"counter": 1}}, "offsetTable", table.items())) == {
        "dataVersion": {"counter": 1},
        "offsetTable": table,
    }
    assert loads(fastjson.dumps_table({}, "t", table.items())) == {"t": table}


@pytest.mark.parametrize("body", [
    b'{"a,0:1":{0:"{1:2}"}}', b'{"x":"\\"{0:","y":{ 0 : 1 , -2 : { {"q":1, "t":"a}:"} : 3 } }}', b'{0:"\xee\x80\x80","\\ue001":1}', b'{{}:1}', b'{0:1,"0":2}',
])  # fmt: skip
def test_the_dialect_is_read_as_letter_by_letter(body, json_library):
    assert loads(body) == fastjson_reader.Reader(body.decode()).read()


@pytest.mark.parametrize("has_possessive", [fastjson.HAS_POSSESSIVE, False])
def test_the_dialect_is_read_also_by_an_old_python(has_possessive, monkeypatch):
    """Python before 3.11.5 does not match the pattern."""
    monkeypatch.setattr(fastjson, "HAS_POSSESSIVE", has_possessive)
    offsets = loads(b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":7}},"t":{0:1}}')
    assert offsets == {"offsetTable": {ObjectKey({"brokerName": "a", "queueId": 0, "topic": "T"}): {"maxOffset": 7}}, "t": {0: 1}}  # fmt: skip
    for wrong in (b"", b"{0:}", b"{{}:1", b"{0:1}x", b"{" * 10_000, b'{0:"\xff"}', b'{0:"\\ud800"}'):
        with pytest.raises(FieldError):
            loads(wrong)


def test_the_dialect_is_read_by_one_match_for_each_key_that_is_none_of_json(monkeypatch):
    matches = []

    class Counted:
        @staticmethod
        def match(text, at):
            matches.append(at)
            return pattern.match(text, at)

    pattern = fastjson._UP_TO_KEY
    monkeypatch.setattr(fastjson, "_UP_TO_KEY", Counted)
    values = [1] * 5_000
    assert loads(json.dumps({"k": values}).replace('"k"', "0").encode()) == {0: values}
    assert len(matches) == 2  # and not one step for each of 5,000 values


@given(values)
def test_the_dialect_reader_agrees_with_the_reader_of_letters(value):
    data = dumps(value)
    assert fastjson._read_dialect(data.decode()) == fastjson_reader.Reader(data.decode()).read()
