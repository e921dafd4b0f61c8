"""What a consumer subscribes to of a topic: all messages, some tags (docs/spec/store-behaviour.md section
6.1), or what a SQL92 expression over their properties passes (docs/spec/sql92.md).

The broker filters by the Java hash of a tag, which the queue's unit holds. Two tags may share a hash; clients
compare the text. Expressions are bounded because some clients send theirs with every pull.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.errors import PeerError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats.java_hash import java_hash
from broker_store.protocol import client_bodies
from broker_store.sql92.errors import ExpressionError
from broker_store.sql92.property_filter import PropertyFilter, filter_of

TAG = "TAG"
SQL92 = "SQL92"
EVERYTHING = "*"
MAX_EXPRESSION_CHARACTERS = 16 * 1024
MAX_TAGS = 1024


class FilterError(PeerError):
    """An expression cannot be parsed. `remark` is the text of the answer, where that is not the message."""

    cause = "wrong filter expression"

    def __init__(self, message: str, remark: str | None = None):
        self.remark = remark or message
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a group. `version` is the client's time (ms); the newer one wins."""

    topic: str
    expression: str = EVERYTHING
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()
    version: int = 0
    class_filter: bool = False
    tag_codes: frozenset[int] | None = None

    def to_json(self) -> dict:
        """Return the JSON of Apache's SubscriptionData."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(self.tag_codes or ()),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }


def property_filter(text: str, expression_type: str) -> PropertyFilter:
    """Return the filter of an expression of another type than TAG. Raises FilterError."""
    if expression_type != SQL92:
        raise FilterError(f"there is no filter of type {text_excerpt(expression_type, 20)!r}")
    try:
        return filter_of(text)
    except ExpressionError as error:
        raise FilterError(str(error), error.remark) from None


def is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG


def parse(
    topic: str, expression: str | None, expression_type: str | None = TAG, version: int = 0
) -> Subscription:
    """Parse `TagA || TagB`, `*` or nothing. Raises FilterError when it is too long or has no tag.

    `tag_codes` of the result is what a queue read takes: None for every message.
    """
    if expression is not None and len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise FilterError(
            f"an expression of {len(expression)} characters, most is {MAX_EXPRESSION_CHARACTERS}"
        )
    if not is_tag_type(expression_type):
        return Subscription(topic, expression or "", str(expression_type), version=version)
    if not expression or expression == EVERYTHING:
        return Subscription(topic, version=version)
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags or len(tags) > MAX_TAGS:
        raise FilterError(f"{len(tags)} tags in {excerpt(expression)}, expected 1 to {MAX_TAGS}")
    return Subscription(topic, expression, TAG, tags, version, False, frozenset(map(java_hash, tags)))


def of_heartbeat(data: client_bodies.Subscription) -> Subscription:
    """Return the subscription that a client announced. Raises FilterError when its expression is invalid."""
    if data.class_filter_mode:
        return Subscription(
            data.topic, data.expression or EVERYTHING, version=data.version, class_filter=True
        )
    return parse(data.topic, data.expression, data.expression_type, data.version)
