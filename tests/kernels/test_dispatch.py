"""The dispatch kernel makes the units and entries that the log means, as the slow store makes them."""

from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats import properties, queue_unit
from broker_store.messages import Message
from tests.support import engine_data
from tests.support.engine_data import hand_store, log_files
from tests.support.reference import index_from_log, queues_from_log, walk_log


def units_of(store) -> dict:
    """Every queue's units as its files hold them."""
    found = {}
    for queue in store.queue_table:
        raw = b"".join(store.disk.files[file.path].array.tobytes() for file in queue.files)
        units = list(queue_unit.decode_all(raw))
        assert not any(unit.is_data for unit in units[queue.maximum :])
        if queue.maximum:
            found[queue.topic, queue.queue_id] = units[: queue.maximum]
    return found


def index_of(store) -> list[bytes]:
    return [store.disk.files[file.path].array.tobytes() for file in store.index.files]


def agree(store) -> None:
    records = walk_log(log_files(store)).records
    assert units_of(store) == queues_from_log(records)
    geometry = store.index.geometry
    models = index_from_log(records, geometry.slots, geometry.entries)
    assert index_of(store) == [model.to_bytes() for model in models]


@given(st.lists(st.tuples(engine_data.messages, st.integers(0, 5000)), min_size=1, max_size=40))
def test_queues_and_index_are_what_the_slow_store_makes_of_the_log(puts):
    store = hand_store()
    for message, later_ms in puts:
        store.clock.advance(later_ms)
        store.appender.put(message)
    agree(store)
    store.die()


@given(st.lists(engine_data.messages, min_size=1, max_size=30), st.lists(st.integers(1, 7), min_size=1))
def test_nothing_is_dispatched_before_it_is_confirmed_and_all_of_it_then(messages, sizes):
    store = hand_store(flush_disk_type="SYNC_FLUSH", max_index_num=4000)
    while messages:
        size = sizes[len(messages) % len(sizes)]
        group, messages = messages[:size], messages[size:]
        before = store.status.positions().dispatched
        store.appender.put_many(group)
        assert store.status.positions().dispatched == before
        store.flush()
        assert store.status.positions().dispatched == store.log.wrote
    agree(store)
    store.die()


def test_many_topics_and_queues_are_told_apart():
    store = hand_store()
    for number in range(1500):
        store.appender.put(Message(f"t{number % 700}", number % 9, b"x"))
    assert units_of(store) == queues_from_log(walk_log(log_files(store)).records)
    store.die()


def test_keys_fill_one_file_and_go_on_in_the_next_within_a_record():
    store = hand_store()
    keys = " ".join(f"k{number}" for number in range(25))
    for _ in range(7):
        store.appender.put(Message("T", 0, b"x", b"KEYS\x01" + keys.encode() + b"\x02"))
    assert len(store.index.files) == 3
    agree(store)
    store.die()


def test_a_delayed_message_has_its_time_of_delivery_in_its_unit():
    store = hand_store()
    levels = (
        "1",
        "3",
        "99",
        "0",
        "x",
        "007",
        "4294967297",
        "18446744073709551617",
        "+2",
        " 2",
        "1_0",
        "\u0663",
        "-1",
        "2\x02DELAY\x013",
        "2\x02DELAY\x01",
        "2\x02XDELAY\x019",
    )
    written = [f"TAGS\x01a\x02DELAY\x01{level}\x02".encode() for level in levels] + [b"TAGS\x01a\x02"]
    for pairs in written:
        store.appender.put(Message("SCHEDULE_TOPIC_XXXX", 2, b"x", pairs))
    codes = [unit.tags_code for unit in store.reads.read_units("SCHEDULE_TOPIC_XXXX", 2, 0, len(written))]
    now = store.clock()
    assert codes[:5] == [now + 1000, now + 10_000, now + 7_200_000, 97, 97]
    # Whatever a level looks like, what the kernel makes of it is what the format's own function does.
    expected = [
        queue_unit.tags_code("SCHEDULE_TOPIC_XXXX", "a", properties.get(pairs, "DELAY"), now)
        for pairs in written
    ]
    assert codes == expected and len(set(codes)) > 5
    store.die()
