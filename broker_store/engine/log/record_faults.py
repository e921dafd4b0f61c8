"""Why the scan kernel takes no sound record for there to be at a place of the log."""

from __future__ import annotations

from broker_store.kernels import context as c

REASONS = {
    c.REASON_NOT_A_RECORD: "no record begins here",
    c.REASON_LENGTH: "a length in the record is out of bounds",
    c.REASON_PLACE: "the record names another place than its own",
    c.REASON_BODY_CRC: "the body's CRC is wrong",
    c.REASON_SYNTAX: "its topic or properties are malformed",
    c.REASON_RECORD_CRC: "the CRC of the whole record is wrong",
}
