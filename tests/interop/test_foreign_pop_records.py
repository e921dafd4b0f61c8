"""Foreign bytes in the records of the revive log and in its queue files: the broker starts, says what it skipped,
and brings back the messages of the other pops when they are due."""

import asyncio
import json
import random
import re
import time
import zlib

import pytest

from broker_store.client import Admin, Producer
from broker_store.formats import record
from broker_store.formats.pop_records import CHECKPOINT_TAG, revive_topic
from broker_store.formats.queue_unit import SIZE
from tests.interop.brokers import OurBroker
from tests.interop.pop_client import Given, PopClient
from tests.support.reference import walk_log
from tests.support.stores import log_bytes
from tests.support.waits import LIMIT_S

TOPIC, GROUP = "TopicX", "CG"
REVIVE = revive_topic("DefaultCluster")
QUEUES = 20
DUE_IN_MS = 6_000
LOG_FILE_BYTES = 1 << 20
CRC_AT, BODY_AT = 8, 88


def with_fields(body: bytes, **changes) -> bytes:
    """Return a body of the same length with other values; fields without a use make room."""
    value = json.loads(body)
    for name in ("reviveTime", "ro"):
        del value[name]
    text = json.dumps(value | changes, separators=(",", ":")).encode()
    assert len(text) <= len(body)
    return text.ljust(len(body))


def random_bytes(given: bytes) -> bytes:
    return random.Random(7).randbytes(len(given))


BODIES = {
    "random bytes": random_bytes,
    "a list": lambda body: b"[1,2]".ljust(len(body)),
    "JSON without an end": lambda body: b"[" * len(body),
    "no fields": lambda body: b"{}".ljust(len(body)),
    "a huge time": lambda body: with_fields(body, pt=(1 << 63) - 1),
    "a number beyond 64 bits": lambda body: with_fields(body, so=10**20),
    "a negative offset": lambda body: with_fields(body, so=-1),
    "another offset": lambda body: with_fields(body, so=1_000_000),
    "a negative place": lambda body: with_fields(body, d=[-1]),
    "a huge invisible time": lambda body: with_fields(body, it=10**15),
    "a short invisible time": lambda body: with_fields(body, it=1),
    "another topic": lambda body: with_fields(body, t="TopicZ"),
    "another group": lambda body: with_fields(body, c="CZ"),
    "another queue": lambda body: with_fields(body, q=7),
}
RAW_PROPERTIES = {
    "random properties": random_bytes,
    "blank properties": lambda raw: b" " * len(raw),
    "no digits": lambda raw: re.sub(rb"(POP_NEXT\x01)\d", rb"\1x", raw),
}
VICTIMS = list(BODIES) + list(RAW_PROPERTIES)  # each is the number of its queue


