"""A producer chooses how many keys a message has: what is looked up and shown of them is bounded."""

from __future__ import annotations

import json
import threading

from broker_store.facts.body_view import SHOWN_KEYS
from broker_store.facts.bytes.place import Place
from broker_store.facts.journey.stop import Journey
from broker_store.rest.new_messages import NewMessage
from mqadmin.api import schemas
from mqadmin.views.messages import page as view
from mqadmin.views.store.journey.facts import ShownJourney, shown_journey
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)

KEYS = tuple(f"k{number}" for number in range(5_000))


async def test_the_journey_of_many_keys_looks_up_the_first_and_counts_the_others(cluster):  # noqa: F811
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "paid", KEYS, {}, 0)])
    found = await cluster.store.journey_of(receipt.log_offset)
    titles = [stop.title for stop in found.stops if stop.stop == "index"]
    assert titles == ["Indexed by message id", *["Indexed by key"] * SHOWN_KEYS, "Indexed by tag"]
    message = found.message
    assert (message.keys, message.keys_left_out) == (list(KEYS[:SHOWN_KEYS]), len(KEYS) - SHOWN_KEYS)
    assert len(json.dumps(schemas.facts(found))) < 150_000
    (few,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "", KEYS[:SHOWN_KEYS], {}, 0)])
    assert (await cluster.store.journey_of(few.log_offset)).message.keys_left_out == 0


async def test_the_part_with_many_keys_says_how_many_are_left_out_and_is_drawn_in_a_thread(
    cluster,  # noqa: F811
    rf,
    monkeypatch,
):
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "paid", KEYS, {}, 0)])
    threads = []

    def context(found: Journey) -> ShownJourney:
        threads.append(threading.current_thread())
        return shown_journey(found)

    monkeypatch.setattr(view, "shown_journey", context)
    monkeypatch.setattr(view, "current_cluster", lambda: cluster)
    answer = await view.message_journey.__wrapped__(rf.get("/"), receipt.log_offset)
    text = answer.content.decode()
    assert "4,744 more keys were not looked up" in text and len(text) < 200_000
    assert threads and threading.main_thread() not in threads


async def test_the_byte_viewer_leads_to_the_entries_of_the_first_keys_and_counts_the_others(cluster):  # noqa: F811
    (receipt,) = await cluster.sends.send_batch("orders", [NewMessage(b"a", "paid", KEYS, {}, 0)])
    stretch = await cluster.store.bytes_at(Place("commitlog", offset=receipt.log_offset))
    entries = [jump for jump in stretch.jumps if jump.title.startswith("Index entr")]
    assert len(entries) == 1 + SHOWN_KEYS + 1 + 1
    assert (entries[-1].title, entries[-1].pointer) == ("Index entries of 4,744 more keys", None)
