"""A compiled filter as a read of the store takes it."""

from __future__ import annotations

from functools import lru_cache

from broker_store.formats import properties
from broker_store.sql92.expression import Expression
from broker_store.sql92.program import program_of

# Characters. A filter takes up to 200 bytes for each, so fewer of the long ones are kept.
_MAX_SHORT = 1_024


class PropertyFilter:
    """A compiled SQL92 expression over stored properties. Any thread may use it."""

    __slots__ = ("_names", "expression", "program")

    def __init__(self, expression: Expression):
        self.expression = expression
        self.program = program_of(expression.tree, expression.names)
        self._names = properties.any_of(expression.names) if expression.names else None

    @property
    def steps(self) -> int:
        return self.expression.nodes

    def passes(self, encoded: bytes) -> bool:
        """Return whether a message with this stored properties string passes. Only the properties that the
        expression names are read."""
        return self.expression.matches(
            {} if self._names is None else properties.get_some(encoded, self._names)
        )


def filter_of(text: str) -> PropertyFilter:
    """Return the filter of an expression. Raises ExpressionError.

    The last ones are kept: clients that pull with a subscription send the same text with each pull.
    """
    return (_short_filter if len(text) <= _MAX_SHORT else _long_filter)(text)


def _compiled(text: str) -> PropertyFilter:
    return PropertyFilter(Expression(text))


_short_filter = lru_cache(maxsize=256)(_compiled)
_long_filter = lru_cache(maxsize=32)(_compiled)
