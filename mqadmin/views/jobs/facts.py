"""A job as a page shows it: its progress, and a result of any kind as pairs and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from broker_store.check.results import WORDS_OF_COUNTS
from broker_store.units import fields_of
from mqadmin.jobs.facts import Job
from mqadmin.templatetags import units

MAX_ROWS = 200  # of a result's table; the file or REST has the rest
NAMES = frozenset({"recovery"})  # fields of a result whose digits are a name, not a number


class Work(Protocol):
    """A progress, in its unit."""

    @property
    def done(self) -> int | None: ...

    @property
    def total(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A list of objects in a result."""

    title: str
    columns: list[str]
    rows: list[list[object]]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob(Job):
    """A job with further values that its pages show."""

    share: int | None  # per cent of the work that is done; None: unknown
    over: bool
    facts: list[tuple[str, object]]  # of its result
    tables: list[Table]


def shown(job: Job) -> ShownJob:
    facts, tables = _shown(job.result or {})
    return ShownJob(
        **fields_of(job), share=share_of(job.progress), over=job.is_over, facts=facts, tables=tables
    )


def share_of(progress: Work | None) -> int | None:
    """Return how much of the work is done, in per cent; None for unknown."""
    if progress is None or progress.done is None or not progress.total or progress.total < 0:
        return None
    return min(100, 100 * progress.done // progress.total)


def _shown(result: dict[str, Any]) -> tuple[list[tuple[str, object]], list[Table]]:
    """Return a result as pairs and tables: a list of objects is a table, an object within it is pairs too. An
    error that is null is no pair: there was none."""
    facts: list[tuple[str, object]] = []
    tables: list[Table] = []
    for name, value in result.items():
        title = _title(name)
        if name == "error" and value is None:
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(column for item in value[:MAX_ROWS] for column in item))
            rows = [[_text(column, item.get(column)) for column in columns] for item in value[:MAX_ROWS]]
            tables.append(
                Table(
                    title=title,
                    columns=[_title(column) for column in columns],
                    rows=rows,
                    left_out=len(value) - len(rows),
                )
            )
        elif isinstance(value, dict):
            facts += [(f"{title}: {_title(key)}", _text(key, item)) for key, item in value.items()]
        else:
            facts.append((title, _text(name, value)))
    return facts, tables


def _title(name: str) -> str:
    """Return a name without its unit, which is shown with the value; other words where the name alone would
    mislead."""
    return WORDS_OF_COUNTS.get(name) or name.removesuffix("_ms").replace("_", " ")


def _text(name: str, value: object) -> object:
    """Return a value with its unit, which is the end of its name; None stays None, for unknown."""
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
