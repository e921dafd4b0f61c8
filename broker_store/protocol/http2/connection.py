"""One HTTP/2 connection of a server, without input and output (RFC 9113).

    connection = Connection(body_limit, now_s=loop.time())
    for event in connection.receive(data, loop.time()): ...
    connection.answer(stream, head, body, trailers)
    transport.writelines(connection.take())
    if connection.failure: transport.close()

`receive` raises nothing. An error of the connection is its `failure`. A GOAWAY with the reason is then among
the bytes to send, all streams have ended, and no further bytes are read. Whatever ends a connection, `end`
returns each stream that nothing else has ended.

The cost of a peer is bounded. Requests are bounded by MAX_STREAMS, MAX_FIELDS_BYTES and MAX_BODY_BYTES, and
header blocks by MAX_BLOCK_BYTES and MAX_CONTINUATIONS. Frames that carry no request (PING, SETTINGS,
PRIORITY, WINDOW_UPDATE, small pieces of bodies, frames for streams that have ended) are paid from a budget.
Requests and answers refill it. Streams that the peer cancels have a budget of their own. What waits for a
window of the peer is counted in `queued`, what is kept of unfinished requests in `kept`; the caller bounds
both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from broker_store.formats import http2_frame as f
from broker_store.formats.http2_frame import ErrorCode
from broker_store.protocol.budget import Budget
from broker_store.protocol.http2.answers import Answers
from broker_store.protocol.http2.events import Event, Finished, Opened, Received, Request, Reset, TooLarge
from broker_store.protocol.http2.fields import MAX_FIELDS_BYTES, FieldDecoder, Fields, fields_size
from broker_store.protocol.http2.frames import (
    SETTINGS_ACK,
    Http2Error,
    checked_increment,
    goaway_frame,
    payload_bytes,
    ping_ack,
    read_settings,
    read_uint32,
    reset_frame,
    settings_frame,
    window_update,
    without_padding,
)
from broker_store.protocol.http2.functions import PLAIN, Functions
from broker_store.protocol.http2.stream import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# The limits of Apache's proxy are 130 MiB for a call, and no limit of streams.
MAX_STREAMS = 1_024
MAX_BODY_BYTES = 130 << 20
MAX_PAYLOAD_BYTES = 64 << 10  # of a frame
MAX_BLOCK_BYTES = 32 << 10
MAX_CONTINUATIONS = 8
# Windows for the peer. That of the connection is the largest that exists: bodies are bounded by the caller.
# Both are refilled long before they are used up, so that no peer can be seen to exceed them.
STREAM_WINDOW = 8 << 20
REFILL_BYTES = 16 << 20
FRAMES_PER_REQUEST = 4
# Header fields of a request that take more are counted in `kept` until it is answered.
FREE_FIELDS_BYTES = 2 << 10
FREE_BLOCK_BYTES = FREE_FIELDS_BYTES // 2  # Huffman code makes them longer
PAIRS_PER_FRAME = 16  # settings of one SETTINGS frame, for the price of one
STREAMS_PER_FRAME = 8  # whose windows one SETTINGS frame may change for the price of one
# A piece of a body that is shorter, and is not the last one, is paid as a frame without a request.
MIN_PIECE_BYTES = 256
# A client that is closed cancels all that it waits for, at once.
MAX_CANCELS = 2 * MAX_STREAMS
CANCELS_PER_S = 100

_OUR_SETTINGS = {
    f.SETTING_HEADER_TABLE_SIZE: 0,
    f.SETTING_MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    f.SETTING_INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    f.SETTING_MAX_FRAME_SIZE: MAX_PAYLOAD_BYTES,
    f.SETTING_MAX_HEADER_LIST_SIZE: MAX_FIELDS_BYTES,
}
_NO_TABLE = b"\x20"


class Connection(Answers):
    """One connection. `body_limit(path)` are the bytes that the body of a request may have, None if it is
    given piece by piece, without a limit here."""

    def __init__(self, body_limit: Callable[[str], int | None], now_s: float, functions: Functions = PLAIN):
        super().__init__(now_s, functions.answer_frames)
        self.failure: Http2Error | None = None
        self._body_limit = body_limit
        self._scan = functions.scan_frames
        self._now_s = now_s
        self._out += [settings_frame(_OUR_SETTINGS), window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW)]
        self._rest = b""
        self._rest_since_s = 0.0
        self._has_preface = self._has_settings = False
        self._decoder = FieldDecoder(now_s, functions.read_fields)
        self._last = 0  # highest stream of the peer
        self._is_leaving = False
        self._block: list[bytes] = []  # of a header block that is not complete
        self._block_bytes = self._block_stream = self._block_flags = 0
        self._block_since_s = 0.0
        self._unacknowledged = 0
        self._cancels = Budget(MAX_CANCELS, CANCELS_PER_S, now_s)
        self._events: list[Event] = []
        self._given_up: list[Stream] = []  # by a failure, until `end` returns them
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            f.DATA: self._data,
            f.HEADERS: self._headers,
            f.PRIORITY: self._priority,
            f.RST_STREAM: self._reset,
            f.SETTINGS: self._settings,
            f.PUSH_PROMISE: self._push_promise,
            f.PING: self._ping,
            f.GOAWAY: self._goaway,
            f.WINDOW_UPDATE: self._window_update,
            f.CONTINUATION: self._continuation,
        }

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Return what these bytes mean."""
        if self.failure is not None:
            return []
        self._now_s = now_s
        events: list[Event] = []
        self._events = events
        if self._rest:
            data = self._rest + data
        try:
            if not self._has_preface:
                if len(data) < len(PREFACE) and PREFACE.startswith(data):
                    self._keep_rest(data, is_new=False)
                    return events
                if not data.startswith(PREFACE):
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first bytes are not those of HTTP/2")
                self._has_preface = True
                data = data[len(PREFACE) :]
            self._receive_frames(data)
        except Http2Error as error:
            self._fail(error)
        else:
            self._send_waiting()  # once for all frames: each may have opened a window by one byte
        return events

    def _receive_frames(self, data: bytes) -> None:
        size = len(data)
        rows = self._scan(data, size, MAX_PAYLOAD_BYTES)
        row = iter(rows)
        handlers = self._handlers
        for kind, stream, start, end in zip(row, row, row, row, strict=True):
            number = kind >> 8
            if not self._has_settings:
                if number != f.SETTINGS or kind & f.FLAG_ACK:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
                self._has_settings = True
            if self._block and (number != f.CONTINUATION or stream != self._block_stream):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block that another frame interrupts")
            handler = handlers.get(number)
            if handler is None:
                self._spend("frames of unknown types")
                continue
            try:
                handler(stream, kind & 0xFF, data[start:end])
            except Http2Error as error:
                if not error.stream:
                    raise
                self._end_stream_with(error)
        done = rows[-1] if rows else 0
        if size - done >= f.HEAD_BYTES:
            length = payload_bytes(data, done)
            if length > MAX_PAYLOAD_BYTES:
                raise Http2Error(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, most is {MAX_PAYLOAD_BYTES}"
                )
        self._keep_rest(data[done:] if done else data, is_new=done > 0)

    def _keep_rest(self, rest: bytes, *, is_new: bool) -> None:
        if is_new or not self._rest:
            self._rest_since_s = self._now_s
        self._rest = rest

    @property
    def kept(self) -> int:
        """Return the bytes of unfinished frames, header blocks and bodies, and of many header fields."""
        return len(self._rest) + self._block_bytes + self.buffered + self.fields_bytes

    def unfinished_since(self) -> float | None:
        """Return when the first byte came of the oldest unfinished frame, header block, request or message
        (those that `keep` counts). None if all are complete."""
        since_s = [next(iter(self._unfinished.values()), math.inf)]
        if self._rest:
            since_s.append(self._rest_since_s)
        if self._block:
            since_s.append(self._block_since_s)
        oldest_s = min(since_s)
        return None if oldest_s == math.inf else oldest_s

    def keep(self, stream: Stream, size: int) -> None:
        """Count the bytes that the caller keeps of a long request: those of a message that is not
        complete."""
        if stream.id not in self.streams:
            return
        if size <= stream.received:
            self._unfinished.pop(stream.id, None)
        if size:
            self._unfinished.setdefault(stream.id, self._now_s)
        self.buffered += size - stream.received
        stream.received = size

    def _spend(self, what: str, cost: int = 1) -> None:
        if not self._idle_frames.spend(cost, self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")

    def _fail(self, error: Http2Error) -> None:
        self.failure = error
        self._out.append(goaway_frame(self._last, error.code, str(error)))
        self._rest = b""
        self._block.clear()
        self._give_up_all()

    def _give_up_all(self) -> None:
        for stream in list(self.streams.values()):
            self._forget(stream)
            self._given_up.append(stream)

    def end(self) -> list[Stream]:
        """Give up all streams, because the connection ends. Return them and those that a failure has given
        up, each of them once: no event says so."""
        self._give_up_all()
        given_up, self._given_up = self._given_up, []
        self._handlers = {}  # they refer to this object: without them it is freed at once
        return given_up

    def _end_stream_with(self, error: Http2Error) -> None:
        """End a stream for an error of the peer."""
        # It costs as much as a stream that the peer cancels: whether the peer or this side ends it.
        if not self._cancels.spend(1, self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many errors of streams")
        self._out.append(reset_frame(error.stream, error.code))
        stream = self.streams.get(error.stream)
        if stream is not None:
            self._forget(stream)
            self._events.append(Reset(stream, error.code))

    def _headers(self, number: int, flags: int, payload: bytes) -> None:
        if not number & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a request on stream {number}")
        if flags & (f.FLAG_PADDED | f.FLAG_PRIORITY):
            payload = without_padding(payload, flags)
            if flags & f.FLAG_PRIORITY:
                if len(payload) < 5:
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame that is too short")
                payload = payload[5:]
        if flags & f.FLAG_END_HEADERS:
            self._block_complete(number, flags, payload)
            return
        self._block = [payload]
        self._block_bytes = len(payload)
        self._block_stream, self._block_flags = number, flags
        self._block_since_s = self._rest_since_s if self._rest else self._now_s

    def _continuation(self, number: int, flags: int, payload: bytes) -> None:
        if not self._block:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION without a header block")
        self._block.append(payload)
        self._block_bytes += len(payload)
        if len(self._block) > 1 + MAX_CONTINUATIONS:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"more than {MAX_CONTINUATIONS} CONTINUATION frames"
            )
        if self._block_bytes > MAX_BLOCK_BYTES:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header block of more than {MAX_BLOCK_BYTES} bytes"
            )
        if flags & f.FLAG_END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._block_bytes = 0
            self._block_complete(number, self._block_flags, block)

    def _block_complete(self, number: int, flags: int, block: bytes) -> None:
        if len(block) > MAX_BLOCK_BYTES:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header block of more than {MAX_BLOCK_BYTES} bytes"
            )
        # Each block is decoded: a later one may depend on it.
        fields = self._decoder.request(block, self._now_s)
        if number <= self._last:
            self._trailers(number, flags)
            return
        self._last = number
        if self._is_leaving:
            self._spend("requests after GOAWAY")
            return
        if len(self.streams) >= MAX_STREAMS:
            raise Http2Error(ErrorCode.REFUSED_STREAM, f"more than {MAX_STREAMS} concurrent streams", number)
        if isinstance(fields, str):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, fields, number)
        is_usual = len(block) <= FREE_BLOCK_BYTES and self._decoder.is_usual
        size = 0 if is_usual else fields_size(fields)
        self._open(number, flags, fields, size if size > FREE_FIELDS_BYTES else 0)

    def _open(self, number: int, flags: int, fields: Fields, fields_bytes: int) -> None:
        max_body = self._body_limit(fields[":path"])
        stream = Stream(number, fields, max_body, self._stream_window)
        self.streams[number] = stream
        stream.fields_bytes = fields_bytes
        self.fields_bytes += fields_bytes
        if max_body is None:
            self._events.append(Opened(stream))
        if flags & f.FLAG_END_STREAM:
            self._request_complete(stream)
        elif max_body is not None:
            self._unfinished[number] = self._now_s

    def _trailers(self, number: int, flags: int) -> None:
        """End a request by a second header block. Its fields are not used."""
        stream = self.streams.get(number)
        if stream is None:
            self._spend("frames for streams that have ended")
        elif stream.has_request:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "a header block after the end of a request", number)
        elif not flags & f.FLAG_END_STREAM:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "trailers that do not end the request", number)
        else:
            self._request_complete(stream)

    def _data(self, number: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._unacknowledged += size
        if self._unacknowledged >= REFILL_BYTES:
            self._out.append(window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        stream = self.streams.get(number)
        if stream is None:
            if not number & 1 or number > self._last:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"data on stream {number}, which is not open")
            self._spend("frames for streams that have ended")
            return
        if stream.has_request:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "data after the end of a request", number)
        max_body = stream.max_body
        if flags == f.FLAG_END_STREAM and stream.is_empty and max_body is not None and size <= max_body:
            # Most requests come in one frame
            self._unfinished.pop(number, None)
            stream.has_request = True
            self._idle_frames.earn(FRAMES_PER_REQUEST)
            self._events.append(Request(stream, payload))
            return
        stream.is_empty = False
        if flags & f.FLAG_PADDED:
            payload = without_padding(payload, flags)
        ends = flags & f.FLAG_END_STREAM
        if not ends:
            if len(payload) < MIN_PIECE_BYTES:
                self._spend("small pieces of requests")
            self._refill(stream, size)
        if max_body is None:
            if payload:
                self._events.append(Received(stream, payload))
        elif stream.is_too_large:
            pass
        elif stream.received + len(payload) > max_body:
            stream.is_too_large = True
            stream.parts.clear()
            self.buffered -= stream.received
            stream.received = 0
            self._events.append(TooLarge(stream, max_body))
        else:
            stream.received += len(payload)
            self.buffered += len(payload)
            stream.parts.append(payload)
        if ends:
            self._request_complete(stream)

    def _refill(self, stream: Stream, size: int) -> None:
        stream.unacknowledged += size
        if stream.unacknowledged >= STREAM_WINDOW // 2:
            self._out.append(window_update(stream.id, stream.unacknowledged))
            stream.unacknowledged = 0

    def _request_complete(self, stream: Stream) -> None:
        stream.has_request = True
        self._idle_frames.earn(FRAMES_PER_REQUEST)
        if stream.is_long:
            self._events.append(Finished(stream))
            return
        self._unfinished.pop(stream.id, None)
        if stream.is_too_large:
            return
        parts, stream.parts = stream.parts, []
        self.buffered -= stream.received
        stream.received = 0
        self._events.append(Request(stream, parts[0] if len(parts) == 1 else b"".join(parts)))

    def _priority(self, number: int, flags: int, payload: bytes) -> None:
        if not number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame of a wrong length", number)
        self._spend("PRIORITY frames")

    def _reset(self, number: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a RST_STREAM frame of a wrong length")
        self._check_not_idle(number, "RST_STREAM")
        stream = self.streams.get(number)
        if stream is None:
            self._spend("frames for streams that have ended")
            return
        if not self._cancels.spend(1, self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many cancelled requests")
        self._forget(stream)
        self._events.append(Reset(stream, read_uint32(payload)))

    def _check_not_idle(self, number: int, what: str) -> None:
        if not number & 1 or number > self._last:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {number}, which is not open")

    def _settings(self, number: int, flags: int, payload: bytes) -> None:
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {number}")
        if len(payload) % 6 or flags & f.FLAG_ACK and payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame of a wrong length")
        self._spend("SETTINGS frames", 1 + len(payload) // (6 * PAIRS_PER_FRAME))
        if flags & f.FLAG_ACK:
            self._decoder.has_no_table = True
            return
        window = self._stream_window
        for name, value in read_settings(payload):
            if name == f.SETTING_INITIAL_WINDOW_SIZE:
                if value > f.MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {value}")
                window = value
            elif name == f.SETTING_MAX_FRAME_SIZE:
                if not f.DEFAULT_FRAME_BYTES <= value <= f.MAX_FRAME_BYTES:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a highest frame size of {value}")
                self._max_payload = value
            elif name == f.SETTING_ENABLE_PUSH:
                if value > 1:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
            elif name == f.SETTING_HEADER_TABLE_SIZE and value < f.DEFAULT_TABLE_BYTES:
                self._table_update = _NO_TABLE
        self._out.append(SETTINGS_ACK)
        if window != self._stream_window:
            self._change_stream_windows(window)

    def _change_stream_windows(self, window: int) -> None:
        self._spend("SETTINGS frames", len(self.streams) // STREAMS_PER_FRAME)
        change = window - self._stream_window
        self._stream_window = window
        for stream in self.streams.values():
            stream.window += change
            if stream.window > f.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window above the highest allowed one")
            self._may_send(stream)

    def _may_send(self, stream: Stream) -> None:
        """Have a stream send at the end of what was received, if its own window is what it waits for."""
        if stream.waits and stream.window > 0 and stream not in self._waiting:
            self._opened[stream] = None

    def leave(self) -> None:
        """Send GOAWAY: no new request is accepted. Requests that came are still answered."""
        if not self._is_leaving and self.failure is None:
            self._is_leaving = True
            self._out.append(goaway_frame(self._last, ErrorCode.NO_ERROR, "the broker stops"))

    def _push_promise(self, number: int, flags: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _ping(self, number: int, flags: int, payload: bytes) -> None:
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"PING on stream {number}")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a PING frame of a wrong length")
        self._spend("PING frames")
        if not flags & f.FLAG_ACK:
            self._out.append(ping_ack(payload))

    def _goaway(self, number: int, flags: int, payload: bytes) -> None:
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {number}")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame of a wrong length")
        self._spend("GOAWAY frames")

    def _window_update(self, number: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame of a wrong length")
        self._spend("WINDOW_UPDATE frames")
        increment = read_uint32(payload) & f.MAX_WINDOW
        if not number:
            self._window += checked_increment(increment, self._window, 0)
            return
        self._check_not_idle(number, "WINDOW_UPDATE")
        stream = self.streams.get(number)
        if stream is None:
            return
        stream.window += checked_increment(increment, stream.window, number)
        self._may_send(stream)
