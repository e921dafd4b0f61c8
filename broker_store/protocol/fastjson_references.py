"""References in fastjson's dialect: each `{"$ref": path}` is replaced by the value at its path.

The steps of all references and the number of values that they stand for are bounded. A reference to a value
that contains it is refused.
"""

from __future__ import annotations

import re
from typing import Any

from broker_store.protocol.fastjson_values import MAX_DEPTH, Container, ObjectKey, containers

# Steps of all different references of one body. A body with 50,000 references to queues of one table has
# 100,000.
MAX_STEPS = 200_000
# What references may stand for: Apache shares queues, offsets and brokers, objects of at most 10 members.
NODES_PER_REFERENCE = 16
MIN_NODES = 10_000


class References:
    """Replaces each `{"$ref": path}` in a value by the value at its path."""

    def __init__(self, root: Any):
        self.root = root
        self._key_texts: dict[int, dict[str | int, ObjectKey]] = {}
        self._found: dict[str, object] = {}
        self._steps_left = MAX_STEPS
        self._references = self._written = 0
        self._sizes: dict[int, tuple[int, int] | None] = {}

    def resolved(self) -> object:
        if (path := _reference(self.root)) is not None:
            raise ValueError(f"references lead in a circle: {path:.60}")
        self._replace_in(self.root)
        if self._references:
            most = self._written + NODES_PER_REFERENCE * self._references + MIN_NODES
            self._size(self.root, most)
        return self.root

    def _replace_in(self, value: Any) -> None:
        self._written += len(value) if isinstance(value, dict | list) else 0
        for place, child in containers(value):
            path = _reference(child)
            if path is None:
                self._replace_in(child)
            else:
                self._references += 1
                value[place] = self._follow(path, 0)

    def _follow(self, path: str, hops: int) -> object:
        if path in self._found:
            return self._found[path]
        if hops > MAX_DEPTH:
            raise ValueError(f"references lead in a circle: {path:.60}")
        steps = read_steps(path)
        self._steps_left -= len(steps)
        if self._steps_left < 0:
            raise ValueError(f"references of more than {MAX_STEPS} steps in one body")
        value = self.root
        for step in steps:
            value = self._member(value, step)
            onward = _reference(value)
            if onward is not None:
                value = self._follow(onward, hops + 1)
        self._found[path] = value
        return value

    def _size(self, value: Container, most: int) -> tuple[int, int]:
        """(the values below a value with each reference written out, their levels); ValueError above the
        bounds."""
        key = id(value)
        if key in self._sizes:
            known = self._sizes[key]
            if known is None:
                raise ValueError("a reference leads to what contains it")
            return known
        self._sizes[key] = None
        nodes, levels = len(value), 0
        for _place, child in containers(value):
            below, deep = self._size(child, most)
            nodes += below
            levels = max(levels, deep)
            if nodes > most or levels >= MAX_DEPTH:
                raise ValueError(f"references that stand for more than {most} values or {MAX_DEPTH} levels")
        self._sizes[key] = nodes, levels + 1
        return nodes, levels + 1

    def _member(self, value: object, step: str | int) -> object:
        if isinstance(value, list) and isinstance(step, int):
            return value[step]
        if not isinstance(value, dict):
            raise ValueError(f"a reference into a {type(value).__name__}")
        if step in value:
            return value[step]
        if isinstance(step, str) and step.isdigit() and int(step) in value:
            return value[int(step)]
        # An object as a key appears as its Java text.
        texts = self._key_texts.get(id(value))
        if texts is None:
            texts = {_java_text(key): key for key in value if isinstance(key, ObjectKey)}
            self._key_texts[id(value)] = texts
        return value[texts[step]]


def _reference(value: object) -> str | None:
    if isinstance(value, dict) and len(value) == 1 and isinstance(path := value.get("$ref"), str):
        return path
    return None


def _java_text(key: ObjectKey) -> str:
    topic, broker, queue = key.get("topic"), key.get("brokerName"), key.get("queueId")
    return f"MessageQueue [topic={topic}, brokerName={broker}, queueId={queue}]"


_STEP = re.compile(r"\.((?:[^.\[\\]++|\\.)*+)|\[(-?\d{1,10})\]", re.ASCII | re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def read_steps(path: str) -> list[str | int]:
    """Return the steps of a path: `$.a.b[0]` as ["a", "b", 0]. A backslash escapes the next letter."""
    if not path.startswith("$") or len(path) > 4096:
        raise ValueError(f"an unknown reference {path:.60}")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"an unknown reference {path:.60}")
        name, number = match.groups()
        steps.append(_ESCAPED.sub(r"\1", name) if number is None else int(number))
        at = match.end()
        if len(steps) > MAX_DEPTH:
            raise ValueError(f"a reference of more than {MAX_DEPTH} steps")
    return steps
