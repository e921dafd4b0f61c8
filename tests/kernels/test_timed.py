"""What is read of many timer messages at once is what their properties say one by one."""

from hypothesis import given
from hypothesis import strategies as st

from broker_store.broker import timer_request
from broker_store.engine.timer.timed import NO_NUMBER, read_timed
from broker_store.formats import properties, record
from broker_store.formats.java_hash import java_hash
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import Message

FAR = 1 << 62
numbers = st.one_of(
    st.integers(-(1 << 62), 1 << 62).map(str),
    st.sampled_from(["0", "+5", "-5", "007", "", "+", "-", "1.5", "1 ", "٣", "9" * 18, "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9" * 19, "1" * 20, "0" * 19 + "1"]),
)  # fmt: skip
names = st.sampled_from(
    ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_S", "TIMER_DELIVER_MSX", "TIMER_OUT_M", "TIMER_OUT_MSS", "REAL_TOPI", "XREAL_TOPIC"]
)  # fmt: skip
# fmt: skip
told = st.lists(
    st.one_of(
        st.builds("{}\x01{}\x02".format, names, numbers),
        st.builds("REAL_TOPIC\x01{}\x02".format, st.sampled_from(["Orders", "", "été", "A"])),
        st.sampled_from(["\x02", "x\x02", "TIMER_OUT_MS\x02"]),
    ),
    max_size=8,
)
hosts = st.sampled_from([(b"\x7f\x00\x00\x01", 1), (bytes(16), 2)])
messages = st.builds(
    Message,
    st.sampled_from([TIMER_TOPIC, TIMER_TOPIC, "Other"]),
    st.just(0),
    st.binary(min_size=1, max_size=30),
    told.map("".join).map(str.encode),
    born_host=hosts,
    store_host=hosts,
)


def held(number: int | None) -> int:
    """A number as a row holds it: what lies further off than 2**62 is as far as that."""
    return NO_NUMBER if number is None else max(-FAR, min(FAR, number))


@given(st.lists(messages, max_size=6), st.integers(0, 1 << 42))
def test_rows_say_what_the_properties_say(messages, now_ms):
    encoded = [
        record.encode(message, 7 + number, 1000 * number, now_ms + number)
        for number, message in enumerate(messages)
    ]
    rows = read_timed(b"".join(encoded), len(encoded))
    at = 0
    for number, (row, raw) in enumerate(zip(rows, encoded, strict=True)):
        stored = record.decode(raw)
        assert row.is_sound == (stored.topic == TIMER_TOPIC)
        if row.is_sound:
            pairs = stored.properties
            topic = pairs.get("REAL_TOPIC", "")
            assert (row.queue_offset, row.log_offset, row.size, row.stored_ms, row.record_at) == (
                7 + number,
                1000 * number,
                len(raw),
                now_ms + number,
                at,
            )
            assert b"".join(encoded)[row.topic_at : row.topic_at + row.topic_length].decode() == topic
            assert (row.topic_hash, bool(row.deletes)) == (java_hash(topic), "TIMER_DEL_UNIQKEY" in pairs)
            assert row.out_ms == held(timer_request.parse_long(pairs.get("TIMER_OUT_MS")))
            asked = timer_request.requested_ms(pairs, stored.store_timestamp)
            # Beyond the range of times the exact number does not matter.
            assert row.asked_ms == held(asked) or (
                asked is not None and abs(asked) > 1 << 59 and (row.asked_ms > 1 << 58) == (asked > 0)
            )
        at += len(raw)


def test_bytes_that_are_no_record_and_what_lies_behind_them_are_not_believed():
    raw = record.encode(Message(TIMER_TOPIC, 0, b"x", properties.encode({"TIMER_OUT_MS": "1"})), 0, 0, 1)
    for bad in (
        raw[:-1],
        bytes(100),
        raw[:50],
        raw[:84] + b"\x7f\xff\xff\xff" + raw[88:],
        raw[:4] + b"\xff" + raw[5:],
    ):
        assert [row.is_sound for row in read_timed(raw + bad, 2)] == [1, 0]
    assert read_timed(b"", 0) == []
