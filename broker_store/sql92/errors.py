"""Errors of expressions."""

from __future__ import annotations

from broker_store.errors import PeerError

LEXICAL = "org.apache.rocketmq.filter.parser.TokenMgrError"
SYNTAX = "org.apache.rocketmq.filter.parser.ParseException"
MEANING = "java.lang.RuntimeException"
NUMBER = "java.lang.NumberFormatException"


class ExpressionError(PeerError):
    """An expression does not compile. `java_class` is the error that Apache's filter raises for it."""

    cause = "wrong filter expression"

    def __init__(self, message: str, java_class: str = MEANING):
        self.java_class = java_class
        super().__init__(message)

    @property
    def remark(self) -> str:
        """Return the remark of Apache's answer."""
        return f"{self.java_class}: {self}"


class EvaluationError(Exception):
    """An expression has no result for these properties: a text is no number, or values cannot be compared.

    The message of the property does not match then.
    """
