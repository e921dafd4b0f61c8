import zlib
from datetime import UTC, datetime

import pytest

from broker_store.client import message as client_message
from broker_store.client.message import (
    Outgoing,
    UniqueKeys,
    decode_messages,
    encode_batch_part,
    encode_properties,
)
from broker_store.errors import FormatError, MisuseError
from broker_store.formats import properties, record
from broker_store.formats.message_id import decode_unique_id
from broker_store.messages import Message


def stored(body=b"hello", sys_flag=0, topic="T", reconsume_times=0, **pairs):
    message = Message(
        topic,
        1,
        body,
        properties.encode(pairs),
        sys_flag=sys_flag,
        born_timestamp=7,
        reconsume_times=reconsume_times,
    )
    return record.encode(message, 5, 1000, 9)


def test_properties_hold_what_was_given():
    encoded = encode_properties(Outgoing(b"x", "TagA", ["k1", "k2"], {"colour": "red", "n": 7}), "UK")
    assert properties.decode(encoded) == {
        "colour": "red", "n": "7", "KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "UK", "WAIT": "true"
    }  # fmt: skip
    assert properties.decode(encode_properties(Outgoing(b"x", keys="one"), "UK")) == {
        "KEYS": "one", "UNIQ_KEY": "UK", "WAIT": "true"
    }  # fmt: skip


@pytest.mark.parametrize(
    "outgoing",
    [
        Outgoing("text"),
        Outgoing(bytes(client_message.MAX_BODY_BYTES + 1)),
        Outgoing(b"", keys=["a b"]),
        Outgoing(b"", keys=[""]),
        Outgoing(b"", properties={"TAGS": "x"}),
        Outgoing(b"", properties={"UNIQ_KEY": "x"}),
        Outgoing(b"", properties={"a": ""}),
        Outgoing(b"", properties={"a\x01": "b"}),
        Outgoing(b"", tag="a\x02b"),
        Outgoing(b"", properties={"a": "b" * 32767}),
        Outgoing(b"", properties={"DELAY": "1"}),
        Outgoing(b"", properties={"TIMER_DELAY_SEC": "1"}),
        Outgoing(b"", delay_level=0),
        Outgoing(b"", delay_s=0),
        Outgoing(b"", delay_s=float("nan")),
        Outgoing(b"", delay_s=1, delay_level=1),
        Outgoing(b"", deliver_at=1, delay_level=1),
        Outgoing(b"", deliver_at=datetime(2030, 1, 1)),
        Outgoing(b"", deliver_at=1.5e12),
    ],
)
def test_what_a_message_cannot_carry_is_refused(outgoing):
    with pytest.raises(MisuseError):
        encode_properties(outgoing, "UK")


@pytest.mark.parametrize(
    ("delay", "pair"),
    [
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"delay_s": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        ({"deliver_at": 1_900_000_000_123}, {"TIMER_DELIVER_MS": "1900000000123"}),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1893456000000"}),
    ],
)
def test_a_message_that_waits_says_so_as_java_does(delay, pair):
    outgoing = Outgoing(b"x", **delay)
    assert outgoing.waits and not Outgoing(b"x").waits
    assert properties.decode(encode_properties(outgoing, "UK")) == pair | {"UNIQ_KEY": "UK", "WAIT": "true"}


def test_a_batch_part_has_the_bytes_of_the_specification():
    part = encode_batch_part(b"b1", "KEYS\x01kk\x02")
    assert part.hex() == "00000020" + "00000000" * 3 + "00000002" + "6231" + "0008" + "4b455953016b6b02"


def test_unique_keys_differ_and_can_be_taken_apart(monkeypatch):
    keys = UniqueKeys("127.0.0.1")
    now = datetime(2026, 12, 31, 23, 59, 59)
    monkeypatch.setattr(client_message.time, "time_ns", lambda: int(now.timestamp()) * 1_000_000_000)
    made = [keys.make() for _ in range(3)]
    assert len(set(made)) == 3
    first = decode_unique_id(made[0])
    assert (first.address, first.counter) == (bytes([127, 0, 0, 1]), 0)
    assert first.month_ms == (31 * 86400 - 1) * 1000
    now = datetime(2027, 1, 1)
    assert decode_unique_id(keys.make()).month_ms == 0


def test_a_received_message_shows_what_was_sent():
    (message,) = decode_messages(stored(TAGS="A", KEYS="k1 k2", UNIQ_KEY="UK"), "broker-a")
    assert (message.body, message.tag, message.keys, message.message_id) == (
        b"hello",
        "A",
        ("k1", "k2"),
        "UK",
    )
    assert (message.topic, message.queue, message.queue_offset, message.attempt) == (
        "T",
        ("T", "broker-a", 1),
        5,
        1,
    )
    assert (message.born_timestamp, message.store_timestamp) == (7, 9)
    assert message.offset_message_id == message.record.offset_id


def test_a_message_that_comes_again_shows_its_own_topic():
    (message,) = decode_messages(stored(topic="%RETRY%g", reconsume_times=2, RETRY_TOPIC="Orders"), "b")
    assert (message.topic, message.queue.topic, message.attempt) == ("Orders", "%RETRY%g", 3)


@pytest.mark.parametrize("kind", [0, record.COMPRESSION_ZLIB])
def test_a_compressed_body_is_inflated(kind):
    (message,) = decode_messages(stored(zlib.compress(b"x" * 5000), record.SYS_COMPRESSED | kind), "b")
    assert message.body == b"x" * 5000


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"no zlib", record.COMPRESSION_ZLIB),
        (zlib.compress(b"hello")[:-3], record.COMPRESSION_ZLIB),
        (zlib.compress(bytes(client_message.MAX_INFLATED_BYTES + 1)), record.COMPRESSION_ZLIB),
        (b"lz4", record.COMPRESSION_LZ4),
        (b"zstd", record.COMPRESSION_ZSTD),
    ],
)
def test_a_body_that_cannot_be_inflated_says_so(body, kind):
    (message,) = decode_messages(stored(body, record.SYS_COMPRESSED | kind), "b")
    with pytest.raises(FormatError):
        _ = message.body
    assert message.record.body == body


def test_bytes_that_are_no_records_are_refused():
    with pytest.raises(FormatError):
        decode_messages(b"x" * 100, "b")
