"""The store as its callers see it: what it takes, what it gives back, what it promises and what it
refuses."""

import json

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.errors import DamagedStoreError, MisuseError, StoreLockedError, SyncError
from broker_store.formats import record
from broker_store.formats.java_hash import java_hash
from broker_store.messages import GetRequest, GetStatus, Message, PutStatus
from tests.support.engine_data import encode_batch
from tests.support.hand_store import START_MS, HandStore, message, small_settings

SYNC = {"flush_disk_type": "SYNC_FLUSH"}


def bodies(result):
    return [found.body for found in record.decode_all(result.body)]


def read(store, offset, topic="topic", queue_id=0, **limits):
    return store.reads.get(GetRequest(topic, queue_id, offset, **limits))


# Writing ------------------------------------------------------------------------------------------


def test_a_put_is_given_back_as_it_was_put(open_store):
    store = open_store()
    sent = message(
        body=b"hello",
        tag="a",
        keys=("k1", "k2"),
        unique="u",
        flag=7,
        reconsume_times=3,
        born_host=(b"\x0a\0\0\1", 5),
    )
    result = store.appender.put(sent)
    assert (result.status, result.log_offset, result.queue_offset, result.store_timestamp) == (
        PutStatus.PUT_OK,
        0,
        0,
        START_MS,
    )
    (found,) = record.decode_all(read(store, 0).body)
    assert (found.body, found.raw_properties, found.flag, found.reconsume_times, found.born_host) == (
        b"hello",
        sent.properties,
        7,
        3,
        (b"\x0a\0\0\1", 5),
    )
    assert (found.size, found.store_host) == (result.log_end, store.appender.store_host)


def test_bodies_may_be_any_kind_of_buffer(open_store):
    store = open_store()
    for body in (bytearray(b"one"), memoryview(b"two")):
        assert store.appender.put(Message("topic", 0, body, memoryview(b"KEYS\x01k\x02"))).ok
    assert bodies(read(store, 0)) == [b"one", b"two"]


def test_more_messages_than_a_kernel_call_takes_are_one_group_all_the_same(open_store):
    store = open_store(max_index_num=30_000)
    results = store.appender.put_many([message(queue_id=number % 2) for number in range(2500)])
    assert len(results) == 2500 and all(result.ok for result in results)
    assert (store.reads.max_offset("topic", 0), store.reads.max_offset("topic", 1)) == (1250, 1250)


def test_a_batch_takes_consecutive_offsets(open_store):
    store = open_store()
    store.appender.put(message())
    result = store.appender.put_batch(
        message(body=encode_batch([(0, b"one", b"KEYS\x01x\x02"), (1, b"two", b"")]), tag="t")
    )
    assert (result.status, result.queue_offset, result.count) == (PutStatus.PUT_OK, 1, 2)
    assert bodies(read(store, 1)) == [b"one", b"two"]
    assert [record.decode(store.reads.records.record_at(at)).body for at in result.log_offsets] == [
        b"one",
        b"two",
    ]


