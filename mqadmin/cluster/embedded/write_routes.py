"""Topics that the name server of this process gives out without write permission, though the broker accepts
messages for them.

An administrator may remove write permission at a name server (request code 205): senders then find no broker
for the topic, while the broker itself would accept their messages. A registration restores the permission
only for topics that changed since the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker_store.broker.topics import TopicConfig
from broker_store.formats.topics import PERM_WRITE
from broker_store.server.parts import BrokerParts


@dataclass(frozen=True, slots=True)
class Withheld:
    """Topics of users that the broker accepts messages for, and that its name server gives out without write
    permission."""

    broker: str
    topics: int  # number of these
    of: int  # number of all topics of users that the broker accepts messages for
    remedy: str  # what an administrator can do


def snapshot(parts: BrokerParts) -> tuple[list[TopicConfig], dict[str, Any]]:
    """Return the broker's topics, and the name server's by name. For the loop's thread; `withheld` may count
    them in another."""
    routes = {} if parts.nameserver is None else dict(parts.nameserver.routes.topics)
    return parts.topics.all() if routes else [], routes


def withheld(parts: BrokerParts, configs: list[TopicConfig], routes: dict[str, Any]) -> Withheld | None:
    """Return the topics of a `snapshot` whose write permission is withheld; None without one."""
    served = [
        config for config in configs if _is_offered(parts, config) and not parts.topics.is_system(config.name)
    ]
    count = sum(_is_withheld(parts.broker_name, routes.get(config.name)) for config in served)
    return Withheld(parts.broker_name, count, len(served), remedy(parts)) if count else None


def is_topic_withheld(parts: BrokerParts, config: TopicConfig) -> bool:
    """Return whether senders of this topic do not find the broker, because its name server withholds write
    permission."""
    routes = {} if parts.nameserver is None else parts.nameserver.routes.topics
    return _is_offered(parts, config) and _is_withheld(parts.broker_name, routes.get(config.name))


def remedy(parts: BrokerParts) -> str:
    """Return a text with what an administrator can do to restore write permission."""
    return (
        f"add it again by “mqadmin addWritePerm -b {parts.broker_name} -n HOST:PORT” with the name "
        f"server's address, or start the broker again"
    )


def _is_offered(parts: BrokerParts, config: TopicConfig) -> bool:
    return config.perm & parts.settings.broker_permission & PERM_WRITE != 0


def _is_withheld(broker: str, queues: Any) -> bool:
    queue = None if queues is None else queues.get(broker)
    return queue is not None and queue.perm & PERM_WRITE == 0
