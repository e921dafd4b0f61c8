"""Texts as Java's classes write them: times, permissions, values, settings of topics and groups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from broker_store.formats.topics import PERM_INHERIT, PERM_READ, PERM_WRITE
from broker_store.protocol import fastjson
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.topic_bodies import TopicConfig


def line(form: str, *values: object) -> str:
    """Return values in a form of Java's `String.format`, as far as Python's operator % has it."""
    return form % values


def seconds(stamp_ms: int) -> str:
    """Return a time of this host's zone to the second: `2026-11-29 18:26:17`."""
    return datetime.fromtimestamp(stamp_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def millis(stamp_ms: int) -> str:
    """Return a time of this host's zone to the millisecond: `2026-11-29 18:26:17,703`."""
    return f"{seconds(stamp_ms)},{stamp_ms % 1000:03d}"


def value(given: object) -> str:
    """Return a value as Java's `String.valueOf`: true, false, null, numbers, text."""
    if given is None:
        return "null"
    if isinstance(given, bool):
        return "true" if given else "false"
    return str(given)


def pairs(table: Mapping[Any, object], join: str = "=") -> str:
    """Return a table as `Map.toString`: {a=1, b=2}."""
    return "{" + ", ".join(f"{key}{join}{value(each)}" for key, each in table.items()) + "}"


def permissions(perm: int) -> str:
    """Return permissions as `PermName.perm2String`: RW-."""
    return "".join(
        letter if perm & bit else "-"
        for bit, letter in ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    )


def topic(config: TopicConfig, attributes: Mapping[str, str] | None = None) -> str:
    """Return `TopicConfig.toString`."""
    return (
        f"TopicConfig [topicName={config.name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={permissions(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={value(config.order)}, attributes={pairs(attributes or {})}]"
    )


def queue(of: MessageQueue) -> str:
    """Return `MessageQueue.toString`."""
    return f"MessageQueue [topic={of.topic}, brokerName={of.broker_name}, queueId={of.queue_id}]"


def retry_policy(policy: Mapping[str, Any] | None) -> str:
    """Return `GroupRetryPolicy.toString`."""
    if policy is None:
        return "null"
    exponential, customized = policy.get("exponentialRetryPolicy"), policy.get("customizedRetryPolicy")
    shown = [
        "null"
        if exponential is None
        else "ExponentialRetryPolicy{"
        + ", ".join(f"{key}={each}" for key, each in exponential.items())
        + "}",
        "null"
        if customized is None
        else f"CustomizedRetryPolicy{{next=[{', '.join(map(str, customized.get('next') or ()))}]}}",
    ]
    return (
        f"GroupRetryPolicy{{type={policy.get('type', 'CUSTOMIZED')}, exponentialRetryPolicy={shown[0]}, "
        f"customizedRetryPolicy={shown[1]}}}"
    )


def pretty(document: object, depth: int = 0) -> str:
    """Return JSON as fastjson writes it for readers: tabs, a member on each line, numbers as names bare."""
    tabs = "\t" * (depth + 1)
    if isinstance(document, Mapping):
        if not document:
            return "{}"
        members = (
            f"{tabs}{_name(key)}:{pretty(each, depth + 1)}"
            for key, each in document.items()
            if each is not None
        )
        return "{\n" + ",\n".join(members) + "\n" + "\t" * depth + "}"
    if isinstance(document, (list, tuple)):
        if not document:
            return "[]"
        return (
            "[\n"
            + ",\n".join(f"{tabs}{pretty(each, depth + 1)}" for each in document)
            + "\n"
            + "\t" * depth
            + "]"
        )
    return fastjson.dumps(document).decode()


def _name(key: object) -> str:
    return str(key) if isinstance(key, int) else fastjson.dumps(str(key)).decode()
