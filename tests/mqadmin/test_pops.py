"""Popped messages on pages, by REST and in the journey of a message, over a broker with a client that pops."""

from __future__ import annotations

import asyncio
import re

import pytest
from django.template.loader import render_to_string

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.history import History
from broker_store.broker.pop.in_flight import InFlight
from broker_store.engine.status.samples import SampleFiles, maximum_of, minimum_of, position_of
from broker_store.errors import NotFoundError
from broker_store.facts.deletion import offsets_of
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk_scan import timeline_of
from broker_store.facts.journey import pops as journey_pops
from broker_store.facts.journey.journey import journey
from broker_store.facts.positions import Positions
from broker_store.facts.store_facts import FileFacts
from broker_store.formats.names import pop_retry_splits, popping_group
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem
from mqadmin.cluster.embedded import listings
from mqadmin.facts.overview import WorstLag
from mqadmin.facts.pops import InvisibleMessage
from mqadmin.metrics.ours import group_metrics, popped_metrics
from mqadmin.views.groups.page import retry_policy_text
from mqadmin.views.store.journey.facts import shown_journey
from tests.interop.pop_client import CHANGE, PopClient
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)
from tests.support.waits import until

RETRY = "%RETRY%CG_orders"


@pytest.fixture
async def client(process, cluster):  # noqa: F811
    await cluster.sends.send_batch(
        "orders", [NewMessage(b"%d" % number, "", (f"k{number}",), {}, 0) for number in range(6)]
    )
    client = await PopClient.connect(int(process.parts.endpoint.address.rpartition(":")[2]), "CG", "orders")
    yield client
    client.close()


async def invisible(cluster, *arguments):  # noqa: F811
    return await asyncio.to_thread(cluster.pops.invisible, *arguments)


def pop_stops(found):
    return [(one.title, one.state, one.sentence) for one in found.stops if one.stop == "pop"]


async def test_invisible_messages_have_their_time_their_tries_and_their_client(cluster, client):  # noqa: F811
    given = await client.pop(count=3, invisible_ms=60_000)
    await client.ack(given[1])
    found = await invisible(cluster, "CG")
    assert found.messages[0] == InvisibleMessage(
        topic="orders",
        of_topic="orders",
        queue_id=0,
        offset=0,
        log_offset=found.messages[0].log_offset,
        message_id=found.messages[0].message_id,
        popped_ms=given[0].pop_ms,
        visible_ms=given[0].visible_ms,
        given_out=1,
        client=client._channel.local,
        revive_queue=int(given[0].receipt.split()[3]),
    )
    assert [one.offset for one in found.messages] == [0, 2] and found.next is None
    stored, _ = await cluster.search.message_at(found.messages[0].log_offset)
    assert (stored.body, stored.message_id) == (b"0", found.messages[0].message_id)
    counts = found.counts
    assert (counts.invisible, counts.popped, counts.acknowledged, counts.complete) == (2, 3, 1, True)
    detail = cluster.groups.detail("CG")
    assert detail.pops == counts and detail.invisible == 2
    assert {(queue.queue_id, queue.invisible) for queue in detail.queues if queue.topic == "orders"} == {
        (0, 2),
        (1, 0),
    }
    assert [reader.invisible for reader in cluster.topics.detail("orders").readers] == [2]


async def test_messages_that_came_again_are_lag_until_the_group_pops_them(process, cluster, client, tmp_path):  # noqa: F811
    def lags():
        detail = cluster.groups.detail("CG")
        return (
            [row.lag for row in cluster.groups.rows(["CG"])],
            detail.retrying.messages,
            detail.retrying.lag,
            [(queue.lag, queue.lag_ms is not None) for queue in detail.queues if queue.topic == RETRY],
        )

    await client.pop(count=6, invisible_ms=1_500)
    await until(lambda: lags() == ([0], 0, 0, []))
    await until(lambda: process.parts.in_flight.counts("CG").came_again == 6)
    assert process.parts.offsets.of("CG", RETRY) == {}, "no client popped since"
    assert lags() == ([6], 6, 6, [(6, True)])
    assert cluster.groups.detail("CG").retrying.topics == [RETRY], "not in that of sent-back messages"
    assert (await cluster.groups.most_behind(1))[0].lag == 6
    assert cluster.overview().worst_lag == WorstLag(group="CG", lag=6)
    # Of a group that has many topics the lag is collected in turns
    cluster._host.listings._lags_until = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listings, "NAMES_PER_SORT", 0)
        assert (await cluster._host.listings.lags())["CG"] == 6
    await check_other_lags(process, cluster, tmp_path)
    process.parts.topics.ensure_pop_retry("%RETRY%CG+orders")
    assert lags() == ([6], 6, 6, [(6, True)]), "the retry topic of version 2 has no message"
    await until_popped(client)
    await until(lambda: lags() == ([0], 6, 0, [(0, True)]))
    assert [reader.invisible for reader in cluster.topics.detail("orders").readers] == [6], "came again"
    process.parts.groups.put(SubscriptionGroup("CG_orders"))
    process.parts.offsets.forget_topic(RETRY)
    assert lags()[:3] == ([0], 0, 0), "by its name, the topic has what that group sent back"


