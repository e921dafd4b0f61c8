"""A topic by its name."""

from __future__ import annotations

from broker_store.errors import NotFoundError
from broker_store.formats.names import check_topic
from broker_store.rest.problems import Problem
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.topics import TopicDetail


def find(name: str) -> TopicDetail | None:
    """Return the topic, None when there is none."""
    try:
        return current_cluster().topics.detail(check_topic(name))
    except NotFoundError:
        return None


def found_topic(name: str) -> TopicDetail:
    """Return the topic. Raises Problem that names the topic when there is none."""
    topic = find(name)
    if topic is None:
        raise Problem("topic_not_found", f"topic {name} does not exist")
    return topic
