"""One stream of an HTTP/2 connection: a request, and what is still to be sent of its answer."""

from __future__ import annotations

from collections import deque

from broker_store.protocol.http2.fields import Fields


class Stream:
    """A stream that is open, at least in one direction."""

    __slots__ = (
        "id", "fields", "parts", "received", "window", "unacknowledged", "has_request", "has_answer",
        "queue", "trailers", "waits", "max_body", "is_empty", "is_too_large", "fields_bytes",
    )  # fmt: skip

    def __init__(self, number: int, fields: Fields, max_body: int | None, window: int):
        self.id = number
        self.fields = fields
        self.fields_bytes = 0  # of fields above what a usual request has, which are counted
        self.max_body = max_body  # bytes; None if the request is given piece by piece
        self.is_empty = True  # nothing came of the body
        self.is_too_large = False
        self.parts: list[bytes] = []  # of the body, until it is complete
        self.received = 0  # bytes that are kept of the body
        self.window = window  # bytes that may be sent
        self.unacknowledged = 0  # bytes that came since the last WINDOW_UPDATE
        self.has_request = False  # the peer has ended its side
        self.has_answer = False  # the header block of an answer was sent
        self.queue: deque[bytes | memoryview] = deque()  # what waits for a window
        self.trailers: bytes | None = None  # block that ends the answer, after the queue
        self.waits = False  # it is among the streams that wait for a window

    @property
    def is_long(self) -> bool:
        """Return whether the request is given piece by piece."""
        return self.max_body is None

    def __repr__(self) -> str:
        return f"<stream {self.id} {self.fields.get(':path', '')}>"
