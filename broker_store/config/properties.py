"""Files in the format of java.util.Properties."""

from __future__ import annotations

import re
from pathlib import Path

from broker_store.errors import ConfigError

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def read_properties(path: Path) -> dict[str, str]:
    """Read a file in Java's properties format. Raises ConfigError when it cannot be read or is no text."""
    try:
        text = Path(path).read_bytes().decode("latin-1")
    except OSError as error:
        raise ConfigError("configFile", path, f"cannot be read: {error.strerror}") from None
    if found := _CONTROL.search(text):
        number = text.count("\n", 0, found.start()) + 1
        raise ConfigError("configFile", path, f"line {number} has the byte {ord(found[0])}: it is no text")
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Parse as java.util.Properties: `key = value`, `key: value` or `key value`.

    # and ! begin a comment, a backslash continues a line or begins an escape; of two equal keys the last
    wins.
    """
    pairs = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None  # each of its parts may be empty
        pairs[_unescape(match[1])] = _unescape(match[2]).strip()
    return pairs


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def one(match: re.Match) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
