"""server.channel and server.listener: connections over loopback, and the limits of a peer."""

import asyncio
import contextlib

import pytest

from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.server import channel as channel_module
from broker_store.server.channel import Channel, RequestTimeout, connect
from broker_store.server.listener import bind, listen
from tests.support.waits import until


@pytest.fixture
async def open_port():
    """Return a function that opens a listener; all are closed at the end."""
    listeners = []

    async def open_one(handle, **options):
        listener = await listen(handle, bind("127.0.0.1", 0), **options)
        listeners.append(listener)
        return listener

    yield open_one
    for listener in listeners:
        await listener.close()


def echo(command, channel):
    return command.answer(0, None, command.fields, command.body)


class Client:
    """A plain socket with a decoder."""

    @classmethod
    async def to(cls, listener):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", listener.port)
        self.connection = Connection()
        self.received = []
        return self

    def write(self, *commands):
        self.writer.write(b"".join(map(encode_frame, commands)))

    async def read(self, count=1):
        while len(self.received) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 5)
            if not data:
                raise EOFError
            self.received += self.connection.receive(data)
        taken, self.received = self.received[:count], self.received[count:]
        return taken

    async def ended(self):
        try:
            return await asyncio.wait_for(self.reader.read(), 5) == b""
        except ConnectionError:
            return True

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
async def client(open_port):
    client = await Client.to(await open_port(echo))
    yield client
    await client.close()


async def test_requests_are_answered_in_one_piece_however_they_arrive(client):
    frames = b"".join(encode_frame(Command.request(10, {"n": str(n)}, b"x" * n, opaque=n)) for n in range(50))
    for at in range(0, len(frames), 7):
        client.writer.write(frames[at : at + 7])
    answers = await client.read(50)
    assert [answer.opaque for answer in answers] == list(range(50))
    assert all(answer.body == b"x" * answer.opaque and answer.is_response for answer in answers)


async def test_oneway_requests_are_not_answered(client):
    client.write(Command.request(10, opaque=1, oneway=True), Command.request(10, opaque=2))
    assert [answer.opaque for answer in await client.read()] == [2]


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00\x00\x00\x02xx", b"\xff" * 20,
                                      b"\x00\x00\x00\x10\x07\x00\x00\x04abcdefghijkl"])  # fmt: skip
async def test_nonsense_ends_that_connection_and_no_other(open_port, nonsense):
    listener = await open_port(echo)
    good, bad = await Client.to(listener), await Client.to(listener)
    bad.writer.write(nonsense)
    assert await bad.ended()
    good.write(Command.request(10, opaque=5))
    assert (await good.read())[0].opaque == 5
    await bad.close()
    await good.close()


async def test_a_handler_that_raises_is_answered_and_the_connection_lives(open_port, caplog):
    def broken(command, channel):
        raise ValueError("secret /path")

    client = await Client.to(await open_port(broken))
    client.write(Command.request(10, opaque=1), Command.request(10, opaque=2))
    answers = await client.read(2)
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 1), (2, 1)]
    assert "secret" not in answers[0].remark
    await client.close()


async def test_more_connections_than_allowed_are_closed_at_once(open_port):
    refused = []
    listener = await open_port(
        echo, max_connections=1, refused=lambda cause, **case: refused.append((cause, case))
    )
    first, second = await Client.to(listener), await Client.to(listener)
    assert await second.ended()
    who = "{}:{}".format(*second.writer.get_extra_info("sockname"))
    assert (
        refused == [("too many connections", {"value": 1, "limit": 1, "who": who})]
        and len(listener.openings) == 1
    )
    first.write(Command.request(10, opaque=1))
    await first.read()
    await second.close()
    await first.close()


async def test_unfinished_frames_of_all_connections_are_bounded_together(open_port):
    listener = await open_port(echo)
    listener.shares.unfinished_bytes = 300
    first, second = await Client.to(listener), await Client.to(listener)
    whole = encode_frame(Command.request(10, None, b"x" * 150, opaque=1))
    first.writer.write(whole[:-1])
    while listener.kept_bytes < len(whole) - 1:
        await asyncio.sleep(0)
    second.writer.write(whole[:-1])
    assert await second.ended()
    first.writer.write(whole[-1:])
    assert (await first.read())[0].opaque == 1
    assert listener.kept_bytes == 0
    await first.close()
    await second.close()


