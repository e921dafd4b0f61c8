"""Filters of consumer groups by properties, from their heartbeats (config/consumerFilter.json;
docs/spec/sql92.md section 8).

There is one filter for a topic of a group. It is compiled once, when a heartbeat brings a new text, and pulls
use it. It stays for a day after the group has left the topic, so that a consumer that comes back is served
before its next heartbeat.

    heartbeat ──► no entry, or a newer version ──► compile ──┬─► entry
                                                             └─► bad: no entry, pulls are answered 27
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from broker_store import throttle
from broker_store.broker.filters import (
    FilterError,
    PropertyFilter,
    Subscription,
    is_tag_type,
    property_filter,
)
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats import config_json, properties
from broker_store.sql92 import bloom, parser

FILE_NAME = "consumerFilter.json"
# Characters of all expressions together: a compiled filter takes up to 200 times as many bytes.
MAX_CHARACTERS = 1 << 19
# Filters of all groups, those of groups that have left included: a short one takes about 2 KB.
MAX_FILTERS = 20_000
# Characters that one heartbeat may have compiled: those of one longest expression.
MAX_COMPILED = parser.MAX_CHARACTERS
# After a load all groups count as gone since so long.
_GONE_AT_LOAD_MS = 30_000


@dataclass(slots=True)
class GroupFilter:
    """The filter of a topic of a group. `dead_ms` is when the group left the topic, 0 if it did not."""

    topic: str
    group: str
    expression: str
    expression_type: str
    version: int
    born_ms: int
    filter: PropertyFilter
    dead_ms: int = 0

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    def to_json(self) -> dict[str, object]:
        return {
            # Apache drops the whole file if this does not fit its own settings.
            "bloomFilterData": {
                "bitNum": bloom.BITS,
                "bitPos": bloom.positions(f"{self.group}#{self.topic}"),
            },
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


class PropertyFilters:
    """The table of filters. `clock` returns milliseconds. Loop thread, except where a docstring says
    otherwise."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        kept_ms: int = 86_400_000,
        max_characters: int = MAX_CHARACTERS,
        max_filters: int = MAX_FILTERS,
    ):
        self._clock, self._kept_ms = clock, kept_ms
        self._max_characters, self._max_filters = max_characters, max_filters
        self._table: dict[str, dict[str, GroupFilter]] = {}  # group -> topic -> filter
        self._characters, self._filters = 0, 0
        self.dirty = False

    def get(self, topic: str, group: str) -> GroupFilter | None:
        return self._table.get(group, {}).get(topic)

    def all(self) -> list[GroupFilter]:
        """Return all filters. Any thread."""
        return [entry for topics in list(self._table.values()) for entry in list(topics.values())]

    def register(self, group: str, subscriptions: Iterable[Subscription], room: int = MAX_COMPILED) -> int:
        """Take the subscriptions of a group's heartbeat; return the `room` that is left for other groups.

        At most `room` characters are compiled, short expressions first; the filters that are left come with
        the next heartbeat.
        """
        wanted = list(subscriptions)
        for subscription in sorted(wanted, key=lambda one: len(one.expression)):
            length = len(subscription.expression)
            if is_tag_type(subscription.expression_type) or not length:
                continue
            is_compiled = length <= parser.MAX_CHARACTERS  # a longer one is refused before
            if (length <= room or not is_compiled) and self._is_new(group, subscription):
                self._compile(group, subscription)
                room -= length if is_compiled else 0
        listed = {subscription.topic for subscription in wanted}
        for entry in self._table.get(group, {}).values():
            if entry.topic not in listed and not entry.is_dead:
                entry.dead_ms = self._clock()
                self.dirty = True
        return room

    def _is_new(self, group: str, wanted: Subscription) -> bool:
        """Return whether a subscription needs another filter; if not, its filter has the newest version."""
        entry = self.get(wanted.topic, group)
        if entry is None:
            return True
        if wanted.version < entry.version or (wanted.version == entry.version and not entry.is_dead):
            return False
        is_same = (entry.expression, entry.expression_type) == (wanted.expression, wanted.expression_type)
        if wanted.version > entry.version and not is_same:
            return True
        entry.version, entry.dead_ms, self.dirty = wanted.version, 0, True
        return False

    def _compile(self, group: str, wanted: Subscription) -> None:
        """Replace a filter. A bad expression, or one for which there is no room, leaves none."""
        entry = self.get(wanted.topic, group)
        if entry is not None:
            self._remove(entry)
        if not self._has_room(wanted.expression):
            return
        try:
            compiled = property_filter(wanted.expression, wanted.expression_type)
        except FilterError:
            return
        self._put(
            GroupFilter(
                wanted.topic,
                group,
                wanted.expression,
                wanted.expression_type,
                wanted.version,
                self._clock(),
                compiled,
            )
        )

    def _has_room(self, expression: str) -> bool:
        return (
            self._filters < self._max_filters and self._characters + len(expression) <= self._max_characters
        )

    def _put(self, entry: GroupFilter) -> None:
        self._table.setdefault(entry.group, {})[entry.topic] = entry
        self._characters += len(entry.expression)
        self._filters += 1
        self.dirty = True

    def _remove(self, entry: GroupFilter) -> None:
        topics = self._table[entry.group]
        del topics[entry.topic]
        if not topics:
            del self._table[entry.group]
        self._characters -= len(entry.expression)
        self._filters -= 1
        self.dirty = True

    def group_gone(self, group: str) -> None:
        """Take that the last client of a group has left."""
        self.register(group, ())

    def clean(self) -> None:
        """Remove the filters of groups that have left their topic long ago."""
        oldest_ms = self._clock() - self._kept_ms
        for entry in self.all():
            if entry.is_dead and entry.dead_ms <= oldest_ms:
                self._remove(entry)

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the table as it is at its call, in any thread."""

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            topics: dict[str, list[GroupFilter]] = {}
            for entry in self.all():
                topics.setdefault(entry.topic, []).append(entry)
            rows = (
                (
                    topic,
                    {"groupFilterData": {entry.group: entry.to_json() for entry in entries}, "topic": topic},
                )
                for topic, entries in topics.items()
            )
            return config_json.write_table({}, "filterDataByTopic", throttle.in_pieces(rows))

        return text

    def load(self, text: str) -> None:
        """Take over a consumerFilter.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed. Filters that do not compile are left out: the group's next heartbeat brings its own."""
        try:
            entries = list(read_file(text))
        except FormatError as error:
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}") from error
        gone_ms = self._clock() - _GONE_AT_LOAD_MS
        for entry in entries:
            if self._has_room(entry.expression):
                entry.dead_ms = entry.dead_ms or max(entry.born_ms, gone_ms)
                self._put(entry)
        self.dirty = False


