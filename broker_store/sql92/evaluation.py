"""A tree as one Python function over the properties of a message (docs/spec/sql92.md sections 4 and 5).

Each node becomes a closure that is made for the kinds of its operands, so that nothing is looked up or
decided again for each message. A closure returns a value, None for null, or raises EvaluationError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_store.sql92 import java, nodes
from broker_store.sql92.nodes import Node, Value

Properties = Mapping[str, str]
Evaluator = Callable[[Properties], Value]


def evaluator(node: Node) -> Evaluator:
    """Return the function that evaluates a node."""
    match node:
        case nodes.Property(name):
            return lambda properties: properties.get(name)
        case nodes.Constant(_, value):
            return lambda properties: value
        case nodes.Negated(nodes.Constant() | nodes.Property()):
            number = negated_number(node)
            return lambda properties: number
        case nodes.Negated(of):
            return _null_after(evaluator(of))
        case nodes.Cast(name):
            return lambda properties: False if name in properties else None
        case nodes.Not(of, times):
            return _not(evaluator(of)) if times % 2 else evaluator(of)
        case nodes.Logic(word, operands):
            return _logic([evaluator(operand) for operand in operands], ends_at=word == "OR")
        case nodes.Equal(left, right):
            return _equal(left, right)
        case nodes.Compare():
            return _compare(node)
        case nodes.In(name, values, negated):
            return _in(name, frozenset(values), negated)
        case nodes.Search():
            return _search(node)
    raise AssertionError(node)


def negated_number(node: nodes.Negated) -> int | float | None:
    """Return the number after its minus signs, None (null) for what is no number."""
    value = node.of.value if isinstance(node.of, nodes.Constant) and node.of.kind in nodes.NUMBERS else None
    if not isinstance(value, (int, float)):
        return None
    return -value if node.times % 2 else value


def _null_after(of: Evaluator) -> Evaluator:
    """Return null for a condition after minus signs. It is evaluated, as its evaluation may fail."""

    def evaluate(properties: Properties) -> Value:
        of(properties)
        return None

    return evaluate


def _not(of: Evaluator) -> Evaluator:
    def evaluate(properties: Properties) -> Value:
        value = of(properties)
        return None if value is None else not value

    return evaluate


def _logic(operands: list[Evaluator], *, ends_at: bool) -> Evaluator:
    """Return AND or OR: the first operand that is `ends_at` decides; else null, if one is null."""

    def evaluate(properties: Properties) -> Value:
        result: bool | None = not ends_at
        for operand in operands:
            value = operand(properties)
            if value is ends_at:
                return ends_at
            if value is None:
                result = None
        return result

    return evaluate


def _equal(left: Node, right: Node) -> Evaluator:
    left_of, right_of = evaluator(left), evaluator(right)
    left_kind, right_kind = nodes.kind_of(left), nodes.kind_of(right)
    if isinstance(left, nodes.Property) and isinstance(right, nodes.Constant) and right_kind == "text":
        name, wanted = left.name, right.value
        return lambda properties: None if (value := properties.get(name)) is None else value == wanted

    def evaluate(properties: Properties) -> Value:
        mine, other = left_of(properties), right_of(properties)
        if mine is None:
            return True if other is None else None
        if other is None:
            return False
        if left_kind == right_kind == "text":
            return mine == other
        return nodes.compare_values(left_kind, mine, right_kind, other) == 0

    return evaluate


def _compare(node: nodes.Compare) -> Evaluator:
    left_of, right_of = evaluator(node.left), evaluator(node.right)
    left_kind, right_kind = nodes.kind_of(node.left), nodes.kind_of(node.right)
    passes = {">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0)}[node.sign]

    def evaluate(properties: Properties) -> Value:
        mine = left_of(properties)
        if mine is None:
            return None  # before the right side, whose evaluation may fail
        other = right_of(properties)
        if other is None:
            return None
        if left_kind == right_kind == "text":  # two properties: their numbers are compared
            return java.compare_doubles(_double(mine), _double(other)) in passes
        return nodes.compare_values(left_kind, mine, right_kind, other) in passes

    return evaluate


def _double(value: Value) -> float:
    return java.parse_double(str(value))


def _in(name: str, values: frozenset[str], negated: bool) -> Evaluator:
    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in values) is not negated

    return evaluate


def _search(node: nodes.Search) -> Evaluator:
    left_of, text, negated = evaluator(node.left), node.text, node.negated
    is_text = nodes.kind_of(node.left) == "text"

    def evaluate(properties: Properties) -> Value:
        if not text:
            return False  # before the left side, whose evaluation may fail
        value = left_of(properties)
        if not is_text or not isinstance(value, str):
            return False
        match node.word:
            case "CONTAINS":
                found = text in value
            case "STARTSWITH":
                found = value.startswith(text)
            case _:
                found = value.endswith(text)
        return found is not negated

    return evaluate
