"""Syntax trees of the program, for tests that hold its rules."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_WITH_STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")


@contextmanager
def _without_collector() -> Iterator[None]:
    """Stop the garbage collector: it would walk a growing tree many times, which takes three times as long as
    the parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def tree_of(source: str) -> ast.Module:
    """Return a module's tree."""
    with _without_collector():
        return ast.parse(source)


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Return the nodes of a module's tree. They are kept, since several rules read each module, until the
    tests of a file that asks for `drop_trees` are over."""
    with _without_collector():
        return list(ast.walk(ast.parse(file.read_text())))


@pytest.fixture(scope="module", autouse=True)
def drop_trees() -> Iterator[None]:
    """Drop the trees after the tests of a file: each full collection in later tests would walk them."""
    yield
    nodes_of.cache_clear()


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements of any depth, without expressions, most of a tree's nodes."""
    yield node
    for name in _WITH_STATEMENTS:
        if isinstance(inside := getattr(node, name, None), list):
            for statement in inside:
                yield from statements(statement)
