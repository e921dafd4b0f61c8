"""What a start finds out of the revive log before its first step (docs/spec/pop.md section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_store.broker.pop.again import again, is_stored_as
from broker_store.broker.pop.log_records import checkpoint_of
from broker_store.broker.pop.revive_log import AHEAD_MS
from broker_store.broker.pop.revive_queue import ReviveQueue
from broker_store.broker.pop.stored_records import records_of
from broker_store.broker.timer import Timer
from broker_store.engine.store_protocol import Store
from broker_store.formats import record
from broker_store.formats.pop_records import PopKey
from broker_store.messages import GetRequest, GetStatus

# Margin before the time from which the timer may deliver records again
LATER_MS = 2_000


def remember_older(store: Store, timer: Timer, topic: str, queue: ReviveQueue, low: int, high: int) -> None:
    """Remember the pop checkpoints before the position that the timer may deliver again, or has delivered
    again after the position: all of them are finished. The queue has [low, high)."""
    if high <= low or not timer.enabled:
        return
    # The timer delivers again what it delivered since its saved time.
    since_ms = timer.slots.read_ms
    for stored in records_of(store, topic, queue.queue_id, queue.read, high):
        checkpoint = checkpoint_of(stored)
        if checkpoint is not None:
            # The first of its copies was delivered then, or later
            since_ms = min(since_ms, checkpoint.revive_ms - AHEAD_MS)
    since_ms = max(0, since_ms - LATER_MS)
    at = max(low, store.reads.times.offset_by_time(topic, queue.queue_id, since_ms))
    for stored in records_of(store, topic, queue.queue_id, at, queue.read):
        checkpoint = checkpoint_of(stored)
        if checkpoint is not None:
            queue.remembered.add(checkpoint.identity)


def find_owed(
    store: Store,
    queues: Iterable[ReviveQueue],
    left: list[record.StoredMessage],
    retry_topic: Callable[[PopKey], str],
) -> list[tuple[PopKey, int, int]]:
    """Find the pop checkpoints of messages that a kill left in a retry topic without their acknowledgement;
    return what is to be acknowledged: key, queue offset, revive queue. They do not come a second time, unless
    another broker has them, which a start does not ask."""
    owed: list[tuple[PopKey, int, int]] = []
    for queue in queues:
        for held in list(queue.in_hand.values()):
            key = held.checkpoint.key
            retry = retry_topic(key)
            if retry != left[0].topic or held.is_of_other:
                continue
            for offset in held.left():
                result = store.reads.get(GetRequest(key.topic, key.queue_id, offset, 1))
                if result is None or result.status is not GetStatus.FOUND:
                    continue
                popped = record.decode(result.body, check_crc=False)
                if popped.log_offset >= held.log_end:
                    continue
                message = again(popped, retry, held.checkpoint)
                same = next((one for one in left if is_stored_as(message, one)), None)
                if same is not None:
                    left.remove(same)
                    held.mark(offset)
                    owed.append((key, offset, queue.queue_id))
                    if not left:
                        return owed
    return owed
