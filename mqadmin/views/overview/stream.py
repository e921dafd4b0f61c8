"""The broker at a glance, and how it is."""

from __future__ import annotations

from broker_store.units import document_of
from mqadmin.views.view import Stream

STREAMS = {
    "overview": Stream(
        lambda cluster, name: cluster.overview(), 4, past=lambda data: {"rates": document_of(data.rates)}
    ),
    "condition": Stream(lambda cluster, name: cluster.condition(), 8, in_thread=True),
}
