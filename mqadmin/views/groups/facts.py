"""Look-ups of a group by its name."""

from __future__ import annotations

from broker_store.errors import NotFoundError
from broker_store.formats.names import check_group
from broker_store.rest.problems import Problem
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.groups import GroupDetail


def find(name: str) -> GroupDetail | None:
    """Return the group, None if there is none."""
    try:
        return current_cluster().groups.detail(check_group(name))
    except NotFoundError:
        return None


def found_group(name: str) -> GroupDetail:
    """Return the group. Raises Problem if there is none."""
    group = find(name)
    if group is None:
        raise Problem("group_not_found", f"group {name} does not exist")
    return group
