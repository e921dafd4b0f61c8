"""The first invisible messages of a group, and the counts of its pops."""

from __future__ import annotations

from broker_store.formats import names
from mqadmin.views.view import Stream

STREAMS = {
    "group.pops": Stream(
        lambda cluster, name: cluster.pops.invisible(name), 4, names.check_group, in_thread=True
    ),
}
