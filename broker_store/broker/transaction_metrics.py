"""config/transactionMetrics: how many halves wait for each topic, as Apache's broker counts them
(docs/spec/store-format.md section 8).

Nothing depends on it: halves are in their queue. When an Apache broker opens the store again it shows the
counts of the file and continues from there, and so does this one. After a crash the counts are as old as the
file, so they may stay slightly wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from broker_store.errors import DamagedStoreError, FormatError
from broker_store.excerpts import excerpt
from broker_store.formats import config_json
from broker_store.formats.config_json import DataVersion

FILE_NAME = "transactionMetrics"


class TransactionMetrics:
    """Counts of halves by topic. `load(text)` reads a file's counts, `add` counts, `picture()` makes the text
    to save."""

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._counts: dict[str, tuple[int, int]] = {}  # topic -> (halves, time of the last change in ms)
        self._changes = 0
        self._saved_changes = 0

    def load(self, text: str) -> None:
        """Take over a file. Raises DamagedStoreError when it is invalid; then nothing has changed."""
        try:
            counts, version = read_file(text)
        except FormatError as error:
            raise DamagedStoreError(
                f"is no table of halves by topic ({error})", file=f"config/{FILE_NAME}"
            ) from error
        self._counts = counts
        self._changes = self._saved_changes = version.counter

    def add(self, topic: str, more: int) -> None:
        """Add `more` halves to a topic's count, or subtract them when negative; the count does not fall below
        0.

        Halves from before the counting may end, too, which would make it negative.
        """
        self._changes += 1
        self._counts[topic] = (max(0, self._counts.get(topic, (0, 0))[0] + more), self._clock())

    def count(self, topic: str) -> int:
        return self._counts.get(topic, (0, 0))[0]

    def counts(self) -> list[tuple[str, int]]:
        """Return the topics that had halves, each with its count."""
        return [(topic, count) for topic, (count, _) in self._counts.items()]

    def picture(self) -> Callable[[], bytes] | None:
        """Return a function that makes the file's text as of now; None without a change."""
        if self._changes == self._saved_changes:
            return None
        self._saved_changes = self._changes
        version = DataVersion(0, self._changes, max(changed_ms for _, changed_ms in self._counts.values()))
        table = {
            topic: {"count": count, "timeStamp": changed_ms}
            for topic, (count, changed_ms) in self._counts.items()
        }
        value = {"dataVersion": version.to_json(), "transactionCount": table}
        return lambda: json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def read_file(text: str) -> tuple[dict[str, tuple[int, int]], DataVersion]:
    """Return topic -> (halves, time of the last change in ms) of a transactionMetrics. Raises FormatError."""
    _, table, version = config_json.read_table(text, "transactionCount")
    return {topic: _count_of(topic, entry) for topic, entry in table.items()}, version


def _count_of(topic: str, entry: object) -> tuple[int, int]:
    """Return (halves, time of the last change in ms) of an entry. Raises FormatError."""
    count, changed_ms = (
        (entry.get("count"), entry.get("timeStamp")) if isinstance(entry, dict) else (None, None)
    )
    if type(count) is not int or type(changed_ms) is not int:
        raise FormatError(f"{excerpt(topic)} needs the integers count and timeStamp", found=excerpt(entry))
    return max(0, count), changed_ms
