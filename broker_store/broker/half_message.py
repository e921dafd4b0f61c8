"""Half messages: how a message becomes the half of a transaction, and a half a message again.

    message of its topic ──prepare──► half: topic and queue in REAL_TOPIC and REAL_QID
                                        │ ├─ asked_copy    with one more in TRANSACTION_CHECK_TIMES
                                        │ ├─ given_up_copy in TRANS_CHECK_MAX_TIME_TOPIC ──resumed──► half
    message of its topic ◄──committed───┘

Each copy keeps body, flags, hosts and times of the half.
"""

from __future__ import annotations

from broker_store.formats import properties, record
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC
from broker_store.messages import Message

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_ID = "__transactionId__"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def prepare(message: Message) -> None:
    """Turn a message into a half, in place."""
    values = {properties.REAL_TOPIC: message.topic, properties.REAL_QUEUE_ID: str(message.queue_id)}
    unique_key = properties.get(message.properties, properties.UNIQUE_KEY)
    if unique_key:
        values[TRANSACTION_ID] = unique_key
    message.properties = properties.set_values(message.properties, values)
    message.sys_flag &= ~record.SYS_TRANSACTION_MASK
    message.topic, message.queue_id = HALF_TOPIC, 0


def committed(half: record.StoredMessage) -> Message | None:
    """Return the message of a half, for its real topic and queue; None for a half that does not name them."""
    topic, queue_id = (
        half.properties.get(properties.REAL_TOPIC),
        half.properties.get(properties.REAL_QUEUE_ID, ""),
    )
    if not topic or not queue_id.isascii() or not queue_id.isdigit():
        return None
    # As Apache's 5.5 does it: TRAN_MSG is kept, and the real topic and queue are those of the record.
    kept = properties.set_values(
        half.raw_properties, {properties.REAL_TOPIC: None, properties.REAL_QUEUE_ID: None}
    )
    message = half.as_message(topic, int(queue_id), kept)
    message.sys_flag |= record.TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.log_offset
    return message


def asked_copy(half: record.StoredMessage) -> Message:
    """Return the half as it is stored again when its producer is asked, with one more check counted."""
    return half.as_message(HALF_TOPIC, 0, _with_checks(half, checks(half) + 1))


def given_up_copy(half: record.StoredMessage) -> Message:
    """Return the half as it is stored when no more checks are made."""
    return half.as_message(CHECK_MAX_TOPIC, 0, half.raw_properties)


def resumed(given_up: record.StoredMessage) -> Message:
    """Return a half that was given up as one that waits again, without checks so far."""
    return given_up.as_message(HALF_TOPIC, 0, _with_checks(given_up, 0))


def checks(half: record.StoredMessage) -> int:
    """Return how often the producer of a half was asked; 0 when the property is no number."""
    text = half.properties.get(CHECK_TIMES, "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def own_timeout_ms(half: record.StoredMessage) -> int | None:
    """Return for how long the producer asks not to be checked; None when it does not state a time."""
    text = half.properties.get(IMMUNITY_SECONDS, "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 10 else None


def _with_checks(half: record.StoredMessage, count: int) -> bytes:
    return properties.set_values(half.raw_properties, {CHECK_TIMES: str(count)})
