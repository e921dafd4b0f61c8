"""Messages that wait: for a delay level, a time of delivery, or the end of their transaction."""

from __future__ import annotations

from collections.abc import Mapping

from broker_store.broker import half_message, timer_request
from broker_store.formats import properties, recall_handle
from broker_store.formats.names import RETRY_PREFIX
from broker_store.formats.recall_handle import RecallHandle
from broker_store.messages import Message, PutStatus
from broker_store.protocol.codes import ResponseCode
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts


def make_wait(parts: BrokerParts, message: Message, pairs: Mapping[str, str]) -> None:
    """Change a message whose properties have a delay level or a time of delivery, so that it waits for that.
    Raises Refusal if it cannot."""
    level = delay_level(pairs)
    if level > 0:
        parts.delay.schedule(message, level)
    elif timer_request.is_timed(pairs):
        status = parts.timer.admission.schedule(message, pairs)
        if status is not None:
            raise _timer_refusal(parts, status)


def make_half(parts: BrokerParts, message: Message) -> None:
    """Change a message to the half of a transaction. Raises Refusal if the broker takes none."""
    settings = parts.settings
    if settings.reject_transaction_message:
        remark = f"the broker[{settings.broker_ip1}] sending transaction message is forbidden"
        raise Refusal(ResponseCode.NO_PERMISSION, remark, "transaction")
    half_message.prepare(message)


def recall_handle_of(parts: BrokerParts, message: Message, topic: str, unique_key: str) -> str | None:
    """Return the handle by which a producer recalls a timer message of `topic`; None for a message that waits
    for no time, and for one of a retry topic."""
    out_ms = properties.get(message.properties, properties.TIMER_OUT_MS)
    if out_ms is None or topic.startswith(RETRY_PREFIX):
        return None
    return recall_handle.encode(RecallHandle(topic, parts.broker_name, str(int(out_ms) + 1), unique_key))


def _timer_refusal(parts: BrokerParts, status: PutStatus) -> Refusal:
    """Return the refusal of a message that the timer wheel does not accept, with Apache's code and text."""
    settings = parts.settings
    if status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
        code = ResponseCode.MESSAGE_ILLEGAL
        remark = (
            f"timer message illegal, the delay time should not be bigger than the max delay "
            f"{settings.timer_max_delay_sec * 1000}ms; "
            "or if set del msg, the delay time should be bigger than the current time"
        )
    elif status is PutStatus.WHEEL_TIMER_FLOW_CONTROL:
        code, most = ResponseCode.SYSTEM_ERROR, settings.timer_congest_num_each_slot
        remark = (
            f"timer message is under flow control, max num limit is {most * 2} or the current value "
            f"is greater than {most} and less than {most * 2}, "
            "trigger random flow control"
        )
    else:
        code, remark = (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
    value, limit = parts.timer.admission.refused_for
    return Refusal(code, remark, status.name, value=value, limit=limit)


def delay_level(pairs: Mapping[str, str]) -> int:
    """Return the delay level in a message's properties, 0 for none."""
    text = pairs.get(properties.DELAY)
    if text is None:
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
