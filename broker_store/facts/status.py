"""A store in brief, as its files have it."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.engine.status.file_facts import kept_facts
from broker_store.engine.status.store_state import LostAndFound, Stamps
from broker_store.facts.directory import StoreDirectory
from broker_store.units import Small


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePositions:
    """Log offsets as the files have them."""

    min: int  # of the first file
    wrote: int  # after the last record
    checkpoint: Stamps | None  # None: there is none that can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSizes:
    """Bytes of files."""

    mapped_file_size_commit_log: int | None  # None without a log file
    allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """A store in brief."""

    store: str
    state: str
    positions: FilePositions
    commit_log_files: Small
    queues: Small
    index_files: Small
    lost_and_found: LostAndFound
    sizes: StatusSizes


def status_of(store: StoreDirectory) -> StoreStatus:
    """What `store status` shows of a store without its broker."""
    log, stamps = store.log_files(), store.checkpoint()
    return StoreStatus(
        store=str(store.root),
        state="not closed orderly, or in use" if store.disk.exists(store.root / "abort") else "closed",
        positions=FilePositions(
            min=log[0][0] if log else 0,
            wrote=store.log_end(),
            checkpoint=None
            if stamps is None
            else Stamps(
                physic_ms=stamps.physic_msg_timestamp,
                logics_ms=stamps.logics_msg_timestamp,
                index_ms=stamps.index_msg_timestamp,
            ),
        ),
        commit_log_files=len(log),
        queues=len(store.queues()),
        index_files=len(store.index_paths()),
        lost_and_found=kept_facts(store.disk, store.root),
        sizes=StatusSizes(
            mapped_file_size_commit_log=log[0][1] if log else None,
            allocated_bytes=sum(file.allocated or 0 for file in store.files()),
        ),
    )
