"""The dead letters of this process's store: what a job that sends them again would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_store.formats.names import dead_letter_topic
from broker_store.formats.topics import FORBIDDEN_TO_SEND, PERM_WRITE
from broker_store.server.parts import BrokerParts
from mqadmin.cluster.embedded.groups import EmbeddedGroups
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.protocol import DeadLetters
from mqadmin.jobs import dead_letters
from mqadmin.jobs.facts import ResendPlan
from mqadmin.jobs.left_out import Range


class EmbeddedDeadLetters(DeadLetters):
    """Of the broker in this process."""

    def __init__(self, host: Host, groups: EmbeddedGroups):
        self._host = host
        self._groups = groups

    def plan(self, group: str, to: str, limit: int, left_out: Mapping[int, Sequence[Range]]) -> ResendPlan:
        parts, places = self._host.call(self._places, group)
        topics = parts.topics
        existing: Any = topics.names  # a Container whose `in` takes names only

        def is_taken(topic: str) -> bool:
            config = topics.get(topic)
            return config is not None and bool(config.perm & PERM_WRITE) and topic not in FORBIDDEN_TO_SEND

        return dead_letters.plan(parts.store, places, group, to, limit, existing, is_taken, left_out)

    def _places(self, group: str) -> tuple[BrokerParts, dict[int, int | None]]:
        """The parts of the broker, and how far the dead letters of each queue were taken up."""
        self._groups.check_exists(group)
        parts, topic = self._host.parts, dead_letter_topic(group)
        return parts, {
            queue_id: parts.offsets.query(dead_letters.RESENDER, topic, queue_id)
            for queue_id in parts.store.queue_ids(topic)
        }
