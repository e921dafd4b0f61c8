"""Pop checkpoints of other brokers, which a slave that acts for one of them has sent here.

    acting slave of A ──► revive log of B ──► over, and not all acknowledged ──► B reads the messages at A
                                                                                   └─► pop retry topic of B

A message of a pop checkpoint is named by broker, topic, queue and queue offset. So one of another broker is
never read in the own store.

Source: Apache's `EscapeBridge.getMessageAsync` and `PopReviveService.reviveMsgFromCk`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker_store.broker.pop.revive_log import LOG_END
from broker_store.broker.pop.revive_queue import InHand
from broker_store.formats import properties, record
from broker_store.formats.pop_records import PopKey

# After the invisible time: the other broker's acknowledgements come here by its slave.
OTHERS_GRACE_MS = 5_000
OTHERS_RETRY_MS = 10_000
# Apache's broker attempts it 17 times, for almost five hours (ckRewriteIntervalsInSeconds).
GIVE_UP_MS = 4 * 3_600_000


class Fetched(NamedTuple):
    """What another broker has of the messages that were read: records, and queue offsets that are gone."""

    found: list[record.StoredMessage]
    gone: list[int]


# (pop checkpoint, queue offsets that follow each other, function for what was read, None for a failure)
Fetch = Callable[[PopKey, list[int], Callable[[Fetched | None], None]], None]


class PopsOfOthers:
    """Reads at other brokers for the reader of the revive log. Loop's thread.

    `fetch` is set by the server; without it nothing is read. `on_given_up(key)` is called when messages of a
    pop do not come again.
    """

    def __init__(self, own_name: str):
        self._own_name = own_name
        self.fetch: Fetch | None = None
        self.on_given_up: Callable[[PopKey], None] = lambda key: None

    def has_popped(self, key: PopKey, stored: record.StoredMessage) -> bool:
        """Return whether another broker has popped the messages of a pop checkpoint, of which this is the
        record. Brokers before 5.0 write no name. What this broker wrote itself is its own, whatever its name
        was then."""
        return key.broker_name not in ("", self._own_name) and LOG_END not in stored.properties

    def has_sent(self, key: PopKey, stored: record.StoredMessage) -> bool:
        """Return whether another broker has sent an acknowledgement of its pop here. What this broker writes
        itself has none of the properties that it adds to each send."""
        return key.broker_name not in ("", self._own_name) and properties.CLUSTER in stored.properties

    def read(self, held: InHand, run: list[int], taken: Callable[[Fetched], None]) -> None:
        """Read messages of a pop checkpoint; `taken` is called when there is an answer, later."""
        if self.fetch is None or held.is_fetching:
            return
        held.is_fetching = True

        def came(fetched: Fetched | None) -> None:
            held.is_fetching = False
            if fetched is not None:
                taken(fetched)

        self.fetch(held.checkpoint.key, run, came)

    def is_too_old(self, held: InHand, now_ms: int) -> bool:
        """Return whether a pop checkpoint is over for so long that its messages are not read any more."""
        return now_ms >= held.checkpoint.revive_ms + GIVE_UP_MS
