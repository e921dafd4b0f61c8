"""Topics of the broker in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from broker_store.broker.topics import TopicConfig
from broker_store.engine.store_protocol import Store
from broker_store.errors import NotFoundError
from broker_store.formats import names
from broker_store.formats.topics import MESSAGE_TYPE, MIXED, NORMAL
from broker_store.rest.http import MAX_LIMIT
from broker_store.rest.problems import BROKERS_OWN_HINT, Problem
from broker_store.server.admin.topics import forget_topic
from broker_store.server.attributes import check_message_type
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns
from broker_store.units import fields_of
from mqadmin.cluster.embedded import write_routes
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.pops import invisible_of, popped_from
from mqadmin.cluster.protocol import Topics
from mqadmin.facts.topics import Queue, Reader, Topic, TopicDetail

Row = TypeVar("Row")

ROWS_PER_PIECE = 16  # topics or groups between two readings of the clock; rows of 1,000 took 20 to 35 ms


def config_of(parts: BrokerParts, name: str) -> TopicConfig:
    """Return a topic's settings. Raises NotFoundError."""
    config = parts.topics.get(name)
    if config is None:
        raise NotFoundError(f"topic {name} does not exist")
    return config


def queue_ids_of(parts: BrokerParts, config: TopicConfig) -> list[int]:
    """Return the ids of the topic's queues, and of queues that hold messages from a time when it had more."""
    return sorted({*range(config.queues), *parts.store.queue_ids(config.name)})


def kept_messages(store: Store, topic: str) -> int:
    """Return the number of messages that a topic holds; 0 if it does not exist."""
    return sum(
        store.reads.max_offset(topic, queue_id) - store.reads.min_offset(topic, queue_id)
        for queue_id in store.queue_ids(topic)
    )


async def rows_in_turns(rows: Callable[[Iterable[str]], list[Row]], wanted: Sequence[str]) -> list[Row]:
    """Return `rows(wanted)`, made in turns of the loop."""
    found: list[Row] = []
    async for some in in_turns(wanted, ROWS_PER_PIECE):
        found += rows(some)
    return found


def known_time(time_ms: int | None) -> int | None:
    """Return a time in ms; None for the engine's -1 and 0, which mean "unknown"."""
    return time_ms if time_ms is not None and time_ms > 0 else None


