"""Records of the revive log by group and topic, since the start: what was stored, and what was read.

A pop is one record (`CK`), and so is an acknowledgement (`ACK`), of one message or of several. Bounded by the
groups and topics that exist: a deleted one is forgotten. Loop's thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from broker_store.broker.groups import Groups
from broker_store.formats.pop_records import PopKey
from broker_store.messages import PutStatus

CHECKPOINT, ACK = "CK", "ACK"  # as Apache's label `revive_message_type`

Stored = tuple[str, str, PutStatus]  # topic, kind, status
Read = tuple[str, str, int]  # topic, kind, queue of the revive log


class ReviveCounts:
    """The records of each group. A topic may be a retry topic, as in the record."""

    def __init__(self) -> None:
        self.stored: defaultdict[str, Counter[Stored]] = defaultdict(Counter)
        self.read: defaultdict[str, Counter[Read]] = defaultdict(Counter)

    def was_read(self, groups: Groups, key: PopKey, kind: str, queue_id: int) -> None:
        """Count a record that was read. A deleted group may have records left, and gets no counts by them."""
        if groups.get(key.group) is not None:
            self.read[key.group][key.topic, kind, queue_id] += 1

    def forget_group(self, group: str) -> None:
        """Forget the records of a deleted group."""
        self.stored.pop(group, None)
        self.read.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Forget the records of a deleted topic."""
        for stored in self.stored.values():
            for key in [key for key in stored if key[0] == topic]:
                del stored[key]
        for read in self.read.values():
            for place in [place for place in read if place[0] == topic]:
                del read[place]
