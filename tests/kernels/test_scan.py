"""The scan accepts a record only if everything about it holds, and reports where the good ones end."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FormatError
from broker_store.formats import queue_unit, record
from broker_store.kernels import context as c
from broker_store.kernels.scan import data_end, find_unit_break, scan
from broker_store.messages import Message

BASE = 65536
NOW = 1_700_000_000_000


def scanned(
    data: bytes, *, base=BASE, slice_end=None, crc=True, strict_above=0, max_record=record.MAX_RECORD
):
    """(why it stopped, position, good records, reason)"""
    memory = np.frombuffer(data + b"\0" * 64, dtype=np.uint8)
    words = np.zeros(c.S_WORDS, dtype=np.int64)
    words[[c.S_ADDRESS, c.S_BASE, c.S_SIZE]] = memory.ctypes.data, base, len(data)
    words[[c.S_SLICE_END, c.S_CHECK_CRC, c.S_MAX_RECORD]] = (
        len(data) if slice_end is None else slice_end,
        crc,
        max_record,
    )
    words[c.S_STRICT_ABOVE_MS] = strict_above
    stopped = scan(words.ctypes.data)
    return stopped, int(words[c.S_AT]), int(words[c.S_COUNT]), int(words[c.S_REASON])


def chain(*messages, base=BASE) -> bytes:
    data = b""
    for number, message in enumerate(messages):
        data += record.encode(message, number, base + len(data), NOW + number)
    return data


V4, V6 = (b"\x7f\0\0\1", 1), (bytes(range(16)), 2)
SHAPES = {
    "plain": Message("topic", 1, b"body", b"KEYS\x01k\x02"),
    "empty": Message("t", 0, b""),
    "ipv6 born": Message("t", 0, b"body", born_host=V6),
    "ipv6 store": Message("t", 0, b"body", store_host=V6),
    "ipv6 both": Message("t", 0, b"b", born_host=V6, store_host=V6),
    "long topic": Message("%RETRY%" + "g" * 200, 0, b"body", b"A\x01b\x02"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_good_records_of_every_shape_are_walked_to_the_end(shape):
    data = chain(*[SHAPES[shape]] * 3)
    assert scanned(data) == (c.EXHAUSTED, len(data), 3, 0)


def believed(data: bytes, at: int) -> bool:
    """By the formats, and by what recovery asks beyond them: a topic's letters, no NUL in properties."""
    try:
        found = record.decode(data, at, log_offset=BASE + at)
    except FormatError:
        return False
    return bool(re.fullmatch(r"[%|a-zA-Z0-9_-]+", found.topic)) and b"\0" not in found.raw_properties


@pytest.mark.parametrize("shape", SHAPES)
def test_with_any_byte_changed_it_stops_exactly_where_the_formats_stop(shape):
    good = chain(SHAPES["plain"], SHAPES[shape], SHAPES["plain"])
    first = len(chain(SHAPES["plain"]))
    for at in range(first, len(good) - first):
        for change in (0x01, 0x80, 0xFF):
            data = bytearray(good)
            data[at] ^= change
            stopped, position, count, _ = scanned(bytes(data))
            if believed(bytes(data), first):
                assert (stopped, position, count) == (c.EXHAUSTED, len(data), 3), (at, change)
            else:
                assert (stopped, position, count) == (c.BAD_RECORD, first, 1), (at, change)


@given(st.data())
def test_a_log_cut_anywhere_ends_behind_its_last_whole_record(draw):
    data = chain(
        *[
            SHAPES[name]
            for name in draw.draw(st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=5))
        ]
    )
    cut = draw.draw(st.integers(0, len(data)))
    torn = data[:cut].ljust(len(data), b"\0")
    whole, at = 0, 0
    while (
        at < len(data)
        and torn[at : at + record.read_head(data, at).total_size]
        == data[at : at + record.read_head(data, at).total_size]
    ):
        at += record.read_head(data, at).total_size
        whole += 1
    assert scanned(torn + b"\0" * 200)[:3] == (c.BAD_RECORD, at, whole)


