"""The static topics of this broker: config/topicQueueMapping.json, and where a logical offset lies.

A topic in this table has logical queues (formats/static_topics.py), and a client names those. The store knows
only physical queues.

Source: Apache's `TopicQueueMappingManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from broker_store import throttle
from broker_store.errors import DamagedStoreError, FormatError, PeerError
from broker_store.formats import config_json, static_topics
from broker_store.formats.config_json import DataVersion
from broker_store.formats.static_topics import MappingItem, Row, TopicMapping

FILE_NAME = "topicQueueMapping.json"
_TABLE = "topicQueueMappingInfoMap"


class MappingRefused(PeerError):
    """The mapping does not follow the one that the broker has."""

    cause = "mapping refused"


class StaticTopics:
    """The table. `on_change()` is called after each change."""

    def __init__(self, *, broker: str, clock: Callable[[], int]):
        self._broker, self._clock = broker, clock
        self.table: dict[str, TopicMapping] = {}
        # Handlers find a mapping by this bound method: one dictionary access, None for other topics.
        self.get = self.table.get
        self.data_version = DataVersion(timestamp=clock())
        self.dirty = False
        self.on_change: Callable[[], None] = lambda: None

    def put(self, mapping: TopicMapping) -> None:
        """Take a mapping that `following` has checked."""
        self.table[mapping.topic] = mapping
        self._changed()

    def delete(self, topic: str) -> None:
        """Forget the mapping of a topic, if there is one."""
        if self.table.pop(topic, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock())
        self.dirty = True
        self.on_change()

    def own_queues(self) -> Iterator[tuple[str, int]]:
        """Yield (topic, queue id) of each physical queue of this broker that a mapping names."""
        for mapping in self.table.values():
            for queue_id in mapping.queues_at(self._broker):
                yield mapping.topic, queue_id

    def least_queues(self, topic: str) -> int:
        """Return the number of queues that a topic must have here, so that those of its mapping are there."""
        mapping = self.table.get(topic)
        return 0 if mapping is None else max(mapping.queues_at(self._broker), default=-1) + 1

    def to_json(self) -> dict[str, object]:
        """Return the table as the answers to 21 have it."""
        return {topic: mapping.to_json() for topic, mapping in self.table.items()}

    def text_with(self, mapping: TopicMapping) -> bytes:
        """Return the text of the file once `mapping` is taken. Loop's thread."""
        return _text(self.data_version.next(self._clock()), (self.table | {mapping.topic: mapping}).values())

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the table as it is at its call, in any thread."""

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            return _text(self.data_version, list(self.table.values()))

        return text

    def load(self, text: str) -> None:
        """Take over a topicQueueMapping.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            found, version = static_topics.read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place. Without the file the offsets of static topics are others: "
                "their consumers would skip or repeat messages."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self.take(found, version)

    def take(self, table: Mapping[str, TopicMapping], version: DataVersion) -> None:
        """Take over the mappings of a file or of a master. `on_change` is not called."""
        self.table.clear()
        self.table.update(table)
        self.data_version = version


def _text(version: DataVersion, mappings: Iterable[TopicMapping]) -> bytes:
    entries = ((mapping.topic, mapping.to_json()) for mapping in mappings)
    return config_json.write_table({"dataVersion": version.to_json()}, _TABLE, throttle.in_pieces(entries))


def following(old: TopicMapping | None, new: TopicMapping, *, force: bool) -> TopicMapping:
    """Return the mapping of a topic after a request: the new one, with the rows of the old one that it does
    not name. Raises MappingRefused if it does not follow the old one.

    With `force` nothing is compared: an administrator repairs a remapping that stopped in the middle.
    """
    if old is None:
        return new
    rows = {**old.rows, **new.rows}
    if force:
        return replace(new, rows=rows)
    if new.epoch < old.epoch:
        raise MappingRefused(f"epoch {new.epoch} is less than {old.epoch}, which this broker has")
    if new.scope != old.scope:
        raise MappingRefused(f"scope {new.scope:.40} is not {old.scope:.40}, which this broker has")
    for number, known in old.rows.items():
        row = new.rows.get(number)
        if row is not None:
            _check_follows(number, known, row, same_epoch=new.epoch == old.epoch)
        elif new.epoch == old.epoch:
            raise MappingRefused(f"queue {number} is missing, with the epoch {new.epoch} of what is known")
    return replace(new, rows=rows)


def _check_follows(number: int, old: Row, new: Row, *, same_epoch: bool) -> None:
    """Raise MappingRefused if an item that both rows have is another, or if the leader is with one epoch."""
    if not old:
        return
    if not new:
        raise MappingRefused(f"queue {number} has no item, and {len(old)} are known")
    known = {item.gen: item for item in old}
    for item in new:
        before = known.get(item.gen)
        if before is not None and not _is_same(before, item):
            raise MappingRefused(
                f"queue {number}: item {item.gen} is {_named(item)}, and {_named(before)} is known"
            )
    # The time and the end of the last item may change, and its logical offset be decided
    if same_epoch and new[-1].gen != old[-1].gen:
        raise MappingRefused(f"queue {number}: its leader is another, with the same epoch")


def _is_same(old: MappingItem, new: MappingItem) -> bool:
    """Return whether the parts that are never changed are the same in both."""
    place = (old.broker, old.queue_id, old.start_offset) == (new.broker, new.queue_id, new.start_offset)
    return place and (not old.is_decided or old.logic_offset == new.logic_offset)


def _named(item: MappingItem) -> str:
    return f"queue {item.queue_id} of {item.broker:.40} at logical offset {item.logic_offset}"


def item_at(row: Row, logical: int) -> MappingItem | None:
    """Return the item in which a logical offset lies: the first one for an offset before it, None if none is
    decided."""
    decided = [item for item in row if item.is_decided]
    return next(
        (item for item in reversed(decided) if logical >= item.logic_offset), decided[0] if decided else None
    )


def item_after(row: Row, item: MappingItem) -> MappingItem | None:
    """Return the item that follows another in its row; None if there is none or it is not decided yet."""
    return next((each for each in row if each.gen > item.gen and each.is_decided), None)
