"""Storage for the offsets of a broadcasting consumer: brokers keep none for it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from broker_store.errors import FormatError


class Places(Protocol):
    """Keeps offsets by texts `topic@broker@queue`. Called on the loop, every five seconds and at the end: it
    must return within some milliseconds."""

    def load(self) -> Mapping[str, int]:
        """Return the offsets saved last; none before the first save."""

    def save(self, places: Mapping[str, int]) -> None:
        """Save these offsets in place of all others."""


class FilePlaces:
    """Places in a JSON file, which is replaced as a whole. Each consumer needs a file of its own.

    After a power cut the offsets of the last seconds may be lost; their messages are then delivered again.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)
        self._saved: dict[str, int] | None = None

    def load(self) -> dict[str, int]:
        """Raises OSError, and FormatError for a file that holds something else."""
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return {}
        places = None
        with contextlib.suppress(ValueError):
            places = json.loads(text)
        if not isinstance(places, dict) or not all(type(offset) is int for offset in places.values()):
            raise FormatError(
                f"{self._path} holds no places of a consumer (a JSON object of offsets); move it "
                f"away to start over"
            )
        return places

    def save(self, places: Mapping[str, int]) -> None:
        """Raises OSError."""
        if places == self._saved:
            return
        written = self._path.with_name(self._path.name + ".new")
        written.write_text(json.dumps(places, sort_keys=True), "utf-8")
        written.replace(self._path)
        self._saved = dict(places)
