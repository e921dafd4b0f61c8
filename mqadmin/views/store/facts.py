"""The files of the commit log as the map of the store shows them."""

from __future__ import annotations

from broker_store.engine.status.store_facts import StoreFile
from broker_store.units import fields_of
from mqadmin.facts.store import LogFile


def log_files(cluster) -> list[LogFile]:
    """The commit log's files, each with `dispatched`: how many of its bytes stand in queues and index."""
    dispatched = cluster.store.snapshot().positions.dispatched
    return with_dispatched(cluster.files.known("commitlog"), dispatched)


def with_dispatched(files: list[StoreFile], dispatched: int | None) -> list[LogFile]:
    """Files of the log with how many bytes of each are dispatched; `dispatched` is a log offset."""
    return [
        LogFile(
            **fields_of(file),
            dispatched=None
            if dispatched is None or file.base is None or file.wrote is None
            else min(max(dispatched - file.base, 0), file.wrote),
        )
        for file in files
    ]
