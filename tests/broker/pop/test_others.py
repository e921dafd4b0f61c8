"""broker.pop.others: pops at other brokers, whose records a slave that acts has sent here."""

import pytest

from broker_store.broker.pop import revive, revive_queue
from broker_store.broker.pop.others import GIVE_UP_MS, OTHERS_GRACE_MS, OTHERS_RETRY_MS, Fetched
from broker_store.broker.pop.revive_log import LOG_END
from broker_store.formats import pop_records, properties, record
from broker_store.formats.pop_records import MAX_MESSAGES, REVIVE_GROUP, PopCheckpoint, PopKey
from broker_store.messages import Message
from tests.broker.pop.test_revive import LOG, RETRY, START_MS, World, is_done

MARGIN_MS = 1_000
SENT = {properties.CLUSTER: "DefaultCluster"}  # the broker adds it to each send


class Other(World):
    """One whose revive log gets records of broker-b; `asked` has what was read there."""

    def __init__(self):
        super().__init__(3)  # messages of its own at the same places
        self.asked, self.there, self.fails = [], {}, False

    def begin(self):
        super().begin()
        self.others.fetch = self.fetch

    def fetch(self, key, run, came):
        self.asked.append((key.broker_name, key.topic, key.queue_id, run))
        if self.fails:
            came(None)
            return
        found = [self.there[offset] for offset in run if offset in self.there]
        came(Fetched(found, [offset for offset in run if offset not in self.there]))

    def has(self, *bodies):
        """Let the other broker have messages from queue offset 7 on."""
        for offset, body in enumerate(bodies, 7):
            raw = record.encode(Message("TopicX", 1, body, b"KEYS\x01k\x02"), offset, 5_000_000, START_MS)
            self.there[offset] = record.decode(raw)

    def popped(self, count, *, invisible_ms=10_000, name="broker-b", values=None):
        key = PopKey("TopicX", "CG", 1, 7, self.now_ms, name)
        checkpoint = PopCheckpoint(key, invisible_ms, tuple(range(count)))
        self.put("ck", pop_records.encode_checkpoint(checkpoint), pop_records.checkpoint_id(key), values)
        return key

    def put(self, tag, body, unique_key, values=None):
        pairs = {properties.TAGS: tag, properties.UNIQUE_KEY: unique_key} | (values or {})
        assert self.store.appender.put(Message(LOG, 0, body, properties.encode(pairs))).ok

    def over(self):
        self.run(10_000 + OTHERS_GRACE_MS + MARGIN_MS)


def test_messages_are_read_at_their_broker_and_come_again_here():
    world = Other()
    world.has(b"b7", b"b8", b"b9")
    key = world.popped(3)
    world.put("ack", pop_records.encode_ack(key, 8), pop_records.ack_id(key, 8))
    world.run(10_000 + OTHERS_GRACE_MS - 100)
    assert world.again() == [] and world.asked == []
    world.run(MARGIN_MS)
    assert world.again() == [b"b7", b"b9"] and world.revive.counts["revived"] == 2
    assert world.asked == [("broker-b", "TopicX", 1, [7]), ("broker-b", "TopicX", 1, [9])]
    assert is_done(world.revive)
    world.run(2_000)
    assert world.offsets.query(REVIVE_GROUP, LOG, 0) == world.store.max_offset(LOG, 0) - 1
    # They are not read again after a start
    world.save()
    world.crash(timer_saved=True)
    world.run(60_000)
    assert len(world.again()) == 2


def test_an_acknowledgement_that_comes_before_its_pop_checkpoint_counts(monkeypatch):
    """The slave sends the record of its master's pop when that is due, or later."""
    monkeypatch.setattr(revive_queue, "MAX_EARLY", 2)
    world = Other()
    world.has(b"b7", b"b8", b"b9")
    key = PopKey("TopicX", "CG", 1, 7, world.now_ms, "broker-b")
    forgotten = [key._replace(pop_ms=key.pop_ms - number) for number in (2, 1)]
    for one in (*forgotten, key):
        for offset in (7, 9):
            world.put("ack", pop_records.encode_ack(one, offset), pop_records.ack_id(one, offset), SENT)
            world.run(200)
    assert list(world.revive._queues[0].early) == [forgotten[1], key]
    checkpoint = PopCheckpoint(key, 10_000, (0, 1, 2))
    world.put("ck", pop_records.encode_checkpoint(checkpoint), pop_records.checkpoint_id(key))
    world.over()
    assert world.again() == [b"b8"] and is_done(world.revive)
    assert list(world.revive._queues[0].early) == [forgotten[1]]
    # No pop has so many messages
    for offset in range(7, 7 + MAX_MESSAGES + 1):
        world.put("ack", pop_records.encode_ack(key, offset), pop_records.ack_id(key, offset), SENT)
    world.run(1_000)
    assert list(world.revive._queues[0].early) == [forgotten[1]]


