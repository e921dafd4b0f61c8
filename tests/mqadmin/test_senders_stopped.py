"""What stops senders although the store takes messages is said: a name server without write permission, a
loop that stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from django.template.loader import render_to_string

from broker_store.assembly import build_name_server
from broker_store.broker.pauses import Pause
from broker_store.broker.topics import TopicConfig
from broker_store.config.name_server import NameServerSettings
from broker_store.formats.topics import PERM_READ
from broker_store.nameserver.routes import finish
from broker_store.server.registration import Registration
from mqadmin.cluster.embedded.signs import JobCounts
from mqadmin.facts.condition import Condition
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)


@pytest.fixture
async def quiet(cluster, tmp_path, monkeypatch):  # noqa: F811
    """The cluster, with a name server in its process that gives its topics out."""
    cluster.jobs = JobCounts(lambda time_ms: 0, lambda: 0)
    monkeypatch.setattr(cluster, "_conditions", LooksEachTime())
    nameserver = build_name_server(NameServerSettings(), tmp_path / "namesrv")
    parts = cluster._host.process.parts = replace(cluster._host.process.parts, nameserver=nameserver)
    await Registration(parts)._register_all_embedded()
    return cluster


class LooksEachTime:
    """In place of the condition's CachedScans: nothing is kept."""

    def of(self, key: str, make: Callable[[], Condition]) -> Condition:
        return make()


def of_routes(found: Condition) -> list[str]:
    return [notice.sentence for notice in found.notices if notice.kind == "routes"]


async def test_the_condition_and_the_topic_say_that_the_name_server_withholds_write_permission(quiet):
    parts = quiet._host.process.parts
    assert (
        not of_routes(await asyncio.to_thread(quiet.condition))
        and quiet.topics.detail("orders").withheld is None
    )
    finish(parts.nameserver.routes.wipe_write_perm(parts.broker_name))
    (said,) = of_routes(await asyncio.to_thread(quiet.condition))
    assert said.startswith(
        f"The name server gives out {parts.broker_name} without write permission: clients cannot "
        f"send; add it again by"
    )
    assert f"mqadmin addWritePerm -b {parts.broker_name}" in quiet.topics.detail("orders").withheld
    finish(parts.nameserver.routes.add_write_perm(parts.broker_name))
    assert (
        not of_routes(await asyncio.to_thread(quiet.condition))
        and quiet.topics.detail("orders").withheld is None
    )


async def test_a_topic_without_write_permission_of_its_own_is_no_fault_of_the_name_server(quiet):
    quiet._host.process.parts.topics.put(TopicConfig("orders", 1, 1, PERM_READ))
    facts = quiet.topics.detail("orders")
    assert (facts.is_writable, facts.withheld) == (False, None)
    assert not of_routes(await asyncio.to_thread(quiet.condition))
    page = await asyncio.to_thread(render_to_string, "topics/topic.html", {"topic": facts})
    assert (
        "the route does not permit clients to send, and REST refuses" in page
        and "refuses every send" not in page
    )


async def test_a_loop_that_stood_still_is_said_by_the_condition_the_write_path_and_the_metrics(quiet):
    """The timer that measures it is due while the loop is held up."""
    parts = quiet._host.process.parts
    until = time.monotonic() + 1.6
    while time.monotonic() < until:
        pass
    while (parts.pauses.longest() or Pause(0.0, 0)).seconds < 1.0:
        await asyncio.sleep(0)
    (said,) = [
        notice for notice in (await asyncio.to_thread(quiet.condition)).notices if notice.kind == "pause"
    ]
    assert said.sentence.startswith("The broker's event loop was blocked for ") and said.number > 1_000
    facts = await asyncio.to_thread(quiet.store.write_path)
    assert facts.loop.longest_us > 1_000_000 and abs(facts.loop.at_ms - parts.clock()) < 60_000
    assert quiet.longest_pause_s() > 1.0
