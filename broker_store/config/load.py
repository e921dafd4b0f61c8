"""The settings of a process: from a file, then from the command line; the later wins."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from broker_store.config.broker import BrokerSettings
from broker_store.config.live import CHANGED_FILE, read_changes
from broker_store.config.name_server import NameServerSettings
from broker_store.config.other_keys import REFUSED, WITHOUT_EFFECT
from broker_store.config.parse import parse
from broker_store.config.properties import read_properties
from broker_store.config.replication import SLAVE
from broker_store.config.setting import HIDDEN, Checked
from broker_store.config.store import StoreSettings
from broker_store.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """All settings of a broker process; `notes` has the reason for each key that was set without effect.

    `changed` are changes of earlier runs (`live.CHANGED_FILE`), `fixed` the keys of the command line.
    """

    store: StoreSettings
    broker: BrokerSettings
    name_server: NameServerSettings
    notes: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()


def load_settings(
    conf_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    store_root: Path | None = None,
    default_store_root: Path | None = None,
    name_server: Mapping[str, str] | None = None,
    without: AbstractSet[str] = frozenset(),
) -> Settings:
    """Return the settings of a broker process: from a broker.conf, `--set key=value`, and the command line.

    `overrides` win over the file, `store_root` (--store) over both; `default_store_root` (from --data) is
    used when none of them names the store. Changes of earlier runs, which are kept in the store's directory,
    win over the file. The name server in the process takes its keys from the same sources, except its
    listenPort: the key has another value for the broker, so it is in `name_server`. Keys of `without` are
    left out of all sources (`config/examine.py`).
    Raises ConfigError for an unknown, refused or wrong key.
    """
    given = read_properties(conf_file) if conf_file is not None else {}
    overrides = dict(overrides or {})
    exposed = _exposed_secrets(conf_file, given, overrides)
    if store_root is not None:
        overrides["storePathRootDir"] = str(store_root)
    elif default_store_root is not None:
        given.setdefault("storePathRootDir", str(default_store_root))
    root = _make(StoreSettings, _root_in(given | overrides)).store_path_root_dir
    changed = read_changes(root / "config" / CHANGED_FILE, BrokerSettings, StoreSettings, NameServerSettings)
    given |= changed | overrides
    given = {key: value for key, value in given.items() if key not in without}
    given, of_controller = _settle_controller(given)
    store = fields_by_key(StoreSettings)
    broker = fields_by_key(BrokerSettings)
    of_name_server = fields_by_key(NameServerSettings).keys() - {"listenPort"}
    values, notes = _split_keys(given, store.keys() | broker.keys() | of_name_server)
    notes += exposed + of_controller
    shared = {key: value for key, value in values.items() if key in of_name_server}
    store_settings, broker_settings = _make(StoreSettings, values), _make(BrokerSettings, values)
    if store_settings.enable_controller_mode and broker_settings.enable_slave_acting_master:
        raise ConfigError(
            "enableSlaveActingMaster",
            "true",
            "in controller mode a slave becomes the master; set one of the two",
        )
    if store_settings.enable_controller_mode:
        if not store_settings.controllers:
            raise ConfigError(
                "enableControllerMode", "true", "set controllerAddr, the addresses of the controllers"
            )
        if not broker_settings.listen_port:
            raise ConfigError(
                "listenPort", 0, "in controller mode it is registered before it is open: give a port"
            )
    elif store_settings.min_in_sync_replicas > 1:
        raise ConfigError(
            "minInSyncReplicas",
            store_settings.min_in_sync_replicas,
            "without enableControllerMode sends are refused when fewer than inSyncReplicas are in step; set "
            "1 or leave it out",
        )
    elif store_settings.broker_role == SLAVE and not broker_settings.broker_id:
        raise ConfigError("brokerId", "0", "a slave has an id above 0, and its master has 0")
    if store_settings.broker_role != SLAVE and broker_settings.broker_id != 0:
        notes += (
            f"brokerId={broker_settings.broker_id}: a master has id 0, which is taken, as Apache's "
            f"start does; clients send to id 0 alone",
        )
        broker_settings = dataclasses.replace(broker_settings, broker_id=0)
    return Settings(
        store=store_settings,
        broker=broker_settings,
        name_server=load_name_server_settings(None, shared | dict(name_server or {})),
        notes=notes,
        changed=changed,
        fixed=frozenset(overrides),
    )


def _settle_controller(given: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings without those that controller mode decides, and a note on each that has no
    effect."""
    if given.get("enableControllerMode", "").strip().lower() != "true":
        return given, ()
    notes = [
        f"{key}={given[key]} has no effect in controller mode: the controller gives this broker its role"
        for key in ("brokerRole", "brokerId")
        if key in given
    ]
    if given.get("allAckInSyncStateSet", "true").strip() == "false":
        notes.append(
            "allAckInSyncStateSet=false has no effect: each send waits for all brokers of the sync state set"
        )
    decided = ("brokerRole", "brokerId", "allAckInSyncStateSet")
    return {key: value for key, value in given.items() if key not in decided}, tuple(notes)


