"""Nodes of a parsed expression, and the checks that Apache makes when it builds them (docs/spec/sql92.md
section 3).

`str` of a node is the text that Apache's error messages have for it. Chains of AND or OR are one node, so
that a chain of any length is not deep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from broker_store.sql92 import java
from broker_store.sql92.errors import NUMBER, SYNTAX, EvaluationError, ExpressionError

# Levels of a tree: evaluation calls one function in another for each.
MAX_DEPTH = 200
_LONG_DIGITS = 19  # of the largest whole number, in decimal

# What values a node has beside null. Properties are texts; whole numbers within 32 bits are "integer".
Kind = Literal["text", "boolean", "integer", "long", "double", "null"]
NUMBERS = frozenset(("integer", "long", "double"))
Value = str | bool | int | float | None
LogicWord = Literal["AND", "OR"]
SearchWord = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]
Sign = Literal[">", ">=", "<", "<="]


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    depth: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Constant:
    kind: Kind
    value: Value
    depth: int = 1

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if isinstance(self.value, bool):
            return "TRUE" if self.value else "FALSE"
        if isinstance(self.value, float):
            return java.double_text(self.value)
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Negated:
    """A node after `times` minus signs: a number with its sign, or null for what is no number."""

    of: Node
    times: int
    depth: int

    def __str__(self) -> str:
        return "(- " * self.times + str(self.of) + ")" * self.times


@dataclass(frozen=True, slots=True)
class Not:
    """A condition after `times` NOTs."""

    of: Node
    times: int
    depth: int

    def __str__(self) -> str:
        return "(NOT " * self.times + str(self.of) + ")" * self.times


@dataclass(frozen=True, slots=True)
class Logic:
    """Operands of one AND or one OR, from left to right."""

    word: LogicWord
    operands: tuple[Node, ...]
    depth: int

    def __str__(self) -> str:
        sign = " && " if self.word == "AND" else " || "
        first, *others = self.operands
        closed = ")" + sign
        return "(" * len(others) + f"{first}{sign}" + closed.join(map(str, others)) + ")"


@dataclass(frozen=True, slots=True)
class Equal:
    left: Node
    right: Node
    depth: int

    def __str__(self) -> str:
        return f"({self.left} == {self.right})"


@dataclass(frozen=True, slots=True)
class Compare:
    sign: Sign
    left: Node
    right: Node
    depth: int

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, slots=True)
class In:
    name: str
    values: tuple[str, ...]
    negated: bool
    depth: int = 1

    def __str__(self) -> str:
        word = "NOT IN" if self.negated else "IN"
        return f"{self.name} {word} ( {', '.join(self.values)} )"


@dataclass(frozen=True, slots=True)
class Search:
    """CONTAINS, STARTSWITH or ENDSWITH."""

    word: SearchWord
    left: Node
    text: str
    negated: bool
    depth: int

    def __str__(self) -> str:
        word = f"NOT {self.word}" if self.negated else self.word
        return f"{self.left} {word} {self.text}"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a condition is needed: null if absent, else FALSE."""

    name: str
    depth: int = 1

    def __str__(self) -> str:
        return self.name


Node = Property | Constant | Negated | Not | Logic | Equal | Compare | In | Search | Cast


def kind_of(node: Node) -> Kind:
    """Return the kind of a node's values."""
    if isinstance(node, Property):
        return "text"
    if isinstance(node, Constant):
        return node.kind
    if isinstance(node, Negated):
        kind = kind_of(node.of)
        return kind if kind in NUMBERS else "null"
    return "boolean"


def is_boolean(node: Node) -> bool:
    """Return whether Apache's parser takes a node as a condition."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, (Property, Negated))


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes below a node."""
    if isinstance(node, (Negated, Not)):
        return (node.of,)
    if isinstance(node, Logic):
        return node.operands
    if isinstance(node, (Equal, Compare)):
        return (node.left, node.right)
    return (node.left,) if isinstance(node, Search) else ()