@given(st.binary(max_size=400))
def test_no_bytes_make_it_read_past_their_end(data):
    stopped, position, _, _ = scanned(data)
    assert position <= len(data) and stopped in (c.BAD_RECORD, c.EXHAUSTED, c.LOG_FILE_END)


def test_a_blank_ends_the_file():
    data = chain(SHAPES["plain"])
    assert scanned(data + record.encode_blank(50).ljust(50, b"\0"))[:3] == (c.LOG_FILE_END, len(data), 1)


def test_a_record_from_another_place_is_not_believed():
    data = chain(SHAPES["plain"], base=0)
    assert scanned(data) == (c.BAD_RECORD, 0, 0, c.REASON_PLACE)


def test_without_the_check_of_bodies_only_the_body_may_differ():
    data = bytearray(chain(SHAPES["plain"]))
    data[data.index(b"body")] ^= 1
    assert scanned(bytes(data)) == (c.BAD_RECORD, 0, 0, c.REASON_BODY_CRC)
    assert scanned(bytes(data), crc=False)[:3] == (c.EXHAUSTED, len(data), 1)


def test_a_nul_in_the_properties_is_a_torn_page_only_above_the_stamp():
    data = chain(Message("t", 0, b"b", b"A\x01\x00\x02"))
    assert scanned(data, strict_above=NOW - 1) == (c.BAD_RECORD, 0, 0, c.REASON_SYNTAX)
    assert scanned(data, strict_above=NOW)[:3] == (c.EXHAUSTED, len(data), 1)


def test_a_record_longer_than_allowed_is_not_believed():
    data = chain(SHAPES["plain"])
    assert scanned(data, max_record=len(data))[2] == 1
    assert scanned(data, max_record=len(data) - 1) == (c.BAD_RECORD, 0, 0, c.REASON_LENGTH)


def test_a_slice_ends_behind_the_record_in_which_it_ends():
    data = chain(*[SHAPES["plain"]] * 3)
    size = len(chain(SHAPES["plain"]))
    assert scanned(data, slice_end=size + 1) == (c.EXHAUSTED, 2 * size, 2, 0)


def slow_break(units, log_end, least):
    """(first unit that is none, log offset after the last good one)"""
    for number, unit in enumerate(units):
        if unit.log_offset == 0 and unit.size == queue_unit.PRE_BLANK_SIZE:
            continue
        if unit.log_offset < least or unit.size <= 0 or unit.log_offset + unit.size > log_end:
            return number, least
        least = unit.log_offset + unit.size
    return len(units), least


unit = st.one_of(
    st.builds(
        queue_unit.QueueUnit, st.integers(-2, 400), st.integers(-1, 60), st.integers(-(2**63), 2**63 - 1)
    ),
    st.just(queue_unit.QueueUnit(0, queue_unit.PRE_BLANK_SIZE, 0)),
)


@given(
    st.lists(unit, max_size=20).map(lambda units: sorted(units, key=lambda each: each.log_offset)),
    st.lists(unit, max_size=3),
    st.integers(0, 500),
    st.integers(0, 50),
)
def test_a_queue_ends_at_its_first_unit_that_is_none_steps_back_or_points_beyond(
    ordered, tail, log_end, least
):
    units = ordered + tail
    raw = np.frombuffer(b"".join(queue_unit.encode(*each) for each in units) + b"\0" * 20, dtype=np.uint8)
    room = np.array([least], dtype=np.int64)
    number = find_unit_break(raw.ctypes.data, len(units), log_end, least, room.ctypes.data)
    assert (number, int(room[0])) == slow_break(units, log_end, least)


@given(
    st.binary(max_size=40).map(lambda data: data.replace(b"\1", b"\0")),
    st.integers(0, 30),
    st.integers(0, 40),
)
def test_data_ends_behind_its_last_byte_that_is_not_zero(data, zeros, start):
    raw = np.frombuffer(data + bytes(zeros) + b"\7", dtype=np.uint8)
    end = len(data) + zeros
    start = min(start, end)
    assert data_end(raw.ctypes.data, start, end) == max(start, len(data.rstrip(b"\0")))
