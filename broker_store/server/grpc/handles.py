"""Receipt handles: how a consumer names a message that it received (docs/spec/grpc.md section 6).

    `0 1795244468000 60000 0 0 broker-a 1 0 8192 5f2c01ab`
     the eight words of a receipt (docs/spec/pop.md section 3), log offset, check

The first nine are as Apache's proxy writes them. The check is a checksum over them, the group and the topic.
So a handle that was changed, or is of another group, is recognized. It is no secret: who may use a group may
acknowledge its messages.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from broker_store.errors import FieldError
from broker_store.protocol.grpc.v2.definition_pb2 import Code
from broker_store.protocol.headers import read_long
from broker_store.protocol.pop import Receipt, read_receipt, topic_of, write_receipt
from broker_store.server.grpc.statuses import Refused
from broker_store.server.pop_acks import Popped

MAX_CHARACTERS = 600
_CAUSE = "receipt handle"


class Handle(NamedTuple):
    """A message that a group received from `topic`. It lies in a retry topic if the receipt says so."""

    receipt: Receipt
    log_offset: int
    topic: str
    group: str

    @property
    def offset(self) -> int:
        assert self.receipt.offset is not None  # `write` and `read` see to that
        return self.receipt.offset

    @property
    def visible_ms(self) -> int:
        """Return when the message is visible again."""
        return self.receipt.pop_ms + self.receipt.invisible_ms

    @property
    def popped(self) -> Popped:
        receipt = self.receipt
        return Popped(
            topic_of(self.topic, self.group, receipt.kind), self.group, receipt.queue_id, self.offset, receipt
        )


def write_handle(handle: Handle) -> str:
    """Return the text of a handle."""
    text = f"{write_receipt(handle.receipt)} {handle.log_offset}"
    return f"{text} {_check(text, handle.topic, handle.group)}"


def read_handle(text: str, topic: str, group: str, broker_name: str, now_ms: int) -> Handle:
    """Return a handle that a client of `group` sends for a message of `topic`. Raises Refused."""
    head, _, check = text.rpartition(" ")
    receipt_text, _, log_offset = head.rpartition(" ")
    if len(text) > MAX_CHARACTERS or check != _check(head, topic, group):
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE, "receipt handle is not one of this group and topic", _CAUSE
        )
    try:
        receipt = read_receipt(receipt_text)
        place = read_long("log offset", log_offset)
    except FieldError:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, "receipt handle cannot be read", _CAUSE) from None
    # Numbers are as this broker writes them, without a sign or leading zeros
    if receipt.offset is None or place < 0 or f"{write_receipt(receipt)} {place}" != head:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, "receipt handle cannot be read", _CAUSE)
    if receipt.broker_name != broker_name:
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE, f"receipt handle is of broker {receipt.broker_name:.120}", _CAUSE
        )
    handle = Handle(receipt, place, topic, group)
    if handle.visible_ms <= now_ms:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired", _CAUSE)
    return handle


def _check(text: str, topic: str, group: str) -> str:
    return f"{zlib.crc32(f'{text} {topic} {group}'.encode()):08x}"
