"""The answer to a stored message that the kernel makes is the one that protobuf makes."""

from __future__ import annotations

import pytest

from broker_store.kernels.grpc_send import stored_answers
from broker_store.protocol.grpc.framing import with_prefix
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Status
from broker_store.protocol.grpc.v2.service_pb2 import SendMessageResponse, SendResultEntry

OK = Status(code=Code.OK, message="OK")
stored_answer = stored_answers(SendMessageResponse(status=OK).SerializeToString())


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 16_383, 16_384, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("message_id", ["a", "01" * 17, "x" * 127, "x" * 128, "ü" * 64, "x" * 40_000])
def test_the_answer_is_that_of_protobuf(message_id, offset):
    entry = SendResultEntry(status=OK, message_id=message_id, offset=offset)
    wanted = SendMessageResponse(status=OK, entries=[entry])
    assert stored_answer(message_id, offset) == with_prefix(wanted.SerializeToString())


@pytest.mark.parametrize("arguments", [(), ("a",), (b"a", 1), ("a", "1"), ("a", 1, 2)])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(TypeError):
        stored_answer(*arguments)


def test_what_cannot_be_encoded_is_refused():
    with pytest.raises(UnicodeEncodeError):
        stored_answer("\ud800", 1)
    with pytest.raises(OverflowError):
        stored_answer("a", 1 << 63)