async def check_other_lags(process, cluster, tmp_path):  # noqa: F811
    """Check that timelines, forecast and samples count the six messages of the retry topic, of which the group
    has no offset."""
    parts = process.parts
    files = SampleFiles(parts.store.disk, tmp_path / "kept")
    entries = parts.all_lag_offsets
    history = History(parts.store, parts.offsets, parts.clients, files, entries=entries, clock=parts.clock)
    await asyncio.to_thread(history.step, parts.clock())
    (sample,) = history.read(lambda name: RETRY in name, 0)
    assert sample.values == {position_of("CG", RETRY, 0): 0, maximum_of(RETRY, 0): 6, minimum_of(RETRY, 0): 0}
    (tmp_path / "store" / "config" / "consumerOffset.json").write_bytes(parts.offsets.picture()())
    directory = StoreDirectory(tmp_path / "store")
    for scan in (lambda: cluster.store.timeline("CG"), lambda: timeline_of(directory, "CG", 6)):
        timeline = await asyncio.to_thread(scan)
        rows = [(one.topic, one.consumer_offset, one.lag, one.lost) for one in timeline.queues if one.lag]
        assert rows == [(RETRY, 0, 6, 0)]
    with Positions(directory) as positions:
        assert ("CG", RETRY, {0: 0}) in offsets_of(directory, positions)


async def until_popped(client):
    """Pop until each of the six messages was given again."""
    given = 0
    while given < 6:
        given += len(await client.pop(count=32, invisible_ms=60_000))


async def test_the_list_goes_on_where_a_piece_ended_and_messages_that_left_do_not_move_it(cluster, client):  # noqa: F811
    given = await client.pop(count=2, invisible_ms=60_000) + await client.pop(count=4, invisible_ms=30_000)
    first = await invisible(cluster, "CG", None, 3)
    assert [one.offset for one in first.messages] == [2, 3, 4] and first.next is not None
    await client.ack(given[3])
    assert [one.offset for one in (await invisible(cluster, "CG", first.next, 3)).messages] == [5, 0, 1]
    everything = await invisible(cluster, "CG", None, 100)
    assert [one.offset for one in everything.messages] == [2, 4, 5, 0, 1] and everything.next is None
    with pytest.raises(Problem):
        await invisible(cluster, "CG", "1.2")
    with pytest.raises(NotFoundError):
        await invisible(cluster, "CG2")


async def test_another_invisible_time_keeps_the_client(cluster, client):  # noqa: F811
    (given,) = await client.pop(count=1, invisible_ms=60_000)
    await client._ask(
        CHANGE, consumerGroup="CG", topic="orders", queueId=0, extraInfo=given.receipt, offset=0,
        invisibleTime=90_000,
    )  # fmt: skip
    (message,) = (await invisible(cluster, "CG")).messages
    assert message.client == client._channel.local and message.visible_ms > given.visible_ms
    found = await cluster.store.journey_of(message.log_offset)
    (first, second) = pop_stops(found)
    (reader,) = [one for one in found.stops if one.stop == "group"]
    assert reader.sentence.startswith("It popped the message, as shown below. Its position is ")
    assert first[:2] == ("Popped by CG", "done") and "asked for another invisible time" in first[2]
    assert second[:2] == ("Popped by CG", "waiting") and second[2].startswith("It was given out for 90 s.")


