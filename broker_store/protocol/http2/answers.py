"""The sending half of an HTTP/2 connection: answers, within the windows of the peer."""

from __future__ import annotations

from broker_store.formats import http2_frame as f
from broker_store.formats.http2_frame import ErrorCode
from broker_store.protocol.budget import Budget
from broker_store.protocol.http2.frames import AnswerFrames, frame_head, headers_frame, reset_frame
from broker_store.protocol.http2.stream import Stream

# Clients measure the round trip with PING, and send a WINDOW_UPDATE for each or each second DATA frame.
MAX_IDLE_FRAMES = 2_000
IDLE_FRAMES_PER_S = 200
FRAMES_PER_DATA_SENT = 4
# A shorter DATA frame which does not end a piece costs as much as a longer one, and earns nothing. A peer
# that opened its windows by single bytes would be served without end.
MIN_SENT_BYTES = 256


class Answers:
    """The streams of a connection, and what is sent on them."""

    def __init__(self, now_s: float, make_answer: AnswerFrames):
        self.streams: dict[int, Stream] = {}
        self.buffered = 0  # bytes of unfinished bodies
        self.fields_bytes = 0  # of the fields of open streams, of those above FREE_FIELDS_BYTES
        self._unfinished: dict[int, float] = {}  # streams with such bodies, and since when; the oldest first
        self.queued = 0  # bytes that wait for a window of the peer
        self.released = 0  # bytes that windows have let pass, of those that had to wait
        self._out: list[bytes] = []
        self._answer_frames = make_answer
        self._window = f.DEFAULT_WINDOW
        self._stream_window = f.DEFAULT_WINDOW
        self._max_payload = f.DEFAULT_FRAME_BYTES
        # Streams that wait for the window of the connection, the longest first, and those that waited for
        # their own, which was opened since.
        self._waiting: dict[Stream, None] = {}
        self._opened: dict[Stream, None] = {}
        self._table_update = b""  # before the next block, after the peer has made its table smaller
        self._idle_frames = Budget(MAX_IDLE_FRAMES, IDLE_FRAMES_PER_S, now_s)

    def take(self) -> list[bytes]:
        """Return the bytes to send, in pieces, and forget them."""
        out, self._out = self._out, []
        return out

    def answer(self, stream: Stream, head: bytes, body: bytes, trailers: bytes) -> None:
        """Send a whole answer: a header block, a body, and a block of trailers. Nothing if the stream has
        ended."""
        size = len(body)
        if (
            size <= self._window
            and size <= stream.window
            and size <= self._max_payload
            and stream.has_request
            and not self._table_update
        ):
            if self.streams.pop(stream.id, None) is None:
                return
            self.fields_bytes -= stream.fields_bytes
            self._window -= size
            self._idle_frames.earn(FRAMES_PER_DATA_SENT)
            self._out.append(self._answer_frames(stream.id, head, body, trailers))
            return
        self.begin(stream, head)
        self.send(stream, body)
        self.finish(stream, trailers)

    def begin(self, stream: Stream, head: bytes) -> None:
        """Send the header block of an answer."""
        if stream.id in self.streams:
            stream.has_answer = True
            self._out.append(headers_frame(stream.id, self._block_of(head), 0))

    def send(self, stream: Stream, data: bytes) -> None:
        """Send a piece of an answer's body, as soon as the windows allow it."""
        if stream.id not in self.streams:
            return
        stream.queue.append(data)
        self.queued += len(data)
        if not stream.waits:
            self._send_queue(stream)

    def finish(self, stream: Stream, trailers: bytes) -> None:
        """Send a block of trailers after all pieces, and end the stream."""
        if stream.id not in self.streams:
            return
        stream.trailers = trailers
        if not stream.waits:
            self._send_queue(stream)

    def refuse(self, stream: Stream, block: bytes) -> None:
        """Answer with one header block alone."""
        if stream.id in self.streams:
            self._out.append(headers_frame(stream.id, self._block_of(block), f.FLAG_END_STREAM))
            self._ended(stream)

    def _block_of(self, block: bytes) -> bytes:
        if self._table_update:
            block, self._table_update = self._table_update + block, b""
        return block

    def _send_queue(self, stream: Stream) -> None:
        """Send what the windows allow of a stream's queue, then its trailers."""
        queue = stream.queue
        while queue:
            data = queue[0]
            room = min(self._window, stream.window)
            if room <= 0 and data:
                stream.waits = True
                if stream.window > 0:
                    self._waiting[stream] = None
                return
            size = min(len(data), room, self._max_payload)
            if size == len(data):
                queue.popleft()
                piece = bytes(data)
            else:
                view = memoryview(data)
                piece, queue[0] = bytes(view[:size]), view[size:]
            self._out.append(frame_head(size, f.DATA, 0, stream.id))
            self._out.append(piece)
            self._window -= size
            stream.window -= size
            self.queued -= size
            self.released += size
            if size >= MIN_SENT_BYTES or size == len(data):
                self._idle_frames.earn(FRAMES_PER_DATA_SENT)
        if stream.trailers is not None:
            block = self._block_of(stream.trailers)
            self._out.append(headers_frame(stream.id, block, f.FLAG_END_STREAM))
            self._ended(stream)

    def _send_waiting(self) -> None:
        """Send what the windows allow of what waited for them, the stream that waited longest first."""
        opened, self._opened = self._opened, {}
        for stream in opened:
            stream.waits = False
            self._send_queue(stream)
        waiting = self._waiting
        while waiting and self._window > 0:
            stream = next(iter(waiting))
            del waiting[stream]
            stream.waits = False
            self._send_queue(stream)

    def _ended(self, stream: Stream) -> None:
        """Remove a stream after its answer. A request that is not complete is not read further."""
        if not stream.has_request:
            self._out.append(reset_frame(stream.id, ErrorCode.NO_ERROR))
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self.buffered -= stream.received
            self.fields_bytes -= stream.fields_bytes
            self._unfinished.pop(stream.id, None)
            self.queued -= sum(map(len, stream.queue))
            self._waiting.pop(stream, None)
            self._opened.pop(stream, None)
            stream.queue.clear()
            stream.parts.clear()
