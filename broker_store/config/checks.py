"""Checks of single settings. Each returns why a value is wrong, None if it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable


def topic_name(value: str) -> str | None:
    """Check a name of which a topic is created."""
    if not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", value):
        return "expected 1 to 120 letters, digits, % | _ or -, because a topic of that name is created"
    return None


def address_list(value: str) -> str | None:
    """Check a list of addresses."""
    for address in filter(None, (part.strip() for part in value.split(";"))):
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return "expected host:port, several joined by ;"
    return None


def json_with(*names: str) -> Callable[[str], str | None]:
    """Return the check of a setting that has JSON with these texts, or nothing."""

    def check(value: str) -> str | None:
        if not value:
            return None
        try:
            given = json.loads(value)
        except (ValueError, RecursionError):
            given = None
        texts = [given.get(name) for name in names] if isinstance(given, dict) else [None]
        if all(isinstance(text, str) and text.strip() for text in texts):
            return None
        return "expected JSON: {" + ", ".join(f'"{name}": ".."' for name in names) + "}"

    return check


def request_list(value: str) -> str | None:
    """Check a list of requests."""
    for name in filter(None, (part.strip() for part in value.split(","))):
        if not re.fullmatch(r"-?[0-9]{1,6}|[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+", name):
            return "expected request codes or names of gRPC messages, several joined by a comma"
    return None
