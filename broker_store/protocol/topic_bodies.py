"""JSON bodies of topic settings, data versions and lists of topics (docs/spec/remoting.md section 5,
docs/spec/namesrv.md section 2).

Decoding raises FieldError with the member's name. Missing optional members have Java's defaults.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

from broker_store.errors import FieldError
from broker_store.formats.config_json import DataVersion
from broker_store.protocol import fastjson
from broker_store.protocol.members import (
    Members,
    loads_object,
    read_bool,
    read_int,
    read_object,
    read_text,
    read_texts,
)
from broker_store.protocol.steps import finish


@dataclass(slots=True, frozen=True)
class TopicConfig:
    """The settings of a topic. `perm`: 4 read, 2 write, 1 inherit."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, members: Members) -> TopicConfig:
        return cls(
            read_text(members, "topicName"),
            read_int(members, "readQueueNums", 16),
            read_int(members, "writeQueueNums", 16),
            read_int(members, "perm", 6),
            read_text(members, "topicFilterType", "SINGLE_TAG"),
            read_int(members, "topicSysFlag", 0),
            read_bool(members, "order"),
            read_object(members, "attributes"),
        )


def decode_topic_table(body: bytes) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """The answer to GET_ALL_TOPIC_CONFIG."""
    return finish(topic_table_in_steps(loads_object(body)))


def encode_topic_table(version: DataVersion, topics: Iterable[TopicConfig]) -> bytes:
    return fastjson.dumps(topic_table_json(version, topics) | {"topicQueueMappingDetailMap": {}})


def read_data_version(members: Members) -> DataVersion:
    return DataVersion(*(read_int(members, name, 0) for name in ("stateVersion", "counter", "timestamp")))


def decode_data_version(body: bytes) -> DataVersion:
    """The body of QUERY_DATA_VERSION, asked and answered."""
    return read_data_version(loads_object(body))


def encode_data_version(version: DataVersion) -> bytes:
    return fastjson.dumps(version.to_json())


def topic_table_in_steps(
    members: Members,
) -> Generator[None, None, tuple[DataVersion, dict[str, TopicConfig]]]:
    """Return the data version and the topics by name, with a step after each TOPICS_PER_STEP of them."""
    table = read_object(members, "topicConfigTable")
    topics = {}
    for number, name in enumerate(list(table), 1):
        item = table.pop(name)  # so that each is freed here: all at once would keep other threads waiting
        if not isinstance(item, dict) or not isinstance(name, str):
            raise FieldError("topicConfigTable", name, "topics by name")
        topics[name] = TopicConfig.from_json({"topicName": name} | item)
        if number % TOPICS_PER_STEP == 0:
            yield
    return read_data_version(read_object(members, "dataVersion")), topics


def topic_table_json(version: DataVersion, topics: Iterable[TopicConfig]) -> dict[str, object]:
    return {
        "dataVersion": version.to_json(),
        "mappingDataVersion": DataVersion().to_json(),
        "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
    }


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    members: dict[str, object] = {"topicList": list(topics)}
    return fastjson.dumps(members if broker_address is None else members | {"brokerAddr": broker_address})


NAMES_PER_STEP = 1_024


def topic_list_in_steps(topics: Iterable[str]) -> Generator[None, None, bytes]:
    """Return what `encode_topic_list` returns, NAMES_PER_STEP names in each step."""
    names, pieces = list(topics), []
    for begin in range(0, len(names), NAMES_PER_STEP):
        pieces.append(fastjson.dumps(names[begin : begin + NAMES_PER_STEP])[1:-1])
        yield
    return b'{"topicList":[' + b",".join(pieces) + b"]}"


def decode_topic_list(body: bytes) -> list[str]:
    return read_texts(loads_object(body), "topicList")


TOPICS_PER_STEP = 128
