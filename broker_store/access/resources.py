"""Resources and actions: what a policy allows or denies, and what a request demands.

The text of a resource is `*` (everything), `Type:*`, `Type:prefix*` or `Type:name`. Types are read in any
case, names as they are. Only a final `*` makes a prefix, and the name is then cut at its first `*`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from broker_store.formats.names import RETRY_PREFIX

ANYTHING = "*"
# Apache's text for a name that a request lacks: no rule but one for all names is meant for it.
NO_NAME = "null"


class Kind(StrEnum):
    """The type of a resource."""

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    """Which names a resource stands for; the most specific pattern comes first."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    ANY = "any"


class Action(StrEnum):
    """What is done to a resource."""

    UNKNOWN = "Unknown"
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


_KINDS = {kind.lower(): kind for kind in Kind}
_ACTIONS = {action.lower(): action for action in Action}


class Resource(NamedTuple):
    """A resource, or all resources of a pattern. `name` is empty for the pattern ANY."""

    kind: Kind
    name: str
    pattern: Pattern = Pattern.LITERAL

    @property
    def text(self) -> str:
        if self.kind == Kind.ANY:
            return ANYTHING
        name = ANYTHING if self.pattern == Pattern.ANY else self.name
        return f"{self.kind}:{name}{ANYTHING if self.pattern == Pattern.PREFIXED else ''}"

    def covers(self, other: Resource) -> bool:
        """Return True if the other resource, which has one name, is among those of this pattern."""
        if self.kind == Kind.ANY:
            return True
        if self.kind != other.kind:
            return False
        if self.pattern == Pattern.ANY:
            return True
        if self.pattern == Pattern.PREFIXED:
            return other.name.startswith(self.name)
        return other.name == self.name


def read_resource(text: str) -> Resource | None:
    """Return the resource of a text, None if it names no type."""
    if text == ANYTHING:
        return Resource(Kind.ANY, "", Pattern.ANY)
    kind_text, _, name = text.partition(":")
    kind = _KINDS.get(kind_text.lower())
    if kind is None:
        return None
    if kind == Kind.ANY:
        # Such a rule covers everything, whatever it names, as in Apache. So it has one form, by which it is
        # shown, replaced and deleted.
        return read_resource(ANYTHING)
    if name.endswith(ANYTHING):
        prefix = name.partition(ANYTHING)[0]
        return Resource(kind, prefix, Pattern.PREFIXED if prefix else Pattern.ANY)
    return Resource(kind, name)


def read_actions(texts: Iterable[str]) -> tuple[Action, ...]:
    """Return the actions of texts, without unknown ones."""
    return tuple(action for text in texts if (action := _ACTIONS.get(text.lower())) is not None)


class Demand(NamedTuple):
    """What a request needs: one of the actions on a resource. All demands of a request must be met."""

    resource: Resource
    actions: tuple[Action, ...]


def on_topic(topic: str | None, *actions: Action) -> Demand:
    """Return a demand on a topic. A retry topic belongs to its group."""
    if topic is not None and topic.startswith(RETRY_PREFIX):
        return on_group(topic, *actions)
    return on_topic_itself(topic, *actions)


def on_topic_itself(topic: str | None, *actions: Action) -> Demand:
    """Return a demand on a topic, which may be a retry topic."""
    return Demand(Resource(Kind.TOPIC, NO_NAME if topic is None else topic), actions)


def on_group(group: str | None, *actions: Action) -> Demand:
    """Return a demand on a group, which may be given by its retry topic."""
    name = NO_NAME if group is None else group.removeprefix(RETRY_PREFIX)
    return Demand(Resource(Kind.GROUP, name), actions)


def on_cluster(cluster: str, *actions: Action) -> Demand:
    return Demand(Resource(Kind.CLUSTER, cluster), actions)