async def test_a_message_that_came_again_tells_each_pop_and_where_it_came(process, cluster, client):  # noqa: F811
    given = await client.pop(count=2, invisible_ms=1_500)
    await client.ack(given[1])
    log_offset = (await invisible(cluster, "CG")).messages[0].log_offset
    await until(lambda: process.parts.in_flight.counts("CG").came_again == 1)
    given = await client.pop(count=32, invisible_ms=60_000)
    (again,) = [one for one in given if one.topic == RETRY]
    found = await invisible(cluster, "CG")
    assert {(one.topic, one.given_out) for one in found.messages} == {("orders", 1), (RETRY, 2)}
    told = await cluster.store.journey_of(log_offset)
    first, second = pop_stops(told)
    assert first[:2] == ("Popped by CG", "done") and f"offset 0 of {RETRY}" in first[2]
    assert "together with 1 other of queue 0" in first[2] and second[1] == "waiting"
    (copy,) = [one for one in told.stops if one.stop == "retry"]
    assert copy.title == "Came again" and copy.sentence.startswith("To CG, for the 1st time: it was not")
    kinds = [one.stop for one in told.stops]
    assert kinds.index("pop") < kinds.index("retry") < len(kinds) - 1 and kinds[-1] == "pop"
    await client.ack(again)
    assert pop_stops(await cluster.store.journey_of(log_offset))[1][1] == "done"
    # The page of the copy shows the same journey, and a notice of its own
    stored, _ = await cluster.search.message_at(copy.log_offset)
    fate = cluster.waiting.fate(stored)
    assert (fate.kind, fate.group, fate.topic, fate.waits) == ("popped", "CG", "orders", False)
    assert [one[0] for one in pop_stops(await cluster.store.journey_of(copy.log_offset))] == [
        "Popped by CG"
    ] * 2
    other = pop_stops(
        await cluster.store.journey_of(
            (await cluster.search.in_queue("orders", 0, 1, 1)).messages[0].log_offset
        )
    )
    assert other[0][2].rpartition(". ")[2].startswith("Acknowledged after ")


async def test_without_a_broker_the_journey_says_what_the_files_know(process, cluster, client):  # noqa: F811
    given = await client.pop(count=2, invisible_ms=60_000)
    await client.ack(given[0])
    offsets = [one.log_offset for one in (await cluster.search.in_queue("orders", 0, 0, 2)).messages]
    directory = cluster._host.directory()
    told = [await asyncio.to_thread(journey, directory, FileFacts(directory), at) for at in offsets]
    assert [pop_stops(found)[0][1] for found in told] == ["done", "waiting"]
    assert shown_journey(told[0]).picture[-1].title == "Popped"


async def test_lists_say_when_more_messages_may_be_invisible(process, cluster, client):  # noqa: F811
    def doubts():
        detail, (row,) = cluster.groups.detail("CG"), cluster.groups.rows(["CG"])
        topic = cluster.topics.detail("orders")
        pages = render_to_string("groups/table.html", {"rows": [row]})
        pages += render_to_string("topics/readers.html", {"topic": topic})
        shown = re.findall('(hidden>)? <span class="tag" title="perhaps not all: ([^"]*)">or more<', pages)
        reader = topic.readers[0].invisible_doubt
        known = {detail.invisible_doubt, detail.pops.reason, row.invisible_doubt, reader}
        return known, [text for hidden, text in shown if not hidden]

    await client.pop(count=1, invisible_ms=60_000)
    assert doubts() == ({""}, [])
    process.parts.in_flight._max_pops = 1
    await client.pop(count=1, invisible_ms=60_000)
    doubt = "at most 1 pops of all groups are kept, and there were more"
    assert doubts() == ({doubt}, [doubt, doubt])


def reader_stops(found):
    return {one.title: (one.state, one.sentence) for one in found.stops if one.stop == "group"}


async def test_a_group_that_pops_is_not_done_with_a_message_whose_pops_are_not_all_read(
    process,  # noqa: F811
    cluster,  # noqa: F811
    client,
    monkeypatch,
):
    await client.pop(count=6, invisible_ms=60_000)
    process.parts.offsets.commit("Puller", "orders", 0, 6)
    await until(lambda: process.parts.offsets.query("CG", "orders", 0) == 6)
    at = (await cluster.search.in_queue("orders", 0, 0, 1)).messages[0].log_offset
    monkeypatch.setattr(journey_pops, "POP_SECONDS", -1)
    doubt = "of the records of pops 0 were read, and there are more"
    found = reader_stops(await cluster.store.journey_of(at))
    assert found["Read by CG"] == (
        "unknown",
        f"Its position is 6. Whether it popped the message, and acknowledged it, is not known: {doubt}.",
    )
    assert found["Read by Puller"] == ("done", "Done with: its position is 6.")
    process.parts.in_flight.begin_search()
    assert reader_stops(await cluster.store.journey_of(at))["Read by Puller"][0] == "unknown"


