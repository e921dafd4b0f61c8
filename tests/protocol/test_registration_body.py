"""The body by which a broker registers."""

import dataclasses
import struct
import zlib

import pytest

from broker_store.errors import FieldError
from broker_store.formats.config_json import DataVersion
from broker_store.formats.static_topics import MappingInfo
from broker_store.protocol import fastjson, registration_body, topic_bodies
from broker_store.protocol.registration_body import Registration
from broker_store.protocol.steps import finish
from broker_store.protocol.topic_bodies import TopicConfig

REGISTRATION = Registration(
    DataVersion(1, 2, 3),
    {
        "T1": TopicConfig("T1", 4, 3, 6, attributes={"+message.type": "NORMAL"}),
        "TBW102": TopicConfig("TBW102", 8, 8, 7),
    },
)


def decoded(body: bytes, compressed: bool = False, version: int = 479) -> Registration:
    return finish(registration_body.registration_in_steps(body, compressed, version))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_survives(compressed):
    body = registration_body.encode_registration(REGISTRATION, compressed)
    assert decoded(body, compressed) == REGISTRATION


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_has_the_logical_queues_of_static_topics(compressed):
    info = MappingInfo("T1", 4, "broker-a", 5, leads={0: 2, 3: 1})
    given = dataclasses.replace(REGISTRATION, mappings={"T1": info})
    body = registration_body.encode_registration(given, compressed)
    assert decoded(body, compressed) == given
    if not compressed:
        assert b'"currIdMap":{0:2,3:1}' in body
        assert decoded(body.replace(b"{0:2,3:1}", b'{"0":2,"3":1}')) == given
    with pytest.raises(FieldError, match="topicQueueMappingInfoMap"):
        wrong = dataclasses.replace(given, mappings={"T1": info._replace(total_queues=-1)})
        decoded(registration_body.encode_registration(wrong, compressed), compressed)


def test_a_registration_of_an_old_broker_is_the_table_alone():
    body = topic_bodies.encode_topic_table(REGISTRATION.data_version, REGISTRATION.topics.values())
    assert decoded(body, version=36) == REGISTRATION
    assert topic_bodies.decode_topic_table(body) == (REGISTRATION.data_version, REGISTRATION.topics)


def sized(data):
    return struct.pack(">i", len(data)) + data


def test_a_compressed_registration_of_java_is_read():
    stream = sized(b'{"counter":3,"stateVersion":0,"timestamp":9}') + struct.pack(">i", 1)
    stream += sized(b"T1 4 3 6 SINGLE_TAG {}") + sized(b"[]") + struct.pack(">i", 0)
    expected = Registration(DataVersion(0, 3, 9), {"T1": TopicConfig("T1", 4, 3, 6)})
    assert decoded(zlib.compress(stream), True) == expected
    old = stream[:-4].replace(sized(b"T1 4 3 6 SINGLE_TAG {}"), sized(b"T1 4 3 6 SINGLE_TAG"))
    assert decoded(zlib.compress(old), True, version=400) == expected


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        sized(b"{}"),
        sized(b"{}") + b"\x7f\xff\xff\xff",
        sized(b"{}") + struct.pack(">i", 1) + struct.pack(">i", 1 << 30),
        sized(b"{}") + struct.pack(">i", 1) + struct.pack(">i", -1),
        sized(b"{}") + struct.pack(">i", 1) + sized(b"T1 four 3 6 X") + sized(b"[]"),
    ],
)
def test_a_lying_compressed_registration_is_refused(stream):
    with pytest.raises(FieldError):
        decoded(zlib.compress(stream), True)


def test_a_registration_that_inflates_without_end_is_refused():
    with pytest.raises(FieldError):
        decoded(zlib.compress(bytes(registration_body.MAX_INFLATED_BYTES + 1)), True)
    with pytest.raises(FieldError):
        decoded(b"no zlib", True)


def test_a_piece_of_a_compressed_registration_is_bounded_before_it_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(fastjson, "loads", lambda data: read.append(len(data)) or {})
    piece = b"{0:[" + b"1," * 40_000 + b"1]}"
    with pytest.raises(FieldError, match="expected a length up to 65536"):
        decoded(zlib.compress(struct.pack(">i", len(piece)) + piece), True)
    assert read == []
