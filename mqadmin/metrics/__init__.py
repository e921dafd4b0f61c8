"""Metrics, for /metrics and for OpenTelemetry: under our names (ours.py), under those of Apache's broker
(apache.py) and of rocketmq-exporter (exporter.py). docs/METRICS.md is made from the tables."""
