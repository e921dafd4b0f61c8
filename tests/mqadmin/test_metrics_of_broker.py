"""What scrapers get of a broker in this process: bounds, and numbers of groups that pull and that pop."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat
from broker_store.replication.positions import SlavePosition
from broker_store.rest.new_messages import NewMessage
from broker_store.server.admin.groups import forget_group
from broker_store.server.admin.topics import forget_topic
from broker_store.server.grpc.clients import GrpcClient
from mqadmin.api.metrics import text_of
from mqadmin.cluster.embedded import metrics as measured
from mqadmin.cluster.embedded import scrape_reads
from mqadmin.cluster.embedded.scrape_reads import Wanted, read_waits
from mqadmin.facts.scrape import NotMeasured
from mqadmin.metrics.measured import measure
from tests.interop.pop_client import PopClient
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)
from tests.support.waits import until

ALL = {"most_pairs": 100, "most_names": 100}


async def send(cluster, topic: str, count: int) -> None:  # noqa: F811
    await cluster.sends.send_batch(
        topic, [NewMessage(b"x" * 10, "", (f"k{number}",), {}, 0) for number in range(count)]
    )


def pair_of(scrape, group: str, topic: str = "orders"):
    (found,) = (pair for pair in scrape.pairs if (pair.group, pair.topic) == (group, topic))
    return found


async def test_a_group_that_pulls_has_in_flight_what_it_was_given_and_did_not_commit(process, cluster):  # noqa: F811
    await send(cluster, "orders", 6)
    offsets = process.parts.offsets
    offsets.commit("CG", "orders", 0, 1)
    scrape = await cluster.metrics.measure(["orders"], ["CG"], **ALL)
    pair = pair_of(scrape, "CG")
    assert (pair.lag, pair.in_flight, pair.ready) == (5, None, None), "it has not pulled since the start"
    assert pair.lag_ms is not None and pair.lag_ms >= 0 and pair.offset == 1
    assert pair.ready_ms is None and scrape.not_measured == NotMeasured(lags=0, ready=0, timer=0, revive=0)
    offsets.pulled("CG", "orders", 0, 4)
    pair = pair_of(await cluster.metrics.measure(["orders"], ["CG"], **ALL), "CG")
    assert (pair.lag, pair.in_flight, pair.ready) == (5, 3, 2)
    now_ms, times = process.parts.clock(), process.parts.store.reads.times
    stored_ms = [times.store_time_at("orders", 0, offset) for offset in (1, 4)]
    wanted = [Wanted(pair, [(0, 1)], [(0, 4)])]
    (pair,) = read_waits(process.parts.store, now_ms, wanted, (0, 0), "revive", []).pairs
    assert [pair.lag_ms, pair.ready_ms] == [now_ms - time_ms for time_ms in stored_ms]
    offsets.commit("CG", "orders", 0, 6)
    pair = pair_of(await cluster.metrics.measure(["orders"], ["CG"], **ALL), "CG")
    assert (pair.lag, pair.in_flight, pair.ready, pair.lag_ms, pair.ready_ms) == (0, 0, 0, 0, 0)


async def test_a_group_that_pops_has_in_flight_what_is_invisible(process, cluster):  # noqa: F811
    await send(cluster, "orders", 6)
    client = await PopClient.connect(int(process.parts.endpoint.address.rpartition(":")[2]), "CG", "orders")
    try:
        await client.pop(count=4, invisible_ms=60_000)
        # An offset is committed when the pop checkpoint is synced
        await until(lambda: process.parts.offsets.query("CG", "orders", 0) == 4)
        text = text_of(await measure(cluster)).decode()
        (lag,) = [line for line in text.splitlines() if line.startswith("rocketmq_consumer_lag_messages{")]
        (flying,) = [
            line for line in text.splitlines() if line.startswith("rocketmq_consumer_inflight_messages{")
        ]
        (ready,) = [
            line for line in text.splitlines() if line.startswith("rocketmq_consumer_ready_messages{")
        ]
        assert [line.rpartition(" ")[2] for line in (lag, flying, ready)] == ["6.0", "4.0", "2.0"]
        pair = pair_of(await cluster.metrics.measure(["orders"], ["CG"], **ALL), "CG")
        assert pair.ready_ms is not None and pair.ready_ms >= 0
    finally:
        client.close()


async def test_what_is_beyond_the_bounds_is_counted(process, cluster):  # noqa: F811
    for number in range(5):
        process.parts.topics.put(TopicConfig(f"T{number}", 1, 1, 6))
        process.parts.offsets.commit("CG", f"T{number}", 0, 0)
        process.parts.offsets.commit("other", f"T{number}", 0, 0)
    scrape = await cluster.metrics.measure([], ["CG", "other"], most_pairs=7, most_names=2)
    assert [(pair.group, pair.topic) for pair in scrape.pairs][:5] == [
        ("CG", f"T{number}") for number in range(5)
    ]
    assert len(scrape.pairs) == 7 and scrape.pairs_left_out == 3
    process.parts.transactions.metrics.add("T1", 3)
    process.parts.transactions.metrics.add("T2", 5)
    process.parts.transactions.metrics.add("T3", 4)
    scrape = await cluster.metrics.measure([], [], most_pairs=7, most_names=2)
    assert [(one.topic, one.messages) for one in scrape.halves] == [("T2", 5), ("T3", 4)]


async def test_the_lag_in_time_is_measured_of_the_largest_lags(process, cluster, monkeypatch):  # noqa: F811
    process.parts.topics.put(TopicConfig("small", 1, 1, 6))
    await send(cluster, "orders", 6)
    await send(cluster, "small", 2)
    process.parts.offsets.commit("CG", "orders", 0, 0)
    process.parts.offsets.commit("CG", "small", 0, 0)
    monkeypatch.setattr(scrape_reads, "MAX_TIMED_QUEUES", 1)
    scrape = await cluster.metrics.measure([], ["CG"], **ALL)
    assert pair_of(scrape, "CG").lag_ms is not None and pair_of(scrape, "CG", "small").lag_ms is None


async def test_the_records_of_a_pop_are_counted_by_group_and_topic(process, cluster):  # noqa: F811
    await send(cluster, "orders", 6)
    client = await PopClient.connect(int(process.parts.endpoint.address.rpartition(":")[2]), "CG", "orders")
    try:
        popped = await client.pop(count=2, invisible_ms=50_000)
        assert await client.ack(popped[0])
        await until(lambda: process.parts.timer.facts().enqueued == 2)
        scrape = await cluster.metrics.measure(["orders"], ["CG"], **ALL)
        stored = {(one.group, one.topic, one.kind, one.status): one.records for one in scrape.revive_stored}
        assert stored == {
            ("CG", "orders", "CK", "PUT_OK"): 1,
            ("CG", "orders", "ACK", "PUT_OK"): 1,
        }
        assert scrape.revive_read == [], "the timer delivers them later"
        assert (await cluster.metrics.measure(["orders"], [], **ALL)).revive_stored == []
        assert (await cluster.metrics.measure([], ["CG"], most_pairs=1, most_names=1)).revive_stored
        assert sum(one.messages for one in scrape.due_within if one.bound_s == 60) == 2
    finally:
        client.close()
    forget_topic(process.parts, "orders")
    assert not (await cluster.metrics.measure([], ["CG"], **ALL)).revive_stored
    forget_group(process.parts, "CG", clean_offset=True)
    assert not process.parts.revive_log.counts.stored


async def test_what_is_cut_off_or_cannot_be_read_is_absent_and_counted(process, cluster, monkeypatch):  # noqa: F811
    await send(cluster, "orders", 6)
    process.parts.offsets.commit("CG", "orders", 0, 1)
    process.parts.offsets.pulled("CG", "orders", 0, 4)
    pair = pair_of(await cluster.metrics.measure([], ["CG"], **ALL), "CG")
    wanted = [Wanted(pair, [(0, 1)], [(0, 4)])]
    left = (1, 0), "orders", [(0, 0, 0), (3, 2, 0)]
    times = iter([0.0, 0.1, 0.2, 0.24, 0.25, 9.0])
    monkeypatch.setattr(process.parts.store.reads, "max_offset", lambda topic, queue_id: 6)
    store_time_at = process.parts.store.reads.times.store_time_at
    monkeypatch.setattr(
        process.parts.store.reads.times,
        "store_time_at",
        lambda topic, queue_id, at: store_time_at("orders", 0, at),
    )
    now_ms = process.parts.clock()
    waits = read_waits(process.parts.store, now_ms, wanted, *left, clock=lambda: next(times))
    assert waits.timer_ms is not None and [wait.wait_ms is None for wait in waits.revive] == [False, False]
    assert waits.pairs[0].lag_ms is not None and waits.pairs[0].ready_ms is None
    assert waits.not_measured == NotMeasured(lags=0, ready=1, timer=0, revive=0)
    monkeypatch.setattr(process.parts.store.reads.times, "store_time_at", lambda topic, queue_id, at: -1)
    waits = read_waits(process.parts.store, now_ms, wanted, *left)
    assert waits.timer_ms is None and [wait.wait_ms for wait in waits.revive] == [0, None]
    assert (waits.pairs[0].lag_ms, waits.pairs[0].ready_ms) == (None, None)
    assert waits.not_measured == NotMeasured(lags=1, ready=1, timer=1, revive=1)


async def test_kinds_of_clients_are_bounded_and_no_client_is_lost(process, cluster, monkeypatch):  # noqa: F811
    clients, now_ms = process.parts.clients, process.parts.clock()
    monkeypatch.setattr(measured, "MAX_KINDS", 2)
    monkeypatch.setattr(clients, "on_group_changed", lambda group: None)
    for number in range(7):

        class Channel:
            remote, closed = f"127.0.0.1:{number}", True

        version = 493 if number < 4 else 493 + number
        clients.heartbeat(
            Channel(), Heartbeat(f"c{number}", ("PG",), (ConsumerData("CG"),)), "GO", version, now_ms
        )
    scrape = await cluster.metrics.measure([], ["CG"], **ALL)
    assert [(kind.language, kind.clients) for kind in scrape.producers] == [
        ("go", 4),
        ("go", 1),
        ("other", 2),
    ]
    assert sum(kind.clients for kind in scrape.consumers) == 7
    assert {(kind.group, kind.mode, kind.protocol) for kind in scrape.consumers} >= {
        ("CG", "push", "remoting")
    }
    assert [(one.group, one.clients) for one in scrape.producer_groups] == [("PG", 7)]


@pytest.mark.parametrize("names", ["apache", "ours,exporter"])
async def test_the_setting_of_the_broker_chooses_the_families(process, cluster, names, monkeypatch):  # noqa: F811
    settings = dataclasses.replace(process.parts.settings, metrics_names=names)
    monkeypatch.setattr(process, "parts", dataclasses.replace(process.parts, settings=settings))
    assert cluster.metrics.families() == set(names.split(","))


async def test_clients_by_grpc_have_their_protocol(process, cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(process.parts.clients, "on_group_changed", lambda group: None)
    client = GrpcClient({"x-mq-language": "RUST"}, SimpleNamespace(remote="127.0.0.1:1"))
    client.closed = True
    process.parts.clients.heartbeat(
        client,
        Heartbeat("c", (), (ConsumerData("CG", "CONSUME_ACTIVELY"),)),
        "RUST",
        493,
        process.parts.clock(),
    )
    (kind,) = (await cluster.metrics.measure([], ["CG"], **ALL)).consumers
    assert (kind.language, kind.protocol, kind.mode) == ("rust", "grpc", "pull")


async def test_a_slave_has_what_it_lacks_by_its_machine(process, cluster, monkeypatch):  # noqa: F811
    def position(address: str, behind: int | None) -> SlavePosition:
        return SlavePosition(address, None, 0, behind, False, 0, 0.0, 0.0, None)

    slaves = [
        position("10.0.0.9:4001", 7),
        position("10.0.0.9:4002", 30),
        position("[fd00::1]:4003", 0),
        position("10.0.0.8:1", None),
    ]
    monkeypatch.setattr(process.parts.replication, "positions", lambda: slaves)
    found = (await cluster.metrics.measure([], [], **ALL)).slaves
    assert [(slave.host, slave.bytes) for slave in found] == [("10.0.0.9", 30), ("fd00::1", 0)]
