"""The stream of the index files for an open page: their headers, and slots and chains of one file."""

from __future__ import annotations

from broker_store.formats.index_file import check_name
from broker_store.units import document_of
from mqadmin.facts.store import IndexFilesFrame
from mqadmin.views.view import Stream


# As documents: JSON would be made of the facts themselves with `from_` for `from`.
def index(cluster, name: str) -> dict[str, object]:
    """The index files, and the slots of the named file."""
    if name:
        return document_of(cluster.index.watched_slots(name))
    return document_of(IndexFilesFrame(files=cluster.call(cluster.index.facts)))


def chains(cluster, name: str) -> dict[str, object]:
    return document_of(cluster.index.watched_chains(name))


STREAMS = {
    "store.index": Stream(index, 4, lambda name: name and check_name(name), in_thread=True),
    "store.chains": Stream(chains, 40, check_name, in_thread=True),
}
