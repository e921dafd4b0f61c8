import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FormatError
from broker_store.formats import properties, record
from broker_store.messages import Message
from tests.support import stores

NAMES = ["clean", "clean-small", "crash", "broker-dir", "golden-clean", "golden-crash"]


def records_of(root):
    """Every record of a store with its bytes, file by file."""
    for start, data in stores.log_bytes(root):
        at = 0
        while at + record.BLANK_BYTES <= len(data) and record.read_head(data, at).is_record:
            message = record.decode(data, at, log_offset=start + at)
            yield message, data[at : at + message.size]
            at += message.size


def as_put(message):
    return Message(
        topic=message.topic,
        queue_id=message.queue_id,
        body=message.body,
        properties=message.raw_properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def test_offsets_of_the_fixed_fields_are_those_of_the_specification():
    offset = record.FIXED_IPV4.offset
    assert [
        offset[name] for name in ("magic", "queue_offset", "log_offset", "sys_flag", "born_timestamp")
    ] == [4, 20, 28, 36, 40]
    assert [
        offset[name] for name in ("born_address", "store_timestamp", "reconsume_times", "body_length")
    ] == [48, 56, 72, 84]
    assert (
        record.FIXED[1].offset["store_timestamp"] == 68
        and record.FIXED[3].size == record.FIXED_IPV4.size + 24
    )
    assert (record.MAGIC_V1, record.MAGIC_V2, record.BLANK_MAGIC) == (-626843481, -626843477, -875286124)
    assert record.MIN_RECORD == 91


@pytest.mark.parametrize("name", NAMES)
def test_every_record_of_a_real_store_is_encoded_again_byte_for_byte(name, tmp_path):
    count = 0
    for message, raw in records_of(stores.unpack(name, tmp_path)):
        put = as_put(message)
        assert record.encode(put, message.queue_offset, message.log_offset, message.store_timestamp) == raw
        assert record.record_size(put) == len(raw)
        count += 1
    assert count == {"broker-dir": 166, "golden-clean": 70, "golden-crash": 4320}.get(name, 3106)


@pytest.mark.parametrize("name", ["clean", "clean-small", "crash", "broker-dir"])
def test_records_say_what_the_real_store_says_of_them(name, tmp_path):
    rows = {row["physicalOffset"]: row for row in stores.messages(name)}
    decoded = {message.log_offset: message for message, _ in records_of(stores.unpack(name, tmp_path))}
    assert decoded.keys() == rows.keys()
    for log_offset, row in rows.items():
        message = decoded[log_offset]
        assert (
            message.size,
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.body_crc,
            message.sys_flag,
        ) == tuple(
            row[field] for field in ("storeSize", "topic", "queueId", "queueOffset", "bodyCRC", "sysFlag")
        )
        assert properties.split_keys(row["keys"]) == message.keys
    for fact in stores.facts(name).get("messages", ()):
        message = decoded[fact["physicalOffset"]]
        assert message.offset_id == fact["offsetMsgId"]
        assert message.properties == fact["properties"]
        assert (message.tags, message.flag, message.reconsume_times) == (
            fact["tags"],
            fact["flag"],
            fact["reconsumeTimes"],
        )
        assert message.prepared_transaction_offset == fact["preparedTransactionOffset"]
        assert (message.born_timestamp, message.store_timestamp) == (
            fact["bornTimestamp"],
            fact["storeTimestamp"],
        )
        assert f"{message.magic & 0xFFFFFFFF:#X}".replace("0X", "0x") == fact["magicCode"]
        assert message.born_host[1] == int(fact["bornHost"].rpartition("|")[2])


def test_the_worked_example_of_the_specification_is_encoded_as_it_stands_there():
    raw_properties = b"x" * 0x87
    put = Message(
        "TopicX",
        1,
        b"hello",
        raw_properties,
        born_timestamp=7,
        born_host=(b"\x7f\0\0\1", 0xD11E),
        store_host=(b"\x7f\0\0\1", 0x8477),
    )
    expected = bytes.fromhex(
        "000000ED DAA320A7 3610A686 00000001 00000000 0000000000000000 0000000000000000 00000000 "
        "0000000000000007"
        "7F000001 0000D11E 0000000000000009 7F000001 00008477 00000000 0000000000000000 00000005 "
        "68656C6C6F 06 546F70696358 0087"
    )
    assert record.encode(put, 0, 0, 9) == expected + raw_properties


def test_a_topic_that_does_not_fit_a_signed_byte_makes_version_2():
    for length, magic in ((127, record.MAGIC_V1), (128, record.MAGIC_V2), (255, record.MAGIC_V2)):
        raw = record.encode(Message("T" * length, 0, b""), 0, 0, 1)
        message = record.decode(raw)
        assert (message.magic, message.topic) == (magic, "T" * length)


def test_prepared_and_rolled_back_records_hold_queue_offset_zero():
    kept = {}
    for kind in (
        record.TRANSACTION_NONE,
        record.TRANSACTION_PREPARED,
        record.TRANSACTION_COMMIT,
        record.TRANSACTION_ROLLBACK,
    ):
        message = record.decode(record.encode(Message("T", 0, b"b", sys_flag=kind), 41, 0, 1))
        kept[kind] = message.queue_offset, message.is_queued, message.is_indexed
    assert list(kept.values()) == [(41, True, True), (0, False, True), (41, True, True), (0, False, False)]


def test_the_ipv6_bits_follow_the_hosts_and_not_what_the_sender_claims():
    six, four = (b"\xfd" + bytes(15), 5), (b"\x0a\0\0\1", 6)
    for born, store in ((six, four), (four, six), (six, six), (four, four)):
        message = record.decode(
            record.encode(Message("T", 0, b"b", born_host=born, store_host=store, sys_flag=0x31), 0, 0, 1)
        )
        assert (message.born_host, message.store_host) == (born, store)
        assert message.sys_flag == 1 | (0x10 if born is six else 0) | (0x20 if store is six else 0)


def test_a_blank_is_eight_bytes_with_the_room_that_is_left():
    blank = record.encode_blank(389)
    assert blank == struct.pack(">iI", 389, 0xCBD43194)
    assert record.read_head(blank).is_blank and not record.read_head(blank).is_record


def test_an_empty_body_has_crc_zero_and_is_not_checked():
    raw = bytearray(record.encode(Message("T", 0, b""), 0, 0, 1))
    assert record.decode(raw).body_crc == 0
    raw[8:12] = b"\0\0\0\5"
    assert record.decode(raw).body == b""


@pytest.mark.parametrize(
    "message",
    [Message("T", 0, b"", b"p" * 32768), Message("T" * 32768, 0, b""), Message("T", 1 << 31, b"")],
    ids=["properties", "topic", "queue id"],
)
def test_what_does_not_fit_its_field_is_refused(message):
    with pytest.raises(FormatError):
        record.encode(message, 0, 0, 1)


def test_a_record_at_another_place_than_it_states_is_refused():
    raw = record.encode(Message("T", 0, b"b"), 0, 1000, 1)
    assert record.decode(raw, log_offset=1000).log_offset == 1000
    with pytest.raises(FormatError, match="another place"):
        record.decode(raw, log_offset=2000)


def test_every_single_changed_bit_of_length_magic_and_body_is_noticed():
    raw = record.encode(Message("Topic", 0, b"some body", b"A\x01b\x02"), 0, 0, 1)
    body_at = record.FIXED_IPV4.size
    places = [*range(12), *range(body_at - 4, body_at + 9 + 1), len(raw) - 6, len(raw) - 5]
    for place in places:
        for bit in range(8):
            broken = bytearray(raw)
            broken[place] ^= 1 << bit
            with pytest.raises(FormatError):
                record.decode(broken)


@given(st.binary(max_size=300), st.integers(0, 320))
def test_any_bytes_decode_or_raise_the_one_error(noise, offset):
    for start in (noise, struct.pack(">iI", len(noise) + 8, 0xDAA320A7) + noise):
        try:
            record.decode(start, min(offset, len(start)))
        except FormatError:
            pass


@given(
    st.builds(
        Message,
        topic=st.text(st.characters(codec="ascii"), max_size=200),
        queue_id=st.integers(-(2**31), 2**31 - 1),
        body=st.binary(max_size=500),
        properties=st.binary(max_size=200),
        flag=st.integers(-(2**31), 2**31 - 1),
        born_timestamp=st.integers(-(2**63), 2**63 - 1),
        reconsume_times=st.integers(0, 2**31 - 1),
    ),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
)
def test_what_is_encoded_is_decoded(message, queue_offset, log_offset):
    decoded = record.decode(record.encode(message, queue_offset, log_offset, 5), log_offset=log_offset)
    assert (decoded.topic, decoded.body, decoded.raw_properties) == (
        message.topic,
        message.body,
        message.properties,
    )
    assert (decoded.queue_offset, decoded.flag, decoded.born_timestamp) == (
        queue_offset,
        message.flag,
        message.born_timestamp,
    )
    assert decoded.body_crc == zlib.crc32(message.body) & 0x7FFFFFFF


def test_records_back_to_back_come_out_one_by_one():
    raw = b"".join(
        record.encode(Message("T", 0, body), number, 0, 1) for number, body in enumerate((b"a", b"", b"ccc"))
    )
    assert [message.body for message in record.decode_all(raw)] == [b"a", b"", b"ccc"]
    with pytest.raises(FormatError):
        record.decode_all(raw + b"\0\0\0\1")
