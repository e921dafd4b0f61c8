"""Frames: from bytes to commands and back, in both header serialisations (docs/spec/remoting.md section 1).

    | int32 length of the rest | byte serialisation, 3 bytes header length | header | body |

Every length is checked before memory is allocated for it. Bytes that are not a frame raise ProtocolError;
`decode_frame` raises no other exception. What Java tolerates is tolerated: unknown keys, missing optional
keys, numbers and booleans in place of text, an unknown language.

The answers to sends and pulls are nearly all of the traffic. They have functions of their own that format the
bytes directly, without a Command.
"""

from __future__ import annotations

import json
import struct
from typing import NoReturn

from broker_store.errors import ProtocolError
from broker_store.excerpts import excerpt
from broker_store.protocol.codes import WIDE_CODES
from broker_store.protocol.command import JSON, LANGUAGE, LANGUAGES, ROCKETMQ, VERSION, Command

try:
    from orjson import dumps as _dumps
    from orjson import loads as _loads
except ImportError:  # the client must work with the standard library alone

    def _dumps(value: object) -> bytes:  # type: ignore[misc]  # orjson's takes more arguments
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def _loads(data: bytes) -> object:  # type: ignore[misc]  # orjson's takes more types
        return strict_loads(data)


# Apache's default (com.rocketmq.remoting.frameMaxLength); the smallest frame is an empty header's length.
MAX_FRAME_BYTES = 16 << 20
MIN_FRAME_BYTES = 4
# Properties take at most 32,767 bytes in a message, and JSON may write each of them as six (\u0001); nothing
# else in a header is long. What is beyond the message's own limit, and still fits here, is answered
# MESSAGE_ILLEGAL.
MAX_HEADER_BYTES = 256 << 10
MAX_FIELDS = 1024

_HEAD = struct.Struct(">II")
_BINARY = struct.Struct(">hbhiii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT32_END = 1 << 31
_LANGUAGE_BYTES = {name: number for number, name in enumerate(LANGUAGES)}
_EMPTY: dict[str, str] = {}


def decode_frame(frame: bytes) -> Command:
    """Return the command in a frame, which is given without its 4 length bytes."""
    if not MIN_FRAME_BYTES <= len(frame) <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(frame)} bytes, expected {MIN_FRAME_BYTES} to {MAX_FRAME_BYTES}")
    marked = int.from_bytes(frame[:4], "big")
    header_end = 4 + (marked & 0xFFFFFF)
    check_header_length(header_end - 4, len(frame))
    return decode_parts(marked >> 24, frame[4:header_end], frame[header_end:])


def check_header_length(header_bytes: int, frame_bytes: int, most: int = MAX_HEADER_BYTES) -> None:
    """Raise ProtocolError if a header of that length cannot be in a frame of that length."""
    if header_bytes > most or header_bytes > frame_bytes - 4:
        raise ProtocolError(f"a header of {header_bytes} bytes in a frame of {frame_bytes}, most is {most}")


def decode_parts(serialization: int, header: bytes, body: bytes) -> Command:
    """Return the command of a header and body that were already split."""
    if serialization == JSON:
        return _decode_json(header, body)
    if serialization == ROCKETMQ:
        return _decode_binary(header, body)
    raise ProtocolError(f"serialisation type {serialization}, expected 0 or 1")


def encode_frame(command: Command) -> bytes:
    """Return the whole frame with its length bytes. Raises ProtocolError if it exceeds a bound."""
    return frame_head(command) + command.body


def frame_head(command: Command) -> bytes:
    """Return all bytes before the body, so that a large body is written without a copy."""
    if command.serialization == ROCKETMQ:
        return _head(_encode_binary(command), len(command.body), ROCKETMQ)
    return _head(_encode_json(command), len(command.body), JSON)


def _head(header: bytes, body_bytes: int, serialization: int) -> bytes:
    length = 4 + len(header) + body_bytes
    if length > MAX_FRAME_BYTES or len(header) > MAX_HEADER_BYTES:
        most = f"at most {MAX_FRAME_BYTES} and {MAX_HEADER_BYTES}"
        raise ProtocolError(
            f"a frame of {length} bytes with a header of {len(header)} is too large to be sent, {most}"
        )
    return _HEAD.pack(length, serialization << 24 | len(header)) + header


