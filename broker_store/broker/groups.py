"""Subscription groups: what a consumer group may do and how it retries (config/subscriptionGroup.json).

A group is created by an administrator or, with autoCreateSubscriptionGroup, at its first heartbeat or pull.
Fields that another version of the broker wrote and this one does not use are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker_store import throttle
from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.names import Names
from broker_store.errors import DamagedStoreError, FormatError, LimitError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats import config_json
from broker_store.formats.config_json import DataVersion
from broker_store.formats.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, check_group
from broker_store.protocol.command import Command

FILE_NAME = "subscriptionGroup.json"
# A group's settings are a few numbers, and the fields of other versions of the broker.
MAX_GROUP_BYTES = 16_384
# Prohibitions to read a topic, of all groups together. Each is an entry in a file that is always written as a
# whole.
MAX_FORBIDDEN = 20_000

# A bit of a group's prohibitions for a topic: it may not read (Apache's PermName.INDEX_PERM_READ).
READ_FORBIDDEN = 1 << 2
# The attribute that names the topic whose light topics a group consumes.
LITE_BIND_TOPIC = "lite.bind.topic"
# In how many of 100 pops a group reads the queues of a topic by priority.
PRIORITY_FACTOR = "priority.factor"

# The request for which a group is created, and its connection.
Cause = tuple[Command, ClientChannel]


class TooManyGroupsError(LimitError):
    """One more group, or prohibition of a group, would exceed the broker's bound."""

    cause = "limit of groups"


@dataclass(slots=True)
class SubscriptionGroup:
    """One group, with Apache's defaults. `others` are fields that this broker does not use but keeps."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)
    retry_policy: dict = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    others: dict = field(default_factory=dict)

    def max_tries(self, from_client: int | None) -> int:
        """Return after how many tries a message becomes a dead letter: the consumer's number, if it sends
        one."""
        return self.retry_max_times if from_client is None else from_client

    def to_json(self) -> dict:
        value = {wire: getattr(self, name) for wire, name, _ in _FIELDS}
        return dict(sorted({**self.others, **value}.items()))

    @classmethod
    def from_json(cls, value: object) -> SubscriptionGroup:
        """Read Apache's object. Raises FormatError when a field has a wrong type."""
        if not isinstance(value, dict) or not isinstance(value.get("groupName"), str):
            raise FormatError("a group needs an object with groupName", found=text_excerpt(value))
        group = cls(value["groupName"])
        for wire, name, kind in _FIELDS:
            item = value.get(wire)
            if item is None:
                continue
            if type(item) is not kind or (isinstance(item, int) and not -(1 << 63) <= item < 1 << 63):
                raise FormatError(
                    f"group {excerpt(group.name)}: {wire} must be {_KIND_WORDS[kind]}",
                    found=text_excerpt(item),
                )
            setattr(group, name, item)
        group.others = {wire: item for wire, item in value.items() if wire not in _WIRE_NAMES}
        return group


_KIND_WORDS = {dict: "an object", int: "an integer of 64 bits", bool: "true or false", str: "a text"}
_FIELDS = (
    ("attributes", "attributes", dict),
    ("brokerId", "broker_id", int),
    ("consumeBroadcastEnable", "consume_broadcast_enable", bool),
    ("consumeEnable", "consume_enable", bool),
    ("consumeFromMinEnable", "consume_from_min_enable", bool),
    ("consumeMessageOrderly", "consume_message_orderly", bool),
    ("consumeTimeoutMinute", "consume_timeout_minute", int),
    ("groupName", "name", str),
    ("groupRetryPolicy", "retry_policy", dict),
    ("groupSysFlag", "group_sys_flag", int),
    ("notifyConsumerIdsChangedEnable", "notify_consumer_ids_changed_enable", bool),
    ("retryMaxTimes", "retry_max_times", int),
    ("retryQueueNums", "retry_queue_nums", int),
    ("whichBrokerWhenConsumeSlowly", "which_broker_when_consume_slowly", int),
)
_WIRE_NAMES = frozenset(wire for wire, _, _ in _FIELDS)


RETRY_POLICIES = ("CUSTOMIZED", "EXPONENTIAL")


def check_retry_policy(policy: dict) -> None:
    """Raise FormatError for a retry policy that Apache's proxies and tools could not read.

    The policy is for clients of the gRPC port (`retry_policy`). For others it has no effect, as in Apache's
    broker: the wait of a try is the delay level in the request.
    """
    if policy.get("type", "CUSTOMIZED") not in RETRY_POLICIES:
        raise FormatError(
            f"groupRetryPolicy.type must be {' or '.join(RETRY_POLICIES)}", found=text_excerpt(policy["type"])
        )
    exponential, customized = policy.get("exponentialRetryPolicy"), policy.get("customizedRetryPolicy")
    if exponential is not None and not (
        isinstance(exponential, dict) and _all_durations(exponential.values())
    ):
        raise FormatError(
            "exponentialRetryPolicy needs integers: initial, max (ms) and multiplier",
            found=text_excerpt(exponential),
        )
    if customized is not None:
        delays = customized.get("next") if isinstance(customized, dict) else None
        if not (isinstance(delays, list) and delays and _all_durations(delays)):
            raise FormatError(
                "customizedRetryPolicy needs a list of integers: next (ms)", found=text_excerpt(customized)
            )


def _all_durations(values: Iterable[object]) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)


