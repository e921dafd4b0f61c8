"""Where an acting slave sends the records of pops, and what it remembers of them. The bridge is a list."""

import asyncio

import pytest

from broker_store.broker.pop.revive_counts import CHECKPOINT
from broker_store.formats import pop_records, properties
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.messages import PutStatus
from broker_store.server import pop_escapes
from broker_store.server.pop_escapes import PopEscapes
from tests.support.broker_harness import Harness
from tests.support.pop_calls import REVIVE_LOG

SECOND = 1_000


class Bridge:
    """Keeps what is sent, as (message, popped topic, broker that was asked for); `stores` is the broker that stores
    it."""

    def __init__(self):
        self.sent, self.stores = [], "other"

    async def send(self, message, group, popped, at):
        self.sent.append((message, popped, at))
        return self.stores


class World:
    def __init__(self):
        self.harness, self.bridge = Harness(), Bridge()
        self.escapes = PopEscapes(self.harness.parts, self.bridge)
        self.results = []

    def checkpoint(self, start=0, invisible_ms=10 * SECOND):
        key = PopKey("Orders", "CG", 1, start, self.harness.now_ms, "pair")
        return PopCheckpoint(key, invisible_ms, (0, 1, 4))

    async def given(self, start=0, invisible_ms=10 * SECOND, queue_id=3):
        found = self.checkpoint(start, invisible_ms)
        self.escapes.put_checkpoint(found, queue_id, self.results.append)
        await self.end()
        return found.key

    def ack(self, key, *offsets):
        self.escapes.put_ack(key, offsets, 3, key.pop_ms + 10 * SECOND, self.results.append)

    async def end(self):
        await asyncio.gather(*self.escapes.under_way)


@pytest.fixture
async def world():
    return World()


def pairs_of(message):
    return properties.decode(message.properties)


async def test_a_pop_checkpoint_is_sent_as_the_other_master_stores_its_own(world):
    world.harness.parts.groups.find_or_create("CG")
    key = await world.given()
    ((message, popped, at),) = world.bridge.sent
    counted = world.harness.parts.revive_log.counts.stored["CG"]
    assert counted == {("Orders", CHECKPOINT, PutStatus.PUT_OK): 1}
    assert (message.topic, message.queue_id, popped, at) == (REVIVE_LOG, 3, "Orders", None)
    assert pop_records.decode_checkpoint(message.body) == PopCheckpoint(key, 10 * SECOND, (0, 1, 4))
    assert pairs_of(message) == {
        "TAGS": "ck",
        "UNIQ_KEY": pop_records.checkpoint_id(key),
        "TIMER_DELIVER_MS": str(world.harness.now_ms + 9 * SECOND),
    }
    assert world.results == [PutStatus.PUT_OK]


async def test_an_acknowledgement_goes_to_the_broker_that_has_the_pop_checkpoint(world):
    key = await world.given()
    world.ack(key, 1)
    world.ack(key, 0, 4)
    await world.end()
    (_, (one, _, at), (batch, _, batch_at)) = world.bridge.sent
    assert (at, batch_at) == ("other", "other") and (one.queue_id, batch.queue_id) == (3, 3)
    assert pop_records.decode_ack(one.body).offsets == (1,) and pairs_of(one)["TAGS"] == "ack"
    assert pop_records.decode_ack(batch.body).offsets == (0, 4) and pairs_of(batch)["TAGS"] == "bAck"
    assert pairs_of(one)["TIMER_DELIVER_MS"] == str(world.harness.now_ms + 10 * SECOND)


async def test_of_a_pop_that_is_not_remembered_the_routes_decide(world):
    world.ack(world.checkpoint().key, 0)
    await world.end()
    assert world.bridge.sent[0][2] is None and world.results == [PutStatus.PUT_OK]


async def test_a_changed_pop_checkpoint_goes_where_that_of_before_is(world):
    key = await world.given()
    world.bridge.stores = "third"
    changed = world.checkpoint(start=4)
    world.escapes.put_checkpoint(changed, 3, world.results.append, changed=key)
    await world.end()
    assert world.bridge.sent[1][2] == "other"


async def test_a_message_is_over_when_its_acknowledgement_is_on_its_way_and_not_if_that_fails(world):
    key = await world.given()
    world.ack(key, 1)
    assert [world.escapes.is_over(key, offset) for offset in (0, 1, 2, 4)] == [False, True, False, False]
    await world.end()
    assert world.escapes.is_over(key, 1)
    world.bridge.stores = None
    world.ack(key, 1, 4)
    assert world.escapes.is_over(key, 4)
    await world.end()
    assert world.results[-1] is PutStatus.PUT_TO_REMOTE_BROKER_FAIL
    assert world.escapes.is_over(key, 1) and not world.escapes.is_over(key, 4)


async def test_what_is_not_stored_is_not_remembered(world):
    world.bridge.stores = None
    key = await world.given()
    assert world.results == [PutStatus.PUT_TO_REMOTE_BROKER_FAIL]
    world.ack(key, 0)
    assert not world.escapes.is_over(key, 0)
    await world.end()


async def test_pops_that_are_over_are_forgotten_and_of_too_many_the_oldest(world, monkeypatch):
    monkeypatch.setattr(pop_escapes, "MAX_REMEMBERED", 3)
    keys = [await world.given(start, 10 * SECOND) for start in range(0, 40, 10)]
    assert list(world.escapes._given) == keys[1:]
    world.harness.now_ms += 10 * SECOND
    newest = await world.given(50)
    assert list(world.escapes._given) == [newest]


async def test_records_beyond_the_bound_are_refused_later_not_at_once(world, monkeypatch):
    monkeypatch.setattr(pop_escapes, "MAX_UNDER_WAY", 1)
    for start in (0, 10):
        world.escapes.put_checkpoint(world.checkpoint(start), 0, world.results.append)
    assert world.results == []
    await world.end()
    await asyncio.sleep(0)
    assert sorted(world.results) == [PutStatus.PUT_OK, PutStatus.PUT_TO_REMOTE_BROKER_FAIL]
    assert len(world.bridge.sent) == 1


async def test_one_that_is_cancelled_has_a_result(world):
    async def never(*given):
        await asyncio.Event().wait()

    world.bridge.send = never
    world.escapes.put_checkpoint(world.checkpoint(), 0, world.results.append)
    (task,) = world.escapes.under_way
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.results == [PutStatus.PUT_TO_REMOTE_BROKER_FAIL]
