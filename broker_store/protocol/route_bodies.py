"""JSON bodies of topic routes (105), the cluster (106) and the members of a broker group (901)
(docs/spec/namesrv.md sections 2 to 5).

Decoding raises FieldError with the member's name. Missing optional members have Java's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker_store.errors import FieldError, FormatError
from broker_store.formats.static_topics import MappingInfo
from broker_store.protocol import fastjson
from broker_store.protocol.members import (
    Members,
    loads_object,
    read_bool,
    read_int,
    read_object,
    read_objects,
    read_text,
    read_texts,
)

MASTER_ID = 0  # of the brokers of a name; the others are slaves


class QueueData(NamedTuple):
    """The number of queues of a topic at a broker, and their permissions."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, members: Members) -> QueueData:
        return cls(
            read_text(members, "brokerName"),
            read_int(members, "readQueueNums"),
            read_int(members, "writeQueueNums"),
            read_int(members, "perm"),
            read_int(members, "topicSysFlag", 0),
        )


@dataclass(slots=True, frozen=True)
class BrokerData:
    """The addresses of the brokers of one name: id (0 is the master) to `host:port`."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "brokerAddrs": dict(sorted(self.addresses.items())),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
            "zoneName": self.zone_name,
        }

    @classmethod
    def from_json(cls, members: Members) -> BrokerData:
        return cls(
            read_text(members, "cluster", ""),
            read_text(members, "brokerName"),
            _addresses(read_object(members, "brokerAddrs")),
            read_bool(members, "enableActingMaster"),
            read_text(members, "zoneName", "") or None,
        )


def _addresses(members: Mapping[Any, Any]) -> dict[int, str]:
    addresses = {}
    for broker_id, address in members.items():
        try:
            addresses[int(broker_id)] = address
        except (TypeError, ValueError):
            raise FieldError("brokerAddrs", broker_id, "a broker id") from None
        if not isinstance(address, str):
            raise FieldError("brokerAddrs", address, "host:port")
    return addresses


@dataclass(slots=True, frozen=True)
class TopicRoute:
    """The queues and brokers of a topic. `order_conf` is `broker:queues;...` for an ordered topic; `mappings`
    has the logical queues of a static one by broker name."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_conf: str | None = None
    mappings: Mapping[str, MappingInfo] = field(default_factory=dict)


def encode_route(route: TopicRoute, strict: bool = True) -> bytes:
    """Return strict JSON, which all clients read, or fastjson's form, which old ones request."""
    members = route_json(route)
    return fastjson.dumps_strict(members) if strict else fastjson.dumps(members)


def route_json(route: TopicRoute) -> dict[str, object]:
    """Return the members of Apache's TopicRouteData."""
    members: dict[str, object] = {
        "brokerDatas": [_without_none(broker.to_json()) for broker in route.brokers],
        "filterServerTable": {},
        "queueDatas": [queue.to_json() for queue in route.queues],
    }
    if route.order_conf is not None:
        members["orderTopicConf"] = route.order_conf
    if route.mappings:
        members["topicQueueMappingByBroker"] = {
            broker: info.to_json() for broker, info in route.mappings.items()
        }
    return members


def decode_route(body: bytes) -> TopicRoute:
    members = loads_object(body)
    return TopicRoute(
        tuple(QueueData.from_json(item) for item in read_objects(members, "queueDatas")),
        tuple(BrokerData.from_json(item) for item in read_objects(members, "brokerDatas")),
        read_text(members, "orderTopicConf", "") or None,
        _mappings(read_object(members, "topicQueueMappingByBroker")),
    )


def _mappings(members: Mapping[str, object]) -> dict[str, MappingInfo]:
    try:
        return {broker: MappingInfo.from_json(value) for broker, value in members.items()}
    except FormatError as error:
        raise FieldError("topicQueueMappingByBroker", None, f"mappings: {error}") from None


def _without_none(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


@dataclass(slots=True, frozen=True)
class ClusterInfo:
    """All brokers by name, and the broker names of each cluster."""

    brokers: dict[str, BrokerData]
    clusters: dict[str, list[str]]


def encode_cluster_info(info: ClusterInfo) -> bytes:
    brokers = {name: broker.to_json() for name, broker in info.brokers.items()}
    clusters = {name: list(brokers) for name, brokers in info.clusters.items()}
    return fastjson.dumps({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def decode_cluster_info(body: bytes) -> ClusterInfo:
    members = loads_object(body)
    table = read_object(members, "brokerAddrTable")
    clusters = read_object(members, "clusterAddrTable")
    return ClusterInfo(
        {name: BrokerData.from_json({"brokerName": name} | read_object(table, name)) for name in table},
        {name: read_texts(clusters, name) for name in clusters},
    )


def encode_member_group(broker: BrokerData) -> bytes:
    members = broker.to_json()
    kept = {name: members[name] for name in ("brokerAddrs", "brokerName", "cluster")}
    return fastjson.dumps({"brokerMemberGroup": kept})


def decode_member_group(body: bytes) -> dict[int, str]:
    """Return the addresses of a member group by id. Raises FieldError."""
    group = loads_object(body).get("brokerMemberGroup")
    return dict(BrokerData.from_json(group).addresses) if isinstance(group, dict) else {}