class Log:
    """The log of a broker that is stopped, in one file."""

    def __init__(self, broker):
        self.path = min((broker.store / "commitlog").iterdir())
        self.records = walk_log(log_bytes(broker.store)).records

    def checkpoint(self, one: Given) -> record.StoredMessage:
        """Return the newest record of a pop: that of the timer topic, or of the revive log if it was delivered."""
        key = f"{one.topic}@{one.queue_id}@{one.offset}@{GROUP}@{one.pop_ms}@"
        found = [stored for stored in self.records if stored.tags == CHECKPOINT_TAG]
        return [stored for stored in found if stored.unique_key.startswith(key)][-1]

    def overwrite(self, at: int, data: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(at)
            file.write(data)

    def put_body(self, stored: record.StoredMessage, body: bytes, *, is_sound: bool = True) -> None:
        """Put another body into a record, with its CRC or without it."""
        assert len(body) == len(stored.body)
        self.overwrite(stored.log_offset + BODY_AT, body)
        if is_sound:
            crc = zlib.crc32(body) & 0x7FFFFFFF
            self.overwrite(stored.log_offset + CRC_AT, crc.to_bytes(4, "big"))

    def put_properties(self, stored: record.StoredMessage, raw: bytes) -> None:
        assert len(raw) == len(stored.raw_properties)
        self.overwrite(stored.log_offset + stored.size - len(raw), raw)


class World:
    """A broker, and a group that has popped a message of each queue and acknowledged none."""

    def __init__(self, tmp_path):
        self.broker = OurBroker(tmp_path / "data", {"mappedFileSizeCommitLog": LOG_FILE_BYTES}).start()
        try:
            asyncio.run(self._pop())
        except BaseException:
            self.broker.kill9()
            raise

    async def _pop(self) -> None:
        async with Admin(self.broker.nameserver) as admin:
            await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
            await admin.create_group(GROUP)
        client = await PopClient.connect(self.broker.broker_port, GROUP, TOPIC)
        for number in range(QUEUES):
            deadline = time.monotonic() + LIMIT_S
            while not await client.send(f"k{number}", number):  # refused where the machine does other work
                assert time.monotonic() < deadline
        self.due_ms = int(time.time() * 1_000) + DUE_IN_MS
        self.popped: list[Given] = []
        for number in range(QUEUES):
            left_ms = self.due_ms - int(time.time() * 1_000)
            self.popped += await client.pop(count=1, invisible_ms=left_ms, queue_id=number)
        client.close()
        assert [one.key for one in self.popped] == [f"k{number}" for number in range(QUEUES)]

    async def fill(self) -> None:
        """Have the records of before in an older file of the log."""
        async with Producer(self.broker.nameserver) as producer:
            for _ in range(12):
                await producer.send("Filler", bytes(100_000))

    def until_delivered(self) -> None:
        """Wait until the timer has delivered the records to the revive log."""
        asyncio.run(self._until_delivered())

    async def _until_delivered(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        async with Admin(self.broker.nameserver) as admin:
            while time.monotonic() < deadline:
                ends = (await admin.topic_stats(REVIVE)).values()
                if sum(each.max_offset for each in ends) >= QUEUES:
                    return
        raise AssertionError("the timer delivered nothing")

    def end(self, how: str) -> Log:
        self.broker.stop() if how == "stop" else self.broker.kill9()
        return Log(self.broker)

    def given(self, for_s: float = 3) -> dict[str, float]:
        """Return what the group is given until some seconds after the time of all pops, and when (ms); what it
        is given is acknowledged."""
        return asyncio.run(self._given(max(self.due_ms, time.time() * 1_000) + 1_000 * for_s))

    async def _given(self, until_ms: float) -> dict[str, float]:
        found: dict[str, float] = {}
        client = await PopClient.connect(self.broker.broker_port, GROUP, TOPIC)
        while time.time() * 1_000 < until_ms:
            for one in await client.pop(invisible_ms=60_000, poll_ms=500):
                found.setdefault(one.key, time.time() * 1_000)
                assert await client.ack(one)
        client.close()
        return found

    def said(self) -> str:
        return (self.broker.data / "broker.out").read_text()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.broker.end()


def others_come_when_due(world, found: dict[str, float]) -> None:
    for one in world.popped[len(VICTIMS) :]:
        assert found[one.key] >= one.visible_ms, (one, found)


def each_has_a_sentence(world, found: dict[str, float], changed: dict[str, record.StoredMessage]) -> None:
    """Check that each message whose pop checkpoint was overwritten was given when due, or is named."""
    said = world.said()
    for one in world.popped:
        stored = changed.get(one.key)
        if stored is None or stored.unique_key in said or f"byte {stored.log_offset:,})" in said:
            continue
        assert found[one.key] >= one.visible_ms, (one, stored)


def overwrite(world, log: Log, names) -> dict[str, record.StoredMessage]:
    """Overwrite the pop checkpoints of some victims; return what was there, by the keys of their messages."""
    changed = {}
    for name, one in zip(VICTIMS, world.popped, strict=False):
        if name not in names:
            continue
        stored = changed[one.key] = log.checkpoint(one)
        if name in BODIES:
            log.put_body(stored, BODIES[name](stored.body))
        else:
            log.put_properties(stored, RAW_PROPERTIES[name](stored.raw_properties))
    return changed


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("place", ["timer topic", "revive log"])
@pytest.mark.takes(20)
def test_foreign_records_are_skipped_with_a_sentence(place, how, world):
    if place == "revive log":
        world.until_delivered()
    log = world.end(how)
    changed = overwrite(world, log, [*BODIES, "no digits"] if how == "kill" else VICTIMS)
    assert {stored.topic == REVIVE for stored in changed.values()} == {place == "revive log"}
    world.broker.start()
    found = world.given()
    others_come_when_due(world, found)
    each_has_a_sentence(world, found, changed)


# A start after a kill reads the end of the log. No crash leaves such records there, so an administrator decides.
@pytest.mark.parametrize("name", ["random properties", "a foreign CRC"])
@pytest.mark.takes(20)
def test_records_that_no_crash_leaves_stop_a_start_after_a_kill(name, world):
    log = world.end("kill")
    stored = log.checkpoint(world.popped[0])
    if name == "a foreign CRC":
        log.put_body(stored, random_bytes(stored.body), is_sound=False)
    else:
        log.put_properties(stored, random_bytes(stored.raw_properties))
    with pytest.raises(AssertionError) as refused:
        world.broker.start()
    assert re.search(rf"commitlog/0{{20}} at {stored.log_offset}: .+--accept-damage", str(refused.value))


# A start after a stop does not read it: it lies before the last file of the log.
@pytest.mark.takes(20)
def test_records_with_a_foreign_crc_in_an_older_file(world):
    asyncio.run(world.fill())
    log = world.end("stop")
    changed = {}
    for one in world.popped[:3]:
        stored = changed[one.key] = log.checkpoint(one)
        log.put_body(stored, random_bytes(stored.body), is_sound=False)
    world.broker.start()
    found = world.given()
    others_come_when_due(world, found)
    each_has_a_sentence(world, found, changed)


UNITS = {
    "random bytes": random_bytes,
    "zeros": lambda unit: bytes(SIZE),
    "a negative offset": lambda unit: (-1).to_bytes(8, "big", signed=True) + unit[8:],
    "an offset far away": lambda unit: (1 << 60).to_bytes(8, "big") + unit[8:],
    "a huge size": lambda unit: unit[:8] + b"\x7f\xff\xff\xff" + unit[12:],
    "another code of the tag": lambda unit: unit[:12] + random_bytes(unit[12:]),
    "a record of another topic": None,
}


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.takes(20)
def test_foreign_units_of_the_queues_of_the_revive_log(how, world):
    world.until_delivered()
    log = world.end(how)
    other = next(stored for stored in log.records if stored.topic == TOPIC)
    foreign = other.log_offset.to_bytes(8, "big") + other.size.to_bytes(4, "big") + bytes(8)
    for name, one in zip(UNITS, world.popped, strict=False):
        stored = log.checkpoint(one)
        (path,) = (world.broker.store / "consumequeue" / REVIVE / str(stored.queue_id)).iterdir()
        with open(path, "r+b") as file:
            file.seek(stored.queue_offset * SIZE)
            unit = file.read(SIZE)
            file.seek(stored.queue_offset * SIZE)
            file.write(foreign if UNITS[name] is None else UNITS[name](unit))
    world.broker.start()
    found = world.given()
    for one in world.popped:
        assert found[one.key] >= one.visible_ms
