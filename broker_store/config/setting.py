"""What a field of a settings class states, and the check of its value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_store.errors import ConfigError

INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One acting key. `low` and `high` limit a number; with `clamp` it is set to the limit instead of
    refused.

    `check` returns why a value is wrong, None if it is not. `ours` marks keys that Apache does not have. The
    value of a `secret` key is in no text and no answer. A `live` key may be changed while a process runs
    (`config/live.py`).
    """

    key: str
    unit: str
    reason: str
    low: int | None = None
    high: int | None = None
    clamp: bool = False
    choices: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None
    ours: bool = False
    secret: bool = False
    live: bool = False


# Shown in place of a secret value.
HIDDEN = "******"


def setting(key: str, default, unit: str, reason: str, **bounds):
    known = Setting(key, unit, reason, **bounds)
    return dataclasses.field(default=default, repr=not known.secret, metadata={"setting": known})


@dataclass(frozen=True)
class Checked:
    """Checks every field when the object is created, so that no module ever gets a wrong value."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))


def _checked(field: dataclasses.Field, value):
    known: Setting = field.metadata["setting"]
    if field.type == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(known.key, value, "expected an integer")
        low, high = (
            known.low if known.low is not None else 0,
            known.high if known.high is not None else INT_MAX,
        )
        if known.clamp:
            return min(max(value, low), high)
        if not low <= value <= high:
            raise ConfigError(
                known.key, value, f"expected {low} to {high}" + (f" {known.unit}" if known.unit else "")
            )
    elif field.type == "bool":
        if not isinstance(value, bool):
            raise ConfigError(known.key, value, "expected true or false")
    elif field.type == "str":
        if not isinstance(value, str):
            raise ConfigError(known.key, value, "expected text")
    elif field.type == "Path":
        return Path(value)
    problem = known.check(value) if known.check else None
    if problem:
        raise ConfigError(known.key, HIDDEN if known.secret else value, problem)
    if known.choices and value not in known.choices:
        raise ConfigError(known.key, value, "expected one of " + ", ".join(known.choices))
    return value
