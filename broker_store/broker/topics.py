"""The topics of this broker (docs/spec/store-format.md section 8, docs/spec/remoting.md section 3).

A topic has a name, numbers of read and write queues, and permissions; its messages are in the store. The
table is saved as config/topics.json in Apache's layout. After a crash the file may be older than the log. So
`adopt` adds topics that have queues but no entry: an acknowledged message is never hidden because a small
file was written late.

System topics are those that a new Apache broker creates. They cannot be created, changed or deleted by
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker_store import throttle
from broker_store.broker.names import Names
from broker_store.errors import DamagedStoreError, FormatError, LimitError, PeerError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats import config_json
from broker_store.formats.config_json import DataVersion
from broker_store.formats.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    check_stored_topic,
    check_topic,
    dead_letter_topic,
    retry_topic,
)
from broker_store.formats.pop_records import revive_topic
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.topics import (
    AUTO_CREATE_TOPIC,
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    TRACE_TOPIC,
)

FILE_NAME = "topics.json"

MULTI_TAG = "MULTI_TAG"  # a filter_type: records of the topic carry a bit for it
FILTER_TYPES = ("SINGLE_TAG", MULTI_TAG)
# In a topic's system flag: its consumers belong to a unit (Apache's TopicSysFlag).
UNIT_SUBSCRIPTION = 2
DELAY_QUEUES = 18
# Limits of what can be created over the network: a route lists every queue, and each queue costs a file and a
# table entry. `max_auto_created` limits the topics that clients create by using a name, `max_topics` all
# topics.
MAX_QUEUES = 128
TOPICS_PER_STEP = 64  # of a list that is created
# Apache defines six attributes of a topic, the longest with a name of 24 characters; these limits leave some
# room.
MAX_ATTRIBUTES = 32
MAX_ATTRIBUTE_CHARACTERS = 255


class TooManyTopicsError(LimitError):
    """One more topic would exceed the broker's bound."""

    cause = "limit of topics"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. `perm` has the PERM_ bits; `attributes` has names such as `message.type` and
    `cleanup.policy`."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    perm: int = PERM_READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def queues(self) -> int:
        return max(self.read_queues, self.write_queues)

    @property
    def readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        return self.perm & PERM_WRITE != 0

    def to_json(self) -> dict:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: object) -> TopicConfig:
        """Read Apache's object. Raises FormatError when a field is missing or has a wrong type."""
        if not isinstance(value, dict) or not isinstance(value.get("topicName"), str):
            raise FormatError("a topic needs an object with topicName", found=text_excerpt(value))
        numbers = [
            value.get("readQueueNums", 16),
            value.get("writeQueueNums", 16),
            value.get("perm", 6),
            value.get("topicSysFlag", 0),
        ]
        if not all(type(number) is int and 0 <= number < 1 << 31 for number in numbers):
            raise FormatError(f"topic {excerpt(value['topicName'])} needs integers", found=excerpt(numbers))
        attributes = value.get("attributes") or {}
        if not isinstance(attributes, dict):
            raise FormatError("attributes must be an object", found=text_excerpt(attributes))
        return cls(
            value["topicName"],
            numbers[0],
            numbers[1],
            numbers[2],
            text_excerpt(value.get("topicFilterType") or "SINGLE_TAG"),
            numbers[3],
            value.get("order") is True,
            {
                str(name): text if isinstance(text, str) else excerpt(text)
                for name, text in attributes.items()
            },
        )

    def describe(self) -> str:
        """Return the text that Apache prints in remarks and that mqadmin shows."""
        perm = "".join(letter if self.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queues}, "
            f"writeQueueNums={self.write_queues}, "
            f"perm={perm}, topicFilterType={self.filter_type}, topicSysFlag={self.sys_flag}, "
            f"order={'true' if self.order else 'false'}, attributes={{{attributes}}}]"
        )


