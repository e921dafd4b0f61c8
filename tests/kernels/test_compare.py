"""The comparing kernels: what agrees is marked, what does not comes back."""

import numpy as np
import pytest

from broker_store.formats import index_file, queue_unit
from broker_store.kernels import columns as col
from broker_store.kernels import compare as k
from broker_store.kernels import context as c

HASHES = (5_994_471_943_315_009_038, 12, 12 + (1 << 40))


def rows_of(records) -> np.ndarray:
    """(queue: topic's hash and id, number, log offset, size, tags code, system flag) of each record."""
    rows = np.zeros((len(records), col.ROW_WORDS), dtype=np.int64)
    for row, ((hashed, queue_id), number, offset, size, code, flag) in zip(rows, records, strict=True):
        row[[col.ROW_TOPIC_HASH, col.ROW_QUEUE_ID, col.ROW_QUEUE_OFFSET]] = hashed, queue_id, number
        row[[col.ROW_LOG_OFFSET, col.ROW_SIZE, col.ROW_TAGS_CODE, col.ROW_SYS_FLAG]] = (
            offset,
            size,
            code,
            flag,
        )
    return rows


def test_units_agree_by_queue_and_number_and_all_else_is_odd():
    queues = [(hashed, queue_id) for hashed in HASHES for queue_id in range(5)]
    rng = np.random.default_rng(4)
    firsts, counts = rng.integers(0, 100, len(queues)), rng.integers(0, 30, len(queues))
    table_rows = np.zeros((len(queues), k.Q_WORDS), dtype=np.int64)
    units, records, wanted_odd, at = b"", [], [], 0
    for number, queue in enumerate(queues):
        table_rows[number] = *queue, firsts[number], counts[number], at
        for place in range(counts[number]):
            offset, size, code = (
                int(rng.integers(1 << 40)),
                int(rng.integers(91, 9000)),
                int(rng.integers(-5, 5)),
            )
            units += queue_unit.encode(offset, size, code)
            records.append(
                (queue, int(firsts[number]) + place, offset, size, code, int(rng.choice([0, 4, 8, 12])))
            )
        at += int(counts[number])
    agreed_wanted = [flag in (0, 8) for *_, flag in records]
    order = rng.permutation(len(records))
    shuffled = [records[place] for place in order]
    queue, number, offset, size, code, _ = records[0]
    shuffled += [
        (queue, number, offset + 1, size, code, 0),
        (queue, number, offset, size + 1, code, 0),
        (queue, number, offset, size, code + 1, 0),
        (queue, int(firsts[0]) - 1, offset, size, code, 0),
        (queue, int(firsts[0] + counts[0]), offset, size, code, 0),
        ((99, 0), 0, offset, size, code, 8),
        ((99, 0), 0, offset, size, code, 4),
    ]
    wanted_odd = list(range(len(records), len(shuffled) - 1))
    rows, room = rows_of(shuffled), np.frombuffer(units, dtype=np.uint8)
    table = np.full((32, k.Q_WORDS), -1, dtype=np.int64)
    k.fill_table(table.ctypes.data, 31, table_rows.ctypes.data, len(queues))
    agreed, odd = np.zeros(at, dtype=np.uint8), np.empty(len(rows), dtype=np.int64)
    context = np.zeros(k.U_WORDS, dtype=np.int64)
    context[[k.U_ROWS, k.U_COUNT, k.U_TABLE, k.U_MASK]] = rows.ctypes.data, len(rows), table.ctypes.data, 31
    context[[k.U_UNITS, k.U_AGREED, k.U_ODD]] = room.ctypes.data, agreed.ctypes.data, odd.ctypes.data
    assert odd[: k.compare_units(context.ctypes.data)].tolist() == wanted_odd
    assert agreed.tolist() == agreed_wanted


BEGIN = 1_000_000


