"""What a start does before heavy imports: read the command line, check the settings, take the lock.

`manage.py` calls `prepare` for `runbroker` before Django, Numba or Redis are imported, so a wrong setting or
a store that another process holds is reported within moments. The management command then takes what was
prepared.
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import json
import os
import stat
import sys
import time
from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from broker_store.backup.manifest import require_no_backup
from broker_store.config.broker import BrokerSettings
from broker_store.config.exposure import Exposure
from broker_store.config.load import Settings, load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.config.store import StoreSettings
from broker_store.config.tls import NO_CLIENT_AUTH
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.disk.lock import StoreLock
from broker_store.errors import (
    ConfigError,
    DamagedStoreError,
    ForeignStoreError,
    StoreError,
    StoreLockedError,
)

# The exit code of a start after which another one would end the same: EX_CONFIG of sysexits.h. The unit of
# deploy/ does not start the service again then
EXIT_REFUSED = 78
RUN_FILE = "broker.json"
CREDENTIALS_FILE = "credentials.json"
_DIRECTORIES = ("run", "logs", "cache")
_SIZES = frozenset(field.name for field in dataclasses.fields(FileSizes))
_TRUE = ("1", "true", "yes", "on", "y", "t")  # as Django's settings read an environment variable
_OF_THE_STORE = ("delay_levels", "store_settings")  # in the run file


@dataclass
class Launch:
    """A start that can continue: settings are checked and the store is locked."""

    arguments: argparse.Namespace
    settings: Settings
    data: Path
    lock: StoreLock | None  # None for a start that only reads a store, or has none
    # Held to the end of the process: run files and sockets belong to one runbroker, whatever its store
    data_lock: StoreLock
    host_zone: str | None  # the TZ that Django will replace by its own
    # The run file of a killed broker, which a start without a store lock restores when it ends
    left: bytes | None = None

    def restore_host_zone(self) -> None:
        """Set the host's time zone again, for store times (deleteWhen, index file names): Django has set its
        own."""
        if self.host_zone is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = self.host_zone
        time.tzset()

    @property
    def web_bind(self) -> str:
        """The address of the dashboard's port."""
        return self.arguments.web_bind or self.arguments.bind

    @property
    def certificate(self) -> Path:
        """The file with the certificate of the ports, for commands of this data directory."""
        return certificate_of(self.settings, self.data)

    @property
    def exposure(self) -> Exposure:
        """What this start opens to whom."""
        return exposure_of(self.arguments, self.settings, self.data)

    @property
    def has_open_name_server(self) -> bool:
        """True if the name server in the process takes changes from every address. It authenticates no
        request."""
        return self.exposure.has_open_name_server

    @property
    def has_name_server(self) -> bool:
        """True if a name server runs in the process: not if others are named and no port for ours is."""
        return has_name_server(self.arguments)

    def write_run_file(self, ports: dict[str, object]) -> None:
        """Write who holds the store, for a second start's refusal and for commands, and the settings that it
        was created with."""
        store = self.settings.store
        root = str(store.store_path_root_dir.absolute())
        recorded: dict[str, object] = {
            "pid": os.getpid(),
            "store": root,
            "delay_levels": store.message_delay_level,
            "inspect": store.inspect,
        }
        recorded["exposure"] = dataclasses.asdict(self.exposure)
        recorded["tls_mode"] = self.settings.broker.tls_server_mode
        recorded["certificate"] = str(self.certificate)
        if self.settings.broker.tls_server_need_client_auth != NO_CLIENT_AUTH:
            recorded["client_certificate"] = str(self.data / "tls" / "client.pem")
        recorded["store_settings"] = _given(store, () if self.lock is None else _SIZES)
        if self.lock is None:
            self.left = Disk().read_file(self.data / "run" / RUN_FILE)
            recorded |= _recorded_settings(self.left, root)
        text = json.dumps(recorded | ports)
        Disk().replace_file(self.data / "run" / RUN_FILE, text.encode())
        self._write_credentials()

    def _write_credentials(self) -> None:
        """Write what jobs and commands of this data directory sign their requests with, for its owner alone;
        remove what an earlier run left."""
        broker, path = self.settings.broker, self.data / "run" / CREDENTIALS_FILE
        given = broker.inner_client_authentication_credentials if broker.authentication_enabled else ""
        if self.lock is None:
            return
        if given:
            Disk().replace_file(path, given.encode())
        else:
            Disk().unlink(path, missing_ok=True)

    def remove_run_file(self) -> None:
        if self.left is None:
            Disk().unlink(self.data / "run" / RUN_FILE, missing_ok=True)
            Disk().unlink(self.data / "run" / CREDENTIALS_FILE, missing_ok=True)
        else:
            Disk().replace_file(self.data / "run" / RUN_FILE, self.left)


