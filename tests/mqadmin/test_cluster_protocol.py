"""The clusters that there are have the parts and methods of mqadmin/cluster/protocol.py."""

from __future__ import annotations

import inspect
import typing

import pytest

from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.cluster.protocol import Cluster
from tests.support.fake_cluster import FakeCluster
from tests.support.hostile_cluster import HostileCluster

PARTS = {
    name: typing.get_type_hints(part.fget)["return"]
    for name, part in vars(Cluster).items()
    if isinstance(part, property)
}


def _members(protocol: type) -> list[tuple[str, typing.Any]]:
    """The methods and properties that a protocol declares."""
    return [
        (name, one)
        for name, one in vars(protocol).items()
        if not name.startswith("_") and (inspect.isfunction(one) or isinstance(one, property))
    ]


def _shape(method: typing.Any) -> tuple:
    """Whether a method is a coroutine, and its parameters: names, kinds and whether each has a default."""
    parameters = [
        (parameter.name, parameter.kind, parameter.default is not parameter.empty)
        for name, parameter in inspect.signature(method).parameters.items()
        if name != "self"
    ]
    return inspect.iscoroutinefunction(method), parameters


@pytest.mark.parametrize("kind", [EmbeddedCluster, FakeCluster, HostileCluster])
def test_a_cluster_has_every_part_with_its_methods(kind):
    cluster = kind()
    assert len(PARTS) >= 10
    for protocol, part in [(Cluster, cluster), *((PARTS[name], getattr(cluster, name)) for name in PARTS)]:
        for name, one in _members(protocol):
            where = f"{type(part).__name__}.{name}"
            if isinstance(one, property):
                assert hasattr(part, name), where
            else:
                found = getattr(type(part), name)
                assert found is not one, f"{where} is the protocol's own, which does nothing"
                assert _shape(found) == _shape(one), where
