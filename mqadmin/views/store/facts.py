"""The files of the commit log as the map of the store shows them."""

from __future__ import annotations

from broker_store.engine.status.store_state import StoreFile
from broker_store.units import fields_of
from mqadmin.facts.store import LogFile


def log_files(cluster) -> list[LogFile]:
    """Return the commit log's files, each with `dispatched`: the number of its bytes that are dispatched."""
    dispatched = cluster.store.snapshot().positions.dispatched
    return with_dispatched(cluster.files.known("commitlog"), dispatched)


def with_dispatched(files: list[StoreFile], dispatched: int | None) -> list[LogFile]:
    """Return files of the log with the number of dispatched bytes of each; `dispatched` is a log offset."""
    return [
        LogFile(
            **fields_of(file),
            dispatched=None
            if dispatched is None or file.base is None or file.wrote is None
            else min(max(dispatched - file.base, 0), file.wrote),
        )
        for file in files
    ]
