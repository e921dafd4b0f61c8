"""Receipts of sent messages, from the answers of brokers."""

from __future__ import annotations

from collections.abc import Mapping

from broker_store.client.message import SendReceipt
from broker_store.formats import properties as property_format
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue

# All of these mean that the message is stored. The last three mean that it is not yet confirmed as the
# broker's settings require.
STATUS_NAMES = {
    int(ResponseCode.SUCCESS): "SEND_OK",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
}


def traced_region(fields: Mapping[str, str]) -> str | None:
    """Return the region that a broker names in its answer, None when it wants no traces."""
    return (
        None
        if fields.get(property_format.TRACE_ON) == "false"
        else fields.get(property_format.MESSAGE_REGION)
    )


def make_receipt(
    answer: Command,
    fields: Mapping[str, str],
    queue: MessageQueue,
    message_id: str,
    offset_message_id: str,
    number: int,
) -> SendReceipt:
    """Return the receipt of message `number` of a request that a broker answered."""
    queue_id = int(fields.get("queueId", queue.queue_id))
    queue_offset = int(fields.get("queueOffset", -1))
    status = STATUS_NAMES[int(answer.code)]
    return SendReceipt(
        queue.topic,
        queue.broker_name,
        queue_id,
        queue_offset + number,
        message_id,
        offset_message_id,
        status,
        fields.get("recallHandle"),
    )
