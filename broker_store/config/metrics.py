"""Settings of /metrics and of the export by OpenTelemetry."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.checks import metric_names, otlp_endpoint
from broker_store.config.setting import setting
from broker_store.config.shares import PortSettings


@dataclass(frozen=True)
class MetricsSettings(PortSettings):
    """Which metrics there are, and where they are sent."""

    metrics_names: str = setting(
        "metricsNames",
        "ours,apache,exporter",
        "names,..",
        "which families of metrics are served and sent: `ours`, `apache` (names of Apache's broker 5.x), "
        "`exporter` (names of rocketmq-exporter); docs/METRICS.md",
        check=metric_names,
        ours=True,
    )
    metrics_otlp_endpoint: str = setting(
        "metricsOtlpEndpoint",
        "",
        "URL",
        "where metrics are sent by OpenTelemetry (OTLP over HTTP), as `http://127.0.0.1:4318/v1/metrics`; "
        "empty: nowhere; needs the packages of requirements-otlp.txt, and the dashboard's part of runbroker",
        check=otlp_endpoint,
        ours=True,
    )
    metrics_otlp_interval: int = setting(
        "metricsOtlpInterval",
        60_000,
        "ms",
        "how often metrics are sent by OpenTelemetry",
        low=1_000,
        high=86_400_000,
        ours=True,
    )
