import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import ProtocolError
from broker_store.protocol import framing
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import JSON, ROCKETMQ, Command
from broker_store.protocol.framing import decode_frame, encode_frame
from tests.support.wire_samples import all_samples, live_samples

# docs/spec/remoting.md section 1.2, made with the 5.3.3 and 5.5.0 jars.
BINARY_REQUEST = bytes.fromhex(
    "0000003A 01000036 001E 00 0000 00000309 00000000 00000002 6869 0000001F 0007 71756575654964 00000001 31"
    "0005 746F706963 00000006 546F70696358"
)
BINARY_ANSWER = bytes.fromhex("00000019 01000015 0000 00 0000 00000005 00000001 00000000 00000000")


def frame(header: bytes, body: bytes = b"", serialization: int = JSON) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


def json_frame(body: bytes = b"", **header) -> bytes:
    return frame(json.dumps({"code": 1} | header).encode(), body)


@pytest.mark.parametrize("sample", all_samples(), ids=lambda sample: sample.name)
def test_every_answer_of_a_real_broker_is_read_and_written_back_with_the_same_content(sample):
    command = decode_frame(frame(sample.header.encode(), sample.body)[4:])
    assert command.code == sample.values["code"]
    assert command.fields == sample.values.get("extFields")
    assert command.remark == sample.values.get("remark")
    assert command.body == sample.body
    assert command.is_response
    assert decode_frame(encode_frame(command)[4:]) == command
    written = encode_frame(command)
    header_bytes = struct.unpack_from(">I", written, 4)[0]
    assert json.loads(written[8 : 8 + header_bytes]) == sample.values


def test_what_a_real_broker_asks_a_client_is_read():
    codes = [decode_frame(frame(header.encode(), body)[4:]).code for header, body in live_samples()]
    assert codes == [40, 0, 0, 0, 0, 0, 307, 307, 307, 307, 309]


def test_the_binary_vectors_of_the_java_jars_are_read_and_written():
    request = decode_frame(BINARY_REQUEST[4:])
    assert (request.code, request.language, request.version, request.opaque) == (30, "JAVA", 0, 777)
    assert (request.remark, request.fields) == ("hi", {"queueId": "1", "topic": "TopicX"})
    assert encode_frame(request) == BINARY_REQUEST
    answer = decode_frame(BINARY_ANSWER[4:])
    assert (answer.code, answer.opaque, answer.is_response, answer.remark, answer.fields) == (
        0,
        5,
        True,
        None,
        None,
    )
    assert encode_frame(answer) == BINARY_ANSWER


def test_an_answer_keeps_opaque_and_serialisation_of_its_request():
    answer = decode_frame(BINARY_REQUEST[4:]).answer(17, "no", {"a": "b"}, b"body")
    assert encode_frame(answer)[4] == ROCKETMQ
    read = decode_frame(encode_frame(answer)[4:])
    assert (read.code, read.remark, read.opaque, read.fields, read.body) == (
        17,
        "no",
        777,
        {"a": "b"},
        b"body",
    )


@pytest.mark.parametrize("code", [code for code in RequestCode if code > 0x7FFF])
def test_a_code_too_wide_for_the_binary_header_comes_back(code):
    request = Command.request(code, serialization=ROCKETMQ)
    assert decode_frame(encode_frame(request)[4:]).code == code


@pytest.mark.parametrize("code", [-1006, -1])
def test_negative_codes_travel_in_both_forms(code):
    for serialization in (JSON, ROCKETMQ):
        answer = Command.request(1, serialization=serialization).answer(code)
        assert decode_frame(encode_frame(answer)[4:]).code == code


def test_a_language_nobody_knows_becomes_other():
    assert decode_frame(json_frame(language="COBOL")[4:]).language == "OTHER"
    assert decode_frame(BINARY_ANSWER[4:10] + b"\x63" + BINARY_ANSWER[11:]).language == "OTHER"


def test_unknown_keys_are_ignored_and_scalars_become_text():
    command = decode_frame(json_frame(new=[1, {}], extFields={"a": 1, "b": True, "c": None, "d": "x"})[4:])
    assert command.fields == {"a": "1", "b": "true", "d": "x"}


