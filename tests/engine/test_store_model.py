"""The store against a dictionary, under whatever Hypothesis invents: append, read, look up, expire, delete,
crash, reopen."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from broker_store.check.walk import check_store
from broker_store.formats import record
from broker_store.formats.java_hash import java_hash
from broker_store.messages import GetRequest, GetStatus, PutStatus
from tests.support.engine_data import ROOT, encode_batch
from tests.support.hand_store import Clock, HandStore, message, small_settings
from tests.support.simulated_disk import SimulatedDisk

TOPICS, QUEUES, TAGS = ("A", "B", "%RETRY%g"), (0, 1), (None, "a", "b")
queues = st.tuples(st.sampled_from(TOPICS), st.sampled_from(QUEUES))


@dataclass(frozen=True)
class Stored:
    log_offset: int
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    at_ms: int


class StoreAgainstDictionary(RuleBasedStateMachine):
    @initialize(flush=st.sampled_from(("ASYNC_FLUSH", "SYNC_FLUSH")))
    def begin(self, flush):
        self.clock = Clock()
        self.disk = SimulatedDisk(self.clock)
        self.is_sync = flush == "SYNC_FLUSH"
        self.settings = small_settings(ROOT, flush_disk_type=flush)
        self.model: dict[tuple[str, int], list[Stored]] = {}
        self.number = 0
        self.open()

    def open(self):
        self.store = HandStore(self.settings, self.clock, self.disk).begin()

    def keep(self, sent, result, queue):
        """What was confirmed is in the model."""
        assert result.status is PutStatus.PUT_OK
        store_ms = result.store_timestamp
        places = result.log_offsets or (result.log_offset,)
        stored = [
            Stored(place, body, tag, keys, store_ms)
            for place, (body, tag, keys) in zip(places, sent, strict=True)
        ]

        def confirmed(status):
            assert status is PutStatus.PUT_OK
            line = self.model.setdefault(queue, [])
            assert result.queue_offset == len(line)
            line += stored

        self.store.confirmation.when_confirmed(result.log_end, confirmed)

    def make(self, queue, size, tag, keys):
        self.number += 1
        body = self.number.to_bytes(4, "big") * (1 + size // 4)
        return message(*queue, body, tag=tag, keys=keys), [(body, tag, keys)]

    # What happens ---------------------------------------------------------------------------------

    @rule(
        puts=st.lists(
            st.tuples(
                queues,
                st.integers(0, 3000),
                st.sampled_from(TAGS),
                st.sets(st.sampled_from("kmn")).map(lambda keys: tuple(sorted(keys))),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def put(self, puts):
        made = [self.make(*each) for each in puts]
        results = self.store.appender.put_many([sent for sent, _ in made])
        for (queue, *_), (_, stored), result in zip(puts, made, results, strict=True):
            self.keep(stored, result, queue)
        if self.is_sync:
            self.store.flush()

    @rule(queue=queues, inner=st.lists(st.binary(max_size=100), min_size=1, max_size=4))
    def put_batch(self, queue, inner):
        result = self.store.appender.put_batch(
            message(*queue, encode_batch([(0, body, b"") for body in inner]), tag="a")
        )
        self.keep([(body, "a", ()) for body in inner], result, queue)
        if self.is_sync:
            self.store.flush()

    @rule(ms=st.sampled_from((1, 500, 4000, -1000)))
    def wait(self, ms):
        self.clock.advance(ms)

    @rule()
    def flush(self):
        self.store.flush()

    @rule()
    def round(self):
        self.store.round()

    @rule()
    def prepare(self):
        self.store.prepare()

    @rule(most=st.integers(1, 3))
    def expire(self, most):
        self.store.cleaning.delete_expired(any_age=True, most=most)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic):
        self.store.delete_topic(topic)
        for queue in [queue for queue in self.model if queue[0] == topic]:
            del self.model[queue]

    @rule()
    def crash(self):
        self.store.die()
        self.disk.kill()
        self.open()

    @rule()
    def reopen(self):
        self.store.close()
        self.open()

    # What must hold -------------------------------------------------------------------------------

    def minimum(self, queue):
        line = self.model.get(queue, [])
        return next(
            (number for number, stored in enumerate(line) if stored.log_offset >= self.store.log.minimum),
            len(line),
        )

    @invariant()
    def offsets_are_those_of_the_dictionary(self):
        for queue in [(topic, queue_id) for topic in TOPICS for queue_id in QUEUES]:
            assert self.store.reads.max_offset(*queue) == len(self.model.get(queue, []))
            assert self.store.reads.min_offset(*queue) == self.minimum(queue)

    @rule(
        queue=queues,
        offset=st.integers(0, 60),
        count=st.integers(1, 40),
        tags=st.one_of(st.none(), st.sets(st.sampled_from("ab"), min_size=1)),
    )
    def read(self, queue, offset, count, tags):
        line, low = self.model.get(queue, []), self.minimum(queue)
        codes = None if tags is None else frozenset(map(java_hash, tags))
        result = self.store.reads.get(GetRequest(*queue, offset, count, tag_codes=codes))
        if not line:
            assert result.status is GetStatus.NO_MESSAGE_IN_QUEUE
        elif not low <= offset < len(line):
            assert result.status in (
                GetStatus.OFFSET_TOO_SMALL,
                GetStatus.OFFSET_OVERFLOW_ONE,
                GetStatus.OFFSET_OVERFLOW_BADLY,
            )
        else:
            assert offset < result.next_offset <= len(line)
            wanted = [
                stored.body
                for stored in line[offset : result.next_offset]
                if tags is None or stored.tag in tags
            ]
            assert [found.body for found in record.decode_all(result.body)] == wanted
            assert result.status is (GetStatus.FOUND if wanted else GetStatus.NO_MATCHED_MESSAGE)

    @rule(topic=st.sampled_from(TOPICS), key=st.sampled_from("kmnx"))
    def look_up(self, topic, key):
        lines = [line for queue, line in self.model.items() if queue[0] == topic]
        wanted = sorted(
            stored.log_offset
            for line in lines
            for stored in line
            if key in stored.keys and stored.log_offset >= self.store.log.minimum
        )
        found = self.store.reads.query_keys(topic, key, 64).offsets
        # Records of a deleted topic of that name are still in the log, and may be found; the newest come
        # first.
        assert set(wanted[-30:]) <= set(found) if len(found) < 64 else set(found) & set(wanted) or not wanted

    @rule(queue=queues, back_ms=st.integers(0, 20_000))
    def look_up_by_time(self, queue, back_ms):
        line, low = self.model.get(queue, []), self.minimum(queue)
        at = self.clock() - back_ms
        first = next((number for number in range(low, len(line)) if line[number].at_ms >= at), len(line))
        assert self.store.reads.times.offset_by_time(*queue, at) == first

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            report = check_store(ROOT, self.settings, disk=self.disk)
            # Retention is no damage
            assert [finding for finding in report.findings if finding.kind != "log-start"] == []


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_the_store_answers_as_the_dictionary(examples):
    run_state_machine_as_test(
        StoreAgainstDictionary,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )
