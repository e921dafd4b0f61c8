import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FormatError
from broker_store.formats import config_json
from broker_store.formats.config_json import DataVersion
from tests.support import stores


def test_every_file_of_5_5_0_is_written_again_byte_for_byte(tmp_path):
    paths = sorted((stores.unpack("broker-dir", tmp_path) / "config").glob("*.json"))
    for path in paths:
        assert config_json.write(config_json.read(path.read_bytes())) == path.read_text(), path.name
    assert len(paths) == 6


def test_the_layout_of_5_3_3_is_read_too(tmp_path):
    config = stores.unpack("golden-clean", tmp_path) / "config"
    offsets = config_json.read((config / "consumerOffset.json").read_text())
    assert set(offsets) == {"dataVersion", "groupTopicMap", "offsetTable"}
    assert all(isinstance(queue_id, int) for table in offsets["offsetTable"].values() for queue_id in table)
    assert config_json.read((config / "delayOffset.json").read_text())["offsetTable"] == {3: 3}


def test_quoted_and_bare_integer_keys_mean_the_same():
    bare, quoted = (
        config_json.read('{"t@g":{0:5, 1 : 7,-1:2}}'),
        config_json.read('{"t@g":{"0":5,"1":7,"-1":2}}'),
    )
    assert (
        config_json.int_keys(bare["t@g"], "t@g")
        == config_json.int_keys(quoted["t@g"], "t@g")
        == {0: 5, 1: 7, -1: 2}
    )
    assert bare == {"t@g": {0: 5, 1: 7, -1: 2}}


def test_what_only_looks_like_a_bare_key_within_a_string_stays_as_it_is():
    text = '{"a":"{1:2,\\"3:4}","b":["{5:6"]}'
    assert config_json.read(text) == {"a": '{1:2,"3:4}', "b": ["{5:6"]}


def test_text_is_written_with_tabs_and_bare_integer_keys():
    value = {
        "dataVersion": DataVersion(0, 1, 2).to_json(),
        "empty": {},
        "none": None,
        "list": ["a", 1],
        "offsets": {0: 5, 10: 7},
    }
    assert config_json.write(value) == (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":2\n\t},\n\t"empty":{},\n'
        '\t"list":[\n\t\t"a",\n\t\t1\n\t],\n\t"offsets":{\n\t\t0:5,\n\t\t10:7\n\t}\n}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        '{"a":NaN}',
        "[" * 100_000,
        b"\xff\xfe",
        "{1e5:2}",
        "{a:1}",
        '{"a":"\\ud800"}',
        '{0:"\\uDfFf"}',
        '{"\\udc00\\ud800":1}',
    ],
)
def test_what_cannot_be_read_is_the_one_error(text):
    with pytest.raises(FormatError):
        config_json.read(text)


def test_a_pair_of_surrogates_is_a_character():
    assert config_json.read('{"a":"\\ud83d\\ude00 \\\\ud800"}') == {"a": "😀 \\ud800"}


def test_a_key_that_is_no_integer_is_refused_where_integers_are_asked_for():
    for value in ({"x": 1}, [1], None):
        with pytest.raises(FormatError):
            config_json.int_keys(value, "offsetTable")


json_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs", "Cn"])), inner, max_size=4)
    | st.dictionaries(st.integers(-(2**31), 2**31), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_what_is_written_is_read(value):
    assert config_json.read(config_json.write(value)) == value


@pytest.mark.parametrize(
    "count", [0, 1, config_json.ENTRIES_PER_PIECE, config_json.ENTRIES_PER_PIECE + 1, 1_000]
)
def test_a_table_is_written_in_short_pieces_that_make_the_same_text(count):
    head, table = (
        {"dataVersion": {"counter": 1}, "Größe": [1]},
        {f"T{number}@ü": {0: number} for number in range(count)},
    )
    pieces = list(config_json.table_pieces(head, "offsetTable", table.items()))
    assert max(piece.count(b"@") for piece in pieces) == min(count, config_json.ENTRIES_PER_PIECE)
    written = config_json.write_table(head, "offsetTable", table.items())
    assert written == b"".join(pieces) == config_json.write(head | {"offsetTable": table}).encode()


def test_versions_compare_by_state_then_counter_then_time():
    assert DataVersion.from_json({"counter": 3, "timestamp": 9}) == DataVersion(0, 3, 9)
    assert DataVersion.from_json(None) == DataVersion()
    assert DataVersion(1, 2, 3).next(50) == DataVersion(1, 3, 50)
    with pytest.raises(FormatError):
        DataVersion.from_json({"counter": "x"})
