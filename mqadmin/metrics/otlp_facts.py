"""What became of the exports by OpenTelemetry (otlp.py); without its packages, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """Exports since the start."""

    endpoint: str
    done: int
    failed: int
    last_ms: int | None  # of the last one that the receiver took
    error: str  # why the last one failed; empty: it did not


_now: Exports | None = None


def exports() -> Exports | None:
    """Return the facts of now; None while nothing is exported. Any thread."""
    return _now


def set_exports(facts: Exports | None) -> None:
    """Set the facts; called by the exporter's thread."""
    global _now
    _now = facts