async def test_a_closed_connection_is_told_once(open_port):
    closed = []
    told = asyncio.Event()
    listener = await open_port(echo, on_closed=lambda channel: (closed.append(channel), told.set()))
    client = await Client.to(listener)
    client.write(Command.request(10, opaque=1))
    await client.read()
    await client.close()
    await asyncio.wait_for(told.wait(), 5)
    assert len(closed) == 1 and listener.channels == set()


async def test_the_server_asks_its_client(open_port):
    channels = []
    listener = await open_port(lambda command, channel: channels.append(channel))
    theirs = await connect(
        "127.0.0.1", listener.port, 5, handle=lambda command, channel: command.answer(0, "yes")
    )
    theirs.write(Command.request(34, oneway=True))
    while not channels:
        await asyncio.sleep(0)
    answer = await channels[0].request(Command.request(307), 5)
    assert (answer.code, answer.remark) == (0, "yes")
    theirs.close()


async def test_a_server_that_answers_nothing_for_long_is_connected_anew(open_port, monkeypatch):
    """With the time limit of the request, or with one around it."""
    listener = await open_port(lambda command, channel: None)
    monkeypatch.setattr(channel_module, "SILENT_S", 3_600.0)
    channel = await connect("127.0.0.1", listener.port, 5)
    with pytest.raises(RequestTimeout):
        await channel.request(Command.request(1), 0.01)
    assert not channel.transport.is_closing()
    monkeypatch.setattr(channel_module, "SILENT_S", 0.02)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await channel.request(Command.request(1), 5)
    assert channel.transport.is_closing()


async def test_a_late_answer_is_an_answer(open_port):
    came = []
    listener = await open_port(lambda command, channel: came.append((command, channel)))
    channel = await connect("127.0.0.1", listener.port, 5)
    with pytest.raises(RequestTimeout):
        await channel.request(Command.request(1), 0.01)
    channel._unanswered_s -= 3_600
    await until(lambda: came)
    ((command, there),) = came
    there.write(command.answer(0))
    await until(lambda: not channel._unanswered_s)
    with pytest.raises(RequestTimeout):
        await channel.request(Command.request(1), 0.01)
    assert not channel.transport.is_closing()
    channel.abort()


async def test_a_request_that_is_cancelled_while_its_answer_comes_is_cancelled(open_port):
    """A task that goes on is waited for without end by what cancelled it."""
    listener = await open_port(echo)
    channel = await connect("127.0.0.1", listener.port, 5)
    asking = asyncio.ensure_future(channel.request(Command.request(307), 30))
    await asyncio.sleep(0)
    (answered,) = channel._asked.values()
    answered.set_result(Command.request(307).answer(0))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    channel.close()


async def test_a_peer_that_does_not_answer_is_given_up(open_port):
    listener = await open_port(lambda command, channel: None)
    channel = await connect("127.0.0.1", listener.port, 5)
    with pytest.raises(RequestTimeout):
        await channel.request(Command.request(307), 0.01)
    waiting = asyncio.ensure_future(channel.request(Command.request(307), 5))
    await asyncio.sleep(0)
    channel.abort()
    with pytest.raises(RequestTimeout):
        await waiting
    with pytest.raises(RequestTimeout):
        await channel.request(Command.request(307), 5)


async def test_a_port_that_is_taken_is_refused(open_port):
    listener = await open_port(echo)
    with pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", listener.port)


# Limits, without a socket


class Pipe(asyncio.Transport):
    """A transport that keeps what is written, and can be full."""

    def __init__(self):
        super().__init__({"peername": ("10.0.0.1", 5)})
        self.written = b""
        self.full_from = 1 << 60
        self.reading = True
        self.aborted = False
        self.protocol = None

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def write(self, data):
        self.written += data
        if len(self.written) > self.full_from:
            self.protocol.pause_writing()

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def get_write_buffer_size(self):
        return len(self.written)

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.aborted

    def abort(self):
        self.aborted = True

    close = abort


