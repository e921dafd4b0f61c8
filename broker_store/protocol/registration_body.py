"""The body of a broker's registration (103), plain and compressed (docs/spec/namesrv.md section 2).

Decoding raises FieldError. It is done in steps, because the registration of 5,000 topics has half a megabyte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_store.errors import FieldError, FormatError
from broker_store.formats.config_json import DataVersion
from broker_store.formats.static_topics import MappingInfo
from broker_store.protocol import fastjson
from broker_store.protocol.members import loads_object, read_object, read_texts
from broker_store.protocol.topic_bodies import (
    TOPICS_PER_STEP,
    TopicConfig,
    read_data_version,
    topic_table_in_steps,
    topic_table_json,
)

# A broker with 5,000 topics registers with half a megabyte. What is larger than this is read in pieces, in a
# thread.
MAX_BODY_BYTES_PER_CALL = 64 << 10
_TABLES = frozenset({"topicConfigSerializeWrapper", "topicConfigTable"})
MAX_INFLATED_BYTES = 32 << 20
_COMPRESSED_WITH_MAPPING_VERSION = 413
_WRAPPER_ALONE_VERSION = 37


@dataclass(slots=True, frozen=True)
class Registration:
    """The topics that a broker serves, and their version. `mappings` are those of its static topics."""

    data_version: DataVersion
    topics: dict[str, TopicConfig]
    filter_servers: tuple[str, ...] = ()
    mappings: Mapping[str, MappingInfo] = field(default_factory=dict)


def encode_registration(registration: Registration, compressed: bool = False) -> bytes:
    if compressed:
        return zlib.compress(_registration_stream(registration))
    wrapper = topic_table_json(registration.data_version, registration.topics.values())
    mappings = {topic: info.to_json() for topic, info in registration.mappings.items()}
    wrapper |= {"topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": mappings}
    servers = list(registration.filter_servers)
    return fastjson.dumps({"filterServerList": servers, "topicConfigSerializeWrapper": wrapper})


def registration_in_steps(
    body: bytes, compressed: bool = False, version: int = 479
) -> Generator[Callable[[], object] | None, Any, Registration]:
    """Decode the body, with a step after each TOPICS_PER_STEP topics.

    `version` is the ordinal of the command: before 37 the body is the topic table alone. An empty body has
    none.

    A step that yields a function asks for what this returns: it is compiled code that takes long, for a
    thread. The topics themselves are made in the steps. A thread that makes them takes the interpreter's
    lock from the loop at each of the loop's calls to the system.
    """
    if compressed:
        return (yield from _registration_stream_in_steps((yield lambda: _inflate(body)), version))
    if not body:
        return Registration(DataVersion(), {})
    if len(body) <= MAX_BODY_BYTES_PER_CALL:
        members = loads_object(body)
    else:
        members = yield lambda: _loads_tables(body)
    if version < _WRAPPER_ALONE_VERSION:
        return Registration(*(yield from topic_table_in_steps(members)))
    wrapper = read_object(members, "topicConfigSerializeWrapper")
    data_version, topics = yield from topic_table_in_steps(wrapper)
    mappings = yield from _mappings_in_steps(
        list(read_object(wrapper, "topicQueueMappingInfoMap").values()), lambda value: value
    )
    return Registration(data_version, topics, tuple(read_texts(members, "filterServerList")), mappings)


def _mappings_in_steps(
    values: list[Any], read: Callable[[Any], object]
) -> Generator[None, None, dict[str, MappingInfo]]:
    """Return the mappings by topic, with a step after each. `read` makes an object of a value."""
    mappings = {}
    for value in values:
        try:
            info = MappingInfo.from_json(read(value))
        except FormatError as error:
            raise FieldError("topicQueueMappingInfoMap", None, f"mappings: {error}") from None
        mappings[info.topic] = info
        yield
    return mappings


def _loads_tables(body: bytes) -> dict[Any, Any]:
    members = fastjson.loads_in_pieces(body, _TABLES)
    if not isinstance(members, dict):
        raise FieldError("body", bytes(body[:50]), "an object")
    return members


def body_crc(body: bytes) -> int:
    """Return the `bodyCrc32` of a registration; 0 means that it was not computed."""
    return zlib.crc32(body) & 0x7FFFFFFF


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise FieldError("body", bytes(body[:20]), f"a zlib stream ({error})") from None
    if not inflater.eof:
        raise FieldError("body", len(data), f"a whole zlib stream of at most {MAX_INFLATED_BYTES} bytes")
    return data


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _registration_stream(registration: Registration) -> bytes:
    """int length + DataVersion; int count, each int length + topic text; int length + servers; int mapping
    count, each int length + MappingInfo."""
    topics = registration.topics.values()
    parts = [_sized(fastjson.dumps(registration.data_version.to_json())), struct.pack(">i", len(topics))]
    for topic in topics:
        words = (
            topic.name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
            topic.topic_filter_type,
        )
        text = " ".join(map(str, words)) + " "
        parts.append(_sized(text.encode() + fastjson.dumps(dict(topic.attributes))))
    parts.append(_sized(fastjson.dumps(list(registration.filter_servers))))
    parts.append(struct.pack(">i", len(registration.mappings)))
    parts += [_sized(fastjson.dumps(info.to_json())) for info in registration.mappings.values()]
    return b"".join(parts)


def _registration_stream_in_steps(data: bytes, version: int) -> Generator[None, None, Registration]:
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(data):
            raise FieldError("body", at, "four more bytes of a compressed registration")
        at += 4
        return int.from_bytes(data[at - 4 : at], "big", signed=True)

    def piece(most: int = MAX_BODY_BYTES_PER_CALL) -> bytes:
        """Return the next piece, of a length that one call reads in a short time."""
        nonlocal at
        length = number()
        if not 0 <= length <= min(len(data) - at, most):
            raise FieldError("body", length, f"a length up to {min(len(data) - at, most)}")
        at += length
        return data[at - length : at]

    data_version = read_data_version(loads_object(piece()))
    topics = {}
    # Each topic takes at least its own length, so the count is bounded by what is there.
    for count in range(1, number() + 1):
        topic = _topic_from_text(piece())
        topics[topic.name] = topic
        if count % TOPICS_PER_STEP == 0:
            yield
    servers = fastjson.loads(piece())
    servers = (
        tuple(servers) if isinstance(servers, list) and all(isinstance(item, str) for item in servers) else ()
    )
    if version >= _COMPRESSED_WITH_MAPPING_VERSION and at < len(data):
        pieces = [piece() for _ in range(number())]
        mappings = yield from _mappings_in_steps(pieces, loads_object)
    else:
        mappings = {}
    return Registration(data_version, topics, servers, mappings)


def _topic_from_text(text: bytes) -> TopicConfig:
    words = text.decode("utf-8", "replace").split(" ", 5)
    try:
        name, read, write, perm, filter_type = words[:5]
        numbers = int(read[:11]), int(write[:11]), int(perm[:11])
    except ValueError:
        raise FieldError("topicConfig", text, "`name read write perm type attributes`") from None
    attributes = loads_object(words[5].encode()) if len(words) > 5 and words[5] else {}
    return TopicConfig(name, *numbers, filter_type, attributes=attributes)
