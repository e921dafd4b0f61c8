"""Where records of starts lie, and how one of them is shown: without where the store lies on the disk."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


def directory() -> Path:
    """Where the records are."""
    return Path(settings.DATA_DIRECTORY) / "recoveries"


def without_paths(record: dict) -> dict:
    """The name of the store in place of its directory, also within sentences."""
    store = Path(record.get("store") or "store")
    root = store if store.is_absolute() else directory().parent / store

    def shown(value: object) -> object:
        if isinstance(value, str) and "/" in value:
            return value.replace(f"{root.parent}/", "")
        if isinstance(value, dict):
            return {key: shown(item) for key, item in value.items()}
        return [shown(item) for item in value] if isinstance(value, list) else value

    return {name: shown(item) for name, item in record.items()} | {"store": store.name}
