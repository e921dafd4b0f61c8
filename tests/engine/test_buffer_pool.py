"""The transient store pool: a log that is appended in buffers, and shown when it is in its files."""

from __future__ import annotations

import random
import struct
from contextlib import contextmanager

import pytest

from broker_store.engine import store_parts
from broker_store.errors import ConfigError
from broker_store.facts import exposure
from broker_store.formats import record
from broker_store.memory_limit import MemoryLimit
from broker_store.messages import GetRequest, GetStatus, PutStatus
from tests.support.hand_store import Clock, HandStore, findings, message, opened, small_settings

POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
FILE = 16384


@contextmanager
def pooled(root, **changes):
    with opened(root, **{**POOL, **changes}) as store:
        yield store


def put(store, count, size=100, queues=3):
    """Put so many messages; their results."""
    messages = [
        message(queue_id=number % queues, body=bytes([1 + number % 250]) * size, keys=(f"k{number}",))
        for number in range(count)
    ]
    results = [store.appender.put(one) for one in messages]
    assert all(result.ok for result in results)
    return results


def in_file(store, offset, length):
    """Bytes as another process reads them."""
    file = store.log.file_holding(offset)
    with open(file.path, "rb") as opened_file:
        opened_file.seek(offset - file.base)
        return opened_file.read(length)


def test_an_append_is_answered_in_a_buffer_and_shown_when_it_is_in_the_file(tmp_path):
    with pooled(tmp_path / "store") as store:
        heard = []
        store.confirmation.arrival_listener = heard.extend
        store.confirmation.watch("topic", 0)
        (result,) = put(store, 1)
        assert result.log_end == store.log.wrote == store.confirmation.answerable
        assert store.log.committed == store.confirmed == 0 and not heard
        assert in_file(store, 0, result.log_end) == bytes(result.log_end)
        assert store.reads.get(GetRequest("topic", 0, 0)).status is not GetStatus.FOUND
        assert store.reads.records.record_at(0) is None and store.reads.records.log_bytes(0, 100) == b""
        store.commit()
        assert store.log.committed == store.confirmed == result.log_end and heard == [("topic", 0)]
        assert store.reads.get(GetRequest("topic", 0, 0)).body == in_file(store, 0, result.log_end)
    assert findings(tmp_path / "store") == []


def test_the_files_are_those_of_a_store_without_a_pool(tmp_path):
    """Also the rest of a blank, though a buffer that is used again holds what an earlier file had there."""
    contents = []
    for kind, changes in (("plain", {}), ("pool", POOL)):
        chance, commits = random.Random(5), random.Random(6)
        with opened(tmp_path / kind / "store", Clock(), **changes) as store:
            for number in range(200):
                put(store, 1, chance.randint(1, 1500))
                if number == 120:
                    inner = b"".join(
                        struct.pack(">iiiii", 22 + 50, 0, 0, 0, 50) + bytes([number + at]) * 50 + b"\0\0"
                        for at in range(3)
                    )
                    batch = store.appender.put_batch(message(body=inner))
                    assert (
                        batch.log_offsets[1] - batch.log_offsets[0]
                        == batch.log_offsets[2] - (batch.log_offsets[1])
                    )
                if changes and commits.random() < 0.3:
                    store.commit()
            assert len(store.log.files) > 4
        files = sorted((tmp_path / kind / "store" / "commitlog").iterdir())
        contents.append([(file.name, file.read_bytes()) for file in files])
    kept = min(map(len, contents))  # one more may have been made ahead
    assert contents[0][:kept] == contents[1][:kept]


def test_a_buffer_is_given_back_when_its_file_is_complete(tmp_path):
    with pooled(tmp_path / "store") as store:
        assert store.status.snapshot().pool.free_buffers == 2
        put(store, 15, 1500)  # into the second file
        assert len(store.log.files) == 2 and store.log.available_buffers == 1
        store.commit()
        assert store.log.available_buffers == 2
        for _ in range(5):
            put(store, 15, 1500)
            store.commit()
        assert store.log.available_buffers == 2 and len(store.log.files) > 6


