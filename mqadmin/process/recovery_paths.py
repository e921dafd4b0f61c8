"""Where records of starts are, and how one is shown: without the path of the store."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


def directory() -> Path:
    """Return the directory of the records."""
    return Path(settings.DATA_DIRECTORY) / "recoveries"


def without_paths(record: dict) -> dict:
    """Return a record with the name of the store in place of its path, also in sentences."""
    store = Path(record.get("store") or "store")
    root = store if store.is_absolute() else directory().parent / store

    def shown(value: object) -> object:
        if isinstance(value, str) and "/" in value:
            return value.replace(f"{root.parent}/", "")
        if isinstance(value, dict):
            return {key: shown(item) for key, item in value.items()}
        return [shown(item) for item in value] if isinstance(value, list) else value

    return {name: shown(item) for name, item in record.items()} | {"store": store.name}
