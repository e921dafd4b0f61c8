"""Bodies of routes and the cluster."""

import pytest

from broker_store.formats.static_topics import MappingInfo
from broker_store.protocol import (
    route_bodies,
)
from broker_store.protocol.route_bodies import BrokerData, QueueData, TopicRoute
from tests.support.wire_samples import sample


@pytest.mark.parametrize("name", ["route json", "route json old"])
def test_routes_are_those_of_the_real_name_server(name):
    route = TopicRoute(
        (QueueData("broker-a", 4, 4, 6),), (BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:33911"}),)
    )
    assert route_bodies.decode_route(sample(name).body) == route
    assert route_bodies.encode_route(route, strict=name == "route json") == sample(name).body


def test_cluster_and_member_group_are_those_of_the_real_name_server():
    info = route_bodies.decode_cluster_info(sample("cluster").body)
    assert route_bodies.encode_cluster_info(info) == sample("cluster").body
    assert route_bodies.encode_member_group(info.brokers["broker-a"]) == sample("ns member").body


def test_a_route_has_the_logical_queues_of_a_static_topic_by_broker():
    info = MappingInfo("T", 2, "b", 5, leads={1: 0})
    route = TopicRoute((QueueData("b", 1, 1, 6),), (), mappings={"b": info})
    text = b'"topicQueueMappingByBroker":{"b":{"bname":"b","currIdMap":{%s:0},"dirty":false,"epoch":5,'
    assert text % b"1" in route_bodies.encode_route(route, strict=False)
    assert text % b'"1"' in route_bodies.encode_route(route)
    for strict in (True, False):
        assert route_bodies.decode_route(route_bodies.encode_route(route, strict)) == route
