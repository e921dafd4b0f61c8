"""Kernels take places in records, units, entries and headers from the tables of formats/, and write none by hand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from broker_store.formats import record
from broker_store.kernels import record_head

KERNELS = sorted(Path(record_head.__file__).parent.glob("*.py"))
# Names of what has a layout in formats/; texts and rows of int64 words have none.
WITH_LAYOUT = {"record", "unit", "target", "entry", "chain", "header"}
MAGICS = {record.MAGIC_V1, record.MAGIC_V2, record.BLANK_MAGIC}


def literal_places(tree: ast.Module) -> list[str]:
    """Reads and writes at a number after what has a layout, and magic numbers, by line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "_be" in ast.unparse(node.func) and node.args:
            place = node.args[0]
            sides = (place.left, place.right) if isinstance(place, ast.BinOp) else ()
            names = {side.id for side in sides if isinstance(side, ast.Name)}
            if names & WITH_LAYOUT and any(isinstance(side, ast.Constant) for side in sides):
                found.append((node.lineno, ast.unparse(node)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant) and -node.operand.value in MAGICS:
                found.append((node.lineno, ast.unparse(node)))
    return [f"line {number}: {text}" for number, text in sorted(found)]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_no_place_in_a_layout_is_a_literal(path):
    assert literal_places(ast.parse(path.read_text())) == []


def test_a_literal_place_is_found():
    tree = ast.parse(
        "x = load_be32(record + 4)\ny = load_be64(20 + unit)\nM = -626843481\nz = record + MAGIC_AT + at"
    )
    assert [line.split(":")[0] for line in literal_places(tree)] == ["line 1", "line 2", "line 3"]
