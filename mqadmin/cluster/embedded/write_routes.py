"""Whether the name server of this process gives the broker's topics out as the broker serves them.

An administrator may take write permission away at a name server (request code 205): senders then find no
broker that takes messages, while the broker itself would take them. A registration sets it back for what
changed since the last one only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker_store.broker.topics import TopicConfig
from broker_store.formats.topics import PERM_WRITE
from broker_store.server.parts import BrokerParts


@dataclass(frozen=True, slots=True)
class Withheld:
    """Topics of users that the broker takes messages for, and its name server gives out without write
    permission."""

    broker: str
    topics: int
    of: int  # topics of users that the broker takes messages for
    remedy: str  # what gives write permission back


def snapshot(parts: BrokerParts) -> tuple[list[TopicConfig], dict[str, Any]]:
    """The broker's topics, and the name server's by name. On the loop's thread; `withheld` counts in
    another."""
    routes = {} if parts.nameserver is None else dict(parts.nameserver.routes.topics)
    return parts.topics.all() if routes else [], routes


def withheld(parts: BrokerParts, configs: list[TopicConfig], routes: dict[str, Any]) -> Withheld | None:
    """What is withheld of what `snapshot` gave; None when nothing is."""
    served = [
        config for config in configs if _is_offered(parts, config) and not parts.topics.is_system(config.name)
    ]
    count = sum(_is_withheld(parts.broker_name, routes.get(config.name)) for config in served)
    return Withheld(parts.broker_name, count, len(served), remedy(parts)) if count else None


def is_topic_withheld(parts: BrokerParts, config: TopicConfig) -> bool:
    """True if senders of this topic do not find the broker for want of write permission at its name
    server."""
    routes = {} if parts.nameserver is None else parts.nameserver.routes.topics
    return _is_offered(parts, config) and _is_withheld(parts.broker_name, routes.get(config.name))


def remedy(parts: BrokerParts) -> str:
    """What an administrator does to give write permission back."""
    return (
        f"add it again by “mqadmin addWritePerm -b {parts.broker_name} -n HOST:PORT” with the name "
        f"server's address, or start the broker again"
    )


def _is_offered(parts: BrokerParts, config: TopicConfig) -> bool:
    return config.perm & parts.settings.broker_permission & PERM_WRITE != 0


def _is_withheld(broker: str, queues: Any) -> bool:
    queue = None if queues is None else queues.get(broker)
    return queue is not None and queue.perm & PERM_WRITE == 0
