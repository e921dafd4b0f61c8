"""docs/METRICS.md, made from the tables of mqadmin/metrics/: `python -m tests.support.metrics_page >
docs/METRICS.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqadmin.cluster.embedded.metrics import MAX_KINDS, MAX_REQUESTS
from mqadmin.cluster.embedded.scrape_reads import MAX_READ_S, MAX_TIMED_QUEUES
from mqadmin.metrics import apache, exporter
from mqadmin.metrics.measured import MAX_NAMES, MAX_PAIRS
from mqadmin.metrics.rows import Row, prometheus_name

HEAD = f"""# Metrics

`/metrics` has three families of metrics, for Prometheus; the setting `metricsNames` states which:

| Family | Names | For |
|---|---|---|
| `ours` | `broker_..` | the alerts and the dashboard of `deploy/`; [what to watch](OPERATIONS.md#what-to-watch) |
| `apache` | `rocketmq_..` of Apache's broker 5.x (`metricsExporterType=PROM`) | dashboards made for it |
| `exporter` | `rocketmq_..` of [rocketmq-exporter](https://github.com/apache/rocketmq-exporter) | its Grafana dashboards and alert rules, without the exporter |

All come from the same facts as the pages. A value that is unknown is left out: no series is 0 because nothing
is known. A scrape reads counters that are there anyway. The histograms cost 0.06 us of a send and 0.2 us of a
pull. Counting a record of the revive log by group and topic costs 0.4 us: 0.2 % of a pop of one message with
its acknowledgement.

**Bounds.** A scraper keeps each series for ever, so their number is bounded:

| What | At most | Which | Left out |
|---|---|---|---|
| topics | {MAX_NAMES} | with most traffic, then with most messages | `broker_topics_left_out` |
| groups | {MAX_NAMES} | with the largest lags | `broker_groups_left_out` |
| a group with a topic | {MAX_PAIRS:,} | of these groups, in that order | `broker_groups_with_topics_left_out` |
| kinds of clients | {MAX_KINDS} | by language and version, the most frequent; the others are one, `other` | - |
| pairs of codes of requests and answers | {MAX_REQUESTS} | the most frequent | - |
| lag in time | {MAX_TIMED_QUEUES} queues | of the largest lags: each needs a read | `broker_scrape_not_measured` |
| time until a message is given | {MAX_TIMED_QUEUES} queues | of the largest lags | the same |
| reads of a scrape | {MAX_READ_S} s | the timer and the revive log, then the largest lags | the same |
| records of the revive log by group and topic | {MAX_PAIRS:,} | of these groups | - |

Measured with 1,000 topics of four queues, each of which 10 groups read: a scrape has 22,000 series in 3.1 MB
and takes 0.48 s of processor time: 0.23 s in turns of the loop, and 0.25 s in a thread that writes the text.
With `metricsNames=ours` it has 1,600 series and takes 0.2 s.

**Labels.** Names of labels are Apache's. `otel_scope_name`, which Apache's library adds, is missing. The
dashboards of rocketmq-exporter select by labels `Cluster` and `Env`, which the exporter does not have either:
they come from the configuration of Prometheus, as in `labels: {{Cluster: DefaultCluster, Env: prod}}`.

## OpenTelemetry

Off by default. With `metricsOtlpEndpoint` the same metrics are sent to that address by OTLP over HTTP, each
`metricsOtlpInterval`:

```
/opt/headpond/bin/pip install "headpond[server,otlp] @ file:///opt/headpond/headpond-0.1.0-py3-none-any.whl"
headpond runbroker --set metricsOtlpEndpoint=http://127.0.0.1:4318/v1/metrics
```

- They go to this address alone: no proxy of the environment is used, and a redirect is a failure.
- A thread of its own sends; one export at a time, each request of it 10 s at most. What could not be sent is
  not kept: the next export has the values of its own time.
- A failure is logged when it begins and when it ends. `broker_otlp_exports_total`,
  `broker_otlp_failures_total` and `broker_otlp_last_export_timestamp_seconds` count.
- Names are Apache's without the unit that Prometheus appends. Counters are cumulative, from the start of the
  broker.
- `runbroker --no-web` sends nothing. The image of `deploy/Containerfile` is without these packages: its line
  with `headpond[server]` then needs `headpond[server,otlp]`.
"""


def _table(rows: Sequence[Row]) -> str:
    lines = ["| Name | Kind | Labels | What | Differs from Apache's |", "|---|---|---|---|---|"]
    for row in rows:
        labels = ", ".join(f"`{name}`" for name in row.labels) or "-"
        lines.append(
            f"| `{prometheus_name(row)}` | {row.kind} | {labels} | {row.what} | {row.differs or '-'} |"
        )
    return "\n".join(lines)


def _reasons(reasons: Mapping[str, str]) -> str:
    lines = ["| Name | Why |", "|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {why} |" for name, why in reasons.items()])


def page() -> str:
    """The whole page."""
    return f"""{HEAD}
## Names of Apache's broker

All have `cluster`, `node_type` and `node_id`; those of the store and of the timer also `storage_type` and
`storage_medium`. The meaning is Apache's but for the last column, as compared with Apache's broker 5.5.0
(`tests/interop/test_metrics.py`).

{_table(apache.TABLE)}

Not served:

{_reasons(apache.NOT_SERVED)}

## Names of rocketmq-exporter

`rocketmq_broker_..` have `cluster`, `brokerIP` and `broker`; `rocketmq_brokeruntime_..` have `cluster`,
`brokerIP`, `des`, `boottime` and `broker_version`; `rocketmq_group_diff`, `.._retrydiff` and `.._count` only
their own; the others `cluster` and `broker`. The exporter reads at intervals what its names say; here it is
measured at the scrape.

{_table(exporter.TABLE)}

Not served:

{_reasons(exporter.NOT_SERVED)}

This page is made from `mqadmin/metrics/` by `python -m tests.support.metrics_page > docs/METRICS.md`; a test
holds the two together.
"""


if __name__ == "__main__":
    print(page(), end="")
