"""Bodies of routes and the cluster."""

import pytest

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
