"""The response codes of pulls (docs/spec/remoting.md section 3, PULL_MESSAGE)."""

from __future__ import annotations

from broker_store.messages import GetStatus
from broker_store.protocol.codes import ResponseCode

NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
RETRY_IMMEDIATELY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
OFFSET_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)
FAILED = int(ResponseCode.SYSTEM_ERROR)
FAILURES = {
    GetStatus.MESSAGE_DAMAGED: "the message there is damaged",
    GetStatus.READ_FAILED: "a file of the store cannot be read",
}
_CODES = {
    GetStatus.FOUND: 0,
    GetStatus.MESSAGE_WAS_REMOVING: RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: OFFSET_MOVED,
    GetStatus.OFFSET_RESET: OFFSET_MOVED,
    GetStatus.MESSAGE_DAMAGED: FAILED,
    GetStatus.READ_FAILED: FAILED,
}


def code_of(status: GetStatus, asked_offset: int) -> int:
    """Return the response code for the status of a read (docs/spec/remoting.md section 3, PULL_MESSAGE)."""
    code = _CODES.get(status)
    if code is None:  # the queue does not exist or is empty
        return NOT_FOUND if asked_offset == 0 else OFFSET_MOVED
    return code