def _given(store: StoreSettings, always: Container[str]) -> dict[str, object]:
    """Return the settings that differ from the default, for commands that open the store as this broker does.

    Paths and the way of opening are left out: each command has its own.
    """
    named = ((field.name, getattr(store, field.name), field.default) for field in dataclasses.fields(store))
    recorded = ((name, value) for name, value, default in named if value != default or name in always)
    return {
        name: value
        for name, value in recorded
        if not isinstance(value, Path) and name not in ("inspect", "accept_damage")
    }


def _recorded_settings(run_file: bytes | None, store: str) -> dict[str, object]:
    """Return what a run file states about how this store was created."""
    try:
        found = json.loads(run_file or b"{}")
        return {name: found[name] for name in _OF_THE_STORE if name in found and found.get("store") == store}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}  # torn, or not one of ours


prepared: Launch | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of runbroker."""
    add = parser.add_argument
    add(
        "--data",
        metavar="DIR",
        help="directory of everything that is written (default: ./data; headpond: ~/.local/share/headpond)",
    )
    add("--store", metavar="DIR", help="directory of the message store (default: DIR/store)")
    add("--bind", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add(
        "--web-bind",
        metavar="ADDRESS",
        help="address of the dashboard, which has logins of its own (default: that of --bind)",
    )
    add(
        "--insecure",
        action="store_true",
        help="allow another --bind than loopback without access control, and changes of the name server from "
        "every address",
    )
    add("--broker-port", type=int, metavar="N", help="port of the broker; N-2 is opened too (default: 10911)")
    add("--grpc-port", type=int, metavar="N", help="port for RocketMQ 5 clients; 0: none (default: 8081)")
    add("--nameserver-port", type=int, metavar="N", help="port of the name server (default: 9876)")
    add("--web-port", type=int, metavar="N", default=8080, help="port of the dashboard (default: 8080)")
    add(
        "--web-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a host name the dashboard may be called by",
    )
    add("--no-web", action="store_true", help="neither dashboard, Redis nor jobs")
    add("--no-broker", action="store_true", help="the dashboard alone")
    add("--inspect", action="store_true", help="open the store read-only and show what is in it")
    add(
        "--accept-damage",
        action="store_true",
        help="start although synced bytes are damaged: cut there, copies are kept",
    )
    add(
        "--nameserver",
        metavar="ADDR;ADDR",
        help="register with these name servers instead of one in this process",
    )
    add("--advertise", metavar="HOST", help="address to which clients connect (brokerIP1)")
    add("-c", "--config", metavar="FILE", help="a broker.conf in Apache's properties format")
    add(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one of Apache's properties; see docs/SETTINGS.md",
    )


def prepare(argv: list[str]) -> Launch:
    """Check everything and lock the store. Raises ConfigError, StoreLockedError, StoreError; argparse exits
    on a wrong option."""
    global prepared
    parser = argparse.ArgumentParser(prog=f"{Path(sys.argv[0]).name} runbroker")
    add_arguments(parser)
    for option in ("--settings", "--pythonpath", "--verbosity", "-v"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    for switch in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(switch, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    data = Path(arguments.data or os.environ.get("BROKER_DATA_DIR") or "data").absolute()
    os.environ["BROKER_DATA_DIR"] = str(data)
    if arguments.web_host:
        os.environ["BROKER_WEB_HOST"] = ",".join(arguments.web_host)
    settings = settings_of(arguments, data)
    if not arguments.no_broker and not settings.store.inspect:  # else the dashboard alone has a port
        check_bind(arguments.bind, arguments.insecure, settings.broker)
    check_places(settings, data)
    disk = Disk()
    root = Path(settings.store.store_path_root_dir)
    disk.make_directory(data)
    for name in _DIRECTORIES:
        disk.make_directory(data / name)
        _keep_private(data / name)
    _require_room_for_run_file(disk, data / "run")
    lock = None
    if not arguments.no_broker and not settings.store.inspect:
        disk.make_directory(root)
        try:
            lock = disk.lock(root / "lock")
        except StoreLockedError as error:
            raise StoreLockedError(f"{error}: {_holder(data, root)}") from None
        _keep_private(root)
    try:
        data_lock = disk.lock(data / "run" / "lock")
    except StoreLockedError:
        if lock is not None:
            lock.release()
        raise StoreLockedError(f"data directory {data} is in use: {_holder(data, root)}") from None
    prepared = Launch(arguments, settings, data, lock, data_lock, os.environ.get("TZ"))
    return prepared


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a start that failed: EXIT_REFUSED where a person has to act first, for a wrong
    setting, a damaged store or one that is no store; 1 for what may pass by itself, as an address in use."""
    return EXIT_REFUSED if isinstance(error, (ConfigError, DamagedStoreError, ForeignStoreError)) else 1


