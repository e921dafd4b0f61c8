"""Consumer groups: create, change, read, delete."""

from __future__ import annotations

import time

from broker_store.broker.groups import MAX_GROUP_BYTES, SubscriptionGroup, check_retry_policy
from broker_store.broker.topics import (
    MAX_QUEUES,
)
from broker_store.errors import FieldError, FormatError, NameError_
from broker_store.formats.names import check_group
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server import attributes
from broker_store.server.admin.answers import items_of, table_answer
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns


def forget_group(parts: BrokerParts, group: str, *, clean_offset: bool) -> bool:
    """Delete a group. Return False if it did not exist. Its retry and dead letter topics stay.

    Without `clean_offset` a new group of the name goes on where this one was, and what it popped comes again.
    Raises StoreError; the group is there then.
    """
    if clean_offset and parts.offsets.topics_of(group):
        parts.deleted_groups.add(group)
    known = parts.groups.delete(group)
    parts.ordered.forget(group=group)
    if clean_offset:
        parts.offsets.forget_group(group)
        parts.offsets.group_deletions = parts.deleted_groups.number
        parts.pop_positions.drop_group(group)
        parts.broadcast.forget(group=group)
        parts.in_flight.forget_pops(group)
    parts.statistics.forget_group(group)
    parts.in_flight.forget_counts(group)
    parts.revive_log.counts.forget_group(group)
    return known


class GroupAdmin:
    """The handlers of groups."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_groups,
            R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            R.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            R.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            R.UPDATE_AND_GET_GROUP_FORBIDDEN: self.group_forbidden,
        }

    def put_group(self, command: Command, channel: Channel) -> Command:
        """Create or change a group."""
        began_s, done = time.monotonic(), False
        try:
            self._parts.groups.put(self._read_group(fastjson.loads(command.body)))
            done = True
        finally:
            self._parts.statistics.histograms.group_put(time.monotonic() - began_s, done=done)
        return command.answer()

    async def put_groups(self, command: Command, channel: Channel) -> Command:
        groups: list[SubscriptionGroup] = []
        async for values in in_turns(items_of(command.body, "groupConfigList")):
            groups += map(self._read_group, values)
        self._parts.groups.put_all(groups)
        return command.answer()

    def _read_group(self, value: object) -> SubscriptionGroup:
        """Return a group from Apache's JSON object. Raises Refusal, FieldError or NameError_ if it is not
        valid."""
        try:
            group = SubscriptionGroup.from_json(value)
        except FormatError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
        check_group(group.name)
        old = self._parts.groups.get(group.name)
        known = old.attributes if old else {}
        if group.attributes:
            group.attributes = dict(attributes.altered_by_item(known, group.attributes))
        else:  # no change, as by Apache's broker
            group.attributes = known
        attributes.check_group_attributes(known, group.attributes)
        try:
            check_retry_policy(group.retry_policy)
        except FormatError as error:
            raise FieldError("groupRetryPolicy", group.retry_policy, str(error)) from None
        if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
            raise FieldError("retryQueueNums", group.retry_queue_nums, f"0 to {MAX_QUEUES}")
        characters = len(fastjson.dumps(group.to_json()))
        if characters > MAX_GROUP_BYTES:
            raise FieldError(
                "group", characters, f"at most {MAX_GROUP_BYTES} bytes of settings and attributes"
            )
        return group

    def all_groups(self, command: Command, channel: Channel) -> Answer:
        groups = self._parts.groups.all()
        head = {
            "dataVersion": self._parts.groups.data_version.to_json(),
            "forbiddenTable": self._parts.groups.forbidden(),
        }
        entries = ((group.name, group.to_json()) for group in groups)
        return table_answer(
            command, {"totalGroupNum": str(len(groups))}, head, "subscriptionGroupTable", entries, len(groups)
        )

    def group_config(self, command: Command, channel: Channel) -> Command:
        """Return the settings of a group. It is created if it may be: Apache's proxy asks for the group of a
        new consumer and refuses the consumer if there is none."""
        name = read_header(R.GET_SUBSCRIPTIONGROUP_CONFIG, command.fields).group
        try:
            group = self._parts.groups.find_or_create(name, (command, channel))
        except NameError_:
            group = None
        if group is None:
            return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return command.answer(0, None, None, fastjson.dumps(group.to_json()))

    def group_forbidden(self, command: Command, channel: Channel) -> Command:
        """Return whether a group may read a topic, after a change if the request has one."""
        header = read_header(R.UPDATE_AND_GET_GROUP_FORBIDDEN, command.fields)
        groups = self._parts.groups
        if header.readable is not None:
            if groups.get(header.group) is None:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"Group {header.group:.120} not exist!",
                    "no group",
                )
            if self._parts.topics.get(header.topic) is None:
                raise Refusal(
                    ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic:.255} not exist!", "no topic"
                )
            groups.set_may_read(header.group, header.topic, header.readable)
        value = {
            "group": header.group,
            "readable": groups.may_read(header.group, header.topic),
            "topic": header.topic,
        }
        return command.answer(0, "", None, fastjson.dumps(value))

    def delete_group(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.DELETE_SUBSCRIPTIONGROUP, command.fields)
        check_group(header.group_name)
        if self._parts.groups.is_system(header.group_name):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"the group {header.group_name} belongs to the broker"
            )
        forget_group(self._parts, header.group_name, clean_offset=bool(header.clean_offset))
        return command.answer()
