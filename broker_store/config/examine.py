"""All that is wrong with settings, and where each value comes from. A start stops at the first wrong key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from broker_store.config.setting import HIDDEN, Checked, Setting
from broker_store.errors import ConfigError

T = TypeVar("T")
FILE, CHANGED, COMMAND = "file", "changed while it ran", "command line"


def examined(load: Callable[[AbstractSet[str]], T]) -> tuple[T | None, list[ConfigError]]:
    """Return settings, and each error that loading them finds.

    `load(without)` loads them without some keys: a key that is refused is left out, and the others are
    checked. The settings are None if an error is of no single key.
    """
    errors: list[ConfigError] = []
    without: set[str] = set()
    while True:
        try:
            return load(frozenset(without)), errors
        except ConfigError as error:
            errors.append(error)
            if error.key in without:  # to leave it out changed nothing
                errors.pop()
                return None, errors
            without.add(error.key)


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """A setting that was given and has effect."""

    key: str
    value: str
    default: str
    source: str  # FILE, CHANGED or COMMAND
    is_live: bool  # it may be changed while the process runs


def given_of(
    of_file: AbstractSet[str],
    changed: AbstractSet[str],
    of_command: AbstractSet[str],
    settings: Sequence[Checked],
) -> list[Given]:
    """Return the given keys that have effect, sorted. `settings` are those that are in force; of a key that
    two of them have, the later one's."""
    found: dict[str, Given] = {}
    named = of_file | changed | of_command
    for group in settings:
        for field in dataclasses.fields(group):
            known: Setting = field.metadata["setting"]
            if known.key not in named:
                continue
            value = HIDDEN if known.secret else _text(getattr(group, field.name))
            source = COMMAND if known.key in of_command else CHANGED if known.key in changed else FILE
            found[known.key] = Given(known.key, value, _text(field.default), source, known.live)
    return [found[key] for key in sorted(found)]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
