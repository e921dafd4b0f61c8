"""The statuses of answers: `Status{code, message}` of apache.rocketmq.v2."""

from __future__ import annotations

from broker_store.messages import PutStatus
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Status
from broker_store.server.handler import Refusal


class Refused(Exception):
    """A call, or a message of one, that changes nothing and is answered with this status. `cause` is its name
    in the statistics."""

    def __init__(
        self, code: Code, text: str, cause: str, *, value: int | None = None, limit: int | None = None
    ):
        self.status = Status(code=code, message=text)
        self.cause, self.value, self.limit = cause, value, limit
        super().__init__(text)


OK = Status(code=Code.OK, message="OK")
FAILED = Status(code=Code.INTERNAL_SERVER_ERROR, message="error inside the broker; its log has the details")

# Codes of Apache's proxy. A message that the store calls illegal has a body or topic beyond its bounds.
OF_PUT: dict[PutStatus, Code] = {
    PutStatus.PUT_OK: Code.OK,
    PutStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: Code.INTERNAL_SERVER_ERROR,
    PutStatus.CREATE_MAPPED_FILE_FAILED: Code.INTERNAL_SERVER_ERROR,
    PutStatus.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    PutStatus.OS_PAGE_CACHE_BUSY: Code.TOO_MANY_REQUESTS,
    PutStatus.UNKNOWN_ERROR: Code.INTERNAL_SERVER_ERROR,
    PutStatus.WAITED_TOO_LONG: Code.TOO_MANY_REQUESTS,
    PutStatus.PAGE_CACHE_BUSY_WAITED: Code.TOO_MANY_REQUESTS,
}


def code_of(status: PutStatus) -> Code:
    """Return the code of an answer for the status of a put."""
    return OF_PUT.get(status, Code.INTERNAL_SERVER_ERROR)


# Codes for what a part of both ports refuses; all others are INTERNAL_SERVER_ERROR. They are those of
# Apache's proxy, but for receipts that name no message of the group: after an error of the server a client
# tries again.
_OF_REFUSALS: dict[int, Code] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.MESSAGE_ILLEGAL: Code.INVALID_RECEIPT_HANDLE,
    ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
}


def code_of_answer(code: int) -> Code:
    """Return the code of an answer for a response code of the broker port."""
    return _OF_REFUSALS.get(code, Code.INTERNAL_SERVER_ERROR)


def refused_of(refusal: Refusal) -> Refused:
    """Return what a handler of both ports refuses, as this port answers it."""
    code = code_of_answer(refusal.code)
    return Refused(code, refusal.remark, refusal.cause, value=refusal.value, limit=refusal.limit)