def check_places(settings: Settings, data: Path) -> None:
    """Refuse directories that a start may not use. Raises ConfigError and StoreError."""
    if settings.store.inspect and data.resolve().is_relative_to(
        Path(settings.store.store_path_root_dir).resolve()
    ):
        raise ConfigError(
            "--data",
            str(data),
            "a store that is only inspected is not written to: give a directory outside of it",
        )
    if not settings.store.inspect:
        require_no_backup(Disk(), Path(settings.store.store_path_root_dir))


def _require_room_for_run_file(disk: Disk, directory: Path) -> None:
    """Refuse a run directory in which the run file cannot be replaced.

    The file is written last: without this check the store would be opened and served before the error.
    """
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise StoreError(
            f"{directory}: its file system is mounted read-only, and the broker keeps its run file "
            f"and sockets there; mount it for writing, or use another --data"
        )
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        what = "this user may not make files there, and the broker keeps its run file and sockets there"
        raise StoreError(f"{directory}: {what}; give it the right (chmod u+rwx), or use another --data")
    for name in (RUN_FILE, f"{RUN_FILE}.tmp"):
        if disk.exists(directory / name):
            disk.size_of(directory / name)  # raises unless it is a regular file
    fresh = directory / f"{RUN_FILE}.tmp"
    if disk.exists(fresh) and not os.access(fresh, os.W_OK, effective_ids=True):
        raise StoreError(
            f"{fresh}: this user may not write it, and the run file is written there first; remove "
            f"it, it is left over from an earlier start"
        )


def _keep_private(directory: Path) -> None:
    """Restrict a directory of ours to its owner again, if others may enter it because it existed before or
    was copied."""
    found = directory.stat()
    # A sticky directory is meant for many users
    if found.st_uid == os.geteuid() and found.st_mode & 0o077 and not found.st_mode & stat.S_ISVTX:
        directory.chmod(0o700)


