"""The name server's key-value table in its file kvConfig.json, which is replaced as a whole; the version
before is kept as `.bak`.

As with the files of a broker's `config/` (`engine/config_files.py`), a file that is missing, empty or torn is
replaced by its `.bak`, with a note. The bad file is kept as `.bad`. The good content replaces it at once,
because the next change would copy the bad file to the `.bak`. A file that exists and is bad never counts as
an empty table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from broker_store.errors import DamagedStoreError, PeerError
from broker_store.protocol import fastjson

FILE_NAME = "kvConfig.json"
Tables = dict[str, dict[str, str]]


class Disk(Protocol):
    """The functions of the engine's disk that are used here."""

    def read_file(self, path: Path) -> bytes | None: ...

    def write_file(self, path: Path, data: bytes) -> None: ...

    def replace_file(self, path: Path, data: bytes, backup: Path | None = None) -> None: ...


class KeyValueFile:
    """The file and its `.bak`. `note` states that `load` took the `.bak`, and why; it is empty otherwise."""

    def __init__(self, disk: Disk, directory: Path):
        self._disk, self._path = disk, directory / FILE_NAME
        self._backup = directory / f"{FILE_NAME}.bak"
        self.note = ""

    def load(self) -> Tables:
        """Return the table, empty without files. Raises DamagedStoreError when files exist and none is
        good."""
        raw, backup = self._disk.read_file(self._path), self._disk.read_file(self._backup)
        if raw is None and backup is None:
            return {}
        try:
            return decoded(raw)
        except DamagedStoreError as error:
            problem = error.what
        try:
            tables = decoded(backup)
        except DamagedStoreError as error:
            advice = (
                f"Put a sound copy in the place of {self._path}, or remove both files to begin without keys."
            )
            raise DamagedStoreError(
                f"{problem}; and its .bak {error.what}", file=str(self._path), advice=advice
            ) from None
        if raw:
            self._disk.write_file(self._path.with_name(f"{FILE_NAME}.bad"), raw)
        self._disk.replace_file(self._path, backup or b"")
        self.note = f"{self._path} {problem}; its .bak is taken, which is older by one change"
        return tables

    def write(self, content: bytes) -> None:
        """Replace the file atomically, keeping the one before as `.bak`. Raises StoreError."""
        self._disk.replace_file(self._path, content, self._backup)


def decoded(content: bytes | None) -> Tables:
    """Return the table in `content`. Raises DamagedStoreError."""
    if not content:
        raise DamagedStoreError("is missing" if content is None else "is empty", file=FILE_NAME)
    try:
        value: Any = fastjson.loads(content)
        tables = {namespace: dict(table) for namespace, table in value["configTable"].items()}
        texts = [text for table in tables.values() for pair in table.items() for text in pair]
        if not all(isinstance(text, str) for text in (*tables, *texts)):
            raise TypeError("names, keys and values must be text")
    except (PeerError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise DamagedStoreError(f"is no key-value table ({error!s:.80})", file=FILE_NAME) from None
    return tables