class Topics:
    """The table of topics. `clock` returns milliseconds; `on_change(changed)` is called after each change."""

    def __init__(
        self,
        *,
        cluster: str,
        broker: str,
        clock: Callable[[], int],
        auto_create: bool = True,
        default_queues: int = 8,
        cluster_topic: bool = True,
        broker_topic: bool = True,
        trace_topic: bool = False,
        trace_topic_name: str = TRACE_TOPIC,
        max_auto_created: int = 5_000,
        max_topics: int = 50_000,
        revive_queues: int = 8,
    ):
        self._clock = clock
        self.creates_itself = auto_create  # what a request names
        self._max_auto_created = max_auto_created
        self._max_topics = max_topics
        self._table: dict[str, TopicConfig] = {}
        self._system = _system_topics(cluster, broker, cluster_topic, broker_topic, revive_queues)
        if auto_create:
            inherit = PERM_READ_WRITE | PERM_INHERIT
            self._system[AUTO_CREATE_TOPIC] = TopicConfig(
                AUTO_CREATE_TOPIC, default_queues, default_queues, inherit
            )
        self._trace_topic = trace_topic_name
        if trace_topic:
            self._system[trace_topic_name] = TopicConfig(trace_topic_name, 1, 1)
        self.data_version = DataVersion(timestamp=clock())
        self.dirty = False
        self._kept_room = 0  # reserved for topics of lists that are being created
        self.on_change: Callable[[Sequence[TopicConfig]], None] = lambda changed: None
        # Sends find their topic by this bound method: one dictionary access, None for an unknown name.
        self.get = self._table.get
        self.names = Names(self.kind)
        self._take(self._system.values())

    def _take(self, configs: Iterable[TopicConfig]) -> None:
        """Put configs into the table and their names into the order."""
        table = self._table
        new = []
        for config in configs:
            if config.name not in table:
                new.append(config.name)
            table[config.name] = config
        if len(new) == 1:
            self.names.add(new[0])
        elif new:
            self.names.add_all(new)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> list[TopicConfig]:
        return list(self._table.values())

    def kind(self, name: str) -> str:
        """Return `normal`, `retry`, `dlq` or `system`."""
        if name.startswith(RETRY_PREFIX):
            return "retry"
        if name.startswith(DLQ_PREFIX):
            return "dlq"
        return "system" if self.is_system(name) else "normal"

    def is_system(self, name: str) -> bool:
        return name in self._system or name in _ALWAYS_SYSTEM or name.startswith(SYSTEM_PREFIX)

    def is_internal(self, name: str) -> bool:
        """Return whether a topic has records that the broker writes for itself, which no group is given."""
        return name in _INTERNAL or name.startswith(SYSTEM_PREFIX)

    def system_names(self) -> list[str]:
        return sorted(self._system.keys() | _ALWAYS_SYSTEM)

    # Changes

    def put(self, config: TopicConfig) -> TopicConfig:
        """Create or replace a topic. Raises NameError_ for its name, TooManyTopicsError over the limit."""
        check_topic(config.name)
        self.check_room_for(config.name)
        self._take([config])
        self._changed([config])
        return config

    def put_in_steps(self, configs: Sequence[TopicConfig]) -> Generator[None, None, None]:
        """Create or replace several topics, TOPICS_PER_STEP in each step. If one is not allowed nothing is
        changed.

        All are checked before the first step. Room for new topics is reserved until their step.
        """
        for config in configs:
            check_topic(config.name)
        new = {config.name for config in configs if config.name not in self._table}
        if new:
            self._check_room(
                f"{len(new)} more topics" if len(new) > 1 else "one more topic", self._max_topics, len(new)
            )
        self._kept_room += len(new)
        try:
            for begin in range(0, len(configs), TOPICS_PER_STEP):
                some = configs[begin : begin + TOPICS_PER_STEP]
                taken = new.intersection(config.name for config in some)
                new -= taken
                self._kept_room -= len(taken)
                self._take(some)
                self._changed(some)
                yield
        finally:
            self._kept_room -= len(new)

    def delete(self, name: str) -> bool:
        """Remove a topic from the table; False when there was none. The store deletes its messages."""
        if self._table.pop(name, None) is None:
            return False
        self.names.discard(name)
        self._changed([])
        return True

    def auto_create(self, name: str, default_topic: str, wanted_queues: int) -> TopicConfig | None:
        """Return the topic that a producer's send creates from its default topic; None when that is not
        allowed.

        The default topic must exist and have PERM_INHERIT (TBW102 has it with autoCreateTopicEnable). Raises
        NameError_ for a bad name, TooManyTopicsError over the limit.
        """
        check_topic(name)
        if default_topic == AUTO_CREATE_TOPIC and not self.creates_itself:
            return None
        model = self._table.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT or not self._may_be_created(name):
            return None
        self._check_room(name, self._max_auto_created)
        queues = max(1, min(wanted_queues, model.write_queues, MAX_QUEUES))
        return self.put(
            TopicConfig(name, queues, queues, model.perm & ~PERM_INHERIT, model.filter_type, model.sys_flag)
        )

    def ensure(self, name: str, queues: int, perm: int = PERM_READ_WRITE, sys_flag: int = 0) -> TopicConfig:
        """Return the topic, creating it with these values if there is none (retry and dead-letter topics).

        The limit is `max_topics`: its group exists, and groups have a limit of their own. With the lower
        limit of auto-created topics, a broker with many topics would refuse consumers.
        """
        config = self._table.get(name)
        if config is not None:
            return config
        self._check_room(name, self._max_topics)
        return self.put(TopicConfig(name, queues, queues, perm, sys_flag=sys_flag))

    def ensure_retry(self, group: str, queues: int = 1, *, unit: bool = False) -> TopicConfig:
        return self.ensure(retry_topic(group), max(1, queues), sys_flag=UNIT_SUBSCRIPTION if unit else 0)

    def ensure_pop_retry(self, name: str) -> TopicConfig:
        """Return the retry topic of popped messages, creating it if there is none. Raises NameError_ if the
        name is too long, TooManyTopicsError over the limit."""
        config = self._table.get(name)
        if config is None:
            check_stored_topic(name)
            self._check_room(name, self._max_topics)
            config = TopicConfig(name, 1, 1)
            self._take([config])
            self._changed([config])
        return config

    def ensure_own(self, name: str) -> TopicConfig:
        """Return a topic of one queue for records of this broker, creating it if there is none."""
        config = self._table.get(name)
        if config is None:
            config = TopicConfig(name, 1, 1)
            self._take([config])
            self._changed([config])
        return config

    def ensure_dead_letter(self, group: str) -> TopicConfig:
        return self.ensure(dead_letter_topic(group), 1)

    def set_order(self, names: Iterable[str]) -> None:
        """Mark topics as ordered, as the name server's ORDER_TOPIC_CONFIG lists them; nothing else is
        changed."""
        changed = [
            replace(config, order=True)
            for name in names
            if (config := self._table.get(name)) and not config.order
        ]
        for config in changed:
            self._table[config.name] = config
        if changed:
            self._changed(changed)

    def adopt(self, queues: Iterable[tuple[str, int]]) -> list[TopicConfig]:
        """Add topics that have queues in the store but no entry here; return those that were added."""
        highest: dict[str, int] = {}
        for name, queue_id in queues:
            highest[name] = max(highest.get(name, 0), queue_id)
        adopted = [
            TopicConfig(name, queue_id + 1, queue_id + 1)
            for name, queue_id in highest.items()
            if name not in self._table and self._may_be_created(name)
        ]
        self._take(adopted)
        if adopted:
            self._changed(adopted)
        return adopted

    def _may_be_created(self, name: str) -> bool:
        """True if clients may create a topic of this name. The trace topic is a system topic by name, but
        clients create it."""
        return not self.is_system(name) or name == self._trace_topic

    def check_room_for(self, name: str) -> None:
        """Raise TooManyTopicsError if `put` would, for a topic of this name."""
        if name not in self._table:
            self._check_room(name, self._max_topics)

    def _check_room(self, what: str, limit: int, new: int = 1) -> None:
        if len(self._table) + self._kept_room + new > limit:
            raise TooManyTopicsError(
                f"no room for {what}: there are {len(self._table)} topics", len(self._table), limit
            )

    def _changed(self, configs: Sequence[TopicConfig]) -> None:
        self.renew_version()
        self.on_change(configs)

    def renew_version(self, state_version: int | None = None) -> None:
        """Give the table a new version: a name server takes no registration with one that it has.
        `state_version` is the epoch of the master, in controller mode."""
        self.data_version = self.data_version.next(self._clock(), state_version)
        self.dirty = True

    # Persistence

    def to_json(self) -> dict:
        """Return the content of topics.json."""
        return {
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": {name: config.to_json() for name, config in self._table.items()},
        }

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the table as it is at its call, in any thread."""

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            version, configs = self.data_version, self.all()
            entries = ((config.name, config.to_json()) for config in configs)
            return config_json.write_table(
                {"dataVersion": version.to_json()}, "topicConfigTable", throttle.in_pieces(entries)
            )

        return text

    def load(self, text: str) -> None:
        """Take over a topics.json. Raises DamagedStoreError when it is invalid; then nothing has changed."""
        try:
            configs, version = read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place, or remove it and its .bak: topics with messages are "
                "found again."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self.take(configs, version)

    def take(self, configs: Iterable[TopicConfig], version: DataVersion) -> None:
        """Take over topics of a file or of a master. `on_change` is not called."""
        self.data_version = version
        self._take(configs)


def read_file(text: str) -> tuple[list[TopicConfig], DataVersion]:
    """Return the topics of a topics.json. Raises FormatError."""
    _, table, version = config_json.read_table(text, "topicConfigTable")
    try:
        configs = [TopicConfig.from_json(item) for item in table.values()]
        for config in configs:
            # a topic from `adopt` may have a longer name than a client may use
            check_stored_topic(config.name)
    except PeerError as error:
        raise FormatError(str(error)) from error
    return configs, version


_INTERNAL = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})
_ALWAYS_SYSTEM = frozenset({AUTO_CREATE_TOPIC, CHECK_MAX_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC"})


def _system_topics(
    cluster: str, broker: str, cluster_topic: bool, broker_topic: bool, revive_queues: int
) -> dict[str, TopicConfig]:
    """Return the topics that a new 5.3.3 broker creates at its start, with the same numbers and
    permissions."""
    inherit = PERM_READ_WRITE | PERM_INHERIT
    configs = [
        TopicConfig(cluster, 16, 16, inherit if cluster_topic else PERM_READ_WRITE),
        TopicConfig(broker, 1, 1, inherit if broker_topic else PERM_READ_WRITE),
        TopicConfig("BenchmarkTest", 1024, 1024),
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, DELAY_QUEUES, DELAY_QUEUES),
        TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1),
        TopicConfig(revive_topic(cluster), revive_queues, revive_queues),
        TopicConfig(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, 1, PERM_INHERIT),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OP_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
    ]
    return {config.name: config for config in configs}
