"""The settings of a process: from a file, then from the command line; the later wins."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from broker_store.config.broker import BrokerSettings
from broker_store.config.name_server import NameServerSettings
from broker_store.config.other_keys import NOTED, REFUSED, WITHOUT_EFFECT
from broker_store.config.properties import read_properties
from broker_store.config.setting import HIDDEN, Checked
from broker_store.config.store import StoreSettings
from broker_store.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """All settings of a broker process; `notes` has the reason for each key that was set without effect."""

    store: StoreSettings
    broker: BrokerSettings
    name_server: NameServerSettings
    notes: tuple[str, ...] = ()


def load_settings(
    conf_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    store_root: Path | None = None,
    default_store_root: Path | None = None,
    name_server: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of a broker process: from a broker.conf, `--set key=value`, and the command line.

    `overrides` win over the file, `store_root` (--store) over both; `default_store_root` (from --data) is
    used when none of them names the store. The name server in the process takes its keys from the same
    sources, except its listenPort: the key has another value for the broker, so it is in `name_server`.
    Raises ConfigError for an unknown, refused or wrong key.
    """
    given = read_properties(conf_file) if conf_file is not None else {}
    given.update(overrides or {})
    if store_root is not None:
        given["storePathRootDir"] = str(store_root)
    elif default_store_root is not None:
        given.setdefault("storePathRootDir", str(default_store_root))
    store = _acting(StoreSettings)
    broker = _acting(BrokerSettings)
    of_name_server = _acting(NameServerSettings).keys() - {"listenPort"}
    values, notes = _split_keys(given, store.keys() | broker.keys() | of_name_server)
    shared = {key: value for key, value in values.items() if key in of_name_server}
    store_settings, broker_settings = _make(StoreSettings, values), _make(BrokerSettings, values)
    if store_settings.broker_role != "SLAVE" and broker_settings.broker_id != 0:
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
    )


def load_name_server_settings(
    conf_file: Path | None = None, overrides: Mapping[str, str] | None = None
) -> NameServerSettings:
    """Return the settings of a name server of its own, from a namesrv.conf and `--set`. Raises
    ConfigError."""
    given = read_properties(conf_file) if conf_file is not None else {}
    given.update(overrides or {})
    values, _ = _split_keys(given, _acting(NameServerSettings).keys())
    return _make(NameServerSettings, values)


def _acting(kind: type) -> dict[str, dataclasses.Field]:
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
            if note := NOTED.get((key, value.strip())):
                notes.append(f"{key}={value.strip()}: {note}")
        elif key in REFUSED:
            allowed, reason = REFUSED[key]
            if value.strip() not in allowed:
                raise ConfigError(key, value, reason)
        elif key in WITHOUT_EFFECT:
            notes.append(f"{key} has no effect here: {WITHOUT_EFFECT[key]}")
        else:
            raise ConfigError(key, value, "there is no such setting" + _suggestion(key, acting))
    return values, tuple(notes)


def _suggestion(key: str, acting: AbstractSet[str]) -> str:
    known = sorted(acting | REFUSED.keys() | WITHOUT_EFFECT.keys())
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower().replace("_", "").replace("-", ""), lowered, n=1, cutoff=0.75)
    return f"; did you mean {lowered[near[0]]}?" if near else ""


def _make(kind: type, values: Mapping[str, str]):
    """Create a settings object from texts, ignoring keys of other objects."""
    fields = _acting(kind)
    return kind(
        **{
            fields[key].name: _parse(key, str(fields[key].type), text)
            for key, text in values.items()
            if key in fields
        }
    )


def _parse(key: str, kind: str, text: str):
    text = text.strip()
    if kind == "int":
        return _parse_int(key, text)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(key, text, "expected true or false")
        return text.lower() == "true"
    if kind.startswith("Path"):
        if not text:
            raise ConfigError(key, text, "expected a path")
        return Path(text.replace("${user.home}", "~")).expanduser()
    return text


def _parse_int(key: str, text: str) -> int:
    if key.endswith("Ratio") and re.fullmatch(r"0?\.[0-9]{1,4}", text):
        return round(float(text) * 100)  # older Apache versions took these as fractions
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ConfigError(key, text, "expected an integer")
    return int(text)
