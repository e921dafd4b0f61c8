"""What is known of a store beyond its files: how far it is written, dispatched and on the disk, and which
groups read it.

The byte viewer and the journey of a message get `StoreFacts`. `FileFacts` has what the files of a directory
say, without a broker. The dashboard's `BrokerFacts` has what its broker says
(mqadmin/cluster/embedded/broker_facts.py). None means "not known".

    positions()             LogPositions of engine/status/store_state.py
    queue_span(topic, id)   (first, next) unit that readers may see; None when there is no such queue
    has_group_offsets       False where the offsets of groups are not known: a store may come without its
                            config/
    group_names(topic)      groups that may have sent messages of the topic back
    trace_topic             where clients write their traces
    groups(topic, id)       the groups that read the topic, and where each is in the queue
    is_dry_run              True if positions and spans are those of a dry run: a start in memory only
    fate(stored)            what becomes of a message that waits; None of any other
    is_invisible(key, at)   True if the message at a queue offset is invisible by a pop; None: not known
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker_store.engine.disk.file_access import Reader
from broker_store.engine.status.store_state import LogPositions
from broker_store.errors import FormatError
from broker_store.facts.directory import OFFSETS_FILE, StoreDirectory
from broker_store.facts.neighbours import record_before
from broker_store.formats import config_json, names, queue_unit, record
from broker_store.formats.pop_records import PopKey
from broker_store.formats.record import StoredMessage
from broker_store.formats.topics import TRACE_TOPIC
from broker_store.units import Moment

UNIT = queue_unit.SIZE
_PIECE = 4 << 20
_BROADCAST_SEPARATOR = "@"  # within a name: our own note of what a broadcasting group pulled


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInQueue:
    """A group that reads a topic, and where it is in one of its queues."""

    group: str
    offset: int | None  # of the next message that it takes; None: it has no position
    clients: int | None  # that are connected
    expression: str | None  # that selects messages
    tags: list[str] | None  # that it wants; None: all
    pops: bool | None = None  # False: it has not popped since the start of the broker; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a message that waits."""

    waits: bool | None  # None: not known
    due_ms: Moment | None  # the end of its wait


class StoreFacts(Protocol):
    """See the module. `source` says in words where these facts come from."""

    source: str
    is_dry_run: bool
    trace_topic: str

    @property
    def has_group_offsets(self) -> bool: ...

    def positions(self) -> LogPositions: ...

    def queue_span(self, topic: str, queue_id: int) -> tuple[int, int] | None: ...

    def group_names(self, topic: str) -> list[str]: ...

    def groups(self, topic: str, queue_id: int) -> list[GroupInQueue]: ...

    def fate(self, stored: StoredMessage) -> Fate | None: ...

    def is_invisible(self, key: PopKey, queue_offset: int) -> bool | None: ...


class FileFacts:
    """Facts of a directory's files alone. Another process may write them, so how far it came is not known
    while `abort` is there."""

    source = "read from the store's files"
    is_dry_run = False
    trace_topic = TRACE_TOPIC

    def __init__(self, directory: StoreDirectory):
        self._directory = directory
        self._positions: LogPositions | None = None

    def positions(self) -> LogPositions:
        if self._positions is None:
            low = next((base for base, _, _ in self._directory.log_files()), 0)
            # An orderly stop synced everything there is.
            end = None if self._directory.disk.exists(self._directory.root / "abort") else self._log_end()
            self._positions = LogPositions(
                min=low, wrote=end, confirmed=end, dispatched=end, flushed=end, checkpoint_position=end
            )
        return self._positions

    def _log_end(self) -> int:
        """The place after the last record. The search goes back from the end: forwards, record by record, it
        takes seconds in a file of a gibibyte."""
        for base, size, path in reversed(self._directory.log_files()):
            with self._directory.disk.open_reader(path) as reader:
                used = _used_bytes(reader, size)
                if not used:
                    continue
                found = record_before(reader, base, size, used)
                if found is None:
                    break
                end = sum(found)
                return (
                    base + size
                    if size - end >= record.BLANK_BYTES
                    and record.read_head(reader.read(end, record.HEAD.size)).is_blank
                    else base + end
                )
        return self._directory.log_end()

    def queue_span(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """By binary search: units that hold something are before those that hold nothing."""
        files = self._directory.queue_files(topic, queue_id)
        if not files:
            return None
        low_offset = next((base for base, _, _ in self._directory.log_files()), 0)
        used = [file for file in files if self._unit(file[2], 0).size > 0]
        if not used:
            return files[0][0] // UNIT, files[0][0] // UNIT
        last_base, last_size, last = used[-1]
        end = last_base // UNIT + bisect.bisect_left(
            range(last_size // UNIT), True, key=lambda unit: self._unit(last, unit).size <= 0
        )
        for base, size, path in used:
            units = min(size // UNIT, end - base // UNIT)
            is_alive = functools.partial(self._is_alive, path, low_offset)
            first = bisect.bisect_left(range(units), True, key=is_alive)
            if first < units:
                return base // UNIT + first, end
        return end, end

    def _is_alive(self, path: Path, low_offset: int, unit: int) -> bool:
        found = self._unit(path, unit)
        return not found.is_pre_blank and found.log_offset >= low_offset

    def _unit(self, path: Path, unit: int) -> queue_unit.QueueUnit:
        with self._directory.disk.open_reader(path) as reader:
            raw = reader.read(unit * UNIT, UNIT)
        return queue_unit.decode(raw.ljust(UNIT, b"\0"))

    @property
    def has_group_offsets(self) -> bool:
        return self._directory.has_group_offsets()

    def group_names(self, topic: str) -> list[str]:
        """Those with a position in the topic, and all that have a topic of retries or dead letters: who read
        it once may be gone."""
        prefixes = (names.RETRY_PREFIX, names.DLQ_PREFIX)
        found = {
            name.removeprefix(prefix)
            for name, _ in self._directory.queues()
            for prefix in prefixes
            if name.startswith(prefix)
        }
        return sorted(found | {group for name, group, _ in self._offsets() if name == topic})

    def groups(self, topic: str, queue_id: int) -> list[GroupInQueue]:
        return [
            GroupInQueue(group=group, offset=queues.get(queue_id), clients=None, expression=None, tags=None)
            for name, group, queues in self._offsets()
            if name == topic
        ]

    def _offsets(self) -> list[tuple[str, str, dict[int, int]]]:
        """(topic, group, {queue: offset}) as the broker saved them last; nothing from a file that is not
        readable."""
        found = []
        try:
            _, table, _ = config_json.read_table(self._directory.config(OFFSETS_FILE) or "{}", "offsetTable")
            for name, queues in table.items():
                topic, _, group = str(name).partition("@")
                if group and _BROADCAST_SEPARATOR not in group:
                    found.append(
                        (
                            topic,
                            group,
                            {
                                int(queue): offset
                                for queue, offset in config_json.int_keys(queues, name).items()
                                if isinstance(offset, int)
                            },
                        )
                    )
        except FormatError:
            return []
        return sorted(found, key=lambda row: row[:2])

    def fate(self, stored: StoredMessage) -> Fate | None:
        return None

    def is_invisible(self, key: PopKey, queue_offset: int) -> bool | None:
        return None


def _used_bytes(reader: Reader, size: int) -> int:
    """How much of a file lies before the zeros at its end."""
    end = size
    while end > 0:
        at = max(0, end - _PIECE)
        used = len(reader.read(at, end - at).rstrip(b"\0"))
        if used:
            return at + used
        end = at
    return 0