class Groups:
    """The table of groups. `clock` returns milliseconds; `on_change()` is called after each change."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        auto_create: bool = True,
        max_auto_created: int = 5_000,
        max_groups: int = 50_000,
        names: Names | None = None,
    ):
        self._max_groups = max_groups
        self.names = group_names() if names is None else names
        self._clock = clock
        self.creates_itself = auto_create  # what a request names
        self._max_auto_created = max_auto_created
        self._table: dict[str, SubscriptionGroup] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.data_version = DataVersion(timestamp=clock())
        self.dirty = False
        self.on_change: Callable[[], None] = lambda: None
        self.on_auto_created: Callable[[str, Cause], None] = lambda name, cause: None
        self.get = self._table.get
        self._take([SubscriptionGroup(name) for name in SYSTEM_GROUPS])

    def _take(self, groups: Iterable[SubscriptionGroup]) -> None:
        """Put groups into the table and their names into the order."""
        new = []
        for group in groups:
            if group.name not in self._table:
                new.append(group.name)
            self._table[group.name] = group
        if len(new) == 1:
            self.names.add(new[0])
        elif new:
            self.names.add_all(new)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> list[SubscriptionGroup]:
        return list(self._table.values())

    @staticmethod
    def is_system(name: str) -> bool:
        return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)

    def find_or_create(self, name: str, cause: Cause | None = None) -> SubscriptionGroup | None:
        """Return the group, creating it if that is allowed; None if not. Raises NameError_,
        TooManyGroupsError.

        `cause` is the request that needs it. `on_auto_created(name, cause)` is called for a group that is
        created for a request.
        """
        group = self._table.get(name)
        if group is None and (self.creates_itself or self.is_system(name)):
            self._check_room(f"group {name:.120}", self._max_auto_created)
            group = self.put(SubscriptionGroup(name))
            if cause is not None:
                self.on_auto_created(name, cause)
        return group

    def put(self, group: SubscriptionGroup) -> SubscriptionGroup:
        """Create or replace a group. Raises NameError_ for its name, TooManyGroupsError over the bound."""
        self.put_all([group])
        return group

    def put_all(self, groups: Iterable[SubscriptionGroup]) -> None:
        """Create or replace several groups in one change. If one is not allowed nothing is changed."""
        table = {group.name: group for group in groups}
        for name in table:
            check_group(name)
        new = [name for name in table if name not in self._table]
        if new:
            self._check_room(
                f"group {new[0]:.120}" if len(new) == 1 else f"{len(new)} more groups",
                self._max_groups,
                len(new),
            )
        self._take(table.values())
        self._changed()

    def _check_room(self, what: str, limit: int, new: int = 1) -> None:
        if len(self._table) + new > limit:
            raise TooManyGroupsError(
                f"no room for {what}: there are {len(self._table)} groups", len(self._table), limit
            )

    def may_read(self, group: str, topic: str) -> bool:
        """True if the group may read the topic, which is the case unless an administrator forbade it."""
        return not self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN

    def set_may_read(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read a topic; other bits are kept. Raises TooManyGroupsError over the
        bound."""
        if not readable and topic not in self._forbidden.get(group, {}):
            count = sum(map(len, self._forbidden.values()))
            if count >= MAX_FORBIDDEN:
                what = f"no room for a prohibition of group {group:.120}: there are {count} prohibitions"
                raise TooManyGroupsError(what, count, MAX_FORBIDDEN)
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) & ~READ_FORBIDDEN | (0 if readable else READ_FORBIDDEN)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self._changed()

    def forbidden(self) -> dict[str, dict[str, int]]:
        """Return a copy of group -> topic -> the bits of what the group may not do. Any thread."""
        return {group: topics.copy() for group, topics in list(self._forbidden.items())}

    def delete(self, name: str) -> bool:
        if self._table.pop(name, None) is None:
            return False
        self.names.discard(name)
        self._forbidden.pop(name, None)
        self._changed()
        return True

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock())
        self.dirty = True
        self.on_change()

    def to_json(self) -> dict:
        """Return the content of subscriptionGroup.json, which also answers
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return {
            "dataVersion": self.data_version.to_json(),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": {name: group.to_json() for name, group in self._table.items()},
        }

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the table as it is at its call, in any thread."""

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            groups = self.all()
            head = {"dataVersion": self.data_version.to_json(), "forbiddenTable": self.forbidden()}
            return config_json.write_table(
                head,
                "subscriptionGroupTable",
                throttle.in_pieces((group.name, group.to_json()) for group in groups),
            )

        return text

    def load(self, text: str) -> None:
        """Take over a subscriptionGroup.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            groups, forbidden, version = read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place, or remove it and its .bak: groups are made again when "
                "they connect."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self.take(groups, forbidden, version)

    def take(
        self,
        groups: Iterable[SubscriptionGroup],
        forbidden: dict[str, dict[str, int]],
        version: DataVersion,
    ) -> None:
        """Take over groups of a file or of a master. `on_change` is not called."""
        self.data_version = version
        self._forbidden = forbidden
        self._take(groups)


def read_file(text: str) -> tuple[list[SubscriptionGroup], dict[str, dict[str, int]], DataVersion]:
    """Read the groups of a subscriptionGroup.json, and what is forbidden to them. Raises FormatError."""
    value, table, version = config_json.read_table(text, "subscriptionGroupTable")
    groups = [SubscriptionGroup.from_json(item) for item in table.values()]
    forbidden = value.get("forbiddenTable") or {}
    for group, topics in forbidden.items() if isinstance(forbidden, dict) else [("forbiddenTable", None)]:
        if not isinstance(topics, dict) or not all(type(bits) is int for bits in topics.values()):
            raise FormatError(
                f"forbiddenTable: {group!s:.60} must be an object of topics and bits",
                found=text_excerpt(topics),
            )
    return groups, forbidden, version


def group_names() -> Names:
    """Return an empty table of group names, `normal` and `system`, that settings, offsets and clients
    share."""
    return Names(lambda name: "system" if Groups.is_system(name) else "normal")