def test_without_a_free_buffer_sends_are_refused_as_busy_until_one_is_given_back(tmp_path):
    with pooled(tmp_path / "store") as store:
        put(store, 25, 1500)
        assert len(store.log.files) == 3 and store.log.available_buffers == 0
        assert store.rejects_sends == "no_buffer" and "no_buffer" in store.flags
        store.tick()
        assert store.rejects_sends == "no_buffer"
        store.commit()
        store.tick()
        assert store.rejects_sends is None and store.flags == {}


def test_a_message_that_needs_a_further_file_is_stored_without_a_buffer(tmp_path):
    """What waits inside of the broker goes on while sends are refused."""
    with pooled(tmp_path / "store") as store:
        results = put(store, 45, 1500)
        assert len(store.log.files) >= 5 and store.log.available_buffers == 0
        assert store.confirmed == 0
        store.commit()
        assert store.confirmed == results[-1].log_end and store.log.available_buffers == 3
        put(store, 15, 1500)  # the next file has a buffer again
        assert store.log.available_buffers == 2
        store.commit()
    assert findings(tmp_path / "store") == []


def test_with_fast_fail_it_is_refused(tmp_path):
    with pooled(tmp_path / "store", fast_fail_if_no_buffer_in_store_pool=True) as store:
        statuses = [store.appender.put(message(body=b"x" * 1500)).status for _ in range(45)]
        assert len(store.log.files) == 3
        first = statuses.index(PutStatus.CREATE_MAPPED_FILE_FAILED)
        assert set(statuses[:first]) == {PutStatus.PUT_OK}
        assert set(statuses[first:]) == {PutStatus.CREATE_MAPPED_FILE_FAILED}
        store.commit()
        store.tick()
        assert store.appender.put(message(body=b"x" * 1500)).ok
        store.commit()
        assert store.reads.max_offset("topic", 0) == first + 1


def test_it_commits_when_enough_pages_are_appended_or_enough_time_has_passed(tmp_path):
    changes = {
        "commit_commit_log_least_pages": 2,
        "commit_commit_log_thorough_interval": 300,
        "commit_interval_commit_log": 100,
    }
    with pooled(tmp_path / "store", **changes) as store:
        store.commit()  # the time counts from here
        committer = store.worker("log-committer")
        assert committer.interval_s == 0.1
        (small,) = put(store, 1)
        committer.run(store.clock())
        assert store.log.committed == 0
        large = put(store, 6, 1500)[-1]
        committer.run(store.clock())
        assert store.log.committed == large.log_end > small.log_end
        (last,) = put(store, 1)
        store.clock.advance(299)
        committer.run(store.clock())
        assert store.log.committed == large.log_end
        store.clock.advance(1)
        committer.run(store.clock())
        assert store.log.committed == last.log_end


def test_what_is_committed_never_goes_back(tmp_path):
    """A sync may know less of the log than the committer, which ran in between."""
    with pooled(tmp_path / "store") as store:
        (first,) = put(store, 1)
        (second,) = put(store, 1)
        store.log.commit(second.log_end)
        store.log.sync(first.log_end)
        assert store.log.committed == second.log_end and store.log.flushed == first.log_end
        (third,) = put(store, 1)
        store.log.commit(third.log_end)
        assert in_file(store, 0, third.log_end) == store.reads.records.log_bytes(0, third.log_end)
    assert findings(tmp_path / "store") == []


@pytest.mark.parametrize("wakes", [True, False])
def test_an_append_wakes_the_committer_where_the_setting_says_so(tmp_path, wakes):
    with pooled(tmp_path / "store", wake_commit_when_put_message=wakes) as store:
        put(store, 3)
        assert (store.worker("log-committer").nudges > 0) is wakes


