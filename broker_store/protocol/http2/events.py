"""What received bytes mean for the server."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.protocol.http2.stream import Stream


class Request(NamedTuple):
    """A request that is complete."""

    stream: Stream
    body: bytes


class Opened(NamedTuple):
    """The fields of a request whose body is given piece by piece."""

    stream: Stream


class Received(NamedTuple):
    """A piece of the body of such a request."""

    stream: Stream
    data: bytes


class Finished(NamedTuple):
    """The end of the body of such a request."""

    stream: Stream


class Reset(NamedTuple):
    """The peer, or this side for an error of the peer, has ended a stream; nothing can be sent on it."""

    stream: Stream
    code: int


class TooLarge(NamedTuple):
    """A request has a longer body than its path may have. It is not kept, and the stream waits for its
    answer."""

    stream: Stream
    limit: int


Event = Request | Opened | Received | Finished | Reset | TooLarge
