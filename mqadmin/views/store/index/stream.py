"""The index files while a page shows them: their headers, and slots and chains of one."""

from __future__ import annotations

from broker_store.formats.index_file import check_name
from mqadmin.facts.store import IndexFilesFrame
from mqadmin.views.store.index.slot_watch import WatchedSlots
from mqadmin.views.view import Stream


def index(cluster, name: str) -> WatchedSlots | IndexFilesFrame:
    """The index files; of the one that is named its slots."""
    return cluster.watched_slots(name) if name else IndexFilesFrame(files=cluster.call(cluster.store_index))


STREAMS = {
    "store.index": Stream(index, 4, lambda name: name and check_name(name), in_thread=True),
    "store.chains": Stream(
        lambda cluster, name: cluster.watched_chains(name), 40, check_name, in_thread=True
    ),
}
