"""The checks of pops, peeks and notifications, in the order of Apache's (docs/spec/pop.md section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_store.broker import filters
from broker_store.broker.filters import FilterError
from broker_store.broker.groups import Cause
from broker_store.formats.names import check_topic, popped_topic
from broker_store.formats.order_info import MAX_ATTEMPT_ID
from broker_store.formats.pop_records import MAX_MESSAGES
from broker_store.formats.topics import PERM_READ
from broker_store.messages import MessageFilter
from broker_store.protocol.codes import ResponseCode
from broker_store.server.handler import Refusal, no_group, no_queue, no_topic
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_request import ALL_QUEUES, Pop, PopReader, PopResult
from broker_store.server.pull_checks import no_filter, parse_subscription, unparsed

# A client waits some seconds longer than it asks for; a request that is this much older has no reader.
MAX_LATE_MS = 500
# As for pulls: more than the idle limit of a connection would have no effect.
MAX_POLL_MS = 100_000
FROM_MIN = 0  # initMode


def check_pop(
    parts: BrokerParts, header: Any, cause: Cause, reader: PopReader, answer: Callable[[PopResult], None]
) -> Pop:
    """Return a pop. Raises Refusal if it is not allowed."""
    pop = _check(parts, header, cause, reader, answer, header.max_msg_nums, header.invisible_time)
    check_invisible_time(parts, header.invisible_time, least=1)
    if parts.topics.is_internal(popped_topic(pop.topic, pop.group)):
        raise internal_topic(pop.topic)
    return pop._replace(init_mode=header.init_mode)


def internal_topic(topic: str) -> Refusal:
    """Return the refusal of a pop, or of a receipt, for records that the broker writes for itself."""
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"topic {topic:.255} has records of the broker, which no group is given",
        "topic of the broker",
    )


def check_order(parts: BrokerParts) -> None:
    """Raise Refusal at a slave: the states of queues that are popped in order are records of its master."""
    if parts.replication.is_slave:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            "pops in order wait for the master: its slave has no state of their queues",
            "slave",
        )


def check_invisible_time(parts: BrokerParts, invisible_ms: int, *, least: int) -> None:
    """Raise Refusal for an invisible time that is not `least` to the longest time of the timer."""
    limit_ms = parts.settings.timer_max_delay_sec * 1000
    if not least <= invisible_ms <= limit_ms:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime must be {least} to {limit_ms} ms, which timerMaxDelaySec sets",
            "invisible time",
            value=invisible_ms,
            limit=limit_ms,
        )


def check_peek(
    parts: BrokerParts, header: Any, cause: Cause, reader: PopReader, answer: Callable[[PopResult], None]
) -> Pop:
    """Return a peek: it gives messages and leaves them visible. Raises Refusal."""
    return _check(parts, header, cause, reader, answer, header.max_msg_nums, 0)


def check_notification(
    parts: BrokerParts, header: Any, cause: Cause, reader: PopReader, answer: Callable[[PopResult], None]
) -> Pop:
    """Return a question whether there is a message. Raises Refusal."""
    return _check(parts, header, cause, reader, answer, 1, 0)._replace(is_question=True)


def may_read(parts: BrokerParts, pop: Pop) -> bool:
    """Return whether a group may still be given messages: it and the topic exist, and are not closed. What a
    deleted group is given could not come again."""
    config, group = parts.topics.get(pop.topic), parts.groups.get(pop.group)
    return (
        config is not None
        and config.perm & PERM_READ > 0
        and group is not None
        and group.consume_enable
        and parts.groups.may_read(pop.group, pop.topic)
    )


def _check(
    parts: BrokerParts,
    header: Any,
    cause: Cause,
    reader: PopReader,
    answer: Callable[[PopResult], None],
    count: int,
    invisible_ms: int,
) -> Pop:
    settings = parts.settings
    now_ms = parts.clock()
    born_ms = getattr(header, "born_time", None) or now_ms
    poll_ms = max(0, min(getattr(header, "poll_time", 0), MAX_POLL_MS))
    if not settings.broker_permission & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{settings.broker_ip1}] pop message is forbidden",
            "permission",
        )
    if not 0 < count <= MAX_MESSAGES:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{settings.broker_ip1}] pop message's num is greater than {MAX_MESSAGES}"
            if count > 0
            else "maxMsgNums must be at least 1",
            "pop count",
            value=count,
            limit=MAX_MESSAGES,
        )
    if not parts.timer.enabled:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the broker[{settings.broker_ip1}] pop message is forbidden because timerWheelEnable is false",
            "timer wheel",
        )
    if parts.replication.is_slave and parts.revive_log.elsewhere is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            "a slave gives messages to pops only while it acts for its master, with enableRemoteEscape=true",
            "slave",
        )
    config = parts.topics.get(header.topic)
    if config is None:
        check_topic(header.topic)
        raise no_topic(header.topic)
    if not config.perm & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the topic[{header.topic}] peeking message is forbidden",
            "permission",
        )
    if not ALL_QUEUES <= header.queue_id < config.read_queues:
        raise no_queue(
            ResponseCode.INVALID_PARAMETER, header.topic, header.queue_id, config.read_queues, reader.remote
        )
    group = parts.groups.find_or_create(header.consumer_group, cause)
    if group is None:
        raise no_group(header.consumer_group)
    if not group.consume_enable:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.name}", "permission"
        )
    if not parts.groups.may_read(header.consumer_group, header.topic):
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            "permission",
        )
    is_order = bool(getattr(header, "order", None))
    if is_order:
        check_order(parts)
    attempt_id = getattr(header, "attempt_id", None)
    if attempt_id is not None and len(attempt_id) > MAX_ATTEMPT_ID:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId must have at most {MAX_ATTEMPT_ID} characters",
            "attempt id",
            value=len(attempt_id),
            limit=MAX_ATTEMPT_ID,
        )
    tag_codes, message_filter = _filters(parts, header)
    return Pop(
        answer,
        False,
        reader,
        group.name,
        header.topic,
        header.queue_id,
        config.read_queues,
        count,
        invisible_ms,
        FROM_MIN,
        min(born_ms, now_ms) + poll_ms,
        now_ms - born_ms - poll_ms > MAX_LATE_MS,
        tag_codes,
        message_filter,
        parts.clients.name_of(cause[1], group.name),
        is_order,
        attempt_id,
    )


def _filters(parts: BrokerParts, header: Any) -> tuple[frozenset[int] | None, MessageFilter | None]:
    """Return the tags that a request wants, and the filter of another expression; None for each that it
    does not have."""
    expression = getattr(header, "exp", None)
    if not expression:
        return None, None
    try:
        subscription = parse_subscription(header.topic, expression, header.exp_type)
        if filters.is_tag_type(subscription.expression_type):
            return subscription.tag_codes, None
        if not parts.settings.enable_property_filter:
            raise Refusal(ResponseCode.SYSTEM_ERROR, no_filter(subscription.expression_type))
        return None, filters.property_filter(subscription.expression, subscription.expression_type)
    except FilterError:
        raise unparsed() from None