def test_they_are_not_shown_as_invisible_here():
    world = Other()
    world.popped(2)
    world.save()
    world.crash()
    world.run(300)
    assert world.revive.in_hand == 1 and world.log.in_flight.invisible == 0


def test_what_cannot_be_read_is_read_again_and_others_do_not_wait():
    world = Other()
    world.has(b"b7")
    world.fails = True
    world.popped(1)
    world.pop(0, 1)
    world.over()
    assert world.again() == [b"m0"] and len(world.asked) == 1
    world.run(OTHERS_RETRY_MS)
    assert len(world.asked) == 2
    world.fails = False
    world.run(OTHERS_RETRY_MS + MARGIN_MS)
    assert world.again() == [b"m0", b"b7"] and is_done(world.revive)


def test_after_four_hours_they_are_given_up():
    world, given_up = Other(), []
    world.others.on_given_up = given_up.append
    world.fails = True
    key = world.popped(2)
    world.run(GIVE_UP_MS + 30_000, step_ms=60_000)
    assert is_done(world.revive) and world.revive.counts["dropped"] == 2
    assert given_up == [key]


def test_of_too_many_the_oldest_is_given_up(monkeypatch):
    """They may wait for hours in memory."""
    monkeypatch.setattr(revive, "MAX_OF_OTHERS", 2)
    world, given_up = Other(), []
    world.others.on_given_up = given_up.append
    world.fails = True
    keys = []
    for _ in range(4):
        keys.append(world.popped(2))
        world.run(1_000)
    assert given_up == keys[:2] and world.revive.in_hand == 2 and world.revive.counts["dropped"] == 4
    world.has(b"b7", b"b8")
    world.fails = False
    world.run(GIVE_UP_MS // 100)
    assert world.again() == [b"b7", b"b8"] * 2 and is_done(world.revive)


def test_what_is_gone_there_is_dropped():
    world = Other()
    world.has(b"b7")
    world.popped(3)
    world.over()
    assert world.again() == [b"b7"] and world.revive.counts["dropped"] == 2 and is_done(world.revive)


@pytest.mark.parametrize("gone", ["topic", "group"])
def test_without_their_topic_or_group_here_they_are_dropped(gone):
    world = Other()
    world.has(b"b7")
    world.popped(1)
    if gone == "topic":
        world.topics.delete("TopicX")
    else:
        world.groups.delete("CG")
    world.over()
    assert world.again(RETRY) == [] and world.asked == []
    assert world.revive.counts["dropped"] == 1 and is_done(world.revive)


@pytest.mark.parametrize(("name", "values"), [("", {}), ("older-name", {LOG_END: "1000000000"})])
def test_what_this_broker_popped_is_its_own_without_a_name_and_by_a_former_one(name, values):
    world = Other()
    key = PopKey("TopicX", "CG", 1, 0, world.now_ms, name)
    body = pop_records.encode_checkpoint(PopCheckpoint(key, 10_000, (0, 1))).replace(b'"bn":"",', b"")
    world.put("ck", body, pop_records.checkpoint_id(key), values)
    world.over()
    assert world.again() == [b"m0", b"m1"] and world.asked == []


def test_a_stop_of_the_server_leaves_them_for_the_next_start():
    world = Other()
    world.has(b"b7")
    world.popped(1)
    world.others.fetch = None
    world.over()
    assert world.asked == [] and world.revive.in_hand == 1
    world.save()
    world.crash(timer_saved=True)
    world.over()
    assert world.again() == [b"b7"]
