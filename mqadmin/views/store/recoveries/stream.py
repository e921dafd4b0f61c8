"""The start that runs, and the record of a start."""

from __future__ import annotations

from broker_store.units import fields_of
from mqadmin.views.store.recoveries import facts
from mqadmin.views.view import Stream

STREAMS = {
    "recovery": Stream(
        lambda cluster, name: {"recovery": cluster.recovery(), **fields_of(cluster.state())}, 1
    ),
    "recovery.record": Stream(
        lambda cluster, name: {"recovery": facts.one(name)}, 1, facts.check_id, in_thread=True
    ),
}
