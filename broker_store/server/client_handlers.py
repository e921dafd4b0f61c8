"""Heartbeats of clients, members of groups, and distribution of queues: 34, 35, 38, 46, 400.

When a consumer group changes, each of its members is notified (40), also the one that caused the change, and
they distribute the queues again.
"""

from __future__ import annotations

from broker_store.broker import filters
from broker_store.broker.clients import MAX_CLIENT_ID_CHARACTERS, ConsumerGroup
from broker_store.broker.filters import FilterError
from broker_store.broker.groups import Cause
from broker_store.broker.property_filters import MAX_COMPILED
from broker_store.broker.topics import TooManyTopicsError
from broker_store.errors import FieldError
from broker_store.formats.names import check_group, check_topic
from broker_store.protocol import client_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header, write_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.pull_checks import no_filter


class ClientHandlers:
    """The handlers of heartbeats, membership and assignment."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        parts.clients.on_group_changed = self._notify_members
        parts.clients.on_group_gone = parts.property_filters.group_gone

    def handlers(self) -> Handlers:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    def heartbeat(self, command: Command, channel: Channel) -> Command:
        access = self._parts.access
        user = None if access is None else access.proved_name(command.code, command.fields)
        changed = self.register((command, channel), client_bodies.decode_heartbeat(command.body), user)
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        return command.answer(0, None, fields)

    def register(self, cause: Cause, beat: client_bodies.Heartbeat, user: str | None = None) -> bool:
        """Take the groups of a client; return whether their subscriptions have changed. `user` is the name
        that the client has proved. Raises PeerError and Refusal; then nothing is changed but that groups may
        have been created."""
        self._check(beat)
        parts = self._parts
        for consumer in beat.consumers:
            group = parts.groups.find_or_create(consumer.group, cause)
            if group is None:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group not exist, {consumer.group}",
                )
            try:
                parts.topics.ensure_retry(consumer.group, group.retry_queue_nums, unit=consumer.unit_mode)
            except TooManyTopicsError as error:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    str(error),
                    "too many topics",
                    value=error.value,
                    limit=error.limit,
                ) from None
        command, channel = cause
        changed = parts.clients.heartbeat(
            channel, beat, command.language, command.version, parts.clock(), user
        )
        if not beat.without_sub:
            room = MAX_COMPILED
            for consumer in beat.consumers:
                wanted = map(filters.of_heartbeat, consumer.subscriptions)
                room = parts.property_filters.register(consumer.group, wanted, room)
        return changed

    def _check(self, beat: client_bodies.Heartbeat) -> None:
        """Check names, numbers and expressions, before anything is changed."""
        if not 0 < len(beat.client_id) <= MAX_CLIENT_ID_CHARACTERS:
            raise FieldError("clientID", beat.client_id, f"1 to {MAX_CLIENT_ID_CHARACTERS} characters")
        for name in beat.producers:
            check_group(name)
        for consumer in beat.consumers:
            check_group(consumer.group)
            for subscription in consumer.subscriptions:
                check_topic(subscription.topic)
                filters.of_heartbeat(subscription)

    def _notify_members(self, group: ConsumerGroup) -> None:
        if not self._parts.settings.notify_consumer_ids_changed_enable:
            return
        config = self._parts.groups.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        fields = write_header(code, consumer_group=group.name)
        for channel in list(group.members):
            channel.write(Command.request(int(code), fields, oneway=True))

    def unregister(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.UNREGISTER_CLIENT, command.fields)
        self._parts.clients.unregister(
            channel, header.client_id, header.producer_group, header.consumer_group
        )
        return command.answer(0, None, {})

    def consumer_list(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.GET_CONSUMER_LIST_BY_GROUP, command.fields)
        group = self._parts.clients.consumer_group(header.consumer_group)
        if group is None or not group.members:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group:.120}", {}
            )
        return command.answer(0, None, {}, client_bodies.encode_consumer_list(group.client_ids()))

    def check_client(self, command: Command, channel: Channel) -> Command:
        if not command.body:
            return command.answer()
        check = client_bodies.decode_client_check(command.body)
        subscription = check.subscription
        expression, kind = subscription.expression, subscription.expression_type
        if filters.is_tag_type(kind):
            filters.parse(subscription.topic, expression, kind)
            return command.answer()
        if not self._parts.settings.enable_property_filter:
            return command.answer(ResponseCode.SYSTEM_ERROR, no_filter(kind))
        try:
            filters.property_filter(expression, kind)
        except FilterError as error:
            return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.remark)
        return command.answer()
