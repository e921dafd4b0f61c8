"""Check of the positions of groups and delay levels against the ends of the queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from broker_store.check.config_files import read_json
from broker_store.check.deleted_topics import DeletedTopics
from broker_store.check.log import Log
from broker_store.check.queue import Queue
from broker_store.check.report import WARNING
from broker_store.check.store import CheckedStore
from broker_store.engine import config_files
from broker_store.formats.topics import SCHEDULE_TOPIC

GROUPS_FILE = "consumerOffset.json"
LEVELS_FILE = "delayOffset.json"


class Position(NamedTuple):
    """The queue offset that a group reads next in a queue; `group` is "" for a delay level. `file` is its
    table in config/."""

    file: str
    topic: str
    queue_id: int
    group: str
    offset: int


class Positions:
    """The positions in config/, and the ends of queues that they are compared with."""

    def __init__(
        self,
        store: CheckedStore,
        log: Log,
        queues: Mapping[tuple[str, int], Queue],
        deleted: DeletedTopics,
    ):
        self._store, self._log, self._queues, self._deleted = store, log, queues, deleted

    def check(self) -> None:
        """Report each position after the end of its queue. Those of a store in use change meanwhile, and are
        not checked."""
        if self._store.is_in_use:
            return
        for one in self.all():
            end = self.end_of(one.topic, one.queue_id)
            if one.offset > end:
                reader = f"group {one.group}" if one.group else f"delay level {one.queue_id + 1}"
                what = (
                    f"{reader} is at {one.offset} of {one.topic}/{one.queue_id}, which ends at {end}: a "
                    f"start sets it back"
                )
                path = self._store.root / config_files.DIRECTORY / one.file
                key = (one.topic, one.queue_id)
                self._store.report.add(WARNING, "offset-ahead", str(path), None, what, queue=key)

    def all(self) -> Iterator[Position]:
        """Yield the positions of queues and topics that the store has."""
        known = self._deleted.known
        for place, queues in _table(self._read(GROUPS_FILE)).items():
            topic, _, group = str(place).partition("@")
            for queue_id, offset in _numbers(queues):
                # A start leaves such positions alone
                is_deleted = topic in self._deleted.before and topic not in known
                if not is_deleted and ((topic, queue_id) in self._queues or topic in known):
                    yield Position(GROUPS_FILE, topic, queue_id, group, offset)
        for level, offset in _numbers(self._read(LEVELS_FILE)):
            yield Position(LEVELS_FILE, SCHEDULE_TOPIC, level - 1, "", offset)

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the next queue offset by the log, or by the queue when the log holds none of its records."""
        queue, log = self._queues.get((topic, queue_id)), self._log
        if queue is None:
            return 0
        if queue.next is None:
            return queue.end if queue.last_record_end <= log.end else 0
        bridged = [(stretch.low, stretch.high) for stretch in log.stretches if not stretch.is_tail]
        if queue.next < queue.end and queue.are_damaged(queue.next, queue.end, bridged):
            return queue.end  # its last records are among the damaged ones, and a repair keeps their places
        return queue.next

    def _read(self, name: str) -> object:
        return read_json(self._store.disk, self._store.root, name).get("offsetTable")


def _table(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _numbers(value: object) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a table from whole number to whole number, with quoted keys or not; other pairs are
    left out."""
    for key, number in _table(value).items():
        if str(key).isascii() and str(key).isdigit() and isinstance(number, int):
            yield int(key), number
