"""Records of starts, as pages and REST show them: without where the store lies on the disk."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from broker_store.engine.start_records import ID
from broker_store.errors import NameError_
from broker_store.inside import recoveries


def directory() -> Path:
    return Path(settings.DATA_DIRECTORY) / "recoveries"


def listing() -> list[dict]:
    """In brief, newest first. Reads files: for a thread."""
    return [without_paths(record) for record in recoveries.listing(directory())]


def one(id: str) -> dict:
    """One record; NotFoundError. Reads a file: for a thread."""
    return without_paths(recoveries.one(directory(), id))


def of_lab(run: str) -> dict | None:
    """The record of the start within a run of the crash lab; None before it began. Reads files: for a thread."""
    found = next((record["id"] for record in recoveries.listing(directory()) if record["store"] == f"lab/{run}/store"), None)
    return None if found is None else one(found)


def without_paths(record: dict) -> dict:
    """The name of the store in place of its directory, also within sentences."""
    store = Path(record.get("store") or "store")
    root = store if store.is_absolute() else directory().parent / store

    def told(value):
        if isinstance(value, str) and "/" in value:
            return value.replace(f"{root.parent}/", "")
        if isinstance(value, dict):
            return {key: told(item) for key, item in value.items()}
        return [told(item) for item in value] if isinstance(value, list) else value

    return told(record) | {"store": store.name}


def check_id(id: str) -> str:
    if not ID.fullmatch(id):
        raise NameError_("that is no id of a start")
    return id
