"""Topics that were deleted, and where in the log: config/deletedTopics.json, which Apache's broker ignores.

A deleted topic's records stay in the log until they are too old. A later topic of that name must not get them
back when a start dispatches the log again, so dispatch writes no unit for a record below its topic's
tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from broker_store.engine.rows import WriterContext
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.excerpts import text_excerpt
from broker_store.formats import config_json
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import context as c

FILE_NAME = "deletedTopics.json"


class Tombstones:
    """Log offset by topic. `load(name, take)` and `write(name, data)` are the store's, for a file in
    config/."""

    def __init__(
        self,
        load: Callable[[str, Callable[[str], None]], object],
        write: Callable[[str, bytes], None],
        context: WriterContext,
    ):
        self._load, self._write, self._context = load, write, context
        self._before: dict[str, int] = {}
        self._is_noted = False

    def load(self) -> None:
        """Read the file. Raises DamagedStoreError when neither it nor its .bak is a table of offsets."""
        self._load(FILE_NAME, self._take)
        self._publish()

    def _take(self, text: str) -> None:
        try:
            self._before = read_file(text)
        except FormatError as error:
            raise DamagedStoreError(
                f"is no JSON table of log offsets by topic ({error})",
                file=f"config/{FILE_NAME}",
                advice=f"Put a sound copy of {FILE_NAME} in its place; without it and its .bak deleted "
                f"topics come back.",
            ) from error

    def before(self, topic: str) -> int:
        """Return the log offset below which the topic's records belong to a deleted topic; 0 for none."""
        return self._before.get(topic, 0)

    def doubts(self, log_end: int) -> list[str]:
        """Return a sentence for each topic whose tombstone lies beyond the log's end, which a store that was
        closed does not have."""
        return beyond(self._before, log_end)

    def lower(self, log_end: int) -> None:
        """Lower tombstones to `log_end`: a power cut may take the end of the log, and what is written there
        later was not deleted."""
        self._replace({topic: min(before, log_end) for topic, before in self._before.items()})

    def add(self, topic: str, before: int) -> None:
        """Count records of `topic` below `before` as deleted. Raises StoreError; nothing has changed then."""
        self._replace({**self._before, topic: before})

    def note(self, topic: str, before: int) -> None:
        """As `add`, but `write_noted` writes the file: a start that is refused leaves it as it was."""
        self._before = {**self._before, topic: before}
        self._is_noted = True
        self._publish()

    def write_noted(self) -> None:
        """Write the file if `note` changed it. Raises StoreError."""
        if self._is_noted:
            self._write(FILE_NAME, json.dumps(self._before).encode())
            self._is_noted = False

    def drop_below(self, log_minimum: int) -> None:
        """Remove the tombstones whose records the log does not hold any more."""
        self._replace({topic: before for topic, before in self._before.items() if before > log_minimum})

    def _replace(self, before: dict[str, int]) -> None:
        if before != self._before:
            self._write(FILE_NAME, json.dumps(before).encode())
            self._before = before
            self._publish()

    def _publish(self) -> None:
        for topic, before in self._before.items():
            delayed = topic == SCHEDULE_TOPIC
            self._context.topic(topic, delayed).row[c.T_DELETED_BEFORE] = before


def read_file(text: str) -> dict[str, int]:
    """Return the log offset by topic. Raises FormatError."""
    table = config_json.read(text)
    if not isinstance(table, dict):
        raise FormatError("no table", found=text_excerpt(table))
    for topic, before in table.items():
        if type(before) is not int or not 0 <= before < 1 << 63:
            raise FormatError(f"of {topic} it has no log offset", found=text_excerpt(before))
    return table


def beyond(before: Mapping[str, int], log_end: int) -> list[str]:
    """Return what `Tombstones.doubts` does, for the table of a file."""
    return [
        f"topic {topic} was deleted at {offset:,} by this file, beyond the log's end at {log_end:,}: "
        f"all of its messages count as deleted;"
        " if it was not, stop, and take it out of the file and of its .bak"
        for topic, offset in sorted(before.items())
        if offset > log_end
    ]
