"""Values of settings from texts."""

from __future__ import annotations

import re
from pathlib import Path

from broker_store.errors import ConfigError


def parse(key: str, kind: str, text: str) -> object:
    """Return the value of a setting of the type `kind` (int, bool, str, Path). Raises ConfigError."""
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
