"""Records of starts, as pages and REST show them: without the paths of the store."""

from __future__ import annotations

from broker_store.facts import recoveries
from broker_store.facts.starts import StartBrief, StartRecord
from mqadmin.process.recovery_paths import directory, without_paths


def listing() -> list[StartBrief]:
    """In brief, newest first. Reads files: for a thread."""
    return [without_paths(record) for record in recoveries.listing(directory())]


def one(id: str) -> StartRecord:
    """One record; NotFoundError. Reads a file: for a thread."""
    return without_paths(recoveries.one(directory(), id))


def of_lab(run: str) -> StartRecord | None:
    """The record of the start within a run of the crash lab; None before it began. Reads files: for a
    thread."""
    found = next(
        (record.id for record in recoveries.listing(directory()) if record.store == f"lab/{run}/store"),
        None,
    )
    return None if found is None else one(found)
