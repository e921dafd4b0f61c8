"""The fields kernel against formats, record by record, and the kernels that take pieces apart."""

import numpy as np
import pytest

from broker_store.formats import properties, record
from broker_store.kernels import context as c
from broker_store.kernels import fields as k
from broker_store.kernels import walk as w
from broker_store.messages import Message
from tests.support import stores

ROOM = 4096


def run(data, *, base=0, at=0, file_left=None, room=ROOM):
    """(why it stopped, position, rows, reason)"""
    buffer = np.frombuffer(data, dtype=np.uint8)
    context = np.zeros(w.W_WORDS, dtype=np.int64)
    rows = np.zeros((k.FIELD_COUNT, room), dtype=np.int64)
    context[[w.W_ADDRESS, w.W_LENGTH, w.W_BASE, w.W_AT]] = buffer.ctypes.data, len(data), base, at
    context[[w.W_FILE_LEFT, w.W_MAX_RECORD]] = (
        len(data) if file_left is None else file_left,
        record.MAX_RECORD,
    )
    context[[w.W_ROWS, w.W_ROOM, k.X_COLUMN, k.X_WITH_KEYS]] = rows.ctypes.data, room, rows.strides[0], 1
    stopped = k.fields(context.ctypes.data)
    return stopped, int(context[w.W_AT]), rows[:, : context[w.W_COUNT]], int(context[w.W_REASON])


@pytest.mark.parametrize("name", stores.NAMES)
def test_every_row_says_what_the_record_says(name, tmp_path):
    for base, data in stores.log_bytes(stores.unpack(name, tmp_path)):
        _, _, rows, _ = run(data, base=base)
        for row in rows.T.tolist():
            one = record.decode(data, row[k.LOG_OFFSET] - base, log_offset=row[k.LOG_OFFSET])

            def piece(at, length, row=row, data=data):
                return None if row[at] < 0 else data[row[at] : row[at] + row[length]]

            assert (row[k.SIZE], row[k.VERSION], row[k.BODY_CRC], row[k.QUEUE_ID], row[k.FLAG]) == (
                one.size,
                one.version,
                one.body_crc,
                one.queue_id,
                one.flag,
            )
            assert (row[k.QUEUE_OFFSET], row[k.SYS_FLAG], row[k.BORN_MS], row[k.STORE_MS]) == (
                one.queue_offset,
                one.sys_flag,
                one.born_timestamp,
                one.store_timestamp,
            )
            assert (row[k.RECONSUME_TIMES], row[k.PREPARED_OFFSET]) == (
                one.reconsume_times,
                one.prepared_transaction_offset,
            )
            assert piece(k.BODY_AT, k.BODY_LENGTH) == one.body
            assert piece(k.TOPIC_AT, k.TOPIC_LENGTH).decode() == one.topic
            assert piece(k.PROPERTIES_AT, k.PROPERTIES_LENGTH) == one.raw_properties
            for found, name_ in (
                (piece(k.KEYS_AT, k.KEYS_LENGTH), "KEYS"),
                (piece(k.TAGS_AT, k.TAGS_LENGTH), "TAGS"),
                (piece(k.UNIQUE_KEY_AT, k.UNIQUE_KEY_LENGTH), "UNIQ_KEY"),
            ):
                assert (found and found.decode()) == one.properties.get(name_)


def test_it_stops_at_a_cut_record_a_blank_a_bad_record_and_goes_on_where_the_room_ended():
    data = b""
    for number in range(10):
        data += record.encode(Message("T", 0, b"body", b"KEYS\x01a b\x02"), number, len(data), 5)
    size = len(data) // 10
    assert run(data[: 2 * size - 1], file_left=len(data))[:2] == (c.EXHAUSTED, size)
    assert run(data + record.encode_blank(99) + bytes(91))[:2] == (c.LOG_FILE_END, len(data))
    stopped, at, rows, reason = run(data + bytes(100))
    assert (stopped, at, rows.shape[1], reason) == (c.BAD_RECORD, len(data), 10, c.REASON_NOT_A_RECORD)
    assert run(data + bytes(8), room=4)[:2] == (c.EXHAUSTED, 4 * size)
    assert run(data + bytes(8), at=4 * size)[2].shape[1] == 6


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a\1b\2",
        b"a\1b",
        b"a\1b\2a\1c\2d\1e\1f\2",
        b"\1x\2a\1\2\2\2q\1r\2a",
        b"KEYS\1k l\2" * 50,
        bytes(range(3, 90)) + b"\1v\2",
    ],
)
def test_pairs_are_those_that_formats_decodes(text):
    buffer = np.frombuffer(text + b"#", dtype=np.uint8)
    places, lengths = np.zeros(1, dtype=np.int64), np.array([len(text)], dtype=np.int64)
    pieces, begins = np.zeros((len(text) // 4 + 1, 4), dtype=np.int64), np.zeros(2, dtype=np.int64)
    found = k.split_properties(
        buffer.ctypes.data, places.ctypes.data, lengths.ctypes.data, 1, pieces.ctypes.data, begins.ctypes.data
    )
    pairs = [(text[a : a + b].decode(), text[p : p + q].decode()) for a, b, p, q in pieces[:found].tolist()]
    assert pairs == list(properties.decode(text).items())
    assert begins.tolist() == [0, found]
