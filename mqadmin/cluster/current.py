"""The cluster of this process."""

from __future__ import annotations

from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.cluster.protocol import Cluster

_current: Cluster | None = None


def install_cluster(cluster: Cluster | None) -> None:
    """Make `cluster` the one of this process; None removes it."""
    global _current
    _current = cluster


def current_cluster() -> Cluster:
    """Return the cluster of this process; before one was installed, one whose broker is starting."""
    global _current
    if _current is None:
        _current = EmbeddedCluster()
    return _current
