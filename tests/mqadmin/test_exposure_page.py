"""What the pages say of a crash: with a pool of buffers a kill takes something too."""

from __future__ import annotations

import dataclasses

from django.template.loader import render_to_string

from broker_store.engine.status.store_state import LogPositions, StorePool
from broker_store.facts.exposure import CrashLoss, Lost
from mqadmin.templatetags.units import tracks
from tests.support.fake_cluster import FakeCluster

POOL = StorePool(buffers=5, free_buffers=4, answers_early=True)


def shown(pool: StorePool | None) -> str:
    exposure = FakeCluster().store.exposure()
    lost = Lost(bytes=7_000, messages=17, oldest_ms=120)
    kill = CrashLoss(written=lost, acknowledged=lost, sentence="Acknowledged messages in a buffer.")
    losses = exposure.losses if pool is None else dataclasses.replace(exposure.losses, process=kill)
    exposure = dataclasses.replace(exposure, pool=pool, losses=losses)
    return render_to_string("exposure.html", {"exposure": exposure, "whole": True})


def test_a_kill_loses_nothing_without_a_pool():
    page = shown(None)
    assert "Nothing is lost" in page and "losses.process" not in page


def test_with_a_pool_the_page_says_how_many_acknowledged_messages_a_kill_takes():
    page = shown(POOL)
    assert "Nothing is lost" not in page and "Acknowledged messages in a buffer." in page
    assert '<span data-path="losses.process.acknowledged.messages" data-format="count">17</span>' in page


def test_committed_has_a_track_where_there_is_such_a_position():
    positions = LogPositions(wrote=300, confirmed=200, committed=200, flushed=100, checkpoint_position=0)
    assert [row["at"] for row in tracks(positions)["rows"] if row["key"] == "committed"] == [200]
    without = dataclasses.replace(positions, committed=None)
    assert "committed" not in {row["key"] for row in tracks(without)["rows"]}