def channel_over_pipe(handle=echo):
    channel, pipe = Channel(handle), Pipe()
    pipe.protocol = channel
    channel.connection_made(pipe)
    return channel, pipe


def frame(opaque=0, body=b""):
    return encode_frame(Command.request(10, None, body, opaque=opaque))


async def test_a_frame_has_ten_seconds_for_its_header_and_sixty_for_all():
    channel, _ = channel_over_pipe()
    began = channel.last_s
    whole = frame(body=b"x" * 100)
    channel.data_received(whole[:6])
    assert channel.overdue(began + 9.9) is None
    assert channel.overdue(channel.frame_since_s + 10.1) == ("slow frame", pytest.approx(10.1), 10)
    channel.data_received(whole[6:-1])
    assert channel.overdue(channel.last_s + 10.1) is None
    assert channel.overdue(channel.frame_since_s + 60.1) == ("slow frame", pytest.approx(60.1), 60)
    channel.data_received(b"x")
    assert channel.overdue(channel.last_s + 119) is None


async def test_bytes_that_drip_do_not_extend_the_limit():
    channel, _ = channel_over_pipe()
    for byte in frame()[:7]:
        channel.data_received(bytes([byte]))
    assert channel.overdue(channel.frame_since_s + 10.1) is not None


async def test_two_minutes_without_a_byte_are_idle():
    channel, _ = channel_over_pipe()
    channel.data_received(frame())
    assert channel.overdue(channel.last_s + 119.9) is None
    assert channel.overdue(channel.last_s + 120.1) == ("idle connection", pytest.approx(120.1), 120)


async def test_a_peer_that_does_not_read_is_not_read_either():
    handled = []

    def handle(command, channel):
        handled.append(command.opaque)
        return command.answer(body=b"x" * 1_000)

    channel, pipe = channel_over_pipe(handle)
    pipe.full_from = 0
    channel.data_received(b"".join(map(frame, range(200))))
    assert len(handled) == 65 and not pipe.reading, "one piece of answers is written before it is known"
    pipe.full_from, pipe.written = 1 << 60, b""
    channel.resume_writing()
    assert handled == list(range(200)) and pipe.reading


@pytest.mark.parametrize("size", [1 << 18, 4 << 20, channel_module.MAX_UNSENT_BYTES + (1 << 20)])
async def test_who_asks_for_much_at_once_gets_it_as_fast_as_it_reads(size):
    handled = []

    def handle(command, channel):
        handled.append(command.opaque)
        return command.answer(body=b"x" * size)

    channel, pipe = channel_over_pipe(handle)
    pipe.full_from = channel_module.HIGH_WATER_BYTES
    channel.data_received(b"".join(map(frame, range(60))))
    most = len(pipe.written)
    while len(handled) < 60:
        assert not pipe.reading
        pipe.written = b""
        channel.resume_writing()
        most = max(most, len(pipe.written))
    assert not pipe.aborted and most < channel_module.HIGH_WATER_BYTES + size + 100


async def test_commands_that_arrive_while_it_is_stopped_keep_their_order():
    handled = []
    channel, pipe = channel_over_pipe(lambda command, channel: handled.append(command.opaque))
    for _ in range(channel_module.MAX_HELD):
        channel.hold()
    channel.data_received(frame(1) + frame(2))
    channel.data_received(frame(3))
    assert handled == [1] and not pipe.reading
    channel.release()
    await asyncio.sleep(0)
    assert handled == [1, 2, 3] and pipe.reading


async def test_what_a_peer_has_not_read_is_known_in_bytes(open_port):
    channels = []
    listener = await open_port(lambda command, channel: channels.append(channel))
    client = await Client.to(listener)
    client.write(Command.request(10))
    while not channels:
        await asyncio.sleep(0)
    assert channels[0].unsent == 0
    channels[0].write_bytes(b"x" * (4 << 20))
    assert 0 < channels[0].unsent <= 4 << 20
    client.writer.close()


