import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FormatError
from broker_store.formats import properties

text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


def test_pairs_are_written_as_apache_writes_them():
    assert (
        properties.encode({"TAGS": "TagA", "KEYS": "k1 k2", "gone": None})
        == b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
    )


def test_what_is_no_pair_is_dropped_in_reading():
    assert properties.decode("a\x01b\x02\x02x\x02=\x01\x02\x01v\x02n\x01\x02c\x01d\x01e\x02last\x01one") == {
        "a": "b",
        "c": "d\x01e",
        "last": "one",
    }
    assert properties.decode(b"") == {}


@given(st.dictionaries(text, text))
def test_what_is_encoded_is_decoded(pairs):
    assert properties.decode(properties.encode(pairs)) == pairs


@given(st.binary(max_size=60), st.sampled_from(["a", "TAGS", "b"]))
def test_one_property_is_read_as_if_all_were(noise, name):
    encoded = b"a\x01" + noise + b"\x02TAGS\x01T\x02" + noise
    assert properties.get(encoded, name) == properties.decode(encoded).get(name)


def test_the_last_of_two_equal_names_wins_unless_it_has_no_value():
    assert properties.get(b"a\x01x\x02a\x01y\x02a\x01\x02", "a") == "y"
    assert properties.get(b"aa\x01x\x02", "a") is None


@pytest.mark.parametrize("pairs", [{"": "x"}, {"x": ""}, {"a\x01": "b"}, {"a": "b\x02"}])
def test_what_could_not_be_read_back_is_not_written(pairs):
    with pytest.raises(FormatError):
        properties.encode(pairs)


def test_appending_puts_a_separator_where_the_first_lacks_it():
    assert properties.append(b"a\x01b", b"c\x01d\x02") == b"a\x01b\x02c\x01d\x02"
    assert properties.append(b"a\x01b\x02", b"c\x01d\x02") == b"a\x01b\x02c\x01d\x02"
    assert properties.append(b"", b"c\x01d\x02") == b"c\x01d\x02"
    assert properties.append(b"a\x01b", b"") == b"a\x01b"


def test_setting_one_property_leaves_the_bytes_of_the_others():
    assert (
        properties.set_values(b"a\x01\xff\x02b\x01old\x02c\x01x", {"b": "new", "c": None})
        == b"a\x01\xff\x02b\x01new\x02"
    )


@given(
    st.lists(st.sampled_from([b"a\x011", b"ab\x012", b"c\x01a", b"", b"b", b"\x01x"])),
    st.booleans(),
    st.dictionaries(st.sampled_from(["a", "b", "z"]), st.sampled_from([None, "v"])),
)
def test_setting_keeps_each_other_piece_whether_or_not_there_is_one_to_take_out(pieces, is_ended, changes):
    encoded = b"\x02".join(pieces) + (b"\x02" if is_ended and pieces else b"")
    kept = [
        piece for piece in encoded.split(b"\x02") if piece and piece.split(b"\x01")[0].decode() not in changes
    ]
    added = [f"{name}\x01{value}".encode() for name, value in changes.items() if value]
    assert properties.set_values(encoded, changes) == b"".join(piece + b"\x02" for piece in kept + added)


def test_keys_are_split_at_single_blanks_and_empty_pieces_left_out():
    assert properties.split_keys("k1  k2 ") == ("k1", "k2")
    assert properties.split_keys(None) == ()
    assert properties.join_keys(["a", "b"]) == "a b"


@given(
    st.lists(
        st.sampled_from(
            [
                b"DELAY\x012\x02",
                b"DELAY\x01\x02",
                b"XDELAY\x013\x02",
                b"DELAY",
                b"KEYS\x01DELAY\x02",
                b"TIMER_DELAY_MS\x015\x02",
                b"\x02",
            ]
        ),
        max_size=6,
    ).map(b"".join)
)
def test_some_are_got_as_all_are_decoded(encoded):
    names = ("DELAY", "TIMER_DELAY_MS", "KEYS", "GONE")
    assert properties.get_some(encoded, properties.any_of(names)) == {
        name: value for name, value in properties.decode(encoded).items() if name in names
    }