MALFORMED = {
    "empty": b"",
    "three bytes": b"\0\0\0",
    "header beyond the frame": b"\0\0\0\x09{}",
    "unknown serialisation": b"\x02\0\0\x02{}",
    "no JSON": frame(b"{")[4:],
    "JSON that is no object": frame(b"[]")[4:],
    "no code": frame(b"{}")[4:],
    "code as text": json_frame(code="1")[4:],
    "code as a boolean": json_frame(code=True)[4:],
    "code too large": json_frame(code=1 << 31)[4:],
    "opaque too large": json_frame(opaque=1 << 31)[4:],
    "flag as a fraction": json_frame(flag=0.5)[4:],
    "a number of 5,000 digits": frame(b'{"code":' + b"1" * 5000 + b"}")[4:],
    "NaN": frame(b'{"code":NaN}')[4:],
    "fields as a list": json_frame(extFields=[])[4:],
    "fields as text": json_frame(extFields="ab")[4:],
    "a field as an object": json_frame(extFields={"a": {}})[4:],
    "too many fields": json_frame(extFields={str(i): "" for i in range(1025)})[4:],
    "remark as a number": json_frame(remark=7)[4:],
    "lone surrogate": frame(b'{"code":1,"remark":"\\ud800"}')[4:],
    "no UTF-8": frame(b'{"code":1,"remark":"\xff"}')[4:],
    "very deep": frame(b'{"code":1,"x":' + b"[" * 30000 + b"]" * 30000 + b"}")[4:],
    "header above 256 KiB": frame(b'{"code":1,"remark":"' + b"x" * (256 << 10) + b'"}')[4:],
    "binary header too short": frame(b"\0" * 20, serialization=1)[4:],
    "binary remark beyond the header": frame(
        BINARY_ANSWER[8:21] + b"\0\0\0\x09" + b"\0" * 4, serialization=1
    )[4:],
    "binary remark negative": frame(BINARY_ANSWER[8:21] + b"\xff" * 4 + b"\0" * 4, serialization=1)[4:],
    "binary fields shorter than said": frame(BINARY_ANSWER[8:25] + b"\0\0\0\x09", serialization=1)[4:],
    "binary field cut": frame(BINARY_ANSWER[8:25] + b"\0\0\0\x03\0\x09a", serialization=1)[4:],
    "binary fields too many": frame(
        BINARY_ANSWER[8:25] + struct.pack(">i", 6 * 1025) + b"\0" * 6150, serialization=1
    )[4:],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_is_refused(name, json_library):
    with pytest.raises(ProtocolError):
        decode_frame(MALFORMED[name])


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2]))
def test_any_bytes_are_a_frame_or_a_protocol_error(data, serialization):
    for candidate in (
        data,
        frame(data, serialization=serialization)[4:],
        frame(b'{"code":' + data + b"}")[4:],
    ):
        try:
            command = decode_frame(candidate)
        except ProtocolError:
            continue
        assert isinstance(command, Command)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    code=st.integers(-0x8000, 3441),
    opaque=int32,
    flag=int32,
    version=st.integers(0, 0x7FFF),
    remark=st.none() | texts,
    fields=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=5),
    body=st.binary(max_size=50),
    serialization=st.sampled_from([JSON, ROCKETMQ]),
)
def test_every_command_survives_the_wire(code, opaque, flag, version, remark, fields, body, serialization):
    command = Command(code, "GO", version, opaque, flag, remark, fields, body, serialization)
    assert decode_frame(encode_frame(command)[4:]) == command


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("transaction_id", ["7F0000010A2318B4", 'a "quoted"\x01 key', None])
@pytest.mark.parametrize("handle", ["djEgVCBi_A==", None])
def test_the_fast_send_answer_says_what_the_slow_one_says(serialization, transaction_id, handle):
    request = Command.request(310, opaque=99, serialization=serialization)
    fields = {
        "queueId": "1",
        "msgId": "7F00",
        "queueOffset": "12",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if transaction_id is not None:
        fields["transactionId"] = transaction_id
    if handle is not None:
        fields["recallHandle"] = handle
    data = framing.encode_send_answer(request, "7F00", 1, 12, transaction_id, recall_handle=handle)
    assert decode_frame(data[4:]) == request.answer(0, None, fields)
    assert struct.unpack_from(">I", data)[0] == len(data) - 4


def test_a_send_answer_may_carry_a_code_and_a_remark():
    answer = decode_frame(
        framing.encode_send_answer(Command.request(310), "7F", 0, 0, code=10, remark="slow")[4:]
    )
    assert (answer.code, answer.remark, answer.fields["msgId"]) == (10, "slow", "7F")


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_the_fast_pull_answer_says_what_the_slow_one_says(serialization):
    request = Command.request(11, opaque=99, serialization=serialization)
    data = framing.pull_answer_head(request, 0, "FOUND", 4, 1, 9, 7) + b"records"
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "4", "minOffset": "1", "maxOffset": "9"}
    fields |= {"topicSysFlag": "0", "groupSysFlag": "0"}
    assert decode_frame(data[4:]) == request.answer(0, "FOUND", fields, b"records")
    assert struct.unpack_from(">I", data)[0] == len(data) - 4


def test_a_frame_that_nobody_would_accept_is_not_written():
    with pytest.raises(ProtocolError):
        encode_frame(Command.request(1, body=bytes(16 << 20)))
    with pytest.raises(ProtocolError):
        encode_frame(Command.request(1, {"a": "x" * (256 << 10)}))
