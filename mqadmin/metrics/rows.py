"""A row of a table of metrics under names that are not ours, and the metrics that follow from a table.

A value that is None, and a metric without a value, are left out: absent is unknown, and 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from broker_store.engine.status.store_state import Snapshot
from mqadmin.facts.scrape import Distribution, Scrape
from mqadmin.facts.waiting import Waiting

# Values of the row's own labels, and the number; of a histogram its buckets
Value = tuple[tuple[str, ...], float | Distribution | None]


@dataclass(frozen=True, slots=True)
class Values:
    """What the rows are read from, of one moment."""

    scrape: Scrape
    store: Snapshot
    waiting: Waiting


# A label with the value that all series of a row have.
Common = tuple[str, Callable[[Values], str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. `name` is the name that OpenTelemetry has; Prometheus adds the unit, and `_total` to a
    counter. `differs` is how the number differs from Apache's."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    what: str
    common: tuple[Common, ...]
    labels: tuple[str, ...]
    values: Callable[[Values], Iterable[Value]]
    unit: str = ""
    differs: str = ""


def families_of(table: Sequence[Row], values: Values) -> list[Metric]:
    """Return the metrics of a table that have a value."""
    found: list[Metric] = []
    for row in table:
        labels = [name for name, _ in row.common] + list(row.labels)
        family: GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
        if row.kind == "gauge":
            family = GaugeMetricFamily(row.name, row.what, labels=labels, unit=row.unit)
        elif row.kind == "counter":
            family = CounterMetricFamily(row.name, row.what, labels=labels, unit=row.unit)
        else:
            family = HistogramMetricFamily(row.name, row.what, labels=labels, unit=row.unit)
        common = [value_of(values) for _, value_of in row.common]
        for own, number in row.values(values):
            if isinstance(number, Distribution):
                assert isinstance(family, HistogramMetricFamily)
                family.add_metric([*common, *own], _buckets(number), number.total)
            elif number is not None:
                assert not isinstance(family, HistogramMetricFamily)
                family.add_metric([*common, *own], float(number))
        if family.samples:
            found.append(family)
    return found


def _buckets(spread: Distribution) -> list[tuple[str, float]]:
    """Return (upper bound, number of values up to it) for each bucket."""
    bounds = [*map(str, map(float, spread.bounds)), "+Inf"]
    return list(zip(bounds, accumulate(map(float, spread.counts)), strict=True))


def prometheus_name(row: Row) -> str:
    """Return the name of a row's series in Prometheus."""
    if row.kind == "counter":
        return row.name if row.name.endswith("_total") else f"{row.name}_total"
    return row.name if not row.unit or row.name.endswith(f"_{row.unit}") else f"{row.name}_{row.unit}"
