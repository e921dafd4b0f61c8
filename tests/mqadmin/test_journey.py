"""Journeys of messages on a live broker: each stop is what happened, and says what it does not know."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from broker_store.broker import filters, half_message
from broker_store.broker.topics import TopicConfig
from broker_store.errors import NotFoundError
from broker_store.facts import references
from broker_store.facts.bytes.place import Place
from broker_store.facts.journey.stop import Journey, Stop
from broker_store.formats import index_file, properties, record
from broker_store.formats.names import dead_letter_topic, retry_topic
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import Message
from broker_store.rest.new_messages import NewMessage
from broker_store.units import fields_of
from mqadmin.views.store.journey.facts import shown_journey
from mqadmin.web import live
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)
from tests.support.sending import send_one


def stops(found: Journey, *kinds: str) -> list[tuple]:
    return [(one.stop, one.state) for one in found.stops if not kinds or one.stop in kinds]


def of(found: Journey, kind: str) -> Stop:
    return next(one for one in found.stops if one.stop == kind)


def _put(cluster, topic, queue_id, body=b"x", **pairs) -> int:  # noqa: F811
    parts = cluster._host.process.parts
    result = parts.store.appender.put(
        Message(
            topic,
            queue_id,
            body,
            properties.encode(pairs),
            born_timestamp=parts.clock() - 7,
            reconsume_times=int(pairs.get("RECONSUME_TIME", 0)),
        )
    )
    assert result.ok
    return result.log_offset


async def test_a_plain_message_is_born_stored_queued_indexed_and_read(cluster):  # noqa: F811
    parts = cluster._host.process.parts
    (first, second) = await cluster.sends.send_batch(
        "orders", [NewMessage(b"a", "paid", ("k1", "k2"), {}, 0), NewMessage(b"b", "", (), {}, 0)]
    )
    parts.offsets.commit("billing", "orders", 0, 1)
    found = await cluster.store.journey_of(first.log_offset)
    assert stops(found) == [
        ("born", "done"), ("stored", "done"), ("disk", of(found, "disk").state), ("queue", "done"), ("index", "done"), ("index", "done"), ("index", "done"), ("index", "done"), ("group", "done"),
    ]  # fmt: skip
    assert (
        found.complete
        and found.message.keys == ["k1", "k2"]
        and of(found, "born").at_ms <= of(found, "stored").at_ms
    )
    assert [one.title for one in found.stops if one.stop == "index"] == [
        "Indexed by message id",
        "Indexed by key",
        "Indexed by key",
        "Indexed by tag",
    ]
    for one in found.stops:
        if one.pointer:
            stretch = await cluster.store.bytes_at(Place(**fields_of(one.pointer)))
            assert stretch.pieces[0].tone != "bad", one
    waits = await cluster.store.journey_of(second.log_offset)
    assert (of(waits, "group").state, of(waits, "group").sentence) == (
        "waiting",
        "It is the next of the queue. None of its clients is connected.",
    )


async def test_flushing_and_dispatching_are_waited_for_by_name(cluster, monkeypatch):  # noqa: F811
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "", ("k",), {}, 0)])
    log_offset, store = receipt.log_offset, cluster._host.process.store
    known = store.status.positions()
    end = known.wrote
    cases = [
        (
            {"flushed": log_offset},
            "disk",
            "waiting",
            f"In memory only: the log is on the disk up to {log_offset:,}, {end - log_offset:,} "
            f"bytes before its end.",
        ),
        ({"flushed": end, "checkpoint_position": 0}, "disk", "done", "The checkpoint does not cover it yet"),
        ({"flushed": end, "checkpoint_position": end}, "disk", "done", "the checkpoint covers it"),
        ({"dispatched": log_offset}, "index", "waiting", "it is not dispatched yet"),
    ]
    for changes, kind, state, words in cases:
        monkeypatch.setattr(store.status, "positions", lambda changes=changes: replace(known, **changes))
        one = of(await cluster.store.journey_of(log_offset), kind)
        assert one.state == state and words in one.sentence


async def test_a_group_that_wants_other_tags_passes_it_over(cluster, monkeypatch):  # noqa: F811
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "paid", (), {}, 0)])
    clients = cluster._host.process.parts.clients
    monkeypatch.setattr(
        clients, "groups_of_topic", lambda topic: ["picky", "sql"] if topic == "orders" else []
    )
    monkeypatch.setattr(
        clients,
        "subscription",
        lambda group, topic: (
            filters.parse(topic, "new || old") if group == "picky" else filters.parse(topic, "a > 1", "SQL92")
        ),
    )
    cluster._host.process.parts.offsets.commit("sql", "orders", 0, 1)
    picky, sql = [
        one for one in (await cluster.store.journey_of(receipt.log_offset)).stops if one.stop == "group"
    ]
    assert (picky.state, picky.sentence) == (
        "absent",
        "Passed over: it wants new || old, and the message's tag is paid.",
    )
    assert sql.state == "done" and "may have been passed over" in sql.sentence


async def test_a_delayed_message_leads_to_its_place_and_back(cluster):  # noqa: F811
    (receipt,) = await cluster.sends.send_batch(
        "orders", [NewMessage(b"a", properties={"DELAY": "14"}, queue_id=1)]
    )
    log_offset = receipt.log_offset
    found = await cluster.store.journey_of(log_offset)
    assert found.message.topic == SCHEDULE_TOPIC and stops(found, "group") == []
    assert (
        of(found, "waits").state == "waiting"
        and "Put aside for orders by delay level 14, due at 2" in of(found, "waits").sentence
    )
    stored, _ = await cluster.search.message_at(log_offset)
    real = _put(cluster, "orders", 1, UNIQ_KEY=stored.unique_key)
    cluster._host.process.parts.delay._levels[13].offset = 1
    found = await cluster.store.journey_of(log_offset)
    assert of(found, "waits").state == "done" and (
        of(found, "real").log_offset,
        found.stops[-1].stop,
    ) == (real, "real")
    back = await cluster.store.journey_of(real)
    assert (back.stops[0].stop, back.stops[0].log_offset, back.stops[0].state) == (
        "delayed",
        log_offset,
        "done",
    )


async def test_a_timed_message_waits_until_its_time_and_a_recall_is_told_as_one(cluster):  # noqa: F811
    parts = cluster._host.process.parts
    topic, out_ms = "rmq_sys_wheel_timer", parts.clock() // 1000 * 1000 + 600_000
    waits = dict(REAL_TOPIC="orders", REAL_QID="1", TIMER_OUT_MS=str(out_ms))
    kept, recalled = [_put(cluster, topic, 0, UNIQ_KEY=id, **waits) for id in ("K1", "K2")]
    recalls = [
        _put(cluster, topic, 0, UNIQ_KEY="K2", TIMER_DEL_UNIQKEY=names, **waits)
        for names in ("K2", "orders+K2")
    ]
    other = _put(cluster, topic, 0, UNIQ_KEY="K1", TIMER_DEL_UNIQKEY="K3", **waits)
    one = of(await cluster.store.journey_of(kept), "waits")
    assert (
        (one.title, one.state) == ("Timed", "waiting")
        and "due at 2" in one.sentence
        and "recalled" not in one.sentence
    )
    for log_offset in (recalled, recalls[0]):
        found = await cluster.store.journey_of(log_offset)
        told = {one.title: one for one in found.stops if one.stop in ("waits", "timed")}
        assert (
            told.keys() == {"Timed", "Recall"}
            and "It was recalled: it is not delivered, but dropped then." in told["Timed"].sentence
        )
        assert (
            told["Recall"].state == "done"
            and "take back" in told["Recall"].sentence
            and "K2, which is for orders" in told["Recall"].sentence
        )
    assert of(await cluster.store.journey_of(other), "waits").title == "Recall"
    again = _put(cluster, topic, 0, UNIQ_KEY="K1", TIMER_ROLL_TIMES="1", **waits)
    assert (
        of(await cluster.store.journey_of(kept), "waits").state == "done"
        and of(await cluster.store.journey_of(again), "waits").state == "waiting"
    )
    _put(cluster, "orders", 1, UNIQ_KEY="K1")
    assert of(await cluster.store.journey_of(again), "waits").state == "done"


async def test_retries_and_the_dead_letter_of_a_message_are_told_in_order(cluster):  # noqa: F811
    parts = cluster._host.process.parts
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "paid", (), {}, 0)])
    id = receipt.message_id
    for topic in (retry_topic("billing"), dead_letter_topic("billing")):
        parts.topics.put(TopicConfig(topic, 1, 1))
    parts.offsets.commit("billing", "orders", 0, 1)
    kept = [
        _put(
            cluster,
            SCHEDULE_TOPIC,
            2,
            UNIQ_KEY=id,
            DELAY="3",
            REAL_TOPIC=retry_topic("billing"),
            REAL_QID="0",
            RECONSUME_TIME="1",
        )
    ]
    kept += [
        _put(cluster, retry_topic("billing"), 0, UNIQ_KEY=id, RETRY_TOPIC="orders", RECONSUME_TIME=str(tries))
        for tries in (1, 2)
    ]
    parts.offsets.commit("billing", retry_topic("billing"), 0, 1)
    kept.append(
        _put(cluster, dead_letter_topic("billing"), 0, UNIQ_KEY=id, RETRY_TOPIC="orders", RECONSUME_TIME="16")
    )
    _put(cluster, "orders", 0, UNIQ_KEY="another")
    found = await cluster.store.journey_of(receipt.log_offset)
    copies = [one for one in found.stops if one.log_offset is not None]
    assert [(one.stop, one.log_offset) for one in copies] == list(
        zip(["delayed", "retry", "retry", "dead"], kept, strict=True)
    )
    assert "for the 1st time" in copies[1].sentence and "taken again since" in copies[1].sentence
    assert copies[2].state == "waiting" and "for the 2nd time" in copies[2].sentence
    assert "billing gave it up after 16 tries" in copies[3].sentence
    assert "sent back 2 times since" in of(found, "group").sentence
    from_the_end = await cluster.store.journey_of(kept[-1])
    assert [one.log_offset for one in from_the_end.stops if one.log_offset is not None] == [
        receipt.log_offset,
        *kept[:-1],
    ]


# fmt: skip
@pytest.mark.parametrize(
    ("tries", "words"),
    [
        (0, "To billing alone, by its retry topic; no failed try is counted"),
        (1, "the 1st"),
        (2, "the 2nd"),
        (3, "the 3rd"),
        (4, "the 4th"),
        (11, "the 11th"),
        (13, "the 13th"),
        (21, "the 21st"),
        (112, "the 112th"),
    ],
)
async def test_which_try_a_record_of_a_retry_topic_is_for_is_told_by_its_ordinal(cluster, tries, words):  # noqa: F811
    cluster._host.process.parts.topics.put(TopicConfig(retry_topic("billing"), 1, 1))
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "paid", (), {}, 0)])
    cluster._host.process.parts.offsets.commit("billing", "orders", 0, 1)
    _put(
        cluster,
        retry_topic("billing"),
        0,
        UNIQ_KEY=receipt.message_id,
        RETRY_TOPIC="orders",
        RECONSUME_TIME=str(tries),
    )
    found = await cluster.store.journey_of(receipt.log_offset)
    assert words in of(found, "retry").sentence and "0th" not in of(found, "retry").sentence
    assert ("sent back" in of(found, "group").sentence) == (tries > 0)


@pytest.mark.parametrize(
    ("tries", "words"),
    [
        (0, "billing gave it up. How many tries it had is not stated."),
        (1, "after 1 try."),
        (2, "after 2 tries."),
    ],
)
async def test_how_many_tries_a_dead_letter_had_is_told_as_far_as_it_is_stated(cluster, tries, words):  # noqa: F811
    cluster._host.process.parts.topics.put(TopicConfig(dead_letter_topic("billing"), 1, 1))
    cluster._host.process.parts.offsets.commit("billing", "orders", 0, 1)
    at = _put(
        cluster,
        dead_letter_topic("billing"),
        0,
        UNIQ_KEY="K",
        RETRY_TOPIC="orders",
        RECONSUME_TIME=str(tries),
    )
    found = await cluster.store.journey_of(_put(cluster, "orders", 0, UNIQ_KEY="K"))
    assert of(found, "dead").log_offset == at and words in of(found, "dead").sentence


async def test_how_many_come_before_a_message_is_told_in_the_singular_too(cluster):  # noqa: F811
    receipts = await cluster.sends.send_batch("orders", [NewMessage(b"a", "", (), {}, 0)] * 3)
    cluster._host.process.parts.offsets.commit("billing", "orders", 0, 0)
    told = [of(await cluster.store.journey_of(receipt.log_offset), "group").sentence for receipt in receipts]
    assert [one.partition(".")[0] for one in told] == [
        "It is the next of the queue",
        "1 message of the queue comes before it",
        "2 messages of the queue come before it",
    ]


async def test_a_prepared_message_and_what_was_committed_are_one_journey(cluster):  # noqa: F811
    parts = cluster._host.process.parts
    _put(cluster, "orders", 0)  # 0 as the place of a half means that there is none
    half = Message(
        "orders",
        1,
        b"half",
        properties.encode({"PGROUP": "shop", "UNIQ_KEY": "T1", "TRAN_MSG": "true"}),
        born_timestamp=parts.clock(),
    )
    half_message.prepare(half)
    at = parts.store.appender.put(half).log_offset
    found = await cluster.store.journey_of(at)
    assert (
        of(found, "waits").state == "waiting"
        and "to wait for its producer's word" in of(found, "waits").sentence
    )
    committed = Message(
        "orders",
        1,
        b"half",
        properties.encode({"UNIQ_KEY": "T1", "REAL_TOPIC": "orders"}),
        born_timestamp=parts.clock(),
        sys_flag=record.TRANSACTION_COMMIT,
        prepared_transaction_offset=at,
    )
    real = parts.store.appender.put(committed).log_offset
    back = await cluster.store.journey_of(real)
    assert (back.stops[0].stop, back.stops[0].state, back.stops[0].log_offset) == (
        "prepared",
        "done",
        at,
    )
    without_id = parts.store.appender.put(
        Message("orders", 1, b"h", b"", sys_flag=record.TRANSACTION_COMMIT, prepared_transaction_offset=at)
    ).log_offset
    assert (await cluster.store.journey_of(without_id)).stops[0].log_offset == at, (
        "a half is known by its place as well"
    )
    assert of(await cluster.store.journey_of(without_id), "index").state == "absent"
    rolled_back = parts.store.appender.put(
        Message(
            "orders", 1, b"h", properties.encode({"UNIQ_KEY": "T2"}), sys_flag=record.TRANSACTION_ROLLBACK
        )
    ).log_offset
    found = await cluster.store.journey_of(rolled_back)
    assert stops(found, "queue", "index", "group") == [("queue", "absent"), ("index", "absent")]


async def test_messages_of_one_batch_go_each_its_own_way(cluster):  # noqa: F811
    receipts = await cluster.sends.send_batch("orders", [NewMessage(b"%d" % n, queue_id=0) for n in range(5)])
    for number, receipt in enumerate(receipts):
        found = await cluster.store.journey_of(receipt.log_offset)
        assert found.message.queue_offset == number and not [
            one for one in found.stops if one.log_offset is not None
        ]


async def test_an_entry_far_down_its_chain_is_found_by_its_place_in_the_log(cluster, monkeypatch):  # noqa: F811
    receipts = await cluster.sends.send_batch(
        "orders", [NewMessage(b"%d" % n, "hot", (), {}, 0) for n in range(30)]
    )
    near = of(await cluster.store.journey_of(receipts[4].log_offset), "index")
    monkeypatch.setattr(references, "MAX_NEAR", 10)
    tag = next(
        one
        for one in (await cluster.store.journey_of(receipts[4].log_offset)).stops
        if one.title == "Indexed by tag"
    )
    assert (
        near.state == tag.state == "done"
        and "more than 10 newer entries before it in the chain" in tag.sentence
    )
    stretch = await cluster.store.bytes_at(Place(**fields_of(tag.pointer)))
    assert (
        stretch.pieces[0].sentence == "Of orders#T#hot."
        and stretch.pieces[0].fields[1].pointer.offset == receipts[4].log_offset
    )
    (file,) = cluster._host.process.store.index.files
    with file.path.open("r+b") as data:
        data.seek(file.geometry.entry_at(tag.offset))
        data.write(bytes(4))
    lost = next(
        one
        for one in (await cluster.store.journey_of(receipts[4].log_offset)).stops
        if one.title == "Indexed by tag"
    )
    assert lost.state == "unknown" and "not where it would stand" in lost.sentence
    with file.path.open("r+b") as data:
        data.seek(file.geometry.entry_at(tag.offset))
        data.write(index_file.key_hash("orders#T#hot").to_bytes(4, "big"))


async def test_what_clients_traced_stands_at_the_end(cluster):  # noqa: F811
    receipt = await send_one(cluster, "orders", b"a")
    id = receipt.message_id
    fields = ["Pub", "1700000000000", "r", "shop", "orders", id, "", "", "h", "1", "3", "0", "", "true"]
    _put(cluster, "RMQ_SYS_TRACE_TOPIC", 0, ("\x01".join(fields) + "\x02").encode(), KEYS=id)
    told = (await cluster.store.journey_of(receipt.log_offset)).stops[-1]
    assert (told.stop, told.sentence, told.at_ms) == (
        "trace",
        "shop sent it to orders, in 3 ms.",
        1_700_000_000_000,
    )


async def test_what_was_cleaned_away_or_damaged_is_named(cluster):  # noqa: F811
    store = cluster._host.process.store
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "", ("k",), {}, 0)])
    log_offset = receipt.log_offset
    with pytest.raises(NotFoundError, match="no message begins at position"):
        await cluster.store.journey_of(log_offset + 1)
    path = store.root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        before = file.read(20)
        file.seek(8)
        file.write((9).to_bytes(4, "big"))
    assert (
        "it says 9 bytes" in of(await cluster.store.journey_of(log_offset), "queue").sentence
        and of(await cluster.store.journey_of(log_offset), "queue").state == "wrong"
    )
    with path.open("r+b") as file:
        file.write(bytes(20))
    assert of(await cluster.store.journey_of(log_offset), "queue").state == "absent"
    with path.open("r+b") as file:
        file.write(before)
    store.queue_table.find("orders", 0).minimum = 1
    assert (
        "is before the queue's minimum, which is 1"
        in of(await cluster.store.journey_of(log_offset), "queue").sentence
    )
    store.queue_table.find("orders", 0).minimum = 0
    (file,) = store.index.files
    hidden = file.path.with_name("hidden")
    file.path.rename(hidden)
    assert {
        one.sentence.split(": ")[1]
        for one in (await cluster.store.journey_of(log_offset)).stops
        if one.stop == "index"
    } == {"there is no index file."}
    hidden.rename(file.path)


async def test_the_stream_gives_the_journey_and_the_page_a_picture_of_it(cluster):  # noqa: F811
    receipt = await send_one(cluster, "orders", b"a", keys=("k1", "k2"))
    name = live.STREAMS["message"].check(str(receipt.log_offset))
    found = await asyncio.to_thread(live.STREAMS["message"].measure, cluster, name)
    assert json.loads(live.encode(found))["message"]["message_id"] == receipt.message_id
    with pytest.raises(live.NameError_):
        live.STREAMS["message"].check("../x")
    dots = shown_journey(found).picture
    assert [(dot.title, dot.count) for dot in dots] == [
        ("Born", 1),
        ("Stored", 1),
        ("On disk", 1),
        ("Queue", 1),
        ("Index", 3),
        ("Readers", 1),
    ]
    assert dots[1].took_ms is not None and dots[5].word == "not there"


def test_the_route_and_the_part_of_the_page_tell_the_same(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    by_place = json.loads(client.get("/api/v1/store/journey?log_offset=40000").content)
    by_id = json.loads(
        client.get(f"/api/v1/messages/{by_place['message']['offset_message_id']}/journey").content
    )
    assert [one["sentence"] for one in by_id["stops"]] == [one["sentence"] for one in by_place["stops"]]
    part = client.get("/messages/40000/journey").content.decode()
    assert all(one["title"] in part for one in by_place["stops"]) and "stream <code>message</code>" in part
    assert client.get("/api/v1/store/journey?log_offset=x").status_code == 422
