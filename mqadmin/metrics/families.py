"""The metrics that follow from the values of one scrape."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric

from mqadmin.metrics import apache, exporter, ours
from mqadmin.metrics.measured import Measured
from mqadmin.metrics.rows import Values, families_of


def families(measured: Measured) -> list[Metric]:
    """Return the metrics of the families that are wanted. For a thread."""
    found: list[Metric] = []
    if "ours" in measured.names:
        found += ours.metrics_of(measured)
    if measured.scrape is not None and measured.waiting is not None:
        values = Values(measured.scrape, measured.store, measured.waiting)
        if "apache" in measured.names:
            found += families_of(apache.TABLE, values)
        if "exporter" in measured.names:
            found += families_of(exporter.TABLE, values)
    return found
