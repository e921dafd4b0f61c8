"""The directory of the records of starts, and a record as it is shown: without the path of the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings

from broker_store.facts.starts import StartBrief, StartRecord
from broker_store.units import with_texts

Record = TypeVar("Record", StartBrief, StartRecord)


def directory() -> Path:
    """Return the directory of the records."""
    return Path(settings.DATA_DIRECTORY) / "recoveries"


def without_paths(record: Record) -> Record:
    """Return a record with the name of the store in place of its path, also in sentences."""
    store = Path(record.store or "store")
    shown: Record = without_path(record, store)
    return replace(shown, store=store.name)


def without_path(value: Any, store: Path) -> Any:
    """Return a value without the directory that holds the store."""
    root = store if store.is_absolute() else directory().parent / store
    return with_texts(value, lambda text: text.replace(f"{root.parent}/", ""))
