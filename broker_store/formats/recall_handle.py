"""The handle by which a producer recalls a timer message: it is in the answer to the send.

URL-safe base64 of five words joined by blanks: `v1`, topic, broker name, a time within the slot of the
message (ms), unique key (docs/spec/store-behaviour.md section 9).
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from broker_store.errors import FormatError

VERSION = "v1"


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    time_ms: str
    unique_key: str


def encode(handle: RecallHandle) -> str:
    """The text a producer is given."""
    return base64.urlsafe_b64encode(" ".join((VERSION, *handle)).encode()).decode()


def decode(text: str) -> RecallHandle:
    """The words of a handle; FormatError when it is none."""
    try:
        raw = base64.b64decode(
            text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        ).decode()
    except (UnicodeError, binascii.Error):
        raise FormatError("recall handle is invalid") from None
    words = raw.split(" ")
    if words[0] != VERSION or len(words) < 1 + len(RecallHandle._fields):
        raise FormatError("recall handle is invalid")
    return RecallHandle(*words[1 : 1 + len(RecallHandle._fields)])
