"""Expressions give the results of Apache's filter."""

from __future__ import annotations

import gzip
import json

from broker_store.sql92.errors import EvaluationError, ExpressionError
from broker_store.sql92.expression import Expression
from tests.support.stores import GOLDEN

ROWS = 10_499


def result(text: str, properties: dict[str, str]) -> tuple[object, str, str]:
    """Return (result, stage of an error, cause of an error of the compilation)."""
    try:
        expression = Expression(text)
        return expression.result(properties), "", ""
    except EvaluationError:
        return "error", "eval", ""
    except ExpressionError as error:
        return "error", "compile", f"{error.java_class.rpartition('.')[2]}: {error}".split("\n")[0]


def test_every_row_of_apaches_results_agrees():
    wrong, rows = [], 0
    with gzip.open(GOLDEN / "sql92.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            stage = row.get("stage", "")
            wanted = row["result"], stage, row["cause"] if stage == "compile" else ""
            found = result(row["expr"], row["props"])
            if found != wanted:
                wrong.append(f"{row['expr']!r} {row['props']}: {found}, want {wanted}")
            rows += 1
    assert (wrong[:20], rows) == ([], ROWS)
