"""Positions, and the files of the commit log."""

from __future__ import annotations

from broker_store.units import document_of
from mqadmin.facts.store import LogFilesFrame, PositionsFrame
from mqadmin.views.store.facts import log_files
from mqadmin.views.view import Stream


def positions(cluster, name: str) -> PositionsFrame:
    store, state = cluster.store.snapshot(), cluster.state()
    return PositionsFrame(
        positions=store.positions,
        lag=store.lag,
        flags=store.flags,
        flush=store.flush,
        totals=store.totals,
        commit_log_files=store.commit_log_files,
        race=cluster.store.race(),
        state=state.state,
        sentence=state.sentence,
    )


def files(cluster, name: str) -> LogFilesFrame:
    """The commit log's files. Those of the queues are thousands, and the page fetches the part it shows."""
    return LogFilesFrame(log=log_files(cluster))


STREAMS = {
    "store.positions": Stream(
        positions, 1, past=lambda data: {"race": {"sinks": document_of(data.race.sinks)}}
    ),
    "store.files": Stream(files, 4),
}
