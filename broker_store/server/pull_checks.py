"""The checks of a pull, in the order of Apache's (docs/spec/remoting.md section 3)."""

from __future__ import annotations

from functools import lru_cache

from broker_store.broker import filters
from broker_store.broker.filters import FilterError, Subscription
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.property_filters import RetryFilter
from broker_store.formats.names import RETRY_PREFIX, check_topic
from broker_store.formats.topics import PERM_READ
from broker_store.messages import MessageFilter
from broker_store.protocol import headers
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import PullHeader
from broker_store.server.channel import Channel
from broker_store.server.handler import FAQ, Refusal, no_group, no_queue, no_topic
from broker_store.server.parts import BrokerParts
from broker_store.server.pull import Pull

# ForbiddenType of Apache's, a field of the answer.
_BY_BROKER, _BY_GROUP, _BY_TOPIC, _NO_BROADCASTING, _BY_SUBSCRIPTION = range(1, 6)

parse_subscription = lru_cache(maxsize=1024)(filters.parse)


def check_pull(parts: BrokerParts, command: Command, header: PullHeader, channel: Channel) -> Pull:
    """Return the pull. Raises Refusal if it is not allowed."""
    group = parts.groups.get(header.consumer_group)
    config = parts.topics.get(header.topic)
    if not parts.settings.broker_permission & PERM_READ:
        raise _forbidden(_BY_BROKER, f"the broker[{parts.settings.broker_ip1}] pulling message is forbidden")
    if not parts.replication.serves_reads:
        raise Refusal(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "this slave serves no reads: slaveReadEnable=false, or its log is not yet compared with a "
            "master's",
        )
    if command.code == RequestCode.LITE_PULL_MESSAGE and not parts.settings.lite_pull_message_enable:
        raise _forbidden(
            _BY_BROKER, f"the broker[{parts.settings.broker_ip1}] for lite pull consumer is forbidden"
        )
    if (
        group is None
        and (group := parts.groups.find_or_create(header.consumer_group, (command, channel))) is None
    ):
        raise no_group(header.consumer_group)
    if not group.consume_enable:
        raise _forbidden(_BY_GROUP, f"subscription group no permission, {group.name}")
    if config is None:
        check_topic(header.topic)
        raise no_topic(header.topic)
    if not config.perm & PERM_READ:
        raise _forbidden(_BY_TOPIC, f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < config.read_queues:
        raise no_queue(
            ResponseCode.INVALID_PARAMETER, header.topic, header.queue_id, config.read_queues, channel.remote
        )
    subscription = _subscription(parts, header, group)
    tag_codes = None if subscription.class_filter else subscription.tag_codes
    judge = None
    if not subscription.class_filter and not filters.is_tag_type(subscription.expression_type):
        judge = _message_filter(parts, header, subscription)
    of_group = None if header.sys_flag & headers.PULL_SUBSCRIPTION else subscription
    return Pull(
        command,
        header,
        channel,
        tag_codes,
        config.sys_flag,
        group.group_sys_flag,
        judge,
        of_group,
        channel.came_s,
    )


def no_filter(expression_type: str) -> str:
    """Return Apache's text for an expression while enablePropertyFilter is off."""
    return f"The broker does not support consumer to filter message by {expression_type:.20}"


def _message_filter(parts: BrokerParts, header: PullHeader, subscription: Subscription) -> MessageFilter:
    """Return the filter of a subscription of another type than TAG (docs/spec/sql92.md section 7). Raises
    Refusal."""
    is_enabled = parts.settings.enable_property_filter
    if header.sys_flag & headers.PULL_SUBSCRIPTION:
        if subscription.expression and not is_enabled:
            raise Refusal(ResponseCode.SYSTEM_ERROR, no_filter(subscription.expression_type))
        try:
            return filters.property_filter(subscription.expression, subscription.expression_type)
        except FilterError:
            # Apache's broker gives every message here, because its check is an assertion (decision 66).
            raise unparsed() from None
    entry = parts.property_filters.get(header.topic, header.consumer_group)
    if entry is None:
        raise Refusal(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
    if entry.version < header.sub_version:
        raise Refusal(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
    if not is_enabled:
        raise Refusal(ResponseCode.SYSTEM_ERROR, no_filter(subscription.expression_type))
    if parts.settings.filter_support_retry and header.topic.startswith(RETRY_PREFIX):
        return RetryFilter(parts.property_filters, header.topic.removeprefix(RETRY_PREFIX))
    return entry.filter


def unparsed() -> Refusal:
    """Return the refusal of an expression that does not compile."""
    return Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")


def _subscription(parts: BrokerParts, header: PullHeader, group: SubscriptionGroup) -> Subscription:
    if header.sys_flag & headers.PULL_SUBSCRIPTION:
        _check_allowed(parts, header)
        try:
            return parse_subscription(header.topic, header.subscription, header.expression_type)
        except FilterError:
            raise unparsed() from None
    members = parts.clients.consumer_group(header.consumer_group)
    if members is None:
        raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
    if members.broadcasting and not group.consume_broadcast_enable:
        raise _forbidden(
            _NO_BROADCASTING,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
        )
    _check_allowed(parts, header)
    subscription = members.subscriptions.get(header.topic)
    if subscription is None:
        raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
    if subscription.version < header.sub_version:
        remark = "the consumer's subscription not latest"
        raise Refusal(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            remark,
            value=header.sub_version,
            limit=subscription.version,
        )
    return subscription


def _check_allowed(parts: BrokerParts, header: PullHeader) -> None:
    """Raise Refusal if an administrator has forbidden the topic to the group. Apache checks this only for
    subscriptions from heartbeats."""
    if not parts.groups.may_read(header.consumer_group, header.topic):
        raise _forbidden(
            _BY_SUBSCRIPTION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
        )


def _forbidden(by: int, remark: str) -> Refusal:
    """Return the refusal of a pull that is not permitted."""
    refusal = Refusal(ResponseCode.NO_PERMISSION, remark, "permission")
    refusal.fields = {"forbiddenType": str(by)}
    return refusal
