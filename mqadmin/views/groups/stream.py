"""One group, what it sent back, and its timeline."""

from __future__ import annotations

from broker_store.formats import names
from mqadmin.views.view import Stream

STREAMS = {
    "group": Stream(lambda cluster, name: cluster.groups.detail(name), 4, names.check_group),
    "group.retries": Stream(
        lambda cluster, name: cluster.waiting.retries(name), 20, names.check_group, in_thread=True
    ),
    "group.timeline": Stream(
        lambda cluster, name: cluster.store.timeline(name), 20, names.check_group, in_thread=True
    ),
}