def walk(tree: Node) -> Iterator[Node]:
    """Yield a node and all below it, each before those below it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))


# Construction ---------------------------------------------------------------------------------------


def whole(text: str) -> Constant:
    """Return the constant of a whole number. Raises ExpressionError beyond 64 bits."""
    digits = text.rstrip("lL")
    # Python refuses to read numbers of thousands of digits.
    value = int(digits) if len(digits) <= _LONG_DIGITS else java.LONG_MAX + 1
    if value > java.LONG_MAX:
        raise ExpressionError(f'For input string: "{text.rstrip("lL")}"', NUMBER)
    return Constant("integer" if value <= java.INT_MAX else "long", value)


def fraction(text: str) -> Constant:
    """Return the constant of a number with a point or an exponent. Raises ExpressionError for 0 and
    infinity."""
    value = float(text)
    if math.isinf(value):
        raise ExpressionError(f"{text} is greater than {java.double_text(java.MAX_DOUBLE)}")
    if value < java.MIN_DOUBLE:
        raise ExpressionError(f"{text} is less than {java.double_text(java.MIN_DOUBLE)}")
    return Constant("double", value)


def below(*operands: Node) -> int:
    """Return the depth of a node over these. Raises ExpressionError beyond MAX_DEPTH."""
    depth = 1 + max(operand.depth for operand in operands)
    if depth > MAX_DEPTH:
        raise ExpressionError(f"conditions that are nested more than {MAX_DEPTH} deep")
    return depth


def condition(node: Node) -> Node:
    """Return a node as a condition. Raises ExpressionError if it is none."""
    if isinstance(node, Property):
        return Cast(node.name)
    if not is_boolean(node):
        raise ExpressionError(f"Expression will not result in a boolean value: {node}", SYNTAX)
    return node


def negation(node: Node) -> Node:
    """Return NOT of a node."""
    if isinstance(node, Not):
        return Not(node.of, node.times + 1, node.depth)
    node = condition(node)
    return Not(node, 1, below(node))


def minus(node: Node) -> Node:
    """Return a node after one more minus."""
    if isinstance(node, Negated):
        return Negated(node.of, node.times + 1, node.depth)
    return Negated(node, 1, below(node))


def logic(word: LogicWord, left: Node, right: Node) -> Node:
    """Return AND or OR of two nodes. A chain becomes one node, which evaluates to the same."""
    left, right = condition(left), condition(right)
    operands = (*left.operands, right) if isinstance(left, Logic) and left.word == word else (left, right)
    return Logic(word, operands, below(left, right) if len(operands) == 2 else max(left.depth, below(right)))


def equal(left: Node, right: Node) -> Node:
    for operand in (left, right):
        if isinstance(operand, Constant) and operand.value is None:
            raise ExpressionError(f"'{operand}' cannot be compared.")
    if isinstance(left, Constant) and isinstance(right, Constant):
        if is_boolean(left) and not is_boolean(right):
            raise ExpressionError(f"'{left}' cannot be compared with '{right}'")
    return Equal(left, right, below(left, right))


def is_null(node: Node) -> Node:
    return Equal(node, Constant("null", None), below(node))


def compare(sign: Sign, left: Node, right: Node) -> Node:
    for operand in (left, right):
        if is_boolean(operand) or isinstance(operand, Constant) and operand.kind == "text":
            raise ExpressionError(f"Value '{operand}' cannot be compared.")
    return Compare(sign, left, right, below(left, right))


def between(value: Node, low: Node, high: Node, *, negated: bool) -> Node:
    if negated:
        return logic("OR", compare("<", value, low), compare(">", value, high))
    if isinstance(low, Constant) and isinstance(high, Constant):
        if low.value is None or high.value is None:
            raise ExpressionError("Illegal values of between, values can not be null!")
        try:
            order = compare_values(low.kind, low.value, high.kind, high.value)
        except EvaluationError as error:
            raise ExpressionError(str(error), NUMBER) from None
        if order > 0:
            raise ExpressionError(
                f"Illegal values of between, left value({_plain(low)}) must less than or equal to "
                f"right value({_plain(high)})"
            )
    return logic("AND", compare(">=", value, low), compare("<=", value, high))


def _plain(constant: Constant) -> str:
    """Return the text of a constant's value in Java."""
    if isinstance(constant.value, str):
        return constant.value
    return str(constant).lower() if isinstance(constant.value, bool) else str(constant)


def member(left: Node, values: tuple[str, ...], *, negated: bool) -> Node:
    if not isinstance(left, Property):
        raise ExpressionError(f"Expected a property for In expression, got: {left}")
    return In(left.name, values, negated)


# Comparison -----------------------------------------------------------------------------------------


def compare_values(left_kind: Kind, left: Value, right_kind: Kind, right: Value) -> int:
    """Return a number below, at or above 0 for two values that are not null, as Apache's filter compares
    them. Raises EvaluationError.

    A text is read as a number of the other value's kind. Two texts compare by their UTF-16 units.
    """
    if left_kind == right_kind == "boolean":
        return int(bool(left)) - int(bool(right))
    if left_kind == "boolean":
        if right_kind == "text":
            raise EvaluationError("a boolean cannot be compared with a text")
        return -1
    if right_kind == "boolean":
        if left_kind != "text":
            return -1
        return int(str(left).lower() == "true") - int(bool(right))
    if left_kind == right_kind == "text":
        mine, other = (str(value).encode("utf-16-be", "surrogatepass") for value in (left, right))
        return (mine > other) - (mine < other)
    if left_kind == "text":
        left, left_kind = read_number(right_kind, str(left)), right_kind
    elif right_kind == "text":
        right, right_kind = read_number(left_kind, str(right)), left_kind
    assert isinstance(left, (int, float)) and isinstance(right, (int, float))
    if "double" in (left_kind, right_kind):
        return java.compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def read_number(kind: Kind, text: str) -> int | float:
    """Return the number of a text. Raises EvaluationError."""
    if kind == "double":
        return java.parse_double(text)
    return java.parse_whole(text, java.INT_MAX if kind == "integer" else java.LONG_MAX)
