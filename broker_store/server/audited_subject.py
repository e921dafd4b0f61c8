"""What a request changes, read from its header and body for the record of the change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from broker_store.errors import PeerError
from broker_store.excerpts import text_excerpt
from broker_store.protocol import fastjson
from broker_store.protocol.command import Command
from broker_store.server.change_records import MAX_NAMES

MAX_NAME_CHARACTERS = 255
MAX_SAID_CHARACTERS = 200
MAX_SETTINGS_BYTES = 64 << 10  # of a body of lines `key=value` that are read
MAX_NAMES_CHARACTERS = 1_000  # of the names in one record
USER_FACTS = frozenset(("password", "userType", "userStatus"))
# No value in Base64 matches: there `=` stands only at the end.
_SETTING = re.compile(rb"\s*([A-Za-z][A-Za-z0-9._-]{0,99})\s*=\s*[^\s=]")


@dataclass(frozen=True, slots=True)
class Audited:
    """What a request changes. `name` is the header field with its name; `items` are the list in the body and
    the field of each item with its name."""

    action: str
    kind: str
    name: str = ""
    items: tuple[str, str] | None = None
    others: tuple[str, ...] = ()  # further header fields that the record has
    # A list in the body, and the fields of each row, that the record has
    rows: tuple[str, tuple[str, ...]] | None = None


def subject_of(audited: Audited, command: Command) -> tuple[list[str], dict]:
    """Return the names in a request, and the detail of its record. Any field may be missing."""
    fields = command.fields or {}
    detail: dict = {field: fields[field][:MAX_SAID_CHARACTERS] for field in audited.others if field in fields}
    if audited.rows is not None:
        list_name, kept = audited.rows
        rows = _items_of(command.body, list_name)
        detail |= (
            {"body_bytes": len(command.body)}
            if rows is None
            else {
                list_name: [
                    {name: text_excerpt(row.get(name, ""), MAX_SAID_CHARACTERS) for name in kept}
                    for row in rows[:MAX_NAMES]
                ]
            }
        )
    if audited.kind == "user":
        detail |= _members_in(command.body)
    if audited.kind == "config":
        detail |= _keys_in(command.body)
    if audited.items is None:
        return [str(fields.get(audited.name, ""))[:MAX_NAME_CHARACTERS]], detail
    names = _names_in(command.body, *audited.items)
    if names is None:
        return [], detail | {"body_bytes": len(command.body)}
    if len(names) > 1:
        characters = accumulate(len(name) + 4 for name in names[:MAX_NAMES])
        detail |= {
            "names": [
                name
                for name, length in zip(names, characters, strict=False)
                if length <= MAX_NAMES_CHARACTERS
            ],
            "items": len(names),
        }
    return names, detail


def _names_in(body: bytes, list_name: str, name: str) -> list[str] | None:
    """Return the names of the items of a body, None if it cannot be parsed."""
    items = _items_of(body, list_name)
    return (
        None if items is None else [text_excerpt(item.get(name, ""), MAX_NAME_CHARACTERS) for item in items]
    )


def _keys_in(body: bytes) -> dict:
    """Return the first keys of a body of lines `key=value`, and the number of other lines. Values are left
    out: they may be secret."""
    lines = [line for line in body[:MAX_SETTINGS_BYTES].split(b"\n", MAX_NAMES)[:MAX_NAMES] if line.strip()]
    keys = [setting[1].decode() for line in lines if (setting := _SETTING.match(line))]
    return {"keys": keys} | ({"other_lines": len(lines) - len(keys)} if len(keys) < len(lines) else {})


def _members_in(body: bytes) -> dict:
    """Return which facts of a user a body has. Values are left out: one is the password."""
    items = _items_of(body, "")
    return {"given": sorted(USER_FACTS & items[0].keys())} if items else {}


def _items_of(body: bytes, list_name: str) -> list[dict] | None:
    """Return the items of a list in the body, or the body itself if `list_name` is empty; None for a
    malformed body.

    References of fastjson are not resolved here; the handler does that. The router has bounded the size of
    the body.
    """
    try:
        value = fastjson.loads_without_references(body)
    except PeerError:
        return None
    items = value.get(list_name) if list_name and isinstance(value, dict) else [value]
    if not isinstance(items, list):
        return None
    return [item for item in items if isinstance(item, dict)]