class EmbeddedTopics(Topics):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    def counts(self) -> dict[str, int]:
        return self._host.listings.topic_counts()

    def offered(self) -> list[str]:
        return self._host.listings.offered_topics()

    def names(self) -> Sequence[str]:
        return self._host.parts.topics.names.all()

    def rows(self, wanted: Iterable[str]) -> list[Topic]:
        topics = self._host.parts.topics
        return [self._row(config) for name in wanted if (config := topics.get(name)) is not None]

    async def page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Topic], int]:
        found, total = await self._host.listings.topic_names(kind, search, sort, begin, count)
        return self.rows(found), total

    def after(self, name: str | None, count: int, kind: str | None = None) -> list[Topic]:
        return self.rows(self._host.parts.topics.names.after(name, count, kind))

    async def every(self) -> list[Topic]:
        return await rows_in_turns(self.rows, self.names())

    async def busiest(self, limit: int) -> list[Topic]:
        return await rows_in_turns(self.rows, await self._host.listings.busiest_topics(limit))

    def _row(self, config: TopicConfig) -> Topic:
        parts = self._host.parts
        return Topic(
            name=config.name,
            kind=parts.topics.kind(config.name),
            read_queues=config.read_queues,
            write_queues=config.write_queues,
            perm=config.perm,
            order=config.order,
            message_type=config.attributes.get(MESSAGE_TYPE, NORMAL),
            messages=kept_messages(parts.store, config.name),
            in_per_s=parts.statistics.put_rate(config.name),
            out_per_s=parts.statistics.out_rate(config.name),
            groups=len(parts.offsets.groups_of_topic(config.name)),
        )

    def detail(self, name: str) -> TopicDetail:
        parts = self._host.parts
        config = config_of(parts, name)
        groups = sorted({*parts.offsets.groups_of_topic(name), *parts.clients.groups_of_topic(name)})
        queues = [self._queue(name, queue_id) for queue_id in queue_ids_of(parts, config)]
        popped_by, popped_of = popped_from(parts, name) or (None, None)
        store_times = [queue.last_store_ms for queue in queues if queue.last_store_ms is not None]
        return TopicDetail(
            **fields_of(self._row(config)) | {"groups": len(groups)},
            attributes=dict(config.attributes),
            is_writable=config.writable,
            withheld=write_routes.remedy(parts) if write_routes.is_topic_withheld(parts, config) else None,
            last_store_ms=max(store_times, default=None),
            popped_by=popped_by,
            popped_from=popped_of,
            queues=queues,
            readers=[self._reader(group, name) for group in groups],
        )

    def _reader(self, group: str, topic: str) -> Reader:
        parts = self._host.parts
        invisible = invisible_of(parts, group, topic)
        came_again = sum(
            parts.in_flight.invisible_of(group, names.pop_retry_topic(topic, group, version=version))
            for version in (1, 2)
        )
        return Reader(
            group=group,
            lag=self._host.listings.lag(group, topic),
            clients=len(parts.clients.consumers(group)),
            invisible=invisible.messages + came_again,
            invisible_doubt=invisible.doubt,
        )

    def _queue(self, topic: str, queue_id: int) -> Queue:
        reads = self._host.parts.store.reads
        low, high = reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
        return Queue(
            queue_id=queue_id,
            min_offset=low,
            max_offset=high,
            messages=high - low,
            earliest_store_ms=known_time(reads.times.earliest_store_time(topic, queue_id))
            if high > low
            else None,
            last_store_ms=reads.times.last_store_time(topic, queue_id),
        )

    def create(
        self,
        name: str,
        read_queues: int,
        write_queues: int,
        perm: int,
        order: bool,
        message_type: str = NORMAL,
    ) -> None:
        self._check_not_system(name)
        config = TopicConfig(names.check_topic(name), read_queues, write_queues, perm, order=order)
        if message_type != NORMAL:
            config = self._of_type(config, message_type)
        self._host.parts.topics.put(config)

    def update(self, name: str, **changes: Any) -> None:
        self._check_not_system(name)
        parts = self._host.parts
        message_type = changes.pop("message_type", None)
        config = replace(config_of(parts, name), **changes)
        least = parts.static_topics.least_queues(name)
        if config.queues < least:
            raise Problem(
                "invalid", f"the static topic {name} has {least} queues here, of at least {config.queues}"
            )
        parts.topics.put(config if message_type is None else self._of_type(config, message_type))

    def _of_type(self, config: TopicConfig, message_type: str) -> TopicConfig:
        """Return the settings with another type of messages. Raises Problem with the sentence that the
        broker port has for a type that it refuses."""
        attributes = {**config.attributes, MESSAGE_TYPE: message_type}
        try:
            check_message_type(attributes, self._host.parts.settings.enable_mixed_message_type)
        except Refusal as refusal:
            hint = "MIXED needs the setting enableMixedMessageType" if message_type == MIXED else None
            raise Problem("invalid", refusal.remark, hint) from None
        return replace(config, attributes=attributes)

    def delete(self, name: str) -> None:
        self._check_not_system(name)
        parts, broker = self._host.parts, self._host.process.broker
        config_of(parts, name)
        forget_topic(parts, name)
        if broker is not None and broker.registration is not None:
            broker.registration.delete_topic(name)

    def _check_not_system(self, name: str) -> None:
        if self._host.parts.topics.is_system(name):
            raise Problem("forbidden", f"topic {name} belongs to the broker itself", BROKERS_OWN_HINT)
