"""The state that a request changes, before and after, as a record of the change shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.protocol import table_bodies
from broker_store.protocol.command import Command
from broker_store.server.audited_subject import Audited, subject_of
from broker_store.server.change_records import MAX_NAMES
from broker_store.server.parts import BrokerParts

# Of the state before and after, in one record. An entry of the audit trail has 4,000 characters.
MAX_PICTURE_CHARACTERS = 2_500
MAX_PART_CHARACTERS = 3_500  # of names and settings in a further record of a long list
MAX_RULES = 10  # of a user's policies
MAX_RULE_CHARACTERS = 120
# Items of a list whose settings are compared; as many as a request may change.
MAX_COMPARED = 1_000


@dataclass(frozen=True, slots=True)
class _State:
    """The state of one item or of several. `more` items were not read."""

    facts: dict
    is_one: bool = False
    more: int = 0


class Begun:
    """The state before a request. `gone` is what a successful deletion removes with its subject."""

    def __init__(self, parts: BrokerParts, audited: Audited, command: Command):
        self.names, self.detail = subject_of(audited, command)
        self.name = self.names[0] if self.names else ""
        self._read = _reader_of(parts, audited, command, self.names)
        self._before = self._read()
        takes_offsets = (
            audited.kind == "group"
            and audited.action == "delete"
            and str((command.fields or {}).get("cleanOffset", "")).lower() == "true"
        )
        self.gone = _offsets_of(parts, self.name) if takes_offsets else {}

    def has_changed(self) -> bool:
        """Return True if the state differs from that before, as far as a record shows it."""
        after = self._read()
        return self._before is not None and after is not None and self._before.facts != after.facts

    def compared(self) -> tuple[dict[str, tuple], dict]:
        """Return the items that differ, and the part of the record with the state before and after."""
        before, after = self._before, self._read()
        pairs = _differing(before, after)
        return pairs, _compared(before, after, pairs)


def _reader_of(
    parts: BrokerParts, audited: Audited, command: Command, names: list[str]
) -> Callable[[], _State | None]:
    """Return a function that reads the present state of the subject; it returns None if a record shows no
    state.

    The items are chosen here, once, so that both readings are of the same items.
    """
    name, topic = names[0] if names else "", (command.fields or {}).get("topic", "")
    if audited.action == "reset_offset":
        return lambda: _State({"": parts.offsets.of(name, topic)}, is_one=True)
    if audited.action == "clone_offset":
        cloned = [topic] if topic else parts.offsets.topics_of((command.fields or {}).get("srcGroup", ""))
        return lambda: _State(
            {one: parts.offsets.of(name, one) for one in cloned[:MAX_NAMES]},
            more=max(0, len(cloned) - MAX_NAMES),
        )
    if audited.action == "set_mode":
        return lambda: _State(
            {"": {one: mode._asdict() for one, mode in parts.request_modes.of_group(name).items()}},
            is_one=True,
        )
    if audited.kind == "config":
        keys = list(table_bodies.decode_properties(command.body))[:MAX_NAMES]
        return lambda: _State({"": _settings_of(parts, keys)}, is_one=True)
    if audited.kind == "acl":
        return lambda: _State({"": _rules_of(parts, name)}, is_one=True)
    if audited.action == "forbid":
        return lambda: _State({"": {"readable": parts.groups.may_read(name, topic)}}, is_one=True)
    tables: dict[str, Callable[[str], TopicConfig | SubscriptionGroup | None]] = {
        "topic": parts.topics.get,
        "group": parts.groups.get,
    }
    config_of = tables.get(audited.kind)
    if config_of is None or audited.action not in ("update", "delete") or not name:
        return lambda: None
    compared = list(dict.fromkeys(names))
    more = max(0, len(compared) - MAX_COMPARED)
    return lambda: _State(
        {one: _json_of(config_of(one)) for one in compared[:MAX_COMPARED]}, is_one=len(names) == 1, more=more
    )


def _settings_of(parts: BrokerParts, keys: list[str]) -> dict:
    settings = parts.properties()
    return {key: settings[key] for key in keys if key in settings}


def _rules_of(parts: BrokerParts, subject: str) -> dict:
    """Return the first rules of a user's policies in words, and their number."""
    acl = None if parts.access is None else parts.access.state.acls.get(subject.partition(":")[2])
    if acl is None:
        return {}
    texts = (f"{policy.type}: {rule.text}" for policy in acl.policies for rule in policy.rules)
    return {"rules": [text[:MAX_RULE_CHARACTERS] for text in islice(texts, MAX_RULES)], "count": acl.rules}