async def test_a_search_that_is_cut_says_what_it_did_not_read(cluster, client, monkeypatch):  # noqa: F811
    monkeypatch.setattr(journey_pops, "MAX_POP_RECORDS", 1)
    await client.pop(count=1, invisible_ms=60_000)
    await client.pop(count=1, invisible_ms=60_000)
    at = (await cluster.search.in_queue("orders", 0, 0, 1)).messages[0].log_offset
    found = await cluster.store.journey_of(at)
    assert len(pop_stops(found)) == 1 and not found.complete
    assert found.reason == "of the records of pops at most 1 after each of its records were read"
    monkeypatch.setattr(journey_pops, "MAX_POP_RECORDS", 2)
    assert (await cluster.store.journey_of(at)).complete
    monkeypatch.setattr(journey_pops, "POP_SECONDS", -1)
    found = await cluster.store.journey_of(at)
    assert found.reason == "of the records of pops 0 were read, and there are more"


async def test_records_after_each_copy_of_a_message_are_read(process, cluster, client, monkeypatch):  # noqa: F811
    await client.pop(count=1, invisible_ms=1_500)
    await until(lambda: process.parts.in_flight.counts("CG").came_again == 1)
    await client.pop(count=5, invisible_ms=60_000)
    for _ in range(20):
        await client.pop(count=1, invisible_ms=60_000)
    at = (await cluster.search.in_queue("orders", 0, 0, 1)).messages[0].log_offset
    monkeypatch.setattr(journey_pops, "MAX_POP_RECORDS", 12)
    assert len(pop_stops(await cluster.store.journey_of(at))) == 2


async def test_the_state_of_the_revive_log(process, cluster, client):  # noqa: F811
    await client.pop(count=2, invisible_ms=1_500)
    await until(lambda: process.parts.in_flight.counts("CG").came_again == 2)
    await client.pop(count=32, invisible_ms=60_000)
    waiting = asyncio.create_task(client.pop(poll_ms=1_000))
    await until(lambda: cluster.waiting.facts().popped.waiting_pops == 1)
    popped = cluster.waiting.facts().popped
    assert (popped.came_again, popped.dropped, popped.invisible, popped.refused) == (2, 0, 6, "")
    assert popped.topic == "rmq_sys_REVIVE_LOG_DefaultCluster" and len(popped.queues) == 8
    assert sum(queue.max_offset for queue in popped.queues) >= 2
    assert cluster.groups.detail("CG").pops.waiting_pops == 1
    await waiting


async def test_messages_popped_in_order_are_invisible(cluster, client):  # noqa: F811
    given = await client.pop(count=3, invisible_ms=60_000, attempt="one")
    found = await invisible(cluster, "CG")
    assert [(one.offset, one.given_out, one.revive_queue) for one in found.messages] == [
        (0, 1, None),
        (1, 1, None),
        (2, 1, None),
    ]
    assert {one.client for one in found.messages} == {client._channel.local}
    assert {(one.popped_ms, one.visible_ms) for one in found.messages} == {
        (given[0].pop_ms, given[0].visible_ms)
    }
    assert await client.ack(given[1]) and await client.ack(given[1])
    second = await invisible(cluster, "CG", None, 1)
    assert [one.offset for one in second.messages] == [0]
    assert [one.offset for one in (await invisible(cluster, "CG", second.next, 5)).messages] == [2]
    counts = cluster.groups.detail("CG").pops
    assert (counts.invisible, counts.popped, counts.acknowledged, counts.without_effect) == (2, 3, 1, 1)
    assert [queue.invisible for queue in cluster.groups.detail("CG").queues] == [2, 0]
    assert cluster.waiting.facts().popped.queues_in_order == 1


async def test_messages_popped_in_order_come_again_from_their_queue(cluster, client):  # noqa: F811
    await client.pop(count=2, invisible_ms=300, attempt="one")
    assert [one.given_out for one in (await invisible(cluster, "CG")).messages] == [1, 1]
    given = await client.pop(count=2, invisible_ms=60_000, poll_ms=5_000, attempt="two")
    found = await invisible(cluster, "CG")
    assert [(one.topic, one.given_out) for one in found.messages] == [("orders", 2), ("orders", 2)]
    first, second = pop_stops(await cluster.store.journey_of(found.messages[0].log_offset))
    assert first[:2] == ("Popped by CG", "done") and second[:2] == ("Popped by CG", "waiting")
    assert first[2].startswith(
        "It was given out in order for 300 ms, together with 1 other of queue 0. It was not acknowledged, and "
        "given out again at "
    )
    await client.ack(given[0])
    first, second = pop_stops(await cluster.store.journey_of(found.messages[0].log_offset))
    assert second[1] == "done" and ". Acknowledged after " in second[2]
    assert (found.counts.popped, found.counts.came_again, found.counts.invisible) == (4, 2, 2)
    stops = (await cluster.store.journey_of(found.messages[1].log_offset)).stops
    (reader,) = [one for one in stops if one.stop == "group"]
    assert reader.sentence.startswith("It popped the message, as shown below. Its position is ")