# The JSON header


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        values = _loads(header)
        get = values.get
        code = values["code"]
        language = get("language", LANGUAGE)
        version = get("version", 0)
        opaque = get("opaque", 0)
        flag = get("flag", 0)
        remark = get("remark")
        fields = get("extFields")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ProtocolError(f"a JSON header that cannot be read: {error!s:.120}") from None
    # `type() is int` also keeps booleans out, which are ints to isinstance.
    if not (type(code) is type(version) is type(opaque) is type(flag) is int):
        raise ProtocolError("code, version, opaque and flag must be integers")
    # One test for all when none is negative, which is nearly always so.
    if (code | version | opaque | flag) >> 31:
        for number in (code, version, opaque, flag):
            if not -_INT32_END <= number < _INT32_END:
                raise ProtocolError("code, version, opaque and flag must be 32-bit integers")
    if fields is not None:
        try:
            if len(fields) > MAX_FIELDS:
                raise ProtocolError(f"{len(fields)} header fields, most is {MAX_FIELDS}")
            # The cheapest test that all values are text; it builds at most the header once more.
            "".join(fields.values())
        except (TypeError, AttributeError):
            fields = _text_fields(fields)
    if remark is not None and type(remark) is not str:
        raise ProtocolError("remark must be text")
    if type(language) is not str or language not in _LANGUAGE_BYTES:
        language = "OTHER"
    return Command(code, language, version, opaque, flag, remark, fields, body, JSON)


def _text_fields(fields: object) -> dict[str, str]:
    """Fields whose values are not all text: scalars become text as Java would write them, null is an absent
    field."""
    if not isinstance(fields, dict):
        raise ProtocolError("extFields must be an object")
    texts = {}
    for name, value in fields.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, (int, float)):
            texts[name] = str(value)
        elif value is not None:
            raise ProtocolError(f"header field {excerpt(name)} must be text")
    return texts


def strict_loads(data: bytes) -> object:
    """Parse JSON as orjson does, with the standard library: no NaN, no lone surrogates, ValueError for all
    errors."""
    text = data.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark in front")
    value = json.loads(text, parse_constant=_refuse_constant)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _encode_json(command: Command) -> bytes:
    header: dict[str, object] = {"code": int(command.code)}
    if command.fields is not None:
        header["extFields"] = command.fields
    header["flag"] = command.flag
    header["language"] = command.language
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    return _dumps(header)


# The ROCKETMQ header: int16 code, int8 language, int16 version, int32 opaque, int32 flag, int32 length +
# remark, int32 length + fields, a field being int16 length + name, int32 length + value.


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY.unpack_from(header)
        at = _BINARY.size
        remark, at = _text(header, at, remark_bytes)
        (fields_bytes,) = _INT32.unpack_from(header, at)
        at += 4
        if fields_bytes != len(header) - at:
            raise ProtocolError(f"{fields_bytes} bytes of fields announced, {len(header) - at} are there")
        fields = _binary_fields(header, at) if fields_bytes else None
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a ROCKETMQ header that cannot be read: {error}") from None
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    code = WIDE_CODES.get(code, code) if not flag & 1 else code
    return Command(code, name, version, opaque, flag, remark or None, fields, body, ROCKETMQ)