def _json_of(config: TopicConfig | SubscriptionGroup | None) -> dict | None:
    return None if config is None else config.to_json()


def _offsets_of(parts: BrokerParts, group: str) -> dict:
    """Return the first offsets of a group, which are deleted with it, and its number of topics with
    offsets."""
    topics = parts.offsets.topics_of(group)
    shown = {topic: parts.offsets.of(group, topic) for topic in topics[:MAX_NAMES]}
    kept = _within_bound((topic, shown[topic]) for topic in shown)
    return (
        {"offsets": {topic: shown[topic] for topic in kept}, "offset_topics": len(topics)} if topics else {}
    )


def _differing(before: _State | None, after: _State | None) -> dict[str, tuple]:
    """Return the items that differ, each with the fields that do; nothing for a single item."""
    if before is None or after is None or before.is_one:
        return {}
    return {
        name: _difference(old, after.facts[name])
        for name, old in before.facts.items()
        if old != after.facts[name]
    }


def _compared(before: _State | None, after: _State | None, pairs: dict[str, tuple]) -> dict:
    """Return `before` and `after` of a record: of several items as many of `pairs` as fit, and the number of
    the others."""
    if before is None or after is None:
        return {}
    if before.is_one:
        ((_, old),), ((_, new),) = before.facts.items(), after.facts.items()
        return {"before": old, "after": new}
    kept = _within_bound(pairs.items())
    found: dict = {
        "before": {name: pairs[name][0] for name in kept},
        "after": {name: pairs[name][1] for name in kept},
    }
    not_shown = len(pairs) - len(kept) + before.more
    return found | ({"not_shown": not_shown} if not_shown else {})


@dataclass(slots=True)
class _Part:
    """The content of a further record."""

    names: list[str] = field(default_factory=list)
    before: dict = field(default_factory=dict)
    after: dict = field(default_factory=dict)

    def detail(self, number: int, items: int) -> dict:
        changes = {"before": self.before, "after": self.after} if self.before else {}
        return {"part": number, "items": items, "names": self.names, **changes}


def further_parts(names: list[str], first: dict, pairs: dict[str, tuple]) -> Iterator[dict]:
    """Yield the details of further records, for the items of a long list that have no room in the first:
    names, and the state before and after where it was changed.

    A list that changed nothing has none. An item that the request created has only its name.
    """
    if len(names) < 2 or not (pairs or first.get("not_shown")):
        return
    named, shown = set(first["names"]), first.get("before", {})
    number, part, characters = 2, _Part(), 0
    for name in dict.fromkeys(names):
        old, new = pairs.get(name, (None, None))
        is_changed = old is not None and name not in shown
        if name in named and not is_changed:
            continue
        size = (
            len(name)
            + 4
            + (len(json.dumps((old, new), default=str)) + 2 * len(name) + 12 if is_changed else 0)
        )
        if part.names and characters + size > MAX_PART_CHARACTERS:
            yield part.detail(number, len(names))
            number, part, characters = number + 1, _Part(), 0
        part.names.append(name)
        characters += size
        if is_changed:
            part.before[name], part.after[name] = old, new
    if part.names:
        yield part.detail(number, len(names))


def _difference(old: dict | None, new: dict | None) -> tuple[dict | None, dict | None]:
    """Return the fields that differ; all if the item did not exist before, or does not exist now."""
    if old is None or new is None:
        return old, new
    differing = [key for key in old | new if old.get(key) != new.get(key)]
    return {key: old[key] for key in differing if key in old}, {
        key: new[key] for key in differing if key in new
    }


def _within_bound(items: Iterable[tuple[str, object]]) -> list[str]:
    """Return the names of the first items that together have at most MAX_PICTURE_CHARACTERS, at most
    MAX_NAMES."""
    kept, characters = [], 0
    for name, value in islice(items, MAX_NAMES):
        characters += 2 * len(name) + len(json.dumps(value, default=str))
        if characters > MAX_PICTURE_CHARACTERS:
            break
        kept.append(name)
    return kept
