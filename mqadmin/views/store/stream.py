"""Positions, and the files of the commit log."""

from __future__ import annotations

from broker_store.units import fields_of
from mqadmin.views.store.facts import log_files
from mqadmin.views.view import Stream


def positions(cluster, name: str) -> dict:
    store = cluster.store()
    parts = {
        part: store[part] for part in ("positions", "behind", "flags", "flush", "totals", "commit_log_files")
    }
    return {**parts, "race": cluster.race(), **fields_of(cluster.state())}


def files(cluster, name: str) -> dict:
    """The commit log's files. Those of the queues are thousands, and the page fetches the part it shows."""
    return {"log": log_files(cluster)}


STREAMS = {
    "store.positions": Stream(positions, 1, past=lambda data: {"race": {"sinks": data["race"]["sinks"]}}),
    "store.files": Stream(files, 4),
}
