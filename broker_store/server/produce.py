"""Sends: 10, 310 and 320 (docs/spec/remoting.md section 3).

A handler checks a send and adds its message to the `SendGroup` (send_group.py), which stores all sends of one
turn of the loop in one call. The answers are written here, in one piece for each connection.

The broker adds four properties to those of the producer: MSG_REGION, CLUSTER, TRACE_ON, and UNIQ_KEY if it is
missing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from broker_store.access.resources import Action, on_cluster, on_group, on_topic
from broker_store.broker import flow, priorities
from broker_store.broker.pop.revive_log import AHEAD_MS, LOG_END, NEXT_OFFSET
from broker_store.broker.topics import MULTI_TAG, TooManyTopicsError, TopicConfig
from broker_store.config.broker import BrokerSettings
from broker_store.errors import FormatError, NameError_
from broker_store.formats import pop_records, properties, record
from broker_store.formats.names import RETRY_PREFIX, check_topic, popped_topic
from broker_store.formats.pop_records import PopCheckpoint
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.topics import FORBIDDEN_TO_SEND, HALF_TOPIC, PERM_WRITE
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION_WITH_MAX_TRIES, Command
from broker_store.protocol.framing import encode_frame, encode_send_answer
from broker_store.protocol.headers import SendHeader, read_send
from broker_store.server.channel import Channel
from broker_store.server.group_answers import GroupAnswers
from broker_store.server.handler import FAQ, Refusal, no_group, no_topic, require
from broker_store.server.logical_sends import Add, physical_send
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import ANSWERS, SENT, SendGroup
from broker_store.server.unique_ids import UniqueIds, find_unique_key
from broker_store.server.waiting import delay_level, make_half, make_wait, recall_handle_of

SEND_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
USUAL = int(RequestCode.SEND_MESSAGE_V2)  # what Apache's Java clients send
TRANSACTION_BITS = 0xC
IPV6_BITS = 0x30  # the store sets them from the hosts
INNER_BATCH_BIT = 0x80
SPECIAL_BITS = TRANSACTION_BITS | IPV6_BITS | INNER_BATCH_BIT
# Properties that delay a message, and the details of the delay.
_ASKING = properties.any_of(
    (
        properties.TRANSACTION_PREPARED,
        properties.DELAY,
        *properties.TIMER_ASKING,
        properties.TIMER_OUT_MS,
        properties.TIMER_DELETE_KEY,
    )
)


def added_properties(settings: BrokerSettings) -> dict[str, str]:
    """Return the properties that the broker adds to each message that a client sends, beside a missing
    UNIQ_KEY."""
    return {
        properties.MESSAGE_REGION: settings.region_id,
        properties.CLUSTER: settings.broker_cluster_name,
        properties.TRACE_ON: "true" if settings.trace_on else "false",
    }


def forbidden(topic: str) -> Refusal:
    """Return the refusal of a send to a topic that only the broker writes to."""
    return Refusal(
        ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.", "forbidden topic"
    )


class Produce:
    """The handlers of sends."""

    def __init__(self, parts: BrokerParts, group: SendGroup):
        settings = parts.settings
        self._parts = parts
        self._group = group
        self._store = parts.store
        self._topic_of = parts.topics.get
        self._static_topics = parts.static_topics.table
        # A record of the logs of pops moves messages of any group: only the broker writes them, but for those
        # of pops at other brokers (`_popped_elsewhere`).
        self._forbidden = FORBIDDEN_TO_SEND | {parts.revive_log.topic, parts.ordered.log.topic}
        self._store_host = parts.endpoint.store_host
        ip, port = parts.endpoint.store_host
        self._id_prefix = (ip + port.to_bytes(4, "big")).hex().upper()
        self._region = settings.region_id
        self._region_fields = {"MSG_REGION": settings.region_id, "TRACE_ON": "true"}
        self._take_added()
        parts.live.watch(("traceOn",), self._take_added)
        self._unique_ids = UniqueIds(parts)
        self._answers = GroupAnswers()
        self._histograms = parts.statistics.histograms
        # Answers of the group, without those to USUAL that succeeded: (code of the request, of the answer)
        self._unusual: Counter[tuple[int, int]] = Counter()
        group.on_answered = self._write_answers
        # Called with the command, its channel and a topic that was created for a send.
        self.on_topic_created: Callable[[Command, Channel, TopicConfig], None] = (
            lambda command, channel, config: None
        )

    def _take_added(self) -> None:
        added = added_properties(self._parts.settings)
        self._added, self._added_names = properties.encode(added), added.keys()

    def send(self, command: Command, channel: Channel) -> Command | None:
        """Handle a send of any of the three codes."""
        try:
            if self._store.rejects_sends is not None:
                raise self._busy()
            if (full := self._group.no_room_for(channel.remote)) is not None:
                raise Refusal(
                    ResponseCode.SYSTEM_BUSY, flow.OVERLOADED, full.cause, value=full.value, limit=full.limit
                )
            header = read_send(command)
            config = self._topic_of(header.topic)
            add = self._group.add
            if (
                config is None
                or header.reconsume_times > 0
                or header.topic[0] == "%"
                or header.topic in self._forbidden
                or header.topic in self._static_topics
            ):
                if header.topic == self._parts.revive_log.topic and config is not None:
                    header = self._popped_elsewhere(header, command, channel)
                else:
                    config = self._check_topic(header, config, channel, command)
                    header, add = physical_send(self._static_topics, header, command, add)
            queue_id = self._check_queue(header, config, channel)
            if not command.body:
                raise Refusal(
                    ResponseCode.MESSAGE_ILLEGAL, "the message is illegal, its body is empty", "empty body"
                )
            if header.batch:
                self._send_batch(command, channel, header, config, queue_id, add)
                return None
            text = header.properties
            encoded = text.encode("utf-8", "replace")
            unique_key = find_unique_key(text)
            if unique_key is None:
                unique_key = self._unique_ids.next()
                encoded = properties.append(encoded, f"UNIQ_KEY\x01{unique_key}\x02".encode())
            if encoded[-1] != 2:
                encoded += b"\x02"
            # Properties that need a check have an underscore in their name, except DELAY. Most messages have
            # one underscore, in UNIQ_KEY.
            careful = encoded.count(b"_") != 1 or b"DELAY\x01" in encoded
            if careful and (
                b"MSG_REGION\x01" in encoded or b"POP_CK\x01" in encoded or b"TRACE_ON\x01" in encoded
            ):
                encoded = self._without_ours(encoded)
            if careful and priorities.MARK in encoded:
                queue_id, encoded = priorities.placed(encoded, queue_id, config.write_queues)
            message = Message(
                header.topic,
                queue_id,
                command.body,
                encoded + self._added,
                header.flag,
                header.sys_flag
                if config.filter_type != MULTI_TAG
                else header.sys_flag | record.SYS_MULTI_TAGS,
                header.born_timestamp,
                channel.remote_host,
                self._store_host,
                header.reconsume_times,
            )
            if header.topic[0] == "%" and header.topic.startswith(RETRY_PREFIX):
                self._dead_letter_when_spent(message, header, command, channel)
            if careful or header.sys_flag & SPECIAL_BITS:
                self._check_special(message, header)
        except Refusal as refusal:
            refusal.fields = self._region_fields
            raise
        if message.topic == TIMER_TOPIC:
            handle = recall_handle_of(self._parts, message, header.topic, unique_key)
            add(message, self._timer_stored, (command, channel, unique_key, queue_id, handle), expires=True)
        elif message.topic == HALF_TOPIC:
            topic = properties.get(message.properties, properties.REAL_TOPIC) or header.topic
            add(message, self._half_stored, (command, channel, unique_key, queue_id, topic), expires=True)
        else:
            add(message, self._stored, (command, channel, unique_key, queue_id), expires=True)
        return None

    def _send_batch(
        self,
        command: Command,
        channel: Channel,
        header: SendHeader,
        config: TopicConfig,
        queue_id: int,
        add: Add,
    ) -> None:
        """Add a batch. Its body is a chain of messages with their own properties; those of the header are not
        used."""
        if header.topic.startswith(RETRY_PREFIX):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {header.topic}",
                "batch",
            )
        if header.sys_flag & TRANSACTION_BITS or properties.get_some(
            header.properties.encode("utf-8", "replace"), _ASKING
        ):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional", "batch"
            )
        tags_flag = record.SYS_MULTI_TAGS if config.filter_type == MULTI_TAG else 0
        message = Message(
            header.topic,
            queue_id,
            command.body,
            self._added,
            header.flag,
            header.sys_flag & ~SPECIAL_BITS | tags_flag,
            header.born_timestamp,
            channel.remote_host,
            self._store_host,
            header.reconsume_times,
        )
        add(message, self._stored, (command, channel, None, queue_id), batch=True, expires=True)

    # Checks in the order of Apache's

    def _check_topic(
        self, header: SendHeader, config: TopicConfig | None, channel: Channel, command: Command
    ) -> TopicConfig:
        topic = header.topic
        try:
            if topic in self._forbidden:
                raise forbidden(topic)
            if config is None:
                config = self._create_topic(header, command, channel)
                if config is not None:
                    self.on_topic_created(command, channel, config)
        except NameError_ as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error), "topic name") from None
        except TooManyTopicsError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, str(error), "too many topics", value=error.value, limit=error.limit
            ) from None
        if config is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic:.255}] not exist, apply first please!{FAQ}",
                "no topic",
            )
        return config

    def _popped_elsewhere(self, header: SendHeader, command: Command, channel: Channel) -> SendHeader:
        """Return the header of a record for the revive log that a slave sends which acts for its master,
        without the properties that only this broker sets. Raises Refusal for a record of a pop at this
        broker, or of none, and where the popped messages cannot come again: without topic or group here."""
        encoded = header.properties.encode("utf-8", "replace")
        try:
            found = pop_records.decode_record(properties.get(encoded, properties.TAGS), command.body)
            key = found.key
            popped = popped_topic(key.topic, key.group)
            check_topic(popped)
        except (FormatError, NameError_):
            raise forbidden(header.topic) from None
        if key.broker_name in ("", self._parts.broker_name) or header.batch:
            raise forbidden(header.topic)
        # It lets the group have messages of the topic, or an acknowledgement keeps them from it. And this
        # broker asks the one that is named, which is a request of its own, of a super user.
        require(
            self._parts,
            command,
            channel,
            on_topic(popped, Action.SUB),
            on_group(key.group, Action.SUB),
            on_cluster(self._parts.cluster, Action.UPDATE),
        )
        if self._topic_of(popped) is None:
            raise no_topic(popped)
        try:
            group = self._parts.groups.find_or_create(key.group, (command, channel))
        except NameError_:
            raise forbidden(header.topic) from None
        if group is None:
            raise no_group(key.group)
        changes: dict[str, str | None] = dict.fromkeys((NEXT_OFFSET, LOG_END))
        due_ms = found.revive_ms - AHEAD_MS if isinstance(found, PopCheckpoint) else 0
        if due_ms > self._parts.clock():
            # As this broker's own it waits in the timer: in the revive log it would be held in memory
            changes |= {**dict.fromkeys(properties.TIMER_ASKING), properties.TIMER_DELIVER_MS: str(due_ms)}
        changed = properties.set_values(encoded, changes)
        return header._replace(properties=changed.decode("utf-8"))

    def _create_topic(self, header: SendHeader, command: Command, channel: Channel) -> TopicConfig | None:
        topics = self._parts.topics
        if header.topic.startswith(RETRY_PREFIX):
            group = header.topic[len(RETRY_PREFIX) :]
            found = self._parts.groups.find_or_create(group, (command, channel))
            if found is None:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group not exist, {group:.120} {FAQ}",
                    "no group",
                )
            return topics.ensure_retry(group, found.retry_queue_nums)
        return topics.auto_create(header.topic, header.default_topic, header.default_topic_queue_nums)

    def _check_queue(self, header: SendHeader, config: TopicConfig, channel: Channel) -> int:
        """Return the queue for the message: the requested one, or a random one for a negative number."""
        queue_id = header.queue_id
        if not self._parts.settings.broker_permission & PERM_WRITE and config.order:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._parts.settings.broker_ip1}] sending message is forbidden",
                "permission",
            )
        if queue_id < 0:
            return random.randrange(max(1, config.write_queues))
        if queue_id >= config.write_queues and queue_id >= config.read_queues:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config.describe()} Producer: {channel.remote}",
                "queue id",
                value=queue_id,
                limit=config.queues - 1,
            )
        return queue_id

    def _check_special(self, message: Message, header: SendHeader) -> None:
        """Change a message that waits: a half message for the end of its transaction, others for a delay
        level or a time of delivery."""
        if header.sys_flag & INNER_BATCH_BIT:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, "inner batches are not supported by this broker", "inner batch"
            )
        message.sys_flag &= ~IPV6_BITS
        encoded = message.properties
        if not (
            header.sys_flag & TRANSACTION_BITS
            or b"TRAN_MSG\x01" in encoded
            or b"TIMER_" in encoded
            or b"DELAY\x01" in encoded
        ):
            return
        pairs = properties.get_some(encoded, _ASKING)
        level = delay_level(pairs)
        half = pairs.get(properties.TRANSACTION_PREPARED, "").lower() == "true"
        if half and not (header.reconsume_times > 0 and level > 0):
            make_half(self._parts, message)
            return
        if header.sys_flag & TRANSACTION_BITS:
            remark = (
                "the transaction bits of the system flag need the property TRAN_MSG; "
                "the broker sets those of a commit"
            )
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, remark, "transaction")
        make_wait(self._parts, message, pairs)

    def _dead_letter_when_spent(
        self, message: Message, header: SendHeader, command: Command, channel: Channel
    ) -> None:
        """Change a message of a retry topic to a dead letter if its tries are used up.

        A consumer that cannot use CONSUMER_SEND_MSG_BACK sends to the retry topic itself. A group that holds
        queue locks consumes in order and tries again in the client, so its message becomes a dead letter at
        once.
        """
        group_name = header.topic[len(RETRY_PREFIX) :]
        group = self._parts.groups.find_or_create(group_name, (command, channel))
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name:.120} {FAQ}",
                "no group",
            )
        most = group.max_tries(
            header.max_reconsume_times if command.version >= VERSION_WITH_MAX_TRIES else None
        )
        if header.reconsume_times > most or self._parts.locks.held(group_name, self._parts.clock()):
            try:
                topic = self._parts.topics.ensure_dead_letter(group_name)
            except TooManyTopicsError as error:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    str(error),
                    "too many topics",
                    value=error.value,
                    limit=error.limit,
                ) from None
            message.topic, message.queue_id = topic.name, 0
            message.properties = properties.set_values(message.properties, {properties.DELAY: "-1"})

    def _without_ours(self, encoded: bytes) -> bytes:
        """Return the properties without those that the broker adds. A consumer that sends a message back
        includes them."""
        gone = dict.fromkeys(self._added_names | {properties.POP_CHECKPOINT})
        return properties.set_values(encoded, gone)

    # Answers

    def _write_answers(self, took_s: float) -> None:
        """Write the answers of a group whose first message came `took_s` ago, and count them."""
        usual = self._answers.write()
        if self._unusual:
            for (code, answer), number in self._unusual.items():
                self._histograms.answered(code, answer, took_s, number)
                usual -= number
            self._unusual.clear()
        if usual:
            self._histograms.answered(USUAL, ResponseCode.SUCCESS, took_s, usual)

    def _busy(self) -> Refusal:
        """Return the reason why no send is accepted now: the broker is a slave, its page cache is busy, or no
        buffer of the pool is free."""
        if self._store.rejects_sends in ("slave", "no_buffer"):
            return Refusal(
                ResponseCode.SYSTEM_BUSY, flow.REJECTED, self._store.rejects_sends.replace("_", " ")
            )
        limit_ms = self._parts.store_settings.os_page_cache_busy_time_out_mills
        return Refusal(
            ResponseCode.SYSTEM_BUSY,
            flow.REJECTED,
            "page cache busy",
            value=self._store.appender.busy_took_ms,
            limit=limit_ms,
        )

    def _timer_stored(
        self, context: tuple[Command, Channel, str, int, str | None], result: PutResult
    ) -> None:
        command, channel, unique_key, queue_id, handle = context
        if handle is None or result.status not in SENT:
            self._stored(context[:4], result)
        elif not command.is_oneway and not channel.closed:
            code = 0 if result.status is PutStatus.PUT_OK else int(ANSWERS[result.status][0])
            message_id = f"{self._id_prefix}{result.log_offset:016X}"
            frame = encode_send_answer(
                command,
                message_id,
                queue_id,
                result.queue_offset,
                unique_key,
                self._region,
                code,
                recall_handle=handle,
            )
            if code or command.code != USUAL:
                self._unusual[command.code, code] += 1
            self._answers.add(channel, frame)

    def _half_stored(self, context: tuple[Command, Channel, str | None, int, str], result: PutResult) -> None:
        if result.status in SENT:
            self._parts.transactions.prepared(context[4])
        self._stored(context[:4], result)

    def _stored(self, context: tuple[Command, Channel, str | None, int], result: PutResult) -> None:
        command, channel, unique_key, queue_id = context
        if command.flag & 2 or channel.closed:
            return
        if result.status in SENT:
            if result.log_offsets and len(result.log_offsets) > 1:
                prefix = self._id_prefix
                ids = ",".join([f"{prefix}{offset:016X}" for offset in result.log_offsets])
            else:
                ids = f"{self._id_prefix}{result.log_offset:016X}"
            code = 0 if result.status is PutStatus.PUT_OK else int(ANSWERS[result.status][0])
            frame = encode_send_answer(
                command, ids, queue_id, result.queue_offset, unique_key, self._region, code
            )
        else:
            code, remark = int(ANSWERS[result.status][0]), self._group.remark(result.status)
            frame = encode_frame(command.answer(code, remark, dict(self._region_fields)))
        if code or command.code != USUAL:
            self._unusual[command.code, code] += 1
        self._answers.add(channel, frame)
