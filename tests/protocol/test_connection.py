import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import ProtocolError
from broker_store.protocol.command import ROCKETMQ, Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame

COMMANDS = [
    Command.request(310, {"a": "PG", "b": "TopicX"}, b"hello", opaque=1),
    Command.request(11, {"topic": "TopicX"}, opaque=2, serialization=ROCKETMQ),
    Command.request(15, {"topic": "TopicX"}, opaque=3, oneway=True),
    Command.request(34, None, b"x" * 3000, opaque=4).answer(0, "fine"),
]
STREAM = b"".join(map(encode_frame, COMMANDS))


def test_a_stream_fed_whole_gives_all_its_commands():
    assert Connection().receive(STREAM) == COMMANDS


def test_a_stream_fed_byte_by_byte_gives_the_same_commands():
    connection = Connection()
    commands = [command for at in range(len(STREAM)) for command in connection.receive(STREAM[at : at + 1])]
    assert commands == COMMANDS
    assert connection.buffered == 0


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_stream_cut_anywhere_gives_the_same_commands(cuts, kind):
    connection, commands, start = Connection(), [], 0
    for end in [*sorted(cuts), len(STREAM)]:
        commands += connection.receive(kind(STREAM[start:end]))
        start = end
    assert commands == COMMANDS


def outcome(data, step):
    """What comes out of `data` given in pieces of `step` bytes: the commands and whether it ended in an
    error."""
    connection, commands = Connection(), []
    for at in range(0, len(data), step):
        try:
            commands += connection.receive(data[at : at + step])
        except ProtocolError:
            return commands, True
    return commands, False


@given(st.binary(max_size=80) | st.binary(max_size=20).map(lambda tail: STREAM[:200] + tail))
def test_any_bytes_end_alike_however_they_are_cut(data):
    whole, failed = outcome(data, max(1, len(data)))
    bytewise, failed_bytewise = outcome(data, 1)
    assert failed == failed_bytewise
    assert whole == bytewise or (failed and whole == [])


@pytest.mark.parametrize("head", ["00000003", "ffffffff", "01000001", "00000008000000ff", "0000000802000000"])
def test_a_length_is_judged_before_the_frame_is_there(head):
    with pytest.raises(ProtocolError):
        Connection().receive(bytes.fromhex(head))
    connection = Connection()
    with pytest.raises(ProtocolError):
        for byte in bytes.fromhex(head):
            connection.receive(bytes([byte]))


def test_after_an_error_everything_is_refused_and_nothing_is_kept():
    connection = Connection()
    with pytest.raises(ProtocolError):
        connection.receive(b"GET / HTTP/1.1\r\n\r\n")
    assert connection.buffered == 0
    with pytest.raises(ProtocolError):
        connection.receive(STREAM)


def test_the_buffer_holds_what_was_received_not_what_was_announced():
    connection = Connection()
    connection.receive(bytes.fromhex("00ffffff 00000010"))
    assert connection.buffered == 8


def test_it_says_whether_the_header_is_still_awaited():
    connection = Connection()
    assert not connection.awaiting_header
    frame = encode_frame(COMMANDS[0])
    connection.receive(frame[:6])
    assert connection.awaiting_header
    connection.receive(frame[6:20])
    assert connection.awaiting_header
    connection.receive(frame[20:-1])
    assert not connection.awaiting_header
    connection.receive(frame[-1:])
    assert not connection.awaiting_header