def read_file(text: str) -> Iterator[GroupFilter]:
    """Yield the filters of a consumerFilter.json that compile. Raises FormatError."""
    value = config_json.read(text)
    table = value.get("filterDataByTopic") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise FormatError("must be an object that holds filterDataByTopic", found=text_excerpt(value))
    for topic, held in table.items():
        groups = held.get("groupFilterData") if isinstance(held, dict) else None
        if not isinstance(groups, dict):
            raise FormatError(f"topic {excerpt(topic)} needs groupFilterData", found=text_excerpt(held))
        for group, item in groups.items():
            entry = _entry(str(topic), str(group), item)
            if entry is not None:
                yield entry


def _entry(topic: str, group: str, item: object) -> GroupFilter | None:
    """Return a filter of the file, None if it does not compile. Raises FormatError."""
    fields = item if isinstance(item, dict) else {}
    expression, kind = fields.get("expression"), fields.get("expressionType")
    times = [fields.get(name, 0) for name in ("clientVersion", "bornTime", "deadTime")]
    if not isinstance(expression, str) or not isinstance(kind, str) or any(type(n) is not int for n in times):
        raise FormatError(
            f"the filter of group {excerpt(group)} for {excerpt(topic)} needs the texts expression and "
            f"expressionType, and integers",
            found=text_excerpt(item),
        )
    try:
        compiled = property_filter(expression, kind)
    except FilterError:
        return None
    version, born_ms, dead_ms = times
    return GroupFilter(topic, group, expression, kind, version, born_ms, compiled, dead_ms)


class RetryFilter:
    """The filter of a retry topic whose subscription is a SQL92 expression (filterSupportRetry): each message
    is judged by the filter that its group has for the topic it came from."""

    steps = 1
    program = None

    def __init__(self, filters: PropertyFilters, group: str):
        self._filters, self._group = filters, group

    def passes(self, encoded: bytes) -> bool:
        """Return whether a message with this stored properties string passes; without a filter it does."""
        topic = properties.get(encoded, properties.RETRY_TOPIC)
        entry = self._filters.get(topic, self._group) if topic else None
        return entry is None or entry.filter.passes(encoded)
