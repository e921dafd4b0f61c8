"""The running start, and the record of a start."""

from __future__ import annotations

from broker_store.facts.recoveries import check_id
from broker_store.units import document_of, fields_of
from mqadmin.views.store.recoveries import facts
from mqadmin.views.view import Stream


def recovery(cluster, name: str) -> dict[str, object]:
    # As a document: JSON would be made of the fact itself with `from_` for `from`.
    return {"recovery": document_of(cluster.store.recovery()), **fields_of(cluster.state())}


def record(cluster, name: str) -> dict[str, object]:
    return {"recovery": document_of(facts.one(name))}


STREAMS = {
    "recovery": Stream(recovery, 1),
    "recovery.record": Stream(record, 1, check_id, in_thread=True),
}
