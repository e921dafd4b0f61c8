"""Settings that may be changed while a process runs (`Setting.live`), and the file that keeps the changes.

They are harmless: no path, no address, no right, no limit of memory, and none by which messages are deleted
earlier. One, brokerPermission, can stop all clients, and few senders may change it (`ONLY_BY_SUPER_USERS`).
Apache's takes any key, which let a sender run commands (CVE-2023-33246, CVE-2023-37582).

A change is checked, written, and only then made. Code that reads a setting where it is used needs nothing
more; code that keeps a value derived from it asks to be called (`watch`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from broker_store.config.parse import parse
from broker_store.config.properties import read_properties
from broker_store.config.setting import Checked, Setting
from broker_store.errors import ConfigError

CHANGED_FILE = "changed.conf"  # in the directory of the other config files
# Without access control: only from the machine of the process
ONLY_BY_SUPER_USERS = frozenset({"brokerPermission"})
HEAD = (
    "# Settings changed while it ran, by UPDATE_BROKER_CONFIG or UPDATE_NAMESRV_CONFIG; read at the start.\n"
)


def live_fields(*kinds: type[Checked]) -> dict[str, dataclasses.Field]:
    """Return the fields that may be changed while a process runs, by Apache's key."""
    return {
        known.key: field
        for kind in kinds
        for field in dataclasses.fields(kind)
        for known in (_setting(field),)
        if known.live
    }


def _setting(field: dataclasses.Field) -> Setting:
    known: Setting = field.metadata["setting"]
    return known


def read_changes(file: Path, *kinds: type[Checked]) -> dict[str, str]:
    """Return the changes that an earlier run kept; none without a file. Raises ConfigError for a key that may
    not be changed while a process runs."""
    if not file.exists():
        return {}
    changes, known = read_properties(file), live_fields(*kinds)
    for key, value in changes.items():
        if key not in known:
            raise ConfigError(
                key, value, f"{file} has settings that may be changed while it runs, and no others"
            )
    return changes


def give_role(store: Checked, broker: Checked, role: str, broker_id: int) -> None:
    """Set the role that a controller has given this broker, and the id for name servers. Loop thread, while
    no store is open."""
    object.__setattr__(store, "broker_role", role)
    object.__setattr__(broker, "broker_id", broker_id)


class LiveSettings:
    """The settings of a process that may be changed. Loop thread.

    `kept` are the changes of earlier runs; `write(data)` writes all changes, and None keeps none of them.
    `fixed` are keys given on the command line, which the next start would set again.
    """

    def __init__(
        self,
        groups: Iterable[Checked],
        *,
        kept: Mapping[str, str] | None = None,
        fixed: Iterable[str] = (),
        write: Callable[[bytes], None] | None = None,
    ):
        self._groups = tuple(groups)
        self._kept = dict(kept or {})
        self._fixed = frozenset(fixed)
        self._write = write
        self._watchers: list[tuple[frozenset[str], Callable[[], None]]] = []

    def watch(self, keys: Iterable[str], take: Callable[[], None]) -> None:
        """Call `take()` after each change of one of the keys."""
        self._watchers.append((frozenset(keys), take))

    def watchers(self) -> int:
        """Return how many there are, for `forget_after`."""
        return len(self._watchers)

    def forget_after(self, count: int) -> None:
        """Forget those that were added after there were `count`: their parts have ended."""
        del self._watchers[count:]

    def change(self, given: Mapping[str, str], *kinds: type[Checked]) -> dict[str, tuple[object, object]]:
        """Change settings of these classes, and return the value before and after of each. All are changed,
        or none.

        Raises ConfigError for a key that may not be changed or a wrong value; what `write` raises.
        """
        groups = [group for group in self._groups if isinstance(group, kinds)]
        made: list[tuple[Checked, str, str, object]] = []
        for key, text in given.items():
            group, field = self._find(groups, key, text)
            after = dataclasses.replace(group, **{field.name: parse(key, str(field.type), text)})
            made.append((group, field.name, key, getattr(after, field.name)))
        kept = self._kept | {key: text.strip() for key, text in given.items()}
        if self._write is not None:
            lines = "".join(f"{key}={text}\n" for key, text in sorted(kept.items()))
            self._write((HEAD + lines).encode("latin-1"))
        self._kept = kept
        changed = {key: (getattr(group, name), value) for group, name, key, value in made}
        for group, name, _key, value in made:
            object.__setattr__(group, name, value)  # frozen for all but this module
        for keys, take in self._watchers:
            if keys & given.keys():
                take()
        return changed

    def _find(self, groups: list[Checked], key: str, text: str) -> tuple[Checked, dataclasses.Field]:
        for group in groups:
            field = live_fields(type(group)).get(key)
            if field is not None:
                if key in self._fixed:
                    raise ConfigError(key, text, "it is given on the command line; change it there")
                return group, field
        raise ConfigError(key, text, "it is not changed while it runs; docs/SETTINGS.md marks those that are")