def test_store_times_never_step_back_though_the_clock_does(open_store, clock):
    store = open_store()
    first = store.appender.put(message()).store_timestamp
    clock.advance(-60_000)
    assert store.appender.put(message()).store_timestamp == first


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (Message("t" * 128, 0, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("%RETRY%" + "t" * 249, 0, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("../etc", 0, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("a/b", 0, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("", 0, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("ünï", 0, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("topic", -1, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("topic", 65536, b""), PutStatus.MESSAGE_ILLEGAL),
        (Message("topic", 0, b"x" * 5001), PutStatus.MESSAGE_ILLEGAL),
        (Message("topic", 0, b"", sys_flag=0x80), PutStatus.MESSAGE_ILLEGAL),
        (Message("topic", 0, b"", b"INNER_NUM\x013\x02"), PutStatus.MESSAGE_ILLEGAL),
        (Message("topic", 0, b"", b"a\x01" + b"x" * 32766), PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_what_may_not_be_stored_is_refused_with_its_status_and_changes_nothing(open_store, sent, status):
    store = open_store(max_message_size=5000)
    assert [
        store.appender.put(sent).status,
        *(result.status for result in store.appender.put_many([sent])),
    ] == [status] * 2
    assert (store.log.wrote, store.queues()) == (0, []) or sent.topic == "topic"
    assert store.log.wrote == 0
    assert store.status.snapshot().totals.refused == {status.name: 2}


def test_a_batch_of_a_transaction_is_refused(open_store):
    store = open_store()
    assert (
        store.appender.put_batch(message(body=encode_batch([(0, b"x", b"")]), sys_flag=4)).status
        is PutStatus.MESSAGE_ILLEGAL
    )


def test_a_store_that_is_not_started_closed_or_a_slave_takes_nothing(open_store, directory, clock):
    store = HandStore(small_settings(directory / "other"), clock)
    assert store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(MisuseError):
        store.start()
    store.begin()
    store.close()
    store.close()
    assert store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    slave = open_store(broker_role="SLAVE")
    assert slave.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert slave.status.snapshot().flags[0].name == "slave"


# Reading ------------------------------------------------------------------------------------------


def test_each_way_a_read_can_miss_has_its_status_and_next_offset(open_store):
    store = open_store()
    assert read(store, 5).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.confirmation.watch("topic", 1)
    assert read(store, 0, queue_id=1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    for number in range(80):
        store.appender.put(message(body=b"x" * 500, tag="a", unique=f"{number}"))
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=2) == 2
    low = store.reads.min_offset("topic", 0)
    assert low > 0
    seen = {offset: read(store, offset) for offset in (low - 1, low, 80, 81)}
    assert [(result.status, result.next_offset) for result in seen.values()] == [
        (GetStatus.OFFSET_TOO_SMALL, low),
        (GetStatus.FOUND, min(-(-(low + 1) // 20) * 20, low + 32)),
        (GetStatus.OFFSET_OVERFLOW_ONE, 80),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 80),
    ]
    assert all((result.min_offset, result.max_offset) == (low, 80) for result in seen.values())
    missed = read(store, 60, tag_codes=frozenset({java_hash("b")}))
    assert (missed.status, missed.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 80)


def test_a_read_is_bounded_in_messages_and_bytes_and_by_the_settings(open_store):
    store = open_store(max_transfer_count_on_message_in_memory=6)
    sizes = [store.appender.put(message(body=b"x" * 300)).log_end for _ in range(10)]
    size = sizes[0]
    assert read(store, 0, max_count=4).count == 4
    assert read(store, 0).count == 6
    assert read(store, 0, max_bytes=2 * size).count == 2
    assert read(store, 0, max_bytes=1).count == 1


def test_a_filter_without_tags_passes_nothing(open_store):
    store = open_store()
    store.appender.put(message(tag="a"))
    assert read(store, 0, tag_codes=frozenset()).status is GetStatus.NO_MATCHED_MESSAGE


def test_what_may_not_be_in_memory_is_read_in_a_thread_and_given_on_the_loop(open_store, monkeypatch):
    monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    first = open_store()
    for number in range(5):
        first.appender.put(message(body=b"%d" % number))
    first.close()
    store = open_store()
    given = []
    request = GetRequest("topic", 0, 1)
    assert store.reads.get(request, given.append) is None
    store.reads.close()
    assert (
        bodies(given[0])
        == [b"1", b"2", b"3", b"4"]
        == bodies(store.reads.get(request))
        == bodies(store.reads.get_blocking(request))
    )
    assert given[0].cold and store.reads.get(request).cold
    totals = store.status.snapshot().totals
    assert (totals.cold_gets, totals.cold_bytes) == (3, len(given[0].body)), "only what threads read is timed"
    assert totals.cold_ms > 0


def test_watched_queues_announce_what_arrived_once_a_group(open_store):
    store = open_store()
    heard = []
    store.confirmation.arrival_listener = heard.append
    store.confirmation.watch("topic", 0)
    store.appender.put_many([message(), message(), message(queue_id=1)])
    assert heard == [[("topic", 0)]]
    store.appender.put(message())
    store.confirmation.unwatch("topic", 0)
    store.appender.put(message())
    assert heard == [[("topic", 0)]] * 2


def test_a_topic_that_is_made_again_is_watched_as_before(open_store):
    """A pull or pop that waited when the topic was deleted heard nothing of the new topic."""
    store = open_store()
    heard = []
    store.confirmation.arrival_listener = heard.append
    store.confirmation.watch("topic", 0)
    store.appender.put_many([message(), message(queue_id=1)])
    store.delete_topic("topic")
    store.appender.put_many([message(), message(queue_id=1)])
    assert heard == [[("topic", 0)]] * 2
    store.delete_topic("topic")
    store.confirmation.unwatch("topic", 0)
    store.appender.put(message())
    assert len(heard) == 2


def test_a_queue_is_watched_until_all_who_watch_it_have_taken_that_back(open_store):
    """A pull of the delay topic ended the watch of the delivery of delayed messages."""
    store = open_store()
    heard = []
    store.confirmation.arrival_listener = heard.append
    store.confirmation.watch("topic", 0)
    store.confirmation.watch("topic", 0)
    store.confirmation.unwatch("topic", 0)
    store.appender.put(message())
    assert heard == [[("topic", 0)]]
    store.confirmation.unwatch("topic", 0)
    store.appender.put(message())
    assert heard == [[("topic", 0)]]


def test_a_time_finds_the_first_message_at_or_after_it_and_the_last_at_or_before(open_store, clock):
    store = open_store()
    for step in (0, 100, 0, 200, 300):
        clock.advance(step)
        store.appender.put(message())
    times = [START_MS, START_MS + 100, START_MS + 100, START_MS + 300, START_MS + 600]
    for at in (START_MS - 1, *times, START_MS + 150, START_MS + 700):
        assert store.reads.times.offset_by_time("topic", 0, at) == min(
            (n for n, t in enumerate(times) if t >= at), default=5
        )
        assert store.reads.times.offset_by_time("topic", 0, at, upper=True) == max(
            (n for n, t in enumerate(times) if t <= at), default=0
        )
    assert [store.reads.times.store_time_at("topic", 0, n) for n in range(6)] == [*times, -1]
    assert (
        store.reads.times.earliest_store_time("topic", 0),
        store.reads.times.last_store_time("topic", 0),
    ) == (
        times[0],
        times[-1],
    )
    assert (
        store.reads.times.earliest_store_time("none", 0),
        store.reads.times.offset_by_time("none", 0, 5),
        store.reads.times.last_store_time("none", 0),
    ) == (-1, 0, None)


def test_a_place_in_the_log_gives_its_record_only_where_one_begins(open_store):
    store = open_store()
    places = [store.appender.put(message(body=b"x" * 700)).log_offset for _ in range(40)]
    assert all(record.decode(store.reads.records.record_at(at)).log_offset == at for at in places)
    assert all(
        store.reads.records.record_at(at) is None
        for at in (-1, 1, places[3] + 4, places[-1] + 1, store.log.wrote, 1 << 60, places[19] + 800)
    )


# Keys ---------------------------------------------------------------------------------------------


def test_keys_tags_and_unique_keys_are_found_in_their_topic_and_time(open_store, clock):
    store = open_store()
    for number in range(200):
        clock.advance(1000)
        store.appender.put(
            message(
                queue_id=number % 2,
                body=b"%d" % number,
                keys=(f"k{number}", f"g{number % 10}"),
                unique=f"u{number}",
            )
        )
    assert len(store.index.files) > 3

    def found(key, topic="topic", most=64, **times):
        return [
            int(record.decode(raw).body) for raw in store.reads.query_keys(topic, key, most, **times).records
        ]

    assert found("k7") == found("u7") == [7]
    assert found("g3") == list(range(3, 200, 10))
    assert found("g3", most=2) == [183, 193]
    assert found("g3", begin_ms=START_MS + 100_000, end_ms=START_MS + 130_000) == [103, 113, 123]
    assert found("k7", topic="other") == found("none") == []
    result = store.reads.query_keys("topic", "k199", 1)
    assert result.index_last_timestamp == clock.now_ms


def test_without_an_index_a_key_is_not_found_and_all_else_works(directory, clock):
    store = HandStore(small_settings(directory / "store", message_index_enable=False), clock).begin()
    store.appender.put(message(keys=("k",)))
    assert store.reads.query_keys("topic", "k", 9).records == [] and bodies(read(store, 0)) == [b"body"]
    assert not store.disk.list_names(store.root / "index")
    store.close()


# Topics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "die"])
def test_a_deleted_topic_does_not_come_back_and_its_name_can_be_used_again(open_store, how):
    store = open_store()
    for number in range(30):
        store.appender.put(message(body=b"old", queue_id=number % 2, keys=("k",)))
    store.appender.put(message("other", body=b"kept"))
    store.delete_topic("topic")
    assert (store.queue_ids("topic"), read(store, 0).status) == ([], GetStatus.NO_MESSAGE_IN_QUEUE)
    assert not store.disk.exists(store.root / "consumequeue/topic")
    assert store.appender.put(message(body=b"new")).queue_offset == 0
    getattr(store, how)()
    store = open_store()
    assert bodies(read(store, 0)) == [b"new"] and bodies(read(store, 0, "other")) == [b"kept"]
    assert store.queue_ids("topic") == [0]


def test_a_topic_deleted_and_left_alone_stays_away_after_a_crash(open_store):
    store = open_store()
    store.appender.put(message())
    store.flush()
    store.delete_topic("topic")
    store.die()
    store = open_store()
    assert read(store, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.appender.put(message()).queue_offset == 0


def test_files_that_a_crash_left_of_a_deleted_topic_are_cleared_away(open_store):
    store = open_store()
    for _ in range(25):
        store.appender.put(message(body=b"old"))
    files = {
        file.path: store.disk.read_file(file.path) for queue in store.queue_table for file in queue.files
    }
    store.delete_topic("topic")
    store.appender.put(message(body=b"new"))
    store.die()
    for path, content in files.items():
        store.disk.make_directory(path.parent)
        store.disk.write_file(path, content)
    store = open_store()
    assert bodies(read(store, 0)) == [b"new"]
    assert store.reads.max_offset("topic", 0) == 1


def test_the_mark_of_a_deleted_topic_goes_when_the_log_no_longer_reaches_it(open_store):
    store = open_store()
    store.appender.put(message("gone"))
    store.delete_topic("gone")
    assert json.loads(store.read_config("deletedTopics.json")) == {"gone": store.log.wrote}
    for _ in range(30):
        store.appender.put(message(body=b"x" * 1500))
    store.flush(), store.round()
    store.cleaning.delete_expired(any_age=True)
    assert json.loads(store.read_config("deletedTopics.json")) == {}


def test_a_mark_that_cannot_be_written_leaves_the_topic(open_store, monkeypatch):
    store = open_store()
    store.appender.put(message())
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "replace_file", lambda *_: (_ for _ in ()).throw(SyncError("no")))
        with pytest.raises(SyncError):
            store.delete_topic("topic")
    assert bodies(read(store, 0)) == [b"body"]


def test_unreadable_marks_refuse_the_start_with_the_file_and_what_to_do(open_store, directory, clock):
    store = open_store()
    store.appender.put(message())
    store.delete_topic("topic")
    store.close()
    path = store.root / "config/deletedTopics.json"
    good = path.read_bytes()
    for bad in (
        b"{",
        b"[1]",
        b'{"a": "x"}',
        b'{"a": null}',
        b'{"a": 1e400}',
        b'{"a": 9223372036854775808}',
        b'{"a": -1}',
        b"[" * 100_000,
    ):
        path.write_bytes(bad)
        with pytest.raises(DamagedStoreError, match=r"config/deletedTopics\.json.*deletedTopics\.json\.bak"):
            HandStore(small_settings(directory / "store"), clock).open()
    path.write_bytes(good)
    open_store()


def test_a_topic_table_that_is_nested_without_end_ends_no_start_in_a_traceback(open_store):
    store = open_store()
    store.appender.put(message())
    store.close()
    (store.root / "config").mkdir(exist_ok=True)
    (store.root / "config/topics.json").write_bytes(b"[" * 100_000)
    assert bodies(read(open_store(), 0)) == [b"body"]  # the reader of the table refuses it
    (store.root / "config/topics.json").unlink()  # the check at the end is of a sound store


# Sync flush ---------------------------------------------------------------------------------------


def test_with_sync_flush_nothing_is_shown_or_confirmed_before_it_is_on_disk(open_store):
    store = open_store(**SYNC)
    heard = []
    results = store.appender.put_many([message(), message()])
    for result in results:
        store.confirmation.when_confirmed(result.log_end, heard.append)
    assert (store.confirmed, heard, read(store, 0).status) == (0, [], GetStatus.NO_MESSAGE_IN_QUEUE)
    assert store.reads.records.record_at(0) is None and store.worker("log-flusher").nudges
    store.flush()
    assert heard == [PutStatus.PUT_OK] * 2 and store.confirmed == results[1].log_end
    assert len(bodies(read(store, 0))) == 2
    store.confirmation.when_confirmed(results[0].log_end, heard.append)
    assert len(heard) == 3


def test_a_sync_that_takes_too_long_is_answered_and_the_message_is_there_later(open_store, clock):
    store = open_store(sync_flush_timeout=1000, **SYNC)
    heard = []
    store.confirmation.when_confirmed(store.appender.put(message()).log_end, heard.append)
    clock.advance(999)
    store.tick()
    assert heard == []
    clock.advance(1)
    store.tick()
    assert heard == [PutStatus.FLUSH_DISK_TIMEOUT]
    store.flush()
    assert heard == [PutStatus.FLUSH_DISK_TIMEOUT] and bodies(read(store, 0)) == [b"body"]


# One writer, configuration, facts -----------------------------------------------------------------


def test_a_second_store_on_the_directory_is_refused_and_the_first_goes_on(open_store, directory, clock):
    store = open_store()
    with pytest.raises(StoreLockedError):
        HandStore(small_settings(directory / "store"), clock).open()
    assert store.appender.put(message()).ok


def test_configuration_is_replaced_whole_and_the_old_text_kept(open_store):
    store = open_store()
    assert store.read_config("topics.json") is None
    store.write_config("topics.json", b'{"a": 1}')
    store.write_config("topics.json", b'{"a": 2}')
    assert (store.read_config("topics.json"), store.read_config("topics.json.bak")) == (
        '{"a": 2}',
        '{"a": 1}',
    )
    (store.root / "config/topics.json").unlink()
    assert store.read_config("topics.json") == '{"a": 1}'


def test_facts_follow_what_happens(open_store, clock):
    store = open_store()
    store.appender.put_many([message(keys=("k",)), message("other", queue_id=3)])
    positions = store.status.positions()
    assert positions.wrote == positions.confirmed == positions.dispatched == store.log.wrote
    assert (positions.min, positions.flushed) == (0, 0)
    snapshot = store.status.snapshot()
    assert (snapshot.state, snapshot.queues, snapshot.lag.unflushed_bytes) == (
        "running",
        2,
        store.log.wrote,
    )
    assert (snapshot.totals.puts, snapshot.totals.put_bytes) == (2, store.log.wrote)
    store.flush(), store.round()
    positions = store.status.positions()
    assert positions.flushed == positions.checkpoint_position == store.log.wrote
    assert positions.checkpoint.physic_ms == START_MS
    kinds = [(fact.kind, fact.state, fact.wrote) for fact in store.status.files()]
    assert kinds[:3] == [
        ("commitlog", "writing", store.log.wrote),
        ("consumequeue", "writing", 20),
        ("consumequeue", "writing", 20),
    ]
    assert (store.index.facts()[0].entries, store.index.facts()[0].max_entries) == (1, 63)
    report = store.report.as_dict()
    assert report["kind"] == "first start" and any(
        step["detail"].endswith("or is new") for step in report["steps"]
    )
