"""Errors between a client and its servers, a part of the package's one tree of errors.

BrokerStoreError
└── ClientError
    ├── RequestTimeout      no answer in time: whether it was done is not known
    ├── ConnectionLost      the connection failed or ended: whether it was done is not known
    ├── NoRouteError        no name server knows the topic, or no broker can take the message
    ├── AnswerError         the server refused with an error code; it did nothing
    └── PartlySent          of many messages the first were sent; the others were not, or this is not known
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_store.errors import BrokerStoreError
from broker_store.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker_store.client.message import SendReceipt


class ClientError(BrokerStoreError):
    """The base class of a client's errors; never raised itself."""


class RequestTimeout(ClientError, TimeoutError):
    """The server did not answer in time. It may still have done what was asked."""


class ConnectionLost(ClientError, ConnectionError):
    """There is no connection, or it ended before the answer came."""


class NoRouteError(ClientError):
    """No name server has a route of the topic."""


class AnswerError(ClientError):
    """The server answered with an error. `code` is a ResponseCode as far as it is known, else an
    int."""

    def __init__(self, request_code: int, code: int, remark: str | None, address: str):
        self.request_code, self.code, self.remark, self.address = request_code, code, remark or "", address
        names = _name(RequestCode, request_code), _name(ResponseCode, code)
        super().__init__(f"{address} answered {names[0]} with {names[1]} ({int(code)}): {self.remark}")


class PartlySent(ClientError):
    """Some of many messages were sent; `receipts` are theirs, in order. The cause shows why the next were
    not."""

    def __init__(self, topic: str, receipts: list[SendReceipt], cause: BrokerStoreError):
        self.receipts = receipts
        super().__init__(
            f"{len(receipts)} messages were sent to topic {topic}, and the next were not: {cause}"
        )


def _name(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    try:
        return codes(code).name
    except ValueError:
        return str(code)
