"""The columns kernel against formats and reference, record by record."""

import numpy as np
import pytest

from broker_store.formats import index_file, java_hash, record
from broker_store.kernels import columns as k
from broker_store.kernels import context as c
from broker_store.kernels import walk as w
from broker_store.messages import Message
from tests.support import stores
from tests.support.reference import index_keys

ROOM = 4096


def run(data, *, base=0, at=0, file_left=None, rows=ROOM, keys=ROOM * 8):
    """(why it stopped, position, rows, key hashes, reason)"""
    buffer = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(1, dtype=np.uint8)
    context = np.zeros(w.W_WORDS, dtype=np.int64)
    table, hashes = np.zeros((rows, k.ROW_WORDS), dtype=np.int64), np.zeros(keys, dtype=np.int64)
    context[[w.W_ADDRESS, w.W_LENGTH, w.W_BASE, w.W_AT]] = buffer.ctypes.data, len(data), base, at
    context[[w.W_FILE_LEFT, w.W_MAX_RECORD]] = (
        len(data) if file_left is None else file_left,
        record.MAX_RECORD,
    )
    context[[w.W_ROWS, w.W_ROOM, k.L_KEYS, k.L_KEY_ROOM]] = table.ctypes.data, rows, hashes.ctypes.data, keys
    stopped = k.columns(context.ctypes.data)
    return (
        stopped,
        int(context[w.W_AT]),
        table[: context[w.W_COUNT]],
        hashes[: context[k.L_KEY_COUNT]],
        int(context[w.W_REASON]),
    )


@pytest.mark.parametrize("name", stores.NAMES)
def test_every_row_says_what_the_record_says(name, tmp_path):
    for base, data in stores.log_bytes(stores.unpack(name, tmp_path)):
        _, _, rows, keys, _ = run(data, base=base)
        for row in rows:
            message = record.decode(
                data, int(row[k.ROW_LOG_OFFSET]) - base, log_offset=int(row[k.ROW_LOG_OFFSET])
            )
            assert (row[k.ROW_SIZE], row[k.ROW_SYS_FLAG], row[k.ROW_QUEUE_ID]) == (
                message.size,
                message.sys_flag,
                message.queue_id,
            )
            assert (row[k.ROW_QUEUE_OFFSET], row[k.ROW_STORE_MS]) == (
                message.queue_offset,
                message.store_timestamp,
            )
            assert row[k.ROW_TAGS_CODE] == (java_hash.java_hash(message.tags) if message.tags else 0)
            start = int(row[k.ROW_TOPIC_AT])
            assert data[start : start + int(row[k.ROW_TOPIC_LENGTH])].decode() == message.topic
            texts = index_keys(message)
            found = keys[int(row[k.ROW_FIRST_KEY]) : int(row[k.ROW_FIRST_KEY]) + int(row[k.ROW_KEY_COUNT])]
            assert [int(hashed) & (k.TAG_KEY - 1) for hashed in found] == [
                index_file.key_hash(text) for text in texts
            ]
            assert [hashed >= k.TAG_KEY for hashed in found] == [
                bool(message.tags) and text is texts[-1] for text in texts
            ]


def chain(count, body=b"body"):
    data = b""
    for number in range(count):
        data += record.encode(Message("T", 0, body, b"KEYS\x01a b\x02"), number, len(data), 5)
    return data


def test_a_record_that_the_stretch_cuts_is_left_for_the_next():
    data = chain(3)
    size = len(data) // 3
    for cut in (size + 1, 2 * size - 1, size + 7):
        stopped, at, rows, _, _ = run(data[:cut], file_left=len(data) + 100)
        assert (stopped, at, len(rows)) == (c.EXHAUSTED, size, 1)


def test_it_stops_at_a_blank_a_bad_record_and_the_end_of_a_file():
    data = chain(2)
    assert run(data + record.encode_blank(99) + bytes(91))[:2] == (c.LOG_FILE_END, len(data))
    stopped, at, rows, _, reason = run(data + bytes(100))
    assert (stopped, at, len(rows), reason) == (c.BAD_RECORD, len(data), 2, c.REASON_NOT_A_RECORD)
    assert run(data)[0] == c.BAD_RECORD  # a file that ends without a blank
    broken = bytearray(data)
    broken[-len(b"T") - 20] ^= 1
    assert run(bytes(broken) + bytes(8))[0] == c.BAD_RECORD


def test_it_goes_on_where_the_room_ended():
    data = chain(10) + bytes(8)
    stopped, at, rows, keys, _ = run(data, rows=4)
    assert (stopped, len(rows), len(keys)) == (c.EXHAUSTED, 4, 8)
    assert len(run(data, at=at)[2]) == 6
    assert len(run(data, keys=20)[2]) < 10
