import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FormatError
from broker_store.formats import message_id
from broker_store.formats.message_id import UniqueId


def test_the_offset_id_of_the_specification_goes_both_ways():
    host = (b"\x7f\0\0\1", 0x8477)
    assert message_id.encode_offset_id(host, 0) == "7F000001000084770000000000000000"
    assert message_id.decode_offset_id("7F000001000084770000000000000000") == (host, 0)


@given(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 65535),
    st.integers(0, 2**63 - 1),
)
def test_offset_ids_survive_the_way_there_and_back(address, port, offset):
    assert message_id.decode_offset_id(message_id.encode_offset_id((address, port), offset)) == (
        (address, port),
        offset,
    )


@pytest.mark.parametrize(
    "text", ["", "7F", "7F00000100008477000000000000000", "ZZ000001000084770000000000000000",
             " F000001000084770000000000000000", "7F000001FFFFFFFF0000000000000000",
             "7F00000100008477FFFFFFFFFFFFFFFF", "7F 00 00 01 000084770000 000000 "],
)  # fmt: skip
def test_what_is_no_offset_id_is_refused(text):
    with pytest.raises(FormatError):
        message_id.decode_offset_id(text)


def test_a_unique_id_has_the_parts_of_a_real_one():
    unique = message_id.decode_unique_id("7F0000010A2318B4AAC2000000000001")
    assert unique == UniqueId(b"\x7f\0\0\1", 0x0A23, 0x18B4AAC2, 0, 1)
    assert message_id.encode_unique_id(unique) == "7F0000010A2318B4AAC2000000000001"


def test_the_numbers_of_a_unique_id_wrap():
    assert (
        message_id.encode_unique_id(UniqueId(bytes(16), 0x12345, -1, 5, 0x10000))
        == "00" * 16 + "2345" + "FFFFFFFF" + "00000005" + "0000"
    )
