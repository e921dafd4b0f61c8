"""The mapping of a static topic: config/topicQueueMapping.json, the body of 513, and what a broker registers
of it (docs/spec/store-format.md section 8).

A static topic has a fixed number of logical queues, by which clients name them. Each is a row of items, the
oldest first. An item is a queue of the store of one broker, the physical queue, and says at which logical
offset it begins:

    logical offset   0 ........ 99 | (no messages) | 10000 ........ 10049
    item             gen 0, broker a, queue 3      | gen 1, broker b, queue 0, logicOffset 10000
    physical offset  0 ........ 99                 | 0 ............ 49

The broker of the last item is the leader of the queue: it alone takes sends, and clients pull from it.
Between two items there is a gap, so that the second may take messages before the end of the first is known.
Until then its logicOffset is -1.

A broker has the rows of the queues that it leads, and of those that it led before their last move.

Source: Apache's `TopicQueueMappingDetail`, `LogicQueueMappingItem` and `TopicQueueMappingUtils`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_store.errors import FormatError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats import config_json

# Apache's name of all logical queues of the cluster together, and the broker that clients think they are at
GLOBAL_SCOPE = "__global__"
LOGICAL_BROKER = "__syslo__"
UNDECIDED = -1
# Of one request. A remapping adds an item to a row, and a physical queue to a broker.
MAX_LOGICAL_QUEUES = 1_024
MAX_ITEMS = 64
_MAX_NAME = 255
_INT_END, _LONG_END = 1 << 31, 1 << 63


class MappingItem(NamedTuple):
    """One part of a logical queue. Offsets count messages.

    `logic_offset` is UNDECIDED between two steps of a remapping. `end_offset`, the physical offset after its
    last message, and the two times are -1 where Apache's tools made the item: they leave them open.
    """

    gen: int
    queue_id: int
    broker: str
    logic_offset: int
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1

    @property
    def is_decided(self) -> bool:
        return self.logic_offset >= 0

    @property
    def has_end(self) -> bool:
        return self.end_offset > self.start_offset

    def logical(self, physical: int) -> int:
        """Return the logical offset of a physical one."""
        return self.logic_offset + max(0, physical - self.start_offset)

    def logical_within(self, physical: int) -> int:
        """Do as `logical`, for an offset of which the client only learns: at most the end of the item, -1
        while it is undecided."""
        if not self.is_decided:
            return UNDECIDED
        return self.logical(min(physical, self.end_offset) if self.end_offset >= 0 else physical)

    def physical(self, logical: int) -> int:
        """Return the physical offset of a logical one; less than `start_offset` for one before the item."""
        return logical - self.logic_offset + self.start_offset

    def to_json(self) -> dict[str, object]:
        return {
            "bname": self.broker,
            "endOffset": self.end_offset,
            "gen": self.gen,
            "logicOffset": self.logic_offset,
            "queueId": self.queue_id,
            "startOffset": self.start_offset,
            "timeOfEnd": self.time_of_end,
            "timeOfStart": self.time_of_start,
        }


Row = tuple[MappingItem, ...]


class MappingInfo(NamedTuple):
    """What a broker registers of a static topic, and a route gives: the physical queue of each logical one
    that it leads."""

    topic: str
    total_queues: int
    broker: str
    epoch: int
    scope: str = GLOBAL_SCOPE
    is_dirty: bool = False
    leads: Mapping[int, int] = {}

    def to_json(self) -> dict[str, object]:
        return {
            "bname": self.broker,
            "currIdMap": dict(self.leads),
            "dirty": self.is_dirty,
            "epoch": self.epoch,
            "scope": self.scope,
            "topic": self.topic,
            "totalQueues": self.total_queues,
        }

    @classmethod
    def from_json(cls, value: object) -> MappingInfo:
        """Read Apache's object. Raises FormatError when a field is missing or wrong."""
        what = "a topicQueueMappingInfo"
        if not isinstance(value, dict):
            raise FormatError(f"{what} must be an object", found=text_excerpt(value))
        topic = _text(value, "topic", what)
        what = f"the mapping of topic {excerpt(topic)}"
        leads = config_json.int_keys(value.get("currIdMap") or {}, f"{what}: currIdMap")
        for number, queue_id in leads.items():
            if type(queue_id) is not int or not 0 <= queue_id < _INT_END or not 0 <= number < _INT_END:
                raise FormatError(f"{what}: currIdMap has queue {number}", found=text_excerpt(queue_id))
        return cls(
            topic,
            _number(value, "totalQueues", what, 0, _INT_END),
            _text(value, "bname", what),
            _number(value, "epoch", what, -_LONG_END, _LONG_END),
            _text(value, "scope", what, GLOBAL_SCOPE),
            value.get("dirty") is True,
            {number: queue_id for number, queue_id in leads.items() if isinstance(queue_id, int)},
        )


