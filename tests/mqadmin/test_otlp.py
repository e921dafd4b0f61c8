"""The export of metrics by OpenTelemetry, against a receiver on loopback that decodes what it gets."""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from broker_store.config.broker import BrokerSettings
from broker_store.engine.worker import Worker
from broker_store.errors import ConfigError
from mqadmin.api.metrics import text_of
from mqadmin.metrics import otlp_facts
from mqadmin.metrics.measured import measure
from tests.interop.brokers import OurBroker
from tests.support.fake_cluster import FakeCluster
from tests.support.ports import free_port

pytest.importorskip(
    "opentelemetry.sdk", reason="OpenTelemetry is in requirements-otlp.txt and not installed here"
)

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from mqadmin.metrics.otlp import Exporter


class Receiver:
    """Takes exports and keeps them; `status` is what it answers, `hold` stops it from answering."""

    def __init__(self) -> None:
        self.got: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        self.location = ""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.came = threading.Semaphore(0)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/x-protobuf"
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.paths.append(self.path)
                receiver.got.append(ExportMetricsServiceRequest.FromString(body))
                receiver.came.release()
                receiver.may_answer.wait(20)
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v1/metrics"

    def stop(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.stop()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def exporter(receiver, cluster) -> Iterator[Exporter]:
    found = Exporter(cluster, receiver.endpoint)
    yield found
    found.close()


NOW_MS = 1_764_000_000_000


def metrics_of(request: ExportMetricsServiceRequest) -> dict:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "headpond"
    return {metric.name: metric for metric in scope.metrics}


def labels_of(point) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_an_export_has_the_metrics_of_a_scrape_with_apaches_names_and_units(receiver, exporter, cluster):
    assert exporter.step(NOW_MS) is False
    (request,) = receiver.got
    found = metrics_of(request)
    (resource,) = request.resource_metrics
    attributes = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert attributes["service.name"] == "headpond" and attributes["service.instance.id"]
    into = found["rocketmq_messages_in_total"]
    assert into.sum.is_monotonic and into.sum.aggregation_temporality == 2  # cumulative
    (point,) = (p for p in into.sum.data_points if labels_of(p)["topic"] == "orders")
    assert point.as_double == 1_000 and point.time_unix_nano == NOW_MS * 1_000_000
    assert point.start_time_unix_nano == cluster.overview().broker.started_ms * 1_000_000
    times = found["rocketmq_rpc_latency"]
    (point,) = times.histogram.data_points
    assert times.unit == "milliseconds" and times.histogram.aggregation_temporality == 2
    assert (point.count, point.sum, list(point.explicit_bounds)) == (1_000, 1_300, [1, 3])
    assert list(point.bucket_counts) == [900, 90, 10] and not point.HasField("max")
    assert labels_of(point)["request_code"] == "send_message_v2" and "le" not in labels_of(point)
    late = found["rocketmq_consumer_lag_latency"]
    assert late.unit == "milliseconds" and late.gauge.data_points[0].as_double == 1_500
    assert found["rocketmq_storage_flush_behind_bytes"].unit == "bytes"
    assert found["rocketmq_producer_tps"].gauge.data_points and found["broker_state"].gauge.data_points
    assert exporter.facts.done == 1 and exporter.facts.last_ms == NOW_MS and not exporter.facts.error


def test_only_the_families_of_metrics_names_are_sent(receiver, exporter, cluster):
    cluster.metrics.wanted = "apache"
    exporter.step(NOW_MS)
    assert all(name.startswith("rocketmq_") for name in metrics_of(receiver.got[0]))


def test_large_exports_come_in_several_requests(receiver, exporter, monkeypatch):
    exporter._exporter._max_export_batch_size = 20
    exporter.step(NOW_MS)
    assert len(receiver.got) > 5 and exporter.facts.done == 1
    assert set(receiver.paths) == {"/v1/metrics"}


def test_a_failure_is_logged_once_and_counted_and_its_end_too(receiver, exporter, caplog):
    receiver.status = 400
    with caplog.at_level(logging.WARNING):
        exporter.step(NOW_MS)
        exporter.step(NOW_MS + 1_000)
        (said,) = [entry.getMessage() for entry in caplog.records]
        assert said == f"metrics could not be sent to {receiver.endpoint}: HTTP 400 Bad Request"
        assert (exporter.facts.failed, exporter.facts.error) == (2, "HTTP 400 Bad Request")
        receiver.status = 200
        exporter.step(NOW_MS + 2_000)
    assert caplog.records[-1].getMessage() == f"metrics are sent to {receiver.endpoint} again"
    assert (exporter.facts.done, exporter.facts.failed, exporter.facts.error) == (1, 2, "")


def test_nobody_at_the_address_is_a_failure(cluster, caplog):
    exporter = Exporter(cluster, f"http://127.0.0.1:{free_port()}/v1/metrics")
    exporter._exporter._client._timeout = 0.2
    try:
        exporter.step(NOW_MS)
        assert exporter.facts.failed == 1 and "refused" in exporter.facts.error
        assert len(caplog.records) == 1
    finally:
        exporter.close()


async def test_the_facts_are_metrics(receiver, exporter, cluster):
    receiver.status = 400
    await asyncio.to_thread(exporter.step, NOW_MS)
    text = text_of(await measure(cluster)).decode()
    assert "broker_otlp_exports_total 0.0" in text and "broker_otlp_failures_total 1.0" in text
    assert "broker_otlp_last_export_timestamp_seconds" not in text
    receiver.status = 200
    await asyncio.to_thread(exporter.step, NOW_MS)
    text = text_of(await measure(cluster)).decode()
    assert "broker_otlp_exports_total 1.0" in text
    assert "broker_otlp_last_export_timestamp_seconds 1.764e+09" in text


def test_nothing_is_sent_to_another_address(receiver, exporter, cluster, monkeypatch):
    other = Receiver()
    try:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, other.endpoint.removesuffix("/v1/metrics"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", other.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", other.endpoint)
        again = Exporter(cluster, receiver.endpoint)
        again.step(NOW_MS)
        assert len(receiver.got) == 1 and other.got == []
        receiver.status, receiver.location = 307, other.endpoint
        again.step(NOW_MS)
        assert other.got == [] and again.facts.failed == 1
        assert again.facts.error.startswith("HTTP 307")
        again.close()
    finally:
        other.stop()


def test_the_worker_sends_at_the_interval_and_ends_while_a_receiver_does_not_answer(receiver, cluster):
    exporter = Exporter(cluster, receiver.endpoint)
    failures: list = []
    worker = Worker("otlp", exporter.step, 0.05, lambda *failed: failures.append(failed))
    worker.start()
    for _ in range(3):
        assert receiver.came.acquire(timeout=20)
    receiver.may_answer.clear()
    assert receiver.came.acquire(timeout=20)
    begin = time.monotonic()
    exporter.close()
    worker.stop(0.05)
    assert time.monotonic() - begin < 5
    receiver.may_answer.set()
    worker._thread.join(20)
    assert not worker._thread.is_alive() and failures == []
    assert otlp_facts.exports() is None


@pytest.mark.slow
def test_a_broker_sends_what_it_serves_and_stops_while_a_receiver_does_not_answer(receiver, tmp_path):
    settings = {
        "metricsOtlpEndpoint": receiver.endpoint,
        "metricsOtlpInterval": 1_000,
        "metricsNames": "ours,apache",
    }
    broker = OurBroker(tmp_path / "data", settings, ("--web-port", "0")).start()
    try:
        for _ in range(2):
            assert receiver.came.acquire(timeout=60)
        found = metrics_of(receiver.got[-1])
        assert found["rocketmq_topic_number"].gauge.data_points[0].as_double > 5
        assert found["broker_otlp_exports_total"].sum.data_points[0].as_double == 1
        receiver.may_answer.clear()
        assert receiver.came.acquire(timeout=60)
    finally:
        assert broker.stop() == 0


def test_the_settings_are_checked():
    """metricsOtlpEndpoint, metricsOtlpInterval."""
    assert BrokerSettings().metrics_otlp_endpoint == ""
    good = BrokerSettings(
        metrics_otlp_endpoint="https://collector:4318/v1/metrics", metrics_otlp_interval=1_000
    )
    assert good.metrics_otlp_interval == 1_000
    for wrong in (
        "127.0.0.1:4318",
        "http://127.0.0.1:4318",
        "http://user:secret@127.0.0.1:4318/v1/metrics",
        "http://127.0.0.1:4318/v1/metrics?a=b",
        "http://127.0.0.1:port/v1/metrics",
        "ftp://127.0.0.1/v1/metrics",
    ):
        with pytest.raises(ConfigError):
            BrokerSettings(metrics_otlp_endpoint=wrong)
    with pytest.raises(ConfigError):
        BrokerSettings(metrics_otlp_interval=999)
    with pytest.raises(ConfigError):
        BrokerSettings(metrics_names="ours,theirs")


@pytest.mark.parametrize(
    "missing", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "requests"]
)
def test_without_the_packages_the_setting_is_refused_with_what_to_install(monkeypatch, missing):
    def find_spec(name: str) -> object:
        if name == missing:
            raise ModuleNotFoundError(name)
        return object()

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(ConfigError, match=r"pip install 'headpond\[otlp\]'"):
        BrokerSettings(metrics_otlp_endpoint="http://127.0.0.1:4318/v1/metrics")
