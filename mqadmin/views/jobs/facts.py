"""A job as a page shows it: its progress, and its result as pairs and tables, whatever its shape."""

from __future__ import annotations

from broker_store.check.report import WORDS_OF_COUNTS
from mqadmin import jobs as background
from mqadmin.templatetags import units

MAX_ROWS = 200  # of a result's table; the file or REST has the rest
NAMES = frozenset({"recovery"})  # in a result: digits that name something and count nothing


def with_share(row: dict) -> dict:
    """`share` of the work done in per cent, None when the job cannot say."""
    progress = row["progress"] or {}
    done, total = progress.get("done"), progress.get("total")
    row["share"] = (
        min(100, 100 * done // total)
        if isinstance(done, int) and isinstance(total, int) and total > 0
        else None
    )
    row["over"] = row["state"] in background.OVER
    row["facts"], row["tables"] = _shown(row["result"] or {})
    return row


def _shown(result: dict) -> tuple[list[tuple[str, object]], list[dict]]:
    """A result as pairs and tables: a list of objects is a table, an object within it is pairs too. No error
    is not an unknown one."""
    facts, tables = [], []
    for name, value in result.items():
        title = _title(name)
        if name == "error" and value is None:
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(column for item in value[:MAX_ROWS] for column in item))
            rows = [[_text(column, item.get(column)) for column in columns] for item in value[:MAX_ROWS]]
            tables.append(
                {
                    "title": title,
                    "columns": [_title(column) for column in columns],
                    "rows": rows,
                    "left_out": len(value) - len(rows),
                }
            )
        elif isinstance(value, dict):
            facts += [(f"{title}: {_title(key)}", _text(key, item)) for key, item in value.items()]
        else:
            facts.append((title, _text(name, value)))
    return facts, tables


def _title(name: str) -> str:
    """A name without its unit, which stands with the value; in words where the name alone would mislead."""
    return WORDS_OF_COUNTS.get(name) or name.removesuffix("_ms").replace("_", " ")


def _text(name: str, value: object) -> object:
    """A value with its unit, which stands at the end of its name; None stays None, for unknown."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in NAMES:
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)  # 64-bit numbers are strings in results
    if isinstance(value, int | float):
        if name == "bytes" or name.endswith("_bytes"):
            return units.size(value)
        if name.endswith("_ms"):
            return units.moment(value) if value > 1 << 40 else units.duration(value)
        return units.count(value) if isinstance(value, int) else f"{value:,.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value[:MAX_ROWS])) or "none"
    return value