@dataclass(frozen=True, slots=True)
class TopicMapping:
    """The rows of a static topic that one broker has, by the number of the logical queue."""

    topic: str
    total_queues: int
    broker: str
    epoch: int
    rows: Mapping[int, Row]
    scope: str = GLOBAL_SCOPE
    is_dirty: bool = False

    def is_leader_of(self, row: Sequence[MappingItem]) -> bool:
        return bool(row) and row[-1].broker == self.broker

    @property
    def leads(self) -> dict[int, int]:
        """The physical queue of each logical one that this broker leads."""
        return {number: row[-1].queue_id for number, row in self.rows.items() if self.is_leader_of(row)}

    def queues_at(self, broker: str) -> Iterator[int]:
        """Yield the id of each physical queue of a broker that the rows name; of one in two rows twice."""
        for row in self.rows.values():
            for item in row:
                if item.broker == broker:
                    yield item.queue_id

    def info(self) -> MappingInfo:
        return MappingInfo(
            self.topic, self.total_queues, self.broker, self.epoch, self.scope, self.is_dirty, self.leads
        )

    def to_json(self) -> dict[str, object]:
        """Return Apache's object, as in a file and in the answers to 21 and 351."""
        rows = {number: [item.to_json() for item in row] for number, row in self.rows.items()}
        # Apache's broker leaves currIdMap of its own tables empty
        members = self.info()._replace(leads={}).to_json() | {"hostedQueues": rows}
        return dict(sorted(members.items()))

    @classmethod
    def from_json(cls, value: object) -> TopicMapping:
        """Read and check Apache's object. Raises FormatError: which queue and item, and what is wrong."""
        info = MappingInfo.from_json(value)
        assert isinstance(value, dict)  # MappingInfo has checked it
        what = f"the mapping of topic {excerpt(info.topic)}"
        rows: dict[int, Row] = {}
        hosted = config_json.int_keys(value.get("hostedQueues") or {}, f"{what}: hostedQueues")
        for number, items in hosted.items():
            if not 0 <= number < _INT_END or not isinstance(items, list):
                raise FormatError(
                    f"{what}: queue {number} needs an array of items", found=text_excerpt(items)
                )
            row = tuple(
                _item(item, f"{what}: queue {number}, item {place}") for place, item in enumerate(items)
            )
            check_row(row, f"{what}: queue {number}")
            rows[number] = row
        return cls(info.topic, info.total_queues, info.broker, info.epoch, rows, info.scope, info.is_dirty)


def check_row(row: Sequence[MappingItem], what: str) -> None:
    """Raise FormatError if the items of a row do not follow each other."""
    for place, item in enumerate(row):
        if place < len(row) - 1 and not item.is_decided:
            raise FormatError(f"{what}, item {place}: only the last item may have no logicOffset")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise FormatError(
                f"{what}, item {place}: endOffset must not be less than startOffset {item.start_offset}",
                found=item.end_offset,
            )
        if not place:
            continue
        before = row[place - 1]
        if item.gen <= before.gen:
            raise FormatError(f"{what}, item {place}: gen must be more than {before.gen}", found=item.gen)
        least = before.logical(max(before.end_offset, before.start_offset))
        if item.is_decided and item.logic_offset <= least:
            raise FormatError(
                f"{what}, item {place}: logicOffset must be more than {least}", found=item.logic_offset
            )


def read_file(text: str) -> tuple[dict[str, TopicMapping], config_json.DataVersion]:
    """Return the mappings by topic and the version of a topicQueueMapping.json. Raises FormatError."""
    _, table, version = config_json.read_table(text, "topicQueueMappingInfoMap")
    return read_table(table), version


def read_answer(text: str) -> tuple[dict[str, TopicMapping], config_json.DataVersion]:
    """Return the mappings by topic and their version of an answer to 21. Raises FormatError."""
    value = config_json.read(text)
    table = value.get("topicQueueMappingDetailMap") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(table or {}, dict):
        raise FormatError("topicQueueMappingDetailMap must be an object", found=text_excerpt(table))
    version = config_json.DataVersion.from_json(value.get("mappingDataVersion"))
    return read_table(table or {}), version


def read_table(table: Mapping[str, object]) -> dict[str, TopicMapping]:
    """Return the mappings by topic of a table, as in the file and in the answer to 21. Raises FormatError."""
    found = {}
    for name, value in table.items():
        mapping = TopicMapping.from_json(value)
        if name != mapping.topic:
            raise FormatError(f"the mapping under {excerpt(name)} is of topic {excerpt(mapping.topic)}")
        found[mapping.topic] = mapping
    return found


def _item(value: object, what: str) -> MappingItem:
    if not isinstance(value, dict):
        raise FormatError(f"{what} must be an object", found=text_excerpt(value))
    return MappingItem(
        _number(value, "gen", what, 0, _INT_END),
        _number(value, "queueId", what, 0, _INT_END),
        _text(value, "bname", what),
        # Below a half of the largest long, so that no sum of two leaves the type
        _number(value, "logicOffset", what, UNDECIDED, _LONG_END >> 2),
        _number(value, "startOffset", what, 0, _LONG_END >> 2, 0),
        _number(value, "endOffset", what, -1, _LONG_END >> 2, -1),
        _number(value, "timeOfStart", what, -1, _LONG_END, -1),
        _number(value, "timeOfEnd", what, -1, _LONG_END, -1),
    )


def _number(
    value: Mapping[object, object], name: str, what: str, low: int, end: int, default: int | None = None
) -> int:
    number = value.get(name, default)
    if type(number) is not int or not low <= number < end:
        raise FormatError(f"{what}: {name} must be an integer from {low} on", found=text_excerpt(number))
    return number


def _text(value: Mapping[object, object], name: str, what: str, default: str | None = None) -> str:
    text = value.get(name, default)
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_NAME:
        raise FormatError(f"{what}: {name} must be a text", found=text_excerpt(text))
    return text
