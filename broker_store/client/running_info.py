"""State of a consumer, which a broker requests on behalf of an administrator (docs/spec/remoting.md section
4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_store.client.assigned_queue import AssignedQueue
from broker_store.protocol import fastjson
from broker_store.protocol.client_bodies import Subscription
from broker_store.protocol.message_queue import MessageQueue


def encode(
    properties: Mapping[str, str], subscriptions: Iterable[Subscription], assigned: Iterable[AssignedQueue]
) -> bytes:
    """Return a ConsumerRunningInfo. Rates are left out: this client does not measure them, and zeros would be
    wrong."""
    return fastjson.dumps(
        {
            "mqPopTable": {},
            "mqTable": {item.queue.to_key(): _queue_info(item) for item in assigned},
            "properties": dict(properties),
            "statusTable": {},
            "subscriptionSet": [subscription.to_json() for subscription in subscriptions],
            "userConsumerInfo": {},
        }
    )


def _queue_info(assigned: AssignedQueue) -> dict[str, object]:
    lowest, highest = assigned.unfinished_range
    return {
        "cachedMsgCount": assigned.unfinished,
        "cachedMsgMaxOffset": highest,
        "cachedMsgMinOffset": lowest,
        "cachedMsgSizeInMiB": assigned.unfinished_bytes >> 20,
        "commitOffset": assigned.place,
        "droped": assigned.dropped,
        "lastConsumeTimestamp": assigned.last_consume_ms,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": assigned.last_pull_ms,
        "locked": assigned.locked_until_s > 0,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def encode_places(places: Mapping[MessageQueue, int]) -> bytes:
    """Return a GetConsumerStatusBody."""
    table = {queue.to_key(): place for queue, place in places.items()}
    return fastjson.dumps({"consumerTable": {}, "messageQueueTable": table})


def encode_consumed(consumed: bool, orderly: bool, spent_ms: int) -> bytes:
    """Return a ConsumeMessageDirectlyResult."""
    result = "CR_SUCCESS" if consumed else "CR_THROW_EXCEPTION"
    return fastjson.dumps(
        {"autoCommit": True, "consumeResult": result, "order": orderly, "spentTimeMills": spent_ms}
    )