async def test_a_group_shows_its_retry_policy(process, cluster):  # noqa: F811
    process.parts.groups.put(SubscriptionGroup("CG"))
    assert retry_policy_text(cluster.groups.detail("CG").retry_policy) == (
        "Clients of RocketMQ 5 (gRPC) wait 1 s, 5 s, 10 s, 30 s, 1 min, 2 min, 3 min, 4 min, 5 min, 6 min, 7 min, "
        "8 min, 9 min, 10 min, 20 min, 30 min, 1 h, 2 h, which is also the wait of all further retries. Other "
        "clients wait by delay levels."
    )
    policy = {"initial": 10_000, "max": 600_000, "multiplier": 3}
    process.parts.groups.put(
        SubscriptionGroup("CG", retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": policy})
    )
    assert retry_policy_text(cluster.groups.detail("CG").retry_policy) == (
        "Clients of RocketMQ 5 (gRPC) wait 10 s before the first retry, then 3 times as long each time, at most "
        "10 min. Other clients wait by delay levels."
    )


async def test_when_pops_are_not_kept_the_page_says_so(process, cluster, client):  # noqa: F811
    process.parts.revive_log.in_flight = InFlight(max_pops=1)
    await client.pop(count=2, invisible_ms=60_000)
    await client.pop(count=2, invisible_ms=60_000)
    counts = cluster.groups.detail("CG").pops
    assert (counts.invisible, counts.popped, counts.complete) == (2, 4, False)
    assert counts.reason == "at most 1 pops of all groups are kept, and there were more"


async def test_metrics_and_pages_say_when_more_messages_may_be_invisible(process, cluster, client):  # noqa: F811
    def gauges():
        group, popped = cluster.groups.rows(["CG"])[0], cluster.waiting.facts().popped
        found = [
            sample
            for family in (*group_metrics([group], 1), *popped_metrics(popped))
            for sample in family.samples
        ]
        page = render_to_string("waiting/facts.html", {"waiting": cluster.waiting.facts()})
        return [sample.value for sample in found if sample.name.endswith("_complete")], "or more" in page

    await client.pop(count=1, invisible_ms=60_000)
    assert gauges() == ([1, 1], False)
    process.parts.in_flight._max_pops = 1
    await client.pop(count=1, invisible_ms=60_000)
    assert gauges() == ([0, 0], True)


async def test_where_invisible_messages_may_be_missing_no_page_says_that_there_are_none(
    process,  # noqa: F811
    cluster,  # noqa: F811
    client,
):
    await client.pop(count=1, invisible_ms=60_000)
    process.parts.in_flight.forget_pops("CG")
    shown = {"invisible": cluster.pops.invisible("CG"), "group_name": "CG", "after": None}
    assert "No message is invisible" in render_to_string("pops/messages.html", shown)
    process.parts.in_flight.begin_search()
    shown["invisible"] = cluster.pops.invisible("CG")
    page = render_to_string("pops/messages.html", shown)
    assert "No invisible message is known" in page and "No message is invisible" not in page
    assert "Perhaps not all: what was popped before the start is being read." in page


async def test_a_lag_says_how_many_queues_it_does_not_count(cluster, client):  # noqa: F811
    await client.pop(count=1, queue_id=0)
    detail = cluster.groups.detail("CG")
    assert detail.queues_not_read == sum(queue.lag is None for queue in detail.queues) > 0


def test_names_of_pop_retry_topics():
    assert popping_group("%RETRY%CG_orders", "orders") == popping_group("%RETRY%CG+orders", "orders") == "CG"
    assert popping_group("%RETRY%_orders", "orders") is None and popping_group("CG_orders", "orders") is None
    assert pop_retry_splits("%RETRY%a_b_c") == [("a", "b_c"), ("a_b", "c")]
    assert pop_retry_splits("%RETRY%a_b+c_d") == [("a_b", "c_d")]
    assert pop_retry_splits("%RETRY%a") == pop_retry_splits("a_b") == pop_retry_splits("%RETRY%_a_") == []
