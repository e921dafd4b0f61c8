"""What an expression does that its author may not expect (docs/spec/sql92.md section 6)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from broker_store.excerpts import text_excerpt
from broker_store.sql92 import nodes
from broker_store.sql92.errors import ExpressionError
from broker_store.sql92.expression import Expression

MAX_ODDITIES = 8
_MAX_QUOTED = 40
_MAX_ERROR = 400
_MAX_KEPT = 256


class Explained(NamedTuple):
    """`error` says why an expression does not compile, None if it does."""

    error: str | None
    oddities: tuple[str, ...]


@lru_cache(maxsize=_MAX_KEPT)  # a page that is updated asks again and again
def explained(text: str) -> Explained:
    """Return what is wrong with an expression, or odd."""
    try:
        return Explained(None, tuple(oddities(Expression(text))))
    except ExpressionError as error:
        return Explained(text_excerpt(str(error), _MAX_ERROR), ())


def oddities(expression: Expression) -> list[str]:
    """Return a sentence for each oddity of a filter, at most MAX_ODDITIES."""
    return list(dict.fromkeys(_oddities(expression)))[:MAX_ODDITIES]


def _oddities(expression: Expression) -> Iterator[str]:
    if expression.ignored_from is not None:
        yield (
            f"The filter ends before {_quoted(expression.text[expression.ignored_from :])}; "
            f"the text from there on is ignored."
        )
    for node in nodes.walk(expression.tree):
        match node:
            case nodes.Equal(nodes.Not(of, 1), right) if isinstance(of, nodes.Cast):
                comparison = nodes.Equal(nodes.Property(of.name), right, 1)
                yield (
                    f"NOT binds tighter than a comparison: {_quoted(f'(NOT {of})')} is compared with "
                    f"{_quoted(str(right))}. To negate a comparison, write NOT {_sql(comparison)}."
                )
            case nodes.Cast(name):
                yield (
                    f"{_quoted(name)} alone is never true, even if its text is true. "
                    f"Compare it, as in {text_excerpt(name, _MAX_QUOTED)} = 'true'."
                )
            case nodes.Equal(nodes.Constant("boolean"), right) if nodes.kind_of(right) == "text":
                yield (
                    f"A message with {_quoted(str(right))} does not match, because a boolean on the left "
                    f"cannot be compared with a property. Write the property on the left."
                )
            case nodes.Negated() if nodes.kind_of(node) == "null":
                yield f"A minus before {_quoted(str(node.of))} makes it null: only numbers have a sign."
            case nodes.Search(word, _, "", negated):
                yield f"{'NOT ' if negated else ''}{word} with an empty text never matches."
            case nodes.Not(nodes.Equal(nodes.Property(left), nodes.Property(right)), 1):
                one, other = text_excerpt(left, _MAX_QUOTED), text_excerpt(right, _MAX_QUOTED)
                yield f"{one} <> {other} is true if only {other} is absent, and null if only {one} is."


def _sql(comparison: nodes.Equal) -> str:
    return text_excerpt(f"({comparison.left} = {comparison.right})", _MAX_QUOTED)


def _quoted(text: str) -> str:
    return f"“{text_excerpt(text, _MAX_QUOTED)}”"
