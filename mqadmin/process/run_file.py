"""What a running broker writes into its data directory for other processes: run/broker.json and run/live.

{"pid": 4711, "store": "/…/store", "delay_levels": "1s 5s …", "store_settings": {…}, "inspect": false,
"broker": "127.0.0.1:10911", "nameserver": "127.0.0.1:9876", "web": "http://…"}
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.start.start_records import (
    LastStart,
    last_start,
    levels_of_last_start,
    sizes_of_last_start,
)
from broker_store.engine.status.live_page import LivePosition, read_live_page


def read(data: Path) -> dict | None:
    """Return the run file of the broker on this data directory; None when none runs, or it cannot be read."""
    try:
        value = json.loads((data / "run" / "broker.json").read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def store_directory(data: Path) -> Path:
    """Return the store of this data directory: the running broker's, else the default one."""
    store = (read(data) or {}).get("store")
    return Path(store) if isinstance(store, str) else data / "store"


def delay_levels(store: Path, data: Path) -> str | None:
    """Return the messageDelayLevel of the broker that runs on `store`, else of the last that did; None when
    it is unknown."""
    if store_directory(data).resolve() == store.resolve() and isinstance(
        levels := (read(data) or {}).get("delay_levels"), str
    ):
        return levels
    return levels_of_last_start((data / "recoveries").absolute(), store.absolute())


def store_settings(store: Path, data: Path) -> dict:
    """Return the settings of `store` that differ from the defaults, and its file sizes, from the run file of
    the broker that runs on it or was killed on it.

    For a store without such a file that is inspected: the sizes that its files show; other settings are
    unknown then.
    """
    if store_directory(data).resolve() != store.resolve():
        return {}
    given = (read(data) or {}).get("store_settings")
    return given if isinstance(given, dict) else {}


def noted_sizes(store: Path, data: Path) -> FileSizes:
    """Return the file sizes that the last broker on `store` used: by its run file when it runs or was killed,
    else by the record of its start."""
    known = store_settings(store, data)
    told = {
        field.name: known[field.name] for field in fields(FileSizes) if isinstance(known.get(field.name), int)
    }
    return (
        FileSizes(**told) if told else sizes_of_last_start((data / "recoveries").absolute(), store.absolute())
    )


def last_start_of(store: Path, data: Path) -> LastStart:
    """Return the newest start of a broker that opened `store`."""
    return last_start((data / "recoveries").absolute(), store.absolute())


def live_position(store: Path, data: Path) -> LivePosition | None:
    """Return how far the broker that runs on `store` is; None when none runs on it, when it opens it just
    now, or only inspects it (it writes nothing then)."""
    if store_directory(data).resolve() != store.resolve() or (read(data) or {}).get("inspect"):
        return None
    live = read_live_page(Disk(), data / "run" / "live")
    return None if live is None or live.state in ("opening", "recovering", "failed") else live
