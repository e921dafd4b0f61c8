"""The export of metrics by OpenTelemetry: OTLP over HTTP, to the one address that the setting names.

`step` is called by a thread of its own (broker_store/engine/worker.py). The values are collected on the loop,
as for a scrape, and sent by the thread. One export at a time, each with a limit of time; values that could
not be sent are not kept, since the next ones include what they counted.

Imported only where metricsOtlpEndpoint is set: it needs the packages of requirements-otlp.txt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family

from broker_store import __version__
from broker_store.errors import StoreClosedError
from mqadmin.cluster.protocol import Cluster
from mqadmin.metrics import apache, exporter
from mqadmin.metrics.families import families
from mqadmin.metrics.measured import Measured, measure
from mqadmin.metrics.otlp_facts import Exports, set_exports
from mqadmin.metrics.rows import prometheus_name

LIMIT_S = 10.0  # of one export with its repetitions
MAX_POINTS_PER_REQUEST = 10_000  # about a megabyte before compression; receivers refuse large requests
NAMES = {prometheus_name(row): row.name for row in (*apache.TABLE, *exporter.TABLE)}
log = logging.getLogger(__name__)


class Exporter:
    """Sends the metrics of a cluster. `step` and `close` are for threads."""

    def __init__(self, cluster: Cluster, endpoint: str):
        self._cluster = cluster
        self._began_ns = time.time_ns()  # from here counters count; the broker starts later
        self._is_closed = False
        self._session = _Session()
        self._exporter = OTLPMetricExporter(
            endpoint=endpoint,
            headers={"User-Agent": f"headpond/{__version__}"},
            timeout=LIMIT_S,
            compression=Compression.Gzip,
            session=self._session,
            max_export_batch_size=MAX_POINTS_PER_REQUEST,
        )
        # It logs each try; a failure is logged here, once.
        logging.getLogger(OTLPMetricExporter.__module__).setLevel(logging.CRITICAL)
        self.facts = Exports(endpoint=endpoint, done=0, failed=0, last_ms=None, error="")
        set_exports(self.facts)

    def step(self, now_ms: int) -> bool:
        """Send the metrics of now; return False: the next export is due after the interval."""
        try:
            measured = self._cluster.run(measure(self._cluster))
        except StoreClosedError:
            return False  # the broker is stopping
        except TimeoutError:
            self._failed("the values could not be collected in time")
            return False
        if self._is_closed:
            return False
        self._session.reason = ""
        data = metrics_data(measured, families(measured), self._began_ns, now_ms * 1_000_000)
        if self._exporter.export(data) is MetricExportResult.SUCCESS:
            self._succeeded(now_ms)
        else:
            self._failed(self._session.reason or "no answer in time")
        return False

    def _succeeded(self, now_ms: int) -> None:
        if self.facts.error:
            log.warning("metrics are sent to %s again", self.facts.endpoint)
        self._set(replace(self.facts, done=self.facts.done + 1, last_ms=now_ms, error=""))

    def _failed(self, reason: str) -> None:
        if not self.facts.error:
            log.warning("metrics could not be sent to %s: %s", self.facts.endpoint, reason)
        self._set(replace(self.facts, failed=self.facts.failed + 1, error=reason))

    def _set(self, facts: Exports) -> None:
        self.facts = facts
        if not self._is_closed:
            set_exports(facts)

    def close(self) -> None:
        """End what is being sent; `step` sends nothing after it."""
        self._is_closed = True
        self._exporter.shutdown()
        set_exports(None)


class _Session(requests.Session):
    """Connects to the address of a request alone, without proxies, and keeps why the last one failed. A
    redirect is a failure: the exporter would take it for a success."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.reason = ""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        try:
            answer = super().request(*arguments, **options)
        except requests.RequestException as error:
            self.reason = _cause(error)
            raise
        if answer.status_code >= 300:
            self.reason = f"HTTP {answer.status_code} {answer.reason}"
        if 300 <= answer.status_code < 400:
            raise requests.TooManyRedirects(self.reason, response=answer)
        return answer


def _cause(error: BaseException) -> str:
    """Return the sentence of the error at the bottom of others."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


def metrics_data(measured: Measured, found: Iterable[Family], began_ns: int, now_ns: int) -> MetricsData:
    """Return the metrics as OpenTelemetry has them."""
    attributes = {"service.name": "headpond", "service.version": __version__}
    if measured.overview is not None:
        broker = measured.overview.broker
        attributes["service.namespace"] = broker.cluster
        attributes["service.instance.id"] = broker.name
        began_ns = broker.started_ms * 1_000_000
    scope = ScopeMetrics(
        scope=InstrumentationScope("headpond", __version__),
        metrics=[_metric(family, began_ns, now_ns) for family in found if family.samples],
        schema_url="",
    )
    resource = ResourceMetrics(resource=Resource(attributes), scope_metrics=[scope], schema_url="")
    return MetricsData(resource_metrics=[resource])


def _histogram(family: Family, began_ns: int, now_ns: int) -> Histogram:
    """Return a histogram: its samples are those of Prometheus, with counts of all values up to a bound."""
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        kind = sample.labels.get("le") or sample.name.rpartition("_")[2]
        series.setdefault(labels, {})[kind] = sample.value
    points = []
    for labels, found in series.items():
        total, count = found.pop("sum"), found.pop("count")
        up_to = [int(found[bound]) for bound in found]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=began_ns,
                time_unix_nano=now_ns,
                count=int(count),
                sum=total,
                bucket_counts=[after - before for before, after in pairwise([0, *up_to])],
                explicit_bounds=[float(bound) for bound in found if bound != "+Inf"],
                min=None,  # type: ignore[arg-type]  # the message has none then; they are not measured
                max=None,  # type: ignore[arg-type]  # the same
            )
        )
    return Histogram(points, AggregationTemporality.CUMULATIVE)


def _metric(family: Family, began_ns: int, now_ns: int) -> Metric:
    is_counter = family.type == "counter"
    points = [
        NumberDataPoint(
            attributes=sample.labels,
            start_time_unix_nano=began_ns if is_counter else 0,
            time_unix_nano=now_ns,
            value=sample.value,
        )
        for sample in family.samples
    ]
    name = f"{family.name}_total" if is_counter else family.name
    data: Gauge | Histogram | Sum
    if is_counter:
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    elif family.type == "histogram":
        data = _histogram(family, began_ns, now_ns)
    else:
        data = Gauge(points)
    return Metric(
        name=NAMES.get(name, name), description=family.documentation, unit=family.unit or None, data=data
    )
