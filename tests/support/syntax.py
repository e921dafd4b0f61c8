"""Syntax trees of the program, for tests that hold its rules."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

_WITH_STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")


def tree_of(source: str) -> ast.Module:
    """Return a module's tree. The garbage collector rests: it would walk the growing tree many times, which
    takes three times as long as the parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_on:
            gc.enable()


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Return the nodes of a module's tree; several rules read each module."""
    return list(ast.walk(tree_of(file.read_text())))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements of any depth, without expressions, most of a tree's nodes."""
    yield node
    for name in _WITH_STATEMENTS:
        if isinstance(inside := getattr(node, name, None), list):
            for statement in inside:
                yield from statements(statement)
