"""protocol.grpc.send_answer: the answer that is made by hand is the one that protobuf makes."""

import pytest

from broker_store.protocol.grpc.send_answer import stored_answer
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Status
from broker_store.protocol.grpc.v2.service_pb2 import SendMessageResponse, SendResultEntry


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 16_383, 16_384, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("message_id", ["a", "01" * 17, "x" * 127, "ü" * 64, "x" * 40_000])
def test_the_answer_is_that_of_protobuf(message_id, offset):
    ok = Status(code=Code.OK, message="OK")
    entry = SendResultEntry(status=ok, message_id=message_id, offset=offset)
    wanted = SendMessageResponse(status=ok, entries=[entry])
    made = stored_answer(message_id, offset)
    assert SendMessageResponse.FromString(made) == wanted
    assert made == wanted.SerializeToString()
