"""The files that a running broker writes into its data directory for other processes: run/broker.json and
run/live."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from broker_store.client import Credentials, read_credentials
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.start.start_records import (
    LastStart,
    last_start,
    levels_of_last_start,
    sizes_of_last_start,
)
from broker_store.engine.status.live_page import LivePosition, read_live_page
from broker_store.errors import MisuseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of the parts of a broker's process; None for a part that does not run."""

    broker: str | None = None  # host and port
    nameserver: str | None = None
    grpc: str | None = None  # for RocketMQ 5 clients
    web: str | None = None  # an address of the dashboard


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile(Ports):
    """The run file of a broker. A field that is missing or of another type is None."""

    pid: int | None = None
    store: str | None = None  # its directory
    delay_levels: str | None = None  # messageDelayLevel
    inspect: bool = False  # it only reads the store
    # That differ from the defaults, and the sizes of files; by their names in StoreSettings
    store_settings: dict[str, Any] = field(default_factory=dict)


def read(data: Path) -> RunFile | None:
    """Return the run file of the broker on this data directory; None when none runs, or it cannot be read."""
    try:
        document = json.loads((data / "run" / "broker.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    pid, store_settings = document.get("pid"), document.get("store_settings")
    return RunFile(
        pid=pid if isinstance(pid, int) else None,
        store=_text(document.get("store")),
        delay_levels=_text(document.get("delay_levels")),
        inspect=bool(document.get("inspect")),
        store_settings=store_settings if isinstance(store_settings, dict) else {},
        broker=_text(document.get("broker")),
        nameserver=_text(document.get("nameserver")),
        web=_text(document.get("web")),
    )


def credentials(path: Path) -> Credentials | None:
    """Return the credentials in a file, `{"accessKey": "..", "secretKey": ".."}`; None if there is no such
    file. Raises MisuseError for a malformed one."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        text = ""
    found = read_credentials(text)
    if found is None:
        raise MisuseError(f'{path}: expected {{"accessKey": "..", "secretKey": ".."}} in JSON')
    return found


def own_credentials(data: Path) -> Credentials | None:
    """Return what jobs and commands sign their requests to the broker on a data directory with; None if it
    has no access control, or no innerClientAuthenticationCredentials."""
    return credentials(data / "run" / "credentials.json")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def store_directory(data: Path) -> Path:
    """Return the store of this data directory: the running broker's, else the default one."""
    run = read(data)
    return data / "store" if run is None or run.store is None else Path(run.store)


def delay_levels(store: Path, data: Path) -> str | None:
    """Return the messageDelayLevel of the broker that runs on `store`, else of the last that did; None when
    it is unknown."""
    run = _run_of(store, data)
    if run is not None and run.delay_levels is not None:
        return run.delay_levels
    return levels_of_last_start((data / "recoveries").absolute(), store.absolute())


def _is_of(data: Path, store: Path) -> bool:
    """True if `store` is the store of this data directory."""
    return store_directory(data).resolve() == store.resolve()


def store_settings(store: Path, data: Path) -> StoreSettings:
    """Return the settings of `store` in the run file of the broker that runs on it or was killed on it, else
    the defaults.

    For a store without such a file that is inspected: the sizes that its files show; other settings are
    unknown then.
    """
    run = _run_of(store, data)
    return StoreSettings() if run is None else StoreSettings(**run.store_settings)


def _run_of(store: Path, data: Path) -> RunFile | None:
    return read(data) if _is_of(data, store) else None


def noted_sizes(store: Path, data: Path) -> FileSizes:
    """Return the file sizes that the last broker on `store` used: by its run file when it runs or was killed,
    else by the record of its start."""
    run = _run_of(store, data)
    known = {} if run is None else run.store_settings
    sizes = {one.name: known.get(one.name) for one in fields(FileSizes)}
    recorded = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if recorded:
        return FileSizes(**recorded)
    return sizes_of_last_start((data / "recoveries").absolute(), store.absolute())


def last_start_of(store: Path, data: Path) -> LastStart:
    """Return the newest start of a broker that opened `store`."""
    return last_start((data / "recoveries").absolute(), store.absolute())


def live_position(store: Path, data: Path) -> LivePosition | None:
    """Return how far the broker that runs on `store` is; None when none runs on it, when it opens it just
    now, or only inspects it (it writes nothing then)."""
    run = read(data)
    if not _is_of(data, store) or (run is not None and run.inspect):
        return None
    live = read_live_page(Disk(), data / "run" / "live")
    return None if live is None or live.state in ("opening", "recovering", "failed") else live
