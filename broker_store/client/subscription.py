"""Subscriptions to a topic: an expression of tags, `*` for all messages, `a || b` for some; or a SQL92
expression, which the broker evaluates."""

from __future__ import annotations

import time

from broker_store.errors import MisuseError
from broker_store.formats.java_hash import java_hash
from broker_store.protocol.client_bodies import Subscription

ALL = "*"
SQL92 = "SQL92"


def make_subscription(
    topic: str, tags: str = ALL, version: int | None = None, *, sql: str | None = None
) -> Subscription:
    """Return a subscription; a `version` of None is the time in milliseconds. Raises MisuseError for an
    expression without a tag, and for tags with `sql`."""
    if version is None:
        version = time.time_ns() // 1_000_000
    if sql is not None:
        if tags != ALL or not sql.strip():
            raise MisuseError("a subscription has tags or a SQL92 expression, and this is not empty")
        return Subscription(topic, sql, SQL92, version)
    if tags.strip() in ("", ALL):
        return Subscription(topic, ALL, version=version)
    wanted = frozenset(tag.strip() for tag in tags.split("||") if tag.strip())
    if not wanted or ALL in wanted:
        raise MisuseError(f"tags {tags!r:.60} must be `*` or `a || b`")
    return Subscription(topic, tags, version=version, tags=wanted, codes=frozenset(map(java_hash, wanted)))


def wants(subscription: Subscription, tag: str | None) -> bool:
    """Return whether the subscription has the tag of a message: brokers compare only hashes of tags."""
    return not subscription.tags or tag in subscription.tags
