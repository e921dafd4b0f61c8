"""The describe kernel reads `Message` objects by address; what it cannot read is made plain first, or
refused."""

import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.engine.log.object_layout import message_layout
from broker_store.errors import MisuseError
from broker_store.formats import record
from broker_store.kernels import context as c
from broker_store.messages import Message, PutStatus
from tests.support.engine_data import hand_store

V6 = bytes(range(16))


class Text(str):
    pass


class Body(bytes):
    pass


class Level(enum.IntEnum):
    THREE = 3


def stored(message: Message, **changes) -> record.StoredMessage:
    store = hand_store(**changes)
    result = store.appender.put(message)
    assert result.status is PutStatus.PUT_OK
    raw = store.reads.records.record_at(result.log_offset)
    store.die()
    return next(iter(record.decode_all(raw)))


def refused(message: Message, **changes) -> PutStatus:
    store = hand_store(**changes)
    before = store.log.wrote
    status = store.appender.put(message).status
    assert store.log.wrote == before
    assert store.status.snapshot().totals.refused == {status.name: 1}
    store.die()
    return status


@given(
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1),
)
def test_integers_of_every_size_and_sign_are_read(small, born_ms, prepared):
    found = stored(
        Message(
            "T",
            0,
            b"",
            flag=small,
            reconsume_times=small,
            born_timestamp=born_ms,
            prepared_transaction_offset=prepared,
        )
    )
    assert (found.flag, found.reconsume_times) == (small, small)
    assert (found.born_timestamp, found.prepared_transaction_offset) == (born_ms, prepared)


def test_what_is_not_plain_is_made_so_and_stored():
    message = Message(
        Text("T"),
        Level.THREE,
        bytearray(b"body"),
        Body(b"TAGS\x01a\x02"),
        flag=True,
        born_host=(bytearray(b"\1\2\3\4"), Level.THREE),
    )
    message.store_host = (memoryview(V6), 9)
    found = stored(message)
    assert (found.topic, found.queue_id, found.body, found.flag) == ("T", 3, b"body", 1)
    assert (found.born_host, found.store_host) == ((b"\1\2\3\4", 3), (V6, 9))
    assert found.raw_properties == b"TAGS\x01a\x02"


def test_hosts_of_ipv6_stand_beside_those_of_ipv4_in_one_group():
    hosts = [(b"\x7f\0\0\1", 1), (V6, 2), (V6[::-1], 65535), (b"\xff\xff\xff\xff", 65535)]
    store = hand_store(mapped_file_size_commit_log=65536)
    results = store.appender.put_many(
        [Message("T", 0, b"%d" % n, born_host=hosts[n % 4], store_host=hosts[n // 4 % 4]) for n in range(16)]
    )
    for number, result in enumerate(results):
        (found,) = record.decode_all(store.reads.records.record_at(result.log_offset))
        assert (found.born_host, found.store_host) == (hosts[number % 4], hosts[number // 4 % 4])
    store.die()


@pytest.mark.parametrize(
    "wrong",
    [
        Message("T", 0, b"", flag=1 << 63),
        Message("T", 0, b"", born_timestamp=-(1 << 70)),
        Message("T", 1 << 80, b""),
        Message("T", -1, b""),
        Message("T", 65536, b""),
        Message("", 0, b""),
        Message("t\u00f6pic", 0, b""),
        Message("\u0436", 0, b""),
        Message("../up", 0, b""),
        Message("T" * 128, 0, b""),
        Message("T", 0, b"", born_host=(b"\x7f\0\0", 1)),
        Message("T", 0, b"", store_host=(V6 + b"\0", 1)),
        Message("T", 0, b"", b"INNER_NUM\x015\x02"),
        Message("T", 0, b"", b"a\x01b\x02INNER_NUM\x015\x02"),
        Message("T", 0, b"", sys_flag=0x80),
        Message("T", 0, b"x" * 1001),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(wrong):
    assert refused(wrong, max_message_size=1000) is PutStatus.MESSAGE_ILLEGAL


def test_a_name_that_only_resembles_the_forbidden_one_is_taken():
    found = stored(Message("T", 0, b"", b"NNER_NUM\x015\x02iNNER_NUM\x016\x02INNER_NUMB\x017\x02"))
    assert found.raw_properties == b"NNER_NUM\x015\x02iNNER_NUM\x016\x02INNER_NUMB\x017\x02"


def test_refused_messages_do_not_hold_up_the_rest_of_their_group():
    store = hand_store()
    messages = [
        Message("T", 0, b"%d" % n, flag=(1 << 63) if n % 3 == 1 else n, sys_flag=0x80 if n % 3 == 2 else 0)
        for n in range(12)
    ]
    results = store.appender.put_many(messages)
    assert [result.ok for result in results] == [n % 3 == 0 for n in range(12)]
    assert [result.queue_offset for result in results if result.ok] == [0, 1, 2, 3]
    assert results[-3].ok and not results[-2].ok and [result.ok for result in results[:2]] == [True, False]
    with pytest.raises(IndexError):
        results[12]
    assert store.status.snapshot().totals.refused == {"MESSAGE_ILLEGAL": 8}
    assert store.status.snapshot().totals.puts == 4
    store.die()


def test_a_topic_that_was_only_asked_about_is_looked_at_before_it_takes_messages():
    store = hand_store()
    store.confirmation.watch("T" * 200, 0)
    assert store.appender.put(Message("T" * 200, 0, b"")).status is PutStatus.MESSAGE_ILLEGAL
    assert store.appender.put(Message("%RETRY%" + "T" * 120, 0, b"")).ok
    store.die()


def test_the_layout_names_each_field_once():
    layout = message_layout()
    places = sorted(layout.array[: c.M_STR_TYPE].tolist())
    assert len(set(places)) == 11 and places[0] >= 16 and places[-1] < Message.__basicsize__


def test_an_interpreter_with_other_objects_is_refused(monkeypatch):
    monkeypatch.setattr("broker_store.engine.log.object_layout.BYTES_DATA", bytes.__basicsize__ - 3)
    with pytest.raises(MisuseError, match="CPython 3.11 to 3.13"):
        message_layout()
