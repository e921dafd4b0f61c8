"""Results of a group: what the append kernel left in the rows, as `PutResult`s.

    row of D_WORDS words   | the message's fields | log offset | queue offset | size | records | status |
                                                  ^ RESULT_AT

A status below REFUSED is the kernel's own (0: stored). One from REFUSED on is a `PutStatus` with which Python
refused the row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from broker_store.kernels import context as c
from broker_store.messages import PutResult, PutStatus

RESULT_AT = c.D_LOG_OFFSET * 8
RESULT = struct.Struct("=5q").unpack_from
RESULTS = struct.Struct(f"{RESULT_AT}x5q")
ROW_BYTES = c.D_WORDS * 8
OK = PutStatus.PUT_OK
REFUSED = 100  # D_STATUS of a row that Python refused: this plus the PutStatus
STATUS = {
    c.D_BAD_BATCH: PutStatus.MESSAGE_ILLEGAL,
    c.D_BAD_PROPERTIES: PutStatus.MESSAGE_ILLEGAL,
    c.D_PROPERTIES_TOO_LONG: PutStatus.PROPERTIES_SIZE_EXCEEDED,
    c.D_TOO_LARGE: PutStatus.MESSAGE_ILLEGAL,
    c.D_ILLEGAL: PutStatus.MESSAGE_ILLEGAL,
    c.D_NO_PLACE: PutStatus.MESSAGE_ILLEGAL,
} | {REFUSED + status: status for status in PutStatus}
PUT_OFF_ROW = REFUSED + PutStatus.PUT_OFF


class PutResults(Sequence):
    """The results of a group, one for each message. A `PutResult` is made when it is read."""

    __slots__ = ("_now_ms", "_rows")

    def __init__(self, rows: bytes, now_ms: int):
        self._rows, self._now_ms = rows, now_ms

    def __len__(self) -> int:
        return len(self._rows) // ROW_BYTES

    def __getitem__(self, number):
        if number.__class__ is slice:
            return [self[at] for at in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return self._result(RESULT(self._rows, number % len(self) * ROW_BYTES + RESULT_AT))

    def __iter__(self):
        now_ms = self._now_ms
        for log_offset, queue_offset, size, records, status in RESULTS.iter_unpack(self._rows):
            if status:
                yield PutResult(STATUS[status])
            else:
                yield PutResult(OK, log_offset, queue_offset, now_ms, log_offset + size, records)

    def _result(self, row: tuple[int, int, int, int, int]) -> PutResult:
        log_offset, queue_offset, size, records, status = row
        if status:
            return PutResult(STATUS[status])
        return PutResult(OK, log_offset, queue_offset, self._now_ms, log_offset + size, records)