def side_by_side(records, entries, first_number=1, late_room=100):
    """`records` are (log offset, store time, key hashes), `entries` (hash, log offset, seconds): (answer,
    row, key, entry, late)."""
    rows, keys = (
        np.zeros((len(records), col.ROW_WORDS), dtype=np.int64),
        [key for *_, some in records for key in some],
    )
    first = 0
    for row, (offset, store_ms, some) in zip(rows, records, strict=True):
        row[[col.ROW_LOG_OFFSET, col.ROW_STORE_MS, col.ROW_FIRST_KEY, col.ROW_KEY_COUNT]] = (
            offset,
            store_ms,
            first,
            len(some),
        )
        first += len(some)
    raw = np.frombuffer(
        b"".join(index_file.encode_entry(index_file.IndexEntry(*entry, 0)) for entry in entries) or bytes(20),
        dtype=np.uint8,
    )
    hashes, late, context = (
        np.array(keys, dtype=np.int64),
        np.empty(late_room, dtype=np.int64),
        np.zeros(k.E_WORDS, dtype=np.int64),
    )
    context[[k.E_ROWS, k.E_COUNT, k.E_KEYS, k.E_ENTRIES, k.E_END]] = (
        rows.ctypes.data,
        len(rows),
        hashes.ctypes.data,
        raw.ctypes.data,
        len(entries),
    )
    context[[k.E_FIRST_NUMBER, k.E_BEGIN_MS, k.E_LATE]] = first_number, BEGIN, late.ctypes.data
    answer = k.compare_entries(context.ctypes.data)
    return answer, *context[[k.E_ROW, k.E_KEY, k.E_AT]].tolist(), late[: context[k.E_LATE_COUNT]].tolist()


TAG = col.TAG_KEY
RECORDS = [(0, BEGIN, [5, 6, 7 | TAG]), (100, BEGIN + 2_500, []), (200, BEGIN + 2_500, [8, 9 | TAG])]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(5, 0, 0), (6, 0, 0), (7, 0, 0), (8, 200, 2), (9, 200, 2)], (c.DONE, 3, 5, 5, [])),
        ([(5, 0, 0), (6, 0, 0), (8, 200, 2), (9, 200, 2)], (c.DONE, 3, 5, 4, [])),  # a tag has no entry
        ([(5, 0, 0), (6, 0, 0)], (c.EXHAUSTED, 0, 2, 2, [])),
        ([(5, 0, 0), (8, 200, 2)], (c.DIFFERS, 0, 1, 1, [])),
        ([(5, 0, 0), (6, 1, 0)], (c.DIFFERS, 0, 1, 1, [])),
        # The first of a file may state any
        ([(5, 0, 9), (6, 0, 1), (7, 0, 0), (8, 200, 3), (9, 200, 2)], (c.DONE, 3, 5, 5, [1, 3])),
        ([], (c.EXHAUSTED, 0, 0, 0, [])),
    ],
)
def test_keys_and_entries_go_side_by_side(entries, expected):
    assert side_by_side(RECORDS, entries) == expected


def test_every_entry_names_the_one_before_it_in_its_slot():
    rng = np.random.default_rng(7)
    slots, hashes = 13, rng.integers(-(2**31), 2**31 - 1, 500).tolist()
    newest, entries = {}, []
    for number, hashed in enumerate(hashes, 1):
        slot = abs(hashed) % slots
        entries.append(index_file.IndexEntry(hashed, 0, 0, newest.get(slot, 0)))
        newest[slot] = number
    wrong = {40: 39, 41: 41, 300: 0}
    expected = [(number, entries[number - 1].previous) for number in wrong]
    for number, previous in wrong.items():
        entries[number - 1] = entries[number - 1]._replace(previous=previous)
    raw = np.frombuffer(b"".join(map(index_file.encode_entry, entries)), dtype=np.uint8)
    heads, found = np.zeros(slots, dtype=np.int32), np.empty((2, 2), dtype=np.int64)
    told, count = [], 0
    for first, end in ((1, 200), (200, 501)):  # what the slots name is kept from one piece to the next
        some = k.wrong_links(
            raw.ctypes.data + 20 * (first - 1),
            first,
            end - first,
            slots,
            heads.ctypes.data,
            found.ctypes.data,
            2,
        )
        told += [tuple(one) for one in found[:some].tolist()]
        count += some
    assert (count, told) == (3, expected)
    assert heads.tolist() == [newest[slot] for slot in range(slots)]


@pytest.mark.parametrize(
    ("entries", "flaws"),
    [
        ([(5, 0), (6, 0), (0, 7)], 0),
        ([], 0),
        ([(5, 0), (-1, 0)], k.HAS_NEGATIVE),
        ([(5, 3), (6, 2), (7, 9)], k.STEPS_BACK),
        ([(-(2**31), 3), (6, 2)], k.HAS_NEGATIVE | k.STEPS_BACK),
    ],
)
def test_entries_below_zero_and_out_of_order_are_seen(entries, flaws):
    raw = np.frombuffer(
        b"".join(
            index_file.encode_entry(index_file.IndexEntry(hashed, place, 0, 0)) for hashed, place in entries
        ),
        dtype=np.uint8,
    )
    assert k.flaws_of(raw.ctypes.data, len(entries)) == flaws