def _binary_fields(header: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = len(header)
    count = 0
    while at < end:
        count += 1
        if count > MAX_FIELDS:
            raise ProtocolError(f"more than {MAX_FIELDS} header fields")
        name, at = _text(header, at + 2, _INT16.unpack_from(header, at)[0])
        value, at = _text(header, at + 4, _INT32.unpack_from(header, at)[0])
        # An empty name or value is null in Java, and a null field is an absent one.
        if name and value:
            fields[name] = value
    return fields


def _text(header: bytes, start: int, length: int) -> tuple[str, int]:
    end = start + length
    if length < 0 or end > len(header):
        raise ProtocolError(f"a text of {length} bytes at {start} in a header of {len(header)}")
    return header[start:end].decode(), end


def _encode_binary(command: Command) -> bytes:
    parts: list[bytes] = []
    for name, value in (command.fields or _EMPTY).items():
        name_bytes, value_bytes = name.encode(), value.encode()
        if len(name_bytes) > 0x7FFF:
            raise ProtocolError(f"a field name of {len(name_bytes)} bytes is too long")
        parts += (_INT16.pack(len(name_bytes)), name_bytes, _INT32.pack(len(value_bytes)), value_bytes)
    fields = b"".join(parts)
    remark = (command.remark or "").encode()
    code = int(command.code) & 0xFFFF
    return b"".join(
        (
            _BINARY.pack(
                code - 0x10000 if code > 0x7FFF else code,
                _LANGUAGE_BYTES.get(command.language, 7),
                command.version,
                command.opaque,
                command.flag,
                len(remark),
            ),
            remark,
            _INT32.pack(len(fields)),
            fields,
        )
    )


# The two answers that matter for speed

_SEND_TAIL = f'"}},"flag":1,"language":"{LANGUAGE}","opaque":'
_ANSWER_END = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


def encode_send_answer(
    request: Command,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str | None = None,
    region: str = "DefaultRegion",
    code: int = 0,
    remark: str | None = None,
    recall_handle: str | None = None,
) -> bytes:
    """Return the whole frame of an answer to a stored send (codes 0, 10, 11, 12)."""
    if request.serialization != JSON or remark is not None:
        fields = {"queueId": str(queue_id), "msgId": message_id, "queueOffset": str(queue_offset)}
        fields |= {"MSG_REGION": region, "TRACE_ON": "true"}
        if transaction_id is not None:
            fields["transactionId"] = transaction_id
        if recall_handle is not None:
            fields["recallHandle"] = recall_handle
        return encode_frame(request.answer(code, remark, fields))
    if transaction_id is None:
        transaction = ""
    elif transaction_id.isalnum():  # alphanumeric text needs no escapes in JSON
        transaction = f',"transactionId":"{transaction_id}"'
    else:
        transaction = f',"transactionId":{_dumps(transaction_id).decode()}'
    if recall_handle is not None:
        transaction += f',"recallHandle":"{recall_handle}"'
    header = (
        f'{{"code":{code:d},"extFields":{{"queueId":"{queue_id}","msgId":"{message_id}"{transaction}'
        f',"TRACE_ON":"true","queueOffset":"{queue_offset}","MSG_REGION":"{region}{_SEND_TAIL}{request.opaque}{_ANSWER_END}'
    ).encode()
    return _HEAD.pack(4 + len(header), len(header)) + header


def pull_answer_head(
    request: Command,
    code: int,
    status: str,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int = 0,
    suggested_broker_id: int = 0,
    topic_sys_flag: int = 0,
    group_sys_flag: int = 0,
    offset_delta: int | None = None,
) -> bytes:
    """Return the bytes before the records in the answer to a pull. The caller writes the `body_bytes` after
    it. `offset_delta` is for a logical queue: clients add it to the offset of each message."""
    if request.serialization != JSON:
        fields = {"suggestWhichBrokerId": str(suggested_broker_id), "nextBeginOffset": str(next_offset)}
        fields |= {
            "minOffset": str(min_offset),
            "maxOffset": str(max_offset),
            "topicSysFlag": str(topic_sys_flag),
            "groupSysFlag": str(group_sys_flag),
        }
        if offset_delta is not None:
            fields["offsetDelta"] = str(offset_delta)
        return _head(_encode_binary(request.answer(code, status, fields)), body_bytes, ROCKETMQ)
    delta = "" if offset_delta is None else f',"offsetDelta":"{offset_delta}"'
    header = (
        f'{{"code":{code:d},"extFields":{{"suggestWhichBrokerId":"{suggested_broker_id}","groupSysFlag":"{group_sys_flag}",'
        f'"nextBeginOffset":"{next_offset}","maxOffset":"{max_offset}","minOffset":"{min_offset}","topicSysFlag":"{topic_sys_flag}"{delta}}},'
        f'"flag":1,"language":"{LANGUAGE}","opaque":{request.opaque},"remark":"{status}"{_ANSWER_END}'
    ).encode()
    return _head(header, body_bytes, JSON)