async def test_the_connection_with_most_of_the_unfinished_frames_is_closed(open_port):
    refused = []
    listener = await open_port(echo, refused=lambda cause, **case: refused.append((cause, case)))
    listener.shares.unfinished_bytes = 1_000
    large, small = await Client.to(listener), await Client.to(listener)
    whole = encode_frame(Command.request(10, None, b"x" * 750, opaque=1))
    large.writer.write(whole[:-1])
    while listener.kept_bytes < len(whole) - 1:
        await asyncio.sleep(0)
    other = encode_frame(Command.request(10, None, b"x" * 300, opaque=2))
    small.writer.write(other[:-1])
    assert await large.ended()
    small.writer.write(other[-1:])
    assert (await small.read())[0].opaque == 2
    who = "{}:{}".format(*large.writer.get_extra_info("sockname"))
    ((cause, case),) = refused
    assert (cause, case["who"], case["limit"]) == ("unfinished frames", who, 1_000)
    assert listener.kept_bytes == 0 and len(listener.channels) == 1
    await large.close()
    await small.close()


async def test_what_no_peer_reads_is_bounded_together_and_the_one_with_most_of_it_is_closed(open_port):
    """Each may have a MiB of answers, also before it has signed: a thousand took a GB."""
    refused, channels = [], []

    def keep(command, channel):
        channels.append(channel)

    listener = await open_port(keep, refused=lambda cause, **case: refused.append((cause, case)))
    clients = [await Client.to(listener) for _ in range(2)]
    for client in clients:
        client.write(Command.request(10, opaque=1))
        count = len(channels) + 1
        await until(lambda count=count: len(channels) == count)
    for channel, megabytes in zip(channels, (16, 24), strict=True):
        channel.write_bytes(b"x" * (megabytes << 20))
    listener.shares.unfinished_bytes = channels[0].unsent + channels[1].unsent
    listener._bound_unsent()
    assert refused == [] and channels[1].unsent > channels[0].unsent > 0
    listener.shares.unfinished_bytes = channels[0].unsent
    listener._bound_unsent()
    await until(lambda: channels[1].closed)
    assert not channels[0].closed
    ((cause, case),) = refused
    assert (cause, case["who"], case["limit"]) == ("unread answers", channels[1].remote, channels[0].unsent)
    for client in clients:
        client.writer.close()


async def test_a_peer_that_lets_everything_pile_up_is_ended():
    channel, pipe = channel_over_pipe()
    pipe.full_from = 0
    channel.write_bytes(b"x" * channel_module.MAX_UNSENT_BYTES)
    assert not pipe.aborted
    channel.write_bytes(b"x")
    assert pipe.aborted


class Refusing:
    """A listener that keeps its calls. Its `late` answers each command whose opaque is listed."""

    def __init__(self, late=()):
        self.counted, self._late, self.asked, self.kept_bytes = [], late, [], 0

    def refused(self, cause, **case):
        self.counted.append((cause, case))

    def late(self, command, channel, waited_ms, waiting):
        self.asked.append((command.opaque, waited_ms, waiting))
        return command.answer(2, "waited") if command.opaque in self._late else None

    def count_end(self, channel, level, cause, text, value=None, limit=None):
        self.counted.append((cause, {"value": value, "limit": limit, "who": channel.remote, "said": text}))


async def test_what_waited_too_long_behind_an_unread_answer_is_answered_and_not_handled():
    handled = []
    channel, pipe = channel_over_pipe(lambda command, channel: handled.append(command.opaque))
    channel.listener = listener = Refusing(late=(2, 3))
    for _ in range(channel_module.MAX_HELD):
        channel.hold()
    channel.data_received(frame(1) + frame(2) + frame(4))
    channel.data_received(encode_frame(Command.request(10, opaque=3, oneway=True)) + frame(5))
    assert listener.asked == [] and handled == [1], "who is handled at once has not waited"
    channel._waiting = type(channel._waiting)(
        (came_s - 0.5, commands) for came_s, commands in channel._waiting
    )
    channel.release()
    await asyncio.sleep(0)
    assert handled == [1, 4, 5]
    assert [(opaque, waiting) for opaque, _, waiting in listener.asked] == [(2, 4), (4, 4), (3, 2), (5, 2)]
    assert all(500 <= waited_ms < 5_000 for _, waited_ms, _ in listener.asked)
    (answer,) = Connection().receive(pipe.written)
    assert (answer.opaque, answer.code) == (2, 2), "a oneway request is answered by nobody"


