"""broker.history: samples of groups, members that joined or left, resets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from broker_store.assembly import BrokerProcess
from broker_store.broker.clients import Clients
from broker_store.broker.history import FINE_MS, SAMPLE_MS, WRITE_MS, History
from broker_store.broker.offsets import Offsets
from broker_store.config.load import load_settings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.status import samples
from broker_store.engine.status.samples import SampleFiles, maximum_of, minimum_of, position_of
from broker_store.errors import DiskFullError
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import Clock, message, opened


@pytest.fixture
def world(tmp_path):
    """A store of two queues, and a history whose steps the test makes."""
    clock = Clock()
    with opened(tmp_path / "store", clock) as store:
        for number in range(10):
            store.appender.put(message(queue_id=number % 2))
        offsets, clients = Offsets(clock=clock), Clients()
        files = SampleFiles(Disk(), tmp_path / "samples")
        yield SimpleNamespace(
            clock=clock,
            store=store,
            offsets=offsets,
            clients=clients,
            files=files,
            history=History(store, offsets, clients, files, entries=offsets.everything, clock=clock),
        )


def beat(world, channel: str, group: str = "billing") -> None:
    consumer = ConsumerData(group, subscriptions=(Subscription("topic"),))
    world.clients.heartbeat(
        channel, Heartbeat(f"client-{channel}", consumers=(consumer,)), "JAVA", 1, world.clock()
    )


def every(name: str) -> bool:
    return True


def test_a_sample_holds_the_log_the_disk_and_each_position_with_its_queue(world):
    world.offsets.commit("billing", "topic", 1, 3)
    world.history.step(world.clock())
    (sample,) = world.files.read(every)
    usage = Disk().usage(world.store.root)
    assert sample.values.pop(samples.OWN_BYTES) >= 16384
    assert abs(sample.values.pop(samples.DISK_FREE) - usage.free) < 1 << 30
    assert sample.values == {
        samples.LOG_END: world.store.log.wrote,
        samples.LOG_MINIMUM: 0,
        samples.DISK_TOTAL: usage.total,
        position_of("billing", "topic", 1): 3,
        maximum_of("topic", 1): 5,
        minimum_of("topic", 1): 0,
    }


def test_the_last_minutes_are_finer_and_what_is_older_is_by_the_minute(world):
    steps = 2 * FINE_MS // SAMPLE_MS
    for number in range(steps):
        world.offsets.commit("billing", "topic", 0, number)
        world.history.step(world.clock())
        world.clock.advance(SAMPLE_MS)
    name = position_of("billing", "topic", 0)
    found = world.history.read(lambda one: one == name, 0)
    assert [sample.values for sample in found] == [
        {name: (sample.at_ms - found[0].at_ms) // SAMPLE_MS} for sample in found
    ]
    gaps = [later.at_ms - earlier.at_ms for earlier, later in zip(found, found[1:], strict=False)]
    fine = FINE_MS // SAMPLE_MS
    assert set(gaps[-fine:]) == {SAMPLE_MS} and set(gaps[: -fine - 1]) == {WRITE_MS}
    assert {sample.step_ms for sample in found} == {SAMPLE_MS, WRITE_MS}
    # After a restart only the samples in memory are gone.
    assert [sample.at_ms for sample in world.files.read(every)] == [
        found[0].at_ms + number * WRITE_MS for number in range(steps * SAMPLE_MS // WRITE_MS)
    ]


def test_resets_and_members_are_noted_with_their_time_and_kept(world):
    start = world.clock()
    beat(world, "a"), beat(world, "b")
    world.clock.advance(1_000)
    world.clients.channel_closed("a")
    world.offsets.commit("billing", "topic", 0, 4)
    world.offsets.reset("billing", "topic", 0, 1)
    world.clients.channel_closed("b")
    noted = world.history.events("billing", 0)
    assert [
        (event["at_ms"] - start, event["kind"], event.get("clients"), event.get("joined"), event.get("left"))
        for event in noted
    ] == [
        (0, "rebalance", 1, ["client-a"], []),
        (0, "rebalance", 2, ["client-b"], []),
        (1_000, "rebalance", 1, [], ["client-a"]),
        (1_000, "reset", None, None, None),
        (1_000, "rebalance", 0, [], ["client-b"]),
    ]
    assert (noted[3]["topic"], noted[3]["queue_id"], noted[3]["before"], noted[3]["after"]) == (
        "topic",
        0,
        4,
        1,
    )
    world.history.step(world.clock())
    assert world.files.events("billing") == noted == world.history.events("billing", 0)
    assert world.files.events("billing", start + 1) == noted[2:] and world.files.events("other") == []


def test_a_disk_that_is_full_costs_samples_and_no_note(world, tmp_path):
    full = True

    def on_call(name):
        if full and name == "append":
            raise DiskFullError("no room")

    history = History(
        world.store,
        world.offsets,
        world.clients,
        SampleFiles(FailingDisk(on_call), tmp_path / "samples"),
        entries=world.offsets.everything,
        clock=world.clock,
    )
    world.offsets.reset("billing", "topic", 0, 1)
    history.step(world.clock())
    assert "no room" in history.failed and len(history.events("billing", 0)) == 1
    full = False
    world.clock.advance(WRITE_MS)
    history.step(world.clock())
    assert (
        history.failed is None
        and len(world.files.events("billing")) == 1
        and len(world.files.read(every)) == 1
    )


def test_more_series_than_there_is_room_for_are_left_out_and_counted(world, monkeypatch):
    monkeypatch.setattr(samples, "MAX_SERIES", 18)
    for number in range(10):
        world.offsets.commit(f"group-{number}", "topic", 0, number)
    world.history.step(world.clock())
    (sample,) = world.files.read(every)
    assert len(sample.values) <= 18 and world.history.left_out == 1


async def test_a_broker_takes_samples_and_keeps_its_last_notes_when_it_ends(tmp_path):
    settings = load_settings(
        None,
        {
            "mappedFileSizeCommitLog": "65536",
            "maxHashSlotNum": "50",
            "maxIndexNum": "200",
            "listenPort": "0",
            "grpcServerPort": "0",
        },
        store_root=tmp_path / "store",
    )
    process = BrokerProcess(settings, with_name_server=False)
    await process.start()
    history = process.parts.history
    async with asyncio.timeout(5):
        while not history.files.read(every):
            await asyncio.sleep(0.01)
    process.parts.offsets.reset("billing", "topic", 0, 1)
    await process.stop()
    assert history.failed is None and len(history.files.read(every)) == 1
    (event,) = SampleFiles(Disk(), tmp_path / "samples").events("billing")
    assert (event["kind"], event["after"]) == ("reset", 1)
