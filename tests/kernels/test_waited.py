"""Records that waited go on to their real place as the plain reader of tests/support/memory_store.py would
have them put there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats import properties, record
from broker_store.messages import Message, PutStatus
from tests.support.engine_data import hand_store, log_files
from tests.support.memory_store import real_message
from tests.support.reference import walk_log

WAITS = "rmq_sys_wheel_timer"
FORBIDDEN = frozenset({WAITS, "RMQ_SYS_TRANS_HALF_TOPIC"})

hosts = st.sampled_from([(b"\x7f\x00\x00\x01", 10911), (bytes(range(16)), 65535), (b"\xff\xfe\xfd\xfc", 0)])
places = st.sampled_from(
    [("Orders", "3"), ("Orders", "0"), ("Other", "007"), ("%RETRY%g", "1"), ("A" * 100, "0"), ("Orders", "65535"), ("Orders", "65536"), ("Orders", "-1"),
     ("Orders", "1x"), ("Orders", ""), ("", "3"), (WAITS, "0"), ("RMQ_SYS_TRANS_HALF_TOPIC", "0"), ("no/topic", "0"), ("a" * 300, "0"), ("Orders", "0000000003"), ("ж", "0")]
)  # fmt: skip
pieces = st.sampled_from(
    ["TIMER_ENQUEUE_MS\x011\x02", "TIMER_DEQUEUE_MS\x0122\x02", "TIMER_ENQUEUE_MS\x01\x02", "TIMER_ENQUEUE_MS\x02", "TIMER_ENQUEUE_MSX\x011\x02", "TIMER_DEQUEUE_M\x011\x02",
     "KEYS\x01a b\x02", "TAGS\x01x\x02", "\x02", "A\x01\x02", "REAL_TOPI\x01x\x02", "REAL_QID\x01\x02", "REAL_TOPIC\x01\x02", "REAL_TOPICS\x01no\x02", "x", "\x01\x02", "é\x01ü\x02"]
)  # fmt: skip


@st.composite
def waiting(draw):
    topic, queue_id = draw(places)
    told = [*draw(st.lists(pieces, max_size=6)), f"REAL_TOPIC\x01{topic}\x02", f"REAL_QID\x01{queue_id}\x02"]
    text = "".join(draw(st.permutations(told)))
    body = draw(st.binary(min_size=1, max_size=200))
    flags = draw(st.sampled_from([0, 1, 8, 0x100]))
    return Message(
        WAITS,
        0,
        body,
        text.encode(),
        draw(st.integers(-5, 5)),
        flags,
        draw(st.integers(0, 1 << 40)),
        draw(hosts),
        draw(hosts),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 1 << 50)),
    )


def records_of(store, from_offset: int) -> list[bytes]:
    """The records of a log of one file, from an offset on."""
    ((_, content),) = log_files(store)
    return [
        content[one.log_offset : one.log_offset + one.size]
        for one in walk_log([(0, content)]).records
        if one.log_offset >= from_offset
    ]


@given(st.lists(waiting(), min_size=1, max_size=12), st.booleans(), st.integers(0, 1 << 45))
def test_each_goes_where_it_says_and_is_told_when_it_waited(messages, has_timer, first_ms):
    store = hand_store(mapped_file_size_commit_log=1 << 17)
    assert all(result.ok for result in store.appender.put_many(messages))
    raw = records_of(store, 0)
    waited, end = [record.decode(each) for each in raw], store.log.wrote
    times = [first_ms + number for number in range(len(messages))] if has_timer else None
    moved = store.appender.put_waited(b"".join(raw), len(raw), WAITS, FORBIDDEN, times)
    now_ms = store.clock()
    expected = [
        real_message(one, WAITS, FORBIDDEN, (times[number], now_ms) if has_timer else None)
        for number, one in enumerate(waited)
    ]
    good = [message for message in expected if message is not None and fits(message)]
    assert [status is PutStatus.PUT_OK for status in moved.statuses] == [
        message is not None and fits(message) for message in expected
    ]
    found = records_of(store, end)
    offsets: dict[tuple[str, int], int] = {}
    at = end
    for message, raw_record in zip(good, found, strict=True):
        queue = (message.topic, message.queue_id)
        assert raw_record == record.encode(message, offsets.get(queue, 0), at, now_ms)
        offsets[queue] = offsets.get(queue, 0) + 1
        at += len(raw_record)
    assert moved.log_end == (at if good else 0)
    totals = {}
    for message in good:
        count, size = totals.get((message.topic, message.queue_id), (0, 0))
        totals[message.topic, message.queue_id] = (count + 1, size + len(message.body))
    assert sorted(moved.stored) == sorted(
        (topic, count, size) for (topic, _), (count, size) in totals.items()
    )
    assert {queue: store.reads.max_offset(*queue) for queue in offsets} == offsets
    store.die()


def fits(message: Message) -> bool:
    """Whether the engine takes such a topic."""
    return message.topic in ("Orders", "Other", "%RETRY%g", "A" * 100)


def test_times_that_have_no_room_are_left_out_and_the_message_goes():
    store = hand_store(mapped_file_size_commit_log=1 << 18)
    for length in (32_700, 32_740):
        told = properties.encode({"REAL_TOPIC": "Orders", "REAL_QID": "0"})
        told += b"A\x01" + b"x" * (length - len(told) - 3) + b"\x02"
        raw = store.reads.records.record_at(store.appender.put(Message(WAITS, 0, b"x", told)).log_offset)
        assert store.appender.put_waited(raw, 1, WAITS, FORBIDDEN, [1]).statuses == [PutStatus.PUT_OK]
    first, second = (record.decode(raw) for raw in records_of(store, 0)[1::2])
    assert "TIMER_DEQUEUE_MS" in first.properties and "TIMER_DEQUEUE_MS" not in second.properties
    store.die()


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[:60],
        lambda raw: bytes(4) + raw[4:],
        lambda raw: raw[:84] + b"\x7f\xff\xff\xff" + raw[88:],
        lambda raw: b"",
    ],
)
def test_bytes_that_are_no_record_have_no_place(change):
    store = hand_store()
    raw = store.reads.records.record_at(
        store.appender.put(Message(WAITS, 0, b"x", b"REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02")).log_offset
    )
    moved = store.appender.put_waited(raw + change(raw), 2, WAITS, FORBIDDEN)
    assert moved.statuses == [PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL]
    store.die()


def test_a_group_goes_on_over_the_end_of_a_log_file_and_in_an_index_without_room():
    store = hand_store()
    told = (
        b"REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02KEYS\x01"
        + b" ".join(b"k%d" % number for number in range(40))
        + b"\x02"
    )
    raw = b"".join(
        store.reads.records.record_at(
            store.appender.put(Message(WAITS, 0, bytes([number]) * 300, told)).log_offset
        )
        for number in range(8)
    )
    files = len(store.log.files)
    for _ in range(40):
        assert set(store.appender.put_waited(raw, 8, WAITS, FORBIDDEN, range(8)).statuses) == {
            PutStatus.PUT_OK
        }
    assert len(store.log.files) > files and store.reads.max_offset("Orders", 0) == 320
    store.die()


def test_a_store_that_takes_nothing_says_so_for_each():
    store = hand_store()
    raw = store.reads.records.record_at(
        store.appender.put(Message(WAITS, 0, b"x", b"REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02")).log_offset
    )
    store.close()
    moved = store.appender.put_waited(raw * 2, 2, WAITS, FORBIDDEN)
    assert (moved.statuses, moved.log_end, list(moved.stored)) == (
        [PutStatus.SERVICE_NOT_AVAILABLE] * 2,
        0,
        [],
    )
