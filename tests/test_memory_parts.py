"""What one entry of each part takes, measured beside the number by which the part is estimated; bounds before
a start."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from broker_store import memory_parts
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.loaded_slots import WaitingMessage
from broker_store.broker.topics import TopicConfig
from broker_store.config.load import load_settings
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.memory_limit import MemoryLimit
from tests.support.broker_harness import FakeChannel, Harness, turns
from tests.support.pop_calls import pop_fields, stocked

NUMBER = 3_000
ALLOWED = 1 / 3


def names(what: str) -> list[str]:
    """Names of a usual length."""
    return [f"orders-of-{what}-{number:06d}-region" for number in range(NUMBER)]


async def taken(make: Callable[[], object]) -> float:
    """Bytes that each of NUMBER entries takes."""
    await turns()
    gc.collect()
    tracemalloc.start()
    try:
        begin = tracemalloc.get_traced_memory()[0]
        kept = make()
        await turns()
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - begin
        del kept
    finally:
        tracemalloc.stop()
    return size / NUMBER


def agrees(measured: float, estimated: int) -> None:

    assert abs(estimated - measured) <= measured * ALLOWED, f"{measured:.0f} bytes each, not {estimated}"


async def test_a_topic():
    harness = Harness()

    def make():
        for name in names("topic"):
            harness.parts.topics.put(TopicConfig(name, attributes={"message.type": "NORMAL"}))
            harness.parts.statistics.stored(name, 1, 100)
            harness.parts.statistics.histograms.small_of(name, 1, 100)

    agrees(await taken(make), memory_parts.PER_TOPIC)


async def test_a_group():
    harness = Harness()

    def make():
        for name in names("group"):
            harness.parts.groups.put(SubscriptionGroup(name))
            harness.parts.statistics.delivered(name, "orders", 1, 100)

    agrees(await taken(make), memory_parts.PER_GROUP)


async def test_offsets_of_a_group_in_a_topic_of_four_queues():
    harness = Harness()

    def make():
        for name in names("group"):
            for queue_id in range(4):
                harness.parts.offsets.commit(name, "orders", queue_id, 123_456_789)

    agrees(await taken(make), memory_parts.PER_OFFSETS)


async def test_a_parked_pull():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("Orders", 8, 8))
    channels = [FakeChannel(10_000 + number) for number in range(NUMBER // 8 + 1)]

    def make():
        for number in range(NUMBER):
            fields = harness.pull_fields(queue_id=number % 8, flag=6, suspend_ms=15_000)
            harness.request(11, channel=channels[number // 8], **fields)

    measured = await taken(make)
    assert harness.parts.parked.count == NUMBER
    agrees(measured, memory_parts.PER_PARKED_PULL)


async def test_a_parked_pop():
    harness = stocked()
    channels = [FakeChannel(10_000 + number) for number in range(NUMBER)]

    def make():
        for number in range(NUMBER):
            harness.request(
                200050,
                channel=channels[number],
                **pop_fields(poll_ms=15_000, group=f"group-{number // 8:05d}"),
            )

    measured = await taken(make)
    assert harness.parts.parked_pops.count == NUMBER
    agrees(measured, memory_parts.PER_PARKED_POP)


def checkpoint(number: int) -> PopCheckpoint:
    key = PopKey(
        "orders", f"group-{number % 8}", number % 4, number * 100, 1_700_000_000_000 + number, "broker-a"
    )
    return PopCheckpoint(key, 60_000, tuple(range(0, 32)))


async def test_a_pop_with_invisible_messages():
    harness = Harness()

    def make():
        for number in range(NUMBER):
            harness.parts.in_flight.given(checkpoint(number), 0, "10.0.0.1@client")

    measured = await taken(make)
    assert harness.parts.in_flight.kept == NUMBER
    agrees(measured, memory_parts.PER_POP)


async def test_a_timed_message():
    def make():
        return [
            WaitingMessage(
                1_700_000_000_000 + number,
                number << 20,
                300 + number,
                1_600_000_000_000 + number,
                False,
                number << 10,
            )
            for number in range(NUMBER)
        ]

    agrees(await taken(make), memory_parts.PER_TIMED)


def limit(size: int) -> MemoryLimit:
    return MemoryLimit(size, "/sys/fs/cgroup/memory.max", is_of_group=True)


def test_the_bounds_are_known_before_a_start():
    settings = load_settings(None, {}, store_root="/nowhere")
    ports = ("broker port", "fast port", "name server")
    warning = memory_parts.warning_of(settings, limit(512 << 20), ports)
    assert (
        warning is not None
        and "has 512 MiB" in warning
        and "unfinished requests, broker port 256 MiB" in warning
    )
    assert memory_parts.warning_of(settings, limit(64 << 30), ports) is None
    small = load_settings(
        None,
        {"maxTopics": "100", "maxGroups": "100", "maxParkedPulls": "100", "maxPopPollingSize": "0", "grpcServerPort": "0"},
        store_root="/nowhere",
    )  # fmt: skip
    allowed = [
        int(text.split(" MiB")[0].rpartition(" ")[2].replace(",", ""))
        for one in (settings, small)
        if (text := memory_parts.warning_of(one, limit(1 << 20), ports))
    ]
    assert allowed[0] - allowed[1] > 500


def test_the_settings_of_the_guide_fit_into_512_mib():
    guide = (Path(__file__).parents[1] / "docs" / "OPERATIONS.md").read_text()
    block = guide.split("`tests/test_memory_parts.py`")[1].split("```")[1]
    given = dict(line.split("=") for line in block.split())
    assert {"maxOffsets", "maxUnfinishedBytes"} < given.keys()
    ports = ("broker port", "fast port", "name server")
    settings = load_settings(None, given, store_root="/nowhere")
    assert memory_parts.warning_of(settings, limit(512 << 20), ports) is None
    for key in given:
        others = {name: value for name, value in given.items() if name != key}
        settings = load_settings(None, others, store_root="/nowhere")
        assert memory_parts.warning_of(settings, limit(512 << 20), ports) is not None, f"{key} is not needed"


async def test_each_part_of_a_broker_is_measured_and_has_its_bound():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("Orders", 8, 8))
    harness.request(11, **harness.pull_fields(flag=6))
    found = {part.name: part for part in memory_parts._broker(harness.parts.settings, lambda: harness.parts)}
    assert found["parked pulls"].measure() == memory_parts.PER_PARKED_PULL
    assert found["topics"].measure() == len(harness.parts.topics) * memory_parts.PER_TOPIC
    for part in found.values():
        assert part.bound_bytes is not None and 0 <= part.measure() <= part.bound_bytes, part.name
    assert len(found) == 9
