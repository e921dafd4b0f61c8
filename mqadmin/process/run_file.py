"""The files that a running broker writes into its data directory for other processes: run/broker.json and
run/live."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from broker_store.client import Credentials, read_credentials
from broker_store.config.exposure import Exposure
from broker_store.config.load import fields_by_key
from broker_store.config.store import StoreSettings
from broker_store.config.tls import DISABLED, ENFORCING
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
from broker_store.protocol.tls import ClientCertificate, pinned_context
from broker_store.units import FactError, fact_of


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
    tls_mode: str | None = None  # tls.server.mode
    certificate: str | None = None  # the file with that of the ports
    client_certificate: str | None = None  # key and certificate for its ports, if they ask clients for one
    exposure: Exposure | None = None  # what it opens to whom; None if it is unknown
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
        tls_mode=_text(document.get("tls_mode")),
        certificate=_text(document.get("certificate")),
        client_certificate=_text(document.get("client_certificate")),
        exposure=_exposure(document.get("exposure")),
        store_settings=store_settings if isinstance(store_settings, dict) else {},
        broker=_text(document.get("broker")),
        nameserver=_text(document.get("nameserver")),
        grpc=_text(document.get("grpc")),
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


def tls_of(run: RunFile, *, wanted: bool = False) -> ssl.SSLContext | None:
    """Return what connections to a running broker have TLS with: its own certificate must answer. None for
    plain connections, which a broker that does not enforce TLS gets unless TLS is `wanted`. A broker that
    asks clients for a certificate gets the one that it made for them. Raises MisuseError."""
    if run.tls_mode != ENFORCING and not wanted:
        return None
    if run.tls_mode in (None, DISABLED) or run.certificate is None:
        raise MisuseError("this broker has no TLS: its tls.server.mode is disabled")
    of_clients, own = run.client_certificate, None
    if of_clients is not None:
        own = ClientCertificate(of_clients, of_clients)
    try:
        return pinned_context(Path(run.certificate).read_text("ascii"), own)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (run.certificate, of_clients)))
        raise MisuseError(f"the broker's certificates cannot be read: {files}: {error}") from None


def _exposure(found: object) -> Exposure | None:
    if not isinstance(found, dict):
        return None
    try:
        return fact_of(Exposure, found)
    except FactError:
        return None


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


def size_settings(run: RunFile) -> dict[str, str]:
    """Return the sizes of files that a running broker uses, by their keys in settings."""
    sizes = {one.name for one in fields(FileSizes)}
    return {
        key: str(run.store_settings[found.name])
        for key, found in fields_by_key(StoreSettings).items()
        if found.name in sizes and found.name in run.store_settings
    }


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
