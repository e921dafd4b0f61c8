"""The numbers of the overview, and the condition of the broker."""

from __future__ import annotations

from dataclasses import dataclass

from django.template.loader import render_to_string

from broker_store.units import document_of, fields_of
from mqadmin.cluster.protocol import Cluster
from mqadmin.facts.condition import Condition
from mqadmin.views.view import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCondition(Condition):
    """The condition of the broker with its notices as HTML, so that both come in one frame."""

    html: str


def condition(cluster: Cluster, name: str) -> DrawnCondition:
    """Return the condition of the broker. For a thread."""
    found = cluster.condition()
    html = render_to_string("overview/condition.html", fields_of(found))
    return DrawnCondition(**fields_of(found), html=html)


STREAMS = {
    "overview": Stream(
        lambda cluster, name: cluster.overview(), 4, past=lambda data: {"rates": document_of(data.rates)}
    ),
    "condition": Stream(condition, 8, in_thread=True),
}
