"""Labels that all series of Apache's broker have, and numbers that several of its metrics are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqadmin.facts.scrape import OfTopic, OfTopicSpread
from mqadmin.metrics.rows import Common, Value, Values

BROKER: tuple[Common, ...] = (
    ("cluster", lambda values: values.scrape.broker.cluster),
    ("node_type", lambda values: "broker"),
    ("node_id", lambda values: values.scrape.broker.name),
)
STORE: tuple[Common, ...] = (
    *BROKER,
    ("storage_type", lambda values: "local"),
    ("storage_medium", lambda values: "disk"),
)
PROXY: tuple[Common, ...] = (
    BROKER[0],
    ("node_type", lambda values: "proxy"),
    BROKER[2],
    ("proxy_mode", lambda values: "local"),
)


def truth(value: bool) -> str:
    """Return a label's value."""
    return "true" if value else "false"


def single(number: Callable[[Values], float | None]) -> Callable[[Values], Iterable[Value]]:
    """Return the values of a metric without labels of its own."""
    return lambda values: [((), number(values))]


def of_topic(counts: Callable[[Values], list[OfTopic]]) -> Callable[[Values], Iterable[Value]]:
    """Return the values of a metric by topic."""
    return lambda values: [((count.topic,), count.messages) for count in counts(values)]


def spread(of: Callable[[Values], list[OfTopicSpread]]) -> Callable[[Values], Iterable[Value]]:
    """Return the values of a histogram by topic."""
    return lambda values: [((one.topic,), one.values) for one in of(values)]