def _root_in(given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if key == "storePathRootDir"}


def load_name_server_settings(
    conf_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    kept: Mapping[str, str] | None = None,
) -> NameServerSettings:
    """Return the settings of a name server of its own: from a namesrv.conf, then `kept` changes of earlier
    runs, then from `--set`. Raises ConfigError."""
    given = read_properties(conf_file) if conf_file is not None else {}
    given |= {**(kept or {}), **(overrides or {})}
    values, _ = _split_keys(given, fields_by_key(NameServerSettings).keys())
    return _make(NameServerSettings, values)


def fields_by_key(kind: type) -> dict[str, dataclasses.Field]:
    """Return the fields of a settings class by Apache's key."""
    return {field.metadata["setting"].key: field for field in dataclasses.fields(kind)}


def acting_settings() -> list[tuple[str, dataclasses.Field]]:
    """Return (group, field) of every acting key, for the docs."""
    groups = (("Store", StoreSettings), ("Broker", BrokerSettings), ("Name server", NameServerSettings))
    return [(group, field) for group, kind in groups for field in dataclasses.fields(kind)]


def properties_of(*settings: Checked) -> dict[str, object]:
    """Return the values of settings objects by Apache's keys; HIDDEN in place of a secret one."""
    return {
        known.key: HIDDEN if known.secret and getattr(group, field.name) else getattr(group, field.name)
        for group in settings
        for field in dataclasses.fields(group)
        for known in (field.metadata["setting"],)
    }


def _split_keys(given: Mapping[str, str], acting: AbstractSet[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the acting keys among those given, and a note on each other key. Raises ConfigError."""
    values, notes = {}, []
    for key, value in given.items():
        if key in acting:
            values[key] = value
        elif key in REFUSED:
            allowed, reason = REFUSED[key]
            if value.strip() not in allowed:
                raise ConfigError(key, value, reason)
        elif key in WITHOUT_EFFECT:
            notes.append(f"{key} has no effect here: {WITHOUT_EFFECT[key]}")
        else:
            near = _nearest(key, acting)
            reason = "there is no such setting" + (f"; did you mean {near}?" if near else "")
            raise ConfigError(key, HIDDEN if near in _secret_keys() else value, reason)
    return values, tuple(notes)


def _exposed_secrets(
    conf_file: Path | None, of_file: Mapping[str, str], of_command: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a note on each secret that other users of the machine may read."""
    secret = sorted(_secret_keys())
    notes = [
        f"{key} is on the command line, which each user of the machine may read: set it in a file that only "
        f"the owner may read (-c FILE)"
        for key in secret
        if of_command.get(key)
    ]
    kept = [key for key in secret if of_file.get(key)]
    if conf_file is not None and kept and (mode := conf_file.stat().st_mode & 0o777) & 0o077:
        notes.append(
            f"{conf_file} has {', '.join(kept)}, and its mode {mode:o} lets other users of the machine read "
            f"or change it: chmod 600 {conf_file}"
        )
    return tuple(notes)


def _nearest(key: str, acting: AbstractSet[str]) -> str | None:
    """Return the known key that is most like a wrong one; None if none is."""
    known = sorted(acting | REFUSED.keys() | WITHOUT_EFFECT.keys())
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower().replace("_", "").replace("-", ""), lowered, n=1, cutoff=0.75)
    return lowered[near[0]] if near else None


def _secret_keys() -> frozenset[str]:
    return frozenset(
        key for key, field in fields_by_key(BrokerSettings).items() if field.metadata["setting"].secret
    )


def _make(kind: type, values: Mapping[str, str]):
    """Create a settings object from texts, ignoring keys of other objects."""
    fields = fields_by_key(kind)
    return kind(
        **{
            fields[key].name: parse(key, str(fields[key].type), text)
            for key, text in values.items()
            if key in fields
        }
    )
