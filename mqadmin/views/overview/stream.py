"""The broker at a glance, and how it is."""

from __future__ import annotations

from dataclasses import dataclass

from django.template.loader import render_to_string

from broker_store.units import document_of, fields_of
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.condition import Condition
from mqadmin.views.view import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCondition(Condition):
    """How the broker is, with its notices drawn: sentence and notices of a page come from one frame."""

    html: str


def condition(cluster: Cluster, name: str) -> DrawnCondition:
    """Return how the broker is. For a thread."""
    found = cluster.condition()
    html = render_to_string("overview/condition.html", fields_of(found))
    return DrawnCondition(**fields_of(found), html=html)


STREAMS = {
    "overview": Stream(
        lambda cluster, name: cluster.overview(), 4, past=lambda data: {"rates": document_of(data.rates)}
    ),
    "condition": Stream(condition, 8, in_thread=True),
}
