"""A compiled filter."""

from __future__ import annotations

from broker_store.sql92 import evaluation, nodes, parser
from broker_store.sql92.errors import EvaluationError
from broker_store.sql92.evaluation import Properties


class Expression:
    """A filter over the properties of a message. It does not change, and all threads may use it."""

    __slots__ = ("_evaluate", "ignored_from", "names", "nodes", "text", "tree")

    def __init__(self, text: str):
        """Compile a text. Raises ExpressionError."""
        self.text = text
        self.tree, self.ignored_from = parser.parse(text)
        self._evaluate = evaluation.evaluator(self.tree)
        self.nodes = 0
        names: dict[str, None] = {}
        for node in nodes.walk(self.tree):
            self.nodes += 1
            if isinstance(node, (nodes.Property, nodes.Cast, nodes.In)):
                names[node.name] = None
        self.names = tuple(names)

    def result(self, properties: Properties) -> bool | None:
        """Return TRUE, FALSE or null (None). Raises EvaluationError."""
        value = self._evaluate(properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: Properties) -> bool:
        """Return whether a message with these properties passes: neither null nor an error does."""
        try:
            return self._evaluate(properties) is True
        except EvaluationError:
            return False