def test_a_sync_covers_what_is_committed_and_a_stop_commits_all(tmp_path):
    with pooled(tmp_path / "store") as store:
        results = put(store, 5)
        store.flush()
        assert store.flushed == 0
        store.commit()
        put(store, 4)
        store.flush()
        assert store.flushed == results[-1].log_end
    with opened(tmp_path / "store") as store:
        assert not store.report.abort_found
        assert sum(store.reads.max_offset("topic", queue) for queue in range(3)) == 9


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_loses_what_was_not_committed_and_nothing_is_ever_read_as_zero(tmp_path, seed):
    chance, clock, root = random.Random(seed), Clock(), tmp_path / "store"
    bodies: dict[int, list[bytes]] = {0: [], 1: []}
    for _ in range(4):
        store = HandStore(small_settings(root, **POOL), clock).begin()
        for queue, there in bodies.items():
            read_all(store, queue, there)
        for _ in range(60):
            queue = chance.randint(0, 1)
            body = chance.randbytes(chance.randint(1, 900)).replace(b"\0", b"1")
            assert store.appender.put(message(queue_id=queue, body=body)).ok
            bodies[queue].append(body)
            if chance.random() < 0.2:
                store.commit()
            for number, sent in bodies.items():
                read_all(store, number, sent)
        facts = exposure.losses(store.status.snapshot()).process
        lost = sum(len(sent) - store.reads.max_offset("topic", queue) for queue, sent in bodies.items())
        assert facts.written == facts.acknowledged and facts.written.messages == lost
        assert facts.written.bytes == store.log.wrote - store.log.committed
        there, end = {queue: store.reads.max_offset("topic", queue) for queue in bodies}, store.log.committed
        store.die()
        for queue, sent in bodies.items():
            del sent[there[queue] :]
        with opened(root, clock) as again:
            assert again.log.wrote == end and again.report.abort_found
            assert not [finding for finding in again.report.findings if finding.severity == "error"]


def read_all(store, queue, sent):
    """Each message that a consumer is given is one that was sent, at its offset."""
    maximum = store.reads.max_offset("topic", queue)
    assert maximum <= len(sent)
    offset = 0
    while offset < maximum:
        result = store.reads.get(GetRequest("topic", queue, offset))
        assert result.status is GetStatus.FOUND
        for found in record.decode_all(result.body):
            assert found.queue_offset == offset and found.body == sent[offset]
            offset += 1


def test_what_a_crash_would_take_is_stated(tmp_path):
    with pooled(tmp_path / "store") as store:
        put(store, 2)
        store.commit()
        store.flush()
        put(store, 3)
        store.clock.advance(70)
        snapshot = store.status.snapshot()
        assert snapshot.positions.committed == store.log.committed < snapshot.positions.wrote
        assert (snapshot.lag.uncommitted_messages, snapshot.lag.oldest_uncommitted_ms) == (3, 70)
        assert snapshot.lag.unflushed_messages == 3
        found = exposure.losses(snapshot)
        assert found.process.acknowledged.messages == 3
        assert found.process.sentence.startswith("Acknowledged messages that are in a buffer")
        store.commit()
        found = exposure.losses(store.status.snapshot())
        assert found.process.acknowledged.messages == 0
        assert found.process.sentence.startswith("Nothing at this moment")
        assert found.power.acknowledged.messages == 3


def test_with_slaves_to_wait_for_an_answer_waits_for_the_file_too(tmp_path):
    with pooled(tmp_path / "store", broker_role="SYNC_MASTER") as store:
        answers = []
        (result,) = put(store, 1)
        assert store.confirmation.answerable == 0
        store.confirmation.when_confirmed(result.log_end, answers.append)
        store.commit()
        assert store.confirmed == 0 and not answers
        store.confirmation.copied(result.log_end)
        assert store.confirmed == result.log_end and answers == [PutStatus.PUT_OK]
        put(store, 1)
        found = exposure.losses(store.status.snapshot()).process
        assert found.written.messages == 1 and found.acknowledged.messages == 0
        assert "SYNC_MASTER" in found.sentence


def test_a_pool_that_is_larger_than_the_memory_is_refused(tmp_path, monkeypatch):
    limit = MemoryLimit(2 * FILE, "memory of the machine", is_of_group=False)
    monkeypatch.setattr(store_parts, "memory_limit", lambda: limit)
    store = HandStore(small_settings(tmp_path / "store", **POOL))
    store.open()
    with pytest.raises(ConfigError, match="3 buffers of 16,384 bytes .* more than the 32,768 bytes"):
        store.start()
    store.close()


def test_a_deleted_topic_stays_deleted(tmp_path):
    with pooled(tmp_path / "store") as store:
        put(store, 3)
        store.delete_topic("topic")
        put(store, 1)
        store.commit()
        assert store.reads.max_offset("topic", 0) == 1
    with opened(tmp_path / "store") as store:
        assert store.queue_ids("topic") == [0] and store.reads.max_offset("topic", 0) == 1
