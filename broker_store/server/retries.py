"""Messages that a consumer sends back: 36 (docs/spec/store-behaviour.md section 11).

Such a message is delivered again through the group's retry topic, after a delay level that grows with its
tries. When the tries are used up it goes to the group's dead letter topic. `produce` checks messages that
clients send to the retry topic themselves.
"""

from __future__ import annotations

from broker_store.access.resources import Action, on_topic
from broker_store.broker.topics import TooManyTopicsError
from broker_store.formats import properties, record
from broker_store.formats.names import RETRY_PREFIX, check_group
from broker_store.formats.topics import PERM_WRITE
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION_WITH_MAX_TRIES, Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.pop import RETRY_V1, RETRY_V2, topic_of
from broker_store.server.channel import Channel, when_read
from broker_store.server.handler import FAQ, Answer, Handlers, Refusal, require
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import SendGroup

FIRST_RETRY_LEVEL = 3


class Retries:
    """The handler of send-backs."""

    def __init__(self, parts: BrokerParts, group: SendGroup):
        self._parts, self._group = parts, group

    def handlers(self) -> Handlers:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, command: Command, channel: Channel) -> Answer:
        """Store a message for a later try, or as a dead letter if its tries are used up."""
        header = read_header(RequestCode.CONSUMER_SEND_MSG_BACK, command.fields)
        parts = self._parts
        check_group(header.group)
        group = parts.groups.find_or_create(header.group, (command, channel))
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group} {FAQ}",
                "no group",
            )
        if not parts.settings.broker_permission & PERM_WRITE:
            remark = f"the broker[{parts.settings.broker_ip1}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark, "permission")
        if group.retry_queue_nums <= 0:
            return command.answer()
        try:
            topic = parts.topics.ensure_retry(
                header.group, group.retry_queue_nums, unit=bool(header.unit_mode)
            )
        except TooManyTopicsError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, str(error), "too many topics", value=error.value, limit=error.limit
            ) from None
        if not topic.writable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.name}] sending message is forbidden",
                "permission",
            )
        came_s = channel.came_s
        client_says = header.max_reconsume_times if command.version >= VERSION_WITH_MAX_TRIES else None

        def store_again(raw: bytes | None) -> Command | None:
            if raw is None:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"look message by offset failed, {header.offset}",
                    "no message",
                    value=header.offset,
                )
            stored = record.decode(raw, check_crc=False)
            if not _is_of_group(stored, header.group):
                require(parts, command, channel, on_topic(stored.topic, Action.SUB))
            spent = header.delay_level < 0 or stored.reconsume_times >= group.max_tries(client_says)
            if spent:
                message = dead_letter(parts, stored, header.group)
            else:
                message = _tried(parts, stored)
                # The topic may have been created when the group had fewer queues. Consumers read only the
                # group's queues.
                message.topic, message.queue_id = (
                    topic.name,
                    _retry_queue(stored, min(group.retry_queue_nums, topic.read_queues)),
                )
                parts.delay.schedule(
                    message, header.delay_level or FIRST_RETRY_LEVEL + max(0, stored.reconsume_times)
                )
            origin = stored.properties.get(properties.RETRY_TOPIC, stored.topic)
            self._group.add(
                message, self._sent_back, (command, channel, header.group, origin, came_s), expires=True
            )
            return None

        return when_read(channel, parts.store.reads.records.record_now(header.offset), store_again)

    def _sent_back(self, context: tuple[Command, Channel, str, str, float], result: PutResult) -> None:
        command, channel, group, origin, came_s = context
        # The origin is a property, which may have any text, so only a topic that exists gets a meter.
        if result.status is PutStatus.PUT_OK and self._parts.topics.get(origin) is not None:
            self._parts.statistics.sent_back(group, origin)
        if command.flag & 2 or channel.closed:
            return
        if result.status is PutStatus.PUT_OK:
            answer = command.answer()
        else:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, result.status.name)
        channel.write(answer)
        self._parts.statistics.histograms.answered_now(command.code, answer.code, came_s)


def _is_of_group(stored: record.StoredMessage, group: str) -> bool:
    """Return True if a message was read from a retry topic of a group, to which the group has a right."""
    origin = stored.properties.get(properties.RETRY_TOPIC, "")
    return any(stored.topic == topic_of(origin, group, kind) for kind in (RETRY_V1, RETRY_V2))


def dead_letter(parts: BrokerParts, stored: record.StoredMessage, group: str) -> Message:
    """Return a message that a group gives up, for its dead letter topic. REAL_TOPIC and REAL_QID of its last
    try stay, as in Apache's. Raises Refusal if the topic cannot be created."""
    message = _tried(parts, stored)
    try:
        message.topic, message.queue_id = parts.topics.ensure_dead_letter(group).name, 0
    except TooManyTopicsError as error:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, str(error), "too many topics", value=error.value, limit=error.limit
        ) from None
    message.properties = properties.set_values(message.properties, {properties.DELAY: "0"})
    return message


def _tried(parts: BrokerParts, stored: record.StoredMessage) -> Message:
    """Return the message with one more try, and with properties that name its origin."""
    known = stored.properties
    changes: dict[str, str | None] = {properties.WAIT: "false"}
    if properties.RETRY_TOPIC not in known:
        changes[properties.RETRY_TOPIC] = stored.topic
    if properties.ORIGIN_MESSAGE_ID not in known:
        changes[properties.ORIGIN_MESSAGE_ID] = stored.offset_id
    message = stored.as_message(
        stored.topic, stored.queue_id, properties.set_values(stored.raw_properties, changes)
    )
    message.store_host = parts.endpoint.store_host
    message.reconsume_times = min(stored.reconsume_times + 1, record.MAX_TRIES)
    return message


def _retry_queue(stored: record.StoredMessage, queues: int) -> int:
    """Return the retry queue of a message: its own if it comes from a retry topic, else one by its log
    offset."""
    if stored.topic.startswith(RETRY_PREFIX) and stored.queue_id < queues:
        return stored.queue_id
    return stored.log_offset % queues if queues > 1 else 0
