"""Replication as this broker sees it."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import path

from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.replication import ReplicationFacts
from mqadmin.views.page import drawn, page
from mqadmin.views.view import Part

FACTS = "store/replication/facts.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRow:
    """A position of the log at one broker."""

    title: str
    beside: str
    offset: int | None
    share: float  # of the log of this broker, 0 to 1
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationPage:
    """The data of FACTS."""

    found: ReplicationFacts
    rows: list[PositionRow]


@page()
async def replication_page(request):
    template = FACTS if request.htmx else "store/replication/page.html"
    return await drawn(request, template, fields_of(facts(current_cluster())))


def facts(cluster: Cluster) -> ReplicationPage:
    found = cluster.store.replication()
    end = max([found.wrote, *(slave.reported or 0 for slave in found.slaves)])
    if found.master is not None and found.master.end is not None:
        end = max(end, found.master.end)

    def row(title: str, beside: str, offset: int | None, tone: str) -> PositionRow:
        length = max(1, end - found.log_begin)
        share = 0.0 if offset is None else min(1.0, max(0.0, (offset - found.log_begin) / length))
        return PositionRow(title=title, beside=beside, offset=offset, share=share, tone=tone)

    rows = [
        row("Wrote", "this broker", found.wrote, "wrote"),
        row("Flushed", "this broker", found.flushed, "flushed"),
        row("Confirmed", "readers see what is before it", found.confirmed, "dispatched"),
        *(row(slave.address, "a slave has reported", slave.reported, "accent") for slave in found.slaves),
    ]
    if found.master is not None:
        rows.insert(0, row("Master", "has sent up to here", found.master.end, "accent"))
    return ReplicationPage(found=found, rows=rows)


PAGES = (path("store/replication/", replication_page, name="replication"),)
PARTS = {"replication": Part(FACTS, lambda cluster, asked: facts(cluster))}