def settings_of(
    arguments: argparse.Namespace, data: Path, without: AbstractSet[str] = frozenset()
) -> Settings:
    """Return the settings of a start with these options, as if some keys were not given. Raises
    ConfigError."""
    overrides = pairs_of(arguments.set)
    if arguments.broker_port is not None:
        overrides["listenPort"] = str(arguments.broker_port)
    if arguments.grpc_port is not None:
        overrides["grpcServerPort"] = str(arguments.grpc_port)
    if arguments.advertise is not None:
        overrides["brokerIP1"] = arguments.advertise
    elif not is_loopback(arguments.bind) and arguments.bind not in ("0.0.0.0", "::"):
        overrides.setdefault("brokerIP1", arguments.bind)
    if arguments.nameserver is not None:
        overrides["namesrvAddr"] = arguments.nameserver
    if arguments.accept_damage:
        overrides["acceptDamage"] = "true"
    if arguments.inspect:
        overrides["inspect"] = "true"
    name_server = {} if arguments.nameserver_port is None else {"listenPort": str(arguments.nameserver_port)}
    return load_settings(
        Path(arguments.config) if arguments.config else None,
        overrides,
        store_root=Path(arguments.store).absolute() if arguments.store else None,
        default_store_root=data / "store",
        name_server=name_server,
        without=without,
    )


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the keys and values of `--set`. Raises ConfigError for a text that is no pair."""
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(text, "", "--set takes key=value")
        pairs[key.strip()] = value
    return pairs


def has_name_server(arguments: argparse.Namespace) -> bool:
    """Return whether a name server runs in the process of a start with these options."""
    return not arguments.nameserver or arguments.nameserver_port is not None


def certificate_of(settings: Settings, data: Path) -> Path:
    """Return the file with the certificate of the ports."""
    given = settings.broker.tls_cert_path
    return Path(given).absolute() if given else data / "tls" / "self-signed.crt"


def exposure_of(arguments: argparse.Namespace, settings: Settings, data: Path) -> Exposure:
    """Return what a start with these options opens to whom."""
    broker, given = settings.broker, os.environ.get
    redis = urlsplit(given("REDIS_URL", ""))
    return Exposure(
        bind=arguments.bind,
        web_bind=None if arguments.no_web else arguments.web_bind or arguments.bind,
        has_broker=not (arguments.no_broker or settings.store.inspect),
        is_insecure=arguments.insecure,
        tls_mode=broker.tls_server_mode,
        certificate=str(certificate_of(settings, data)),
        is_own_certificate=not broker.tls_cert_path,
        client_certificates=broker.tls_server_need_client_auth,
        proxy_addresses=broker.proxy_protocol_addresses,
        authenticates=broker.authentication_enabled,
        authorizes=broker.authorization_enabled,
        authentication_whitelist=broker.authentication_whitelist,
        authorization_whitelist=broker.authorization_whitelist,
        has_inner_credentials=bool(broker.inner_client_authentication_credentials),
        has_name_server=has_name_server(arguments),
        has_open_name_server=arguments.insecure or is_loopback(arguments.bind),
        name_server_changers=settings.name_server.name_server_change_addresses,
        percent_of_address=broker.max_percent_of_address,
        web_hosts=given("BROKER_WEB_HOST", ""),
        web_proxies=given("BROKER_WEB_PROXIES", ""),
        has_tls_proxy=given("BROKER_WEB_TLS", "").lower() in _TRUE,
        redis=f"{redis.scheme}://{redis.hostname or redis.path}" if redis.scheme else "",
        has_ha_port=settings.store.feeds_slaves or settings.store.enable_controller_mode,
        ha_port=settings.store.ha_listen_port,
        ha_slaves=settings.store.ha_slave_addresses,
        secret_files=_secret_files(arguments, broker),
    )


def _secret_files(arguments: argparse.Namespace, broker: BrokerSettings) -> list[str]:
    """Return the files of the settings that have a password or a key."""
    secret = (broker.init_authentication_user, broker.inner_client_authentication_credentials)
    named = [
        arguments.config if any((*secret, broker.tls_client_key_password)) else None,
        broker.tls_key_path,
        broker.tls_client_key_path,
    ]
    return [str(Path(path).absolute()) for path in named if path]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, insecure: bool, settings: BrokerSettings) -> None:
    """Refuse an address that others can reach, unless access control is on. Raises ConfigError."""
    switches = {
        "authenticationEnabled": settings.authentication_enabled,
        "authorizationEnabled": settings.authorization_enabled,
    }
    off = [key for key, is_on in switches.items() if not is_on]
    if is_loopback(host) or insecure or not off:
        return
    raise ConfigError(
        "--bind",
        host,
        f"every client that can reach this address could read and write every message: {' and '.join(off)} "
        f"{'is' if len(off) == 1 else 'are'} false. Set {' and '.join(f'{key}=true' for key in off)} (with "
        "initAuthenticationUser, for the first user), use 127.0.0.1, or add --insecure if the network keeps "
        "others out",
    )


def check_name_server_bind(host: str, insecure: bool, settings: NameServerSettings) -> None:
    """Refuse an address at which others could change a name server alone. Raises ConfigError."""
    if is_loopback(host) or insecure or settings.name_server_change_addresses:
        return
    raise ConfigError(
        "--bind",
        host,
        "a name server authenticates no request, so every client that can reach this address could register "
        "brokers and redirect messages to them. Set nameServerChangeAddresses to the addresses of your "
        "brokers, use 127.0.0.1, or add --insecure if the network keeps others out",
    )


def _holder(data: Path, root: Path) -> str:
    """Return a sentence that names the holder of the store, as far as the run file has it."""
    for directory in (data, root.parent):
        raw = Disk().read_file(directory / "run" / RUN_FILE)
        if raw:
            try:
                found = json.loads(raw)
                ports = ", ".join(
                    f"{name} {found[name]}" for name in ("broker", "nameserver", "web") if found.get(name)
                )
                return (
                    f"process {found['pid']} holds it ({ports}). Stop that one first, or use another --data"
                )
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return "another program, perhaps an Apache broker, holds it. Stop that one first"
