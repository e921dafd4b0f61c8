"""A topic, asked for by its name."""

from __future__ import annotations

from broker_store.errors import NotFoundError
from broker_store.formats.names import check_topic
from broker_store.rest.problems import Problem
from mqadmin import clusters


def find(name: str) -> dict | None:
    """The topic, None when there is none."""
    try:
        return clusters.current().topic(check_topic(name))
    except NotFoundError:
        return None


def found_topic(name: str) -> dict:
    """The topic, or the problem that says which one is missing."""
    topic = find(name)
    if topic is None:
        raise Problem("topic_not_found", f"topic {name} does not exist")
    return topic
