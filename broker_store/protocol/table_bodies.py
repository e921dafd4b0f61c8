"""Bodies of text by name: Java's properties format and its KVTable."""

from __future__ import annotations

from collections.abc import Mapping

from broker_store.protocol import fastjson
from broker_store.protocol.members import loads_object, read_object, read_text


def encode_properties(values: Mapping[str, object]) -> bytes:
    """Return settings in Java's properties format, one on each line, sorted by key."""
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }
    return "".join(f"{key}={text}\n" for key, text in sorted(texts.items())).encode()


def decode_properties(body: bytes) -> dict[str, str]:
    """Return settings as they stand in a body, one on each line."""
    lines = body.decode("utf-8", "replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def encode_table(table: Mapping[str, str]) -> bytes:
    """Java's KVTable."""
    return fastjson.dumps({"table": dict(table)})


def decode_table(body: bytes) -> dict[str, str]:
    table = read_object(loads_object(body), "table")
    return {name: read_text(table, name) for name in table}