async def test_who_does_not_read_or_speaks_nonsense_is_told_of_with_the_numbers():
    channel, pipe = channel_over_pipe()
    channel.listener = listener = Refusing()
    pipe.full_from = 0
    channel.write_bytes(b"x" * channel_module.MAX_UNSENT_BYTES)
    channel.write_bytes(b"x")
    channel, pipe = channel_over_pipe()
    channel.listener = listener
    channel.data_received(b"GET / HTTP/1.1\r\n\r\n")
    (unread, numbers), (malformed, words) = listener.counted
    assert (unread, numbers) == (
        "peer does not read",
        {
            "value": channel_module.MAX_UNSENT_BYTES + 1,
            "limit": channel_module.MAX_UNSENT_BYTES,
            "who": "10.0.0.1:5",
            "said": f"it does not read, {channel_module.MAX_UNSENT_BYTES + 1} bytes wait",
        },
    )
    assert malformed == "HTTP client" and words["who"] == "10.0.0.1:5" and pipe.aborted


@pytest.mark.parametrize(("first", "cause", "words"), [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS client", ("TLS",)), (b"GET / HTTP/1.1\r\n\r\n", "HTTP client", ("HTTP", "--web-port")),
    (b"POST /x HTTP/1.1\r\n", "HTTP client", ("HTTP", "--web-port")), (b"PRI * HTTP/2.0\r\n\r\n", "HTTP client", ("HTTP",)),
    (b"\xff" * 20, "malformed frame", ("4294967295",)),
])  # fmt: skip
async def test_who_speaks_another_protocol_is_named_by_it(open_port, caplog, first, cause, words):
    caplog.set_level("INFO")
    refused = []
    listener = await open_port(echo, refused=lambda cause, **case: refused.append((cause, case["said"])))
    client = await Client.to(listener)
    client.writer.write(first)
    assert await client.ended()
    ((counted, said),) = refused
    assert counted == cause and all(word in said for word in words)
    assert [said in record.getMessage() for record in caplog.records if "closing" in record.getMessage()] == [
        True
    ]
    await client.close()


async def test_the_bytes_of_another_protocol_inside_a_connection_of_ours_are_a_malformed_frame(
    client, caplog
):
    caplog.set_level("INFO")
    client.write(Command.request(10, opaque=1))
    await client.read()
    client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await client.ended()
    assert "a frame of 1195725856 bytes" in caplog.text


async def test_a_flood_of_bad_connections_has_one_line_a_second_and_cause(open_port, caplog):
    caplog.set_level("INFO")
    refused = []
    listener = await open_port(echo, refused=lambda cause, **case: refused.append(cause))
    for first in [b"\x16\x03\x01\x02"] * 30 + [b"GET / HTTP/1.1\r\n\r\n"] * 30:
        client = await Client.to(listener)
        client.writer.write(first)
        assert await client.ended()
        await client.close()
    assert len(refused) == 60
    lines = [
        record.getMessage() for record in caplog.records if record.name == "broker_store.server.listener"
    ]
    assert 2 <= len(lines) <= 8, "two causes, for as many seconds as this took"


async def test_addresses_are_kept_as_records_want_them():
    channel, _ = channel_over_pipe()
    assert (channel.remote, channel.remote_host) == ("10.0.0.1:5", (b"\x0a\x00\x00\x01", 5))
    assert channel_module.packed_address("::ffff:10.0.0.1") == b"\x0a\x00\x00\x01"
    assert len(channel_module.packed_address("fe80::1%eth0")) == 16
