"""Static topics: create, change, move to other brokers: 513. All of it is one request, which gives a broker
its rows of the mapping; Apache's mqadmin makes the rows and the order of its requests."""

from __future__ import annotations

from collections.abc import Callable

from broker_store.broker.static_topics import following
from broker_store.broker.topics import TopicConfig
from broker_store.errors import FieldError, FormatError
from broker_store.formats.static_topics import MAX_ITEMS, MAX_LOGICAL_QUEUES, TopicMapping
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.admin.topics import check_config
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts


class StaticTopicAdmin:
    """The handler of static topics."""

    def __init__(self, parts: BrokerParts, end_pulls: Callable[[str], None]):
        """`end_pulls(topic)` answers the parked pulls of a topic whose queues may have moved."""
        self._parts, self._end_pulls = parts, end_pulls

    def handlers(self) -> Handlers:
        return {R.UPDATE_AND_CREATE_STATIC_TOPIC: self.put}

    async def put(self, command: Command, channel: Channel) -> Command:
        """Create or change a static topic. Its mapping is on disk before it acts and before the answer:
        without it the offsets of messages that are sent then would be others after a crash."""
        parts = self._parts
        header = read_header(R.UPDATE_AND_CREATE_STATIC_TOPIC, command.fields)
        old = parts.topics.get(header.topic)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type or "SINGLE_TAG",
            header.topic_sys_flag or 0,
            old.order if old else False,
            old.attributes if old else {},
        )
        check_config(parts, config, max_queues=MAX_LOGICAL_QUEUES)
        given = _mapping_of(command.body)
        _check(given, config, parts.broker_name)

        def change(before: TopicMapping | None) -> TopicMapping:
            parts.topics.check_room_for(header.topic)
            return following(before, given, force=bool(header.force))

        await parts.static_topic_changes.make(header.topic, change)
        # After the mapping, which is registered with the topic
        parts.topics.put(config)
        self._end_pulls(header.topic)
        return command.answer()


def _mapping_of(body: bytes) -> TopicMapping:
    try:
        return TopicMapping.from_json(fastjson.loads(body))
    except FormatError as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error), "mapping") from None


def _check(mapping: TopicMapping, config: TopicConfig, broker: str) -> None:
    """Raise an error for a mapping that is not of this broker and topic, or that exceeds a bound."""
    if mapping.topic != config.name:
        raise FieldError("topic", mapping.topic, f"{config.name}, as in the header")
    if mapping.broker != broker:
        raise FieldError("bname", mapping.broker, f"{broker}, the name of this broker")
    if mapping.total_queues > MAX_LOGICAL_QUEUES:
        raise FieldError("totalQueues", mapping.total_queues, f"at most {MAX_LOGICAL_QUEUES}")
    for number, row in mapping.rows.items():
        if number >= mapping.total_queues:
            raise FieldError("hostedQueues", number, f"queues below totalQueues {mapping.total_queues}")
        if len(row) > MAX_ITEMS:
            raise FieldError(f"hostedQueues {number}", len(row), f"at most {MAX_ITEMS} items")
        for item in row:
            if item.broker == broker and item.queue_id >= config.queues:
                raise FieldError(
                    f"queueId of queue {number}", item.queue_id, f"less than the {config.queues} of the topic"
                )
