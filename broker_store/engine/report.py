"""What a start found and did: kept as a record, and readable from any thread while it is being written."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Step:
    """One step. `detail` says in words what was decided and why."""

    name: str
    file: str | None
    started_ms: int
    duration_ms: float | None = None
    bytes: int = 0
    messages: int = 0
    detail: str = ""

    def as_dict(self) -> dict:
        return dict(vars(self))


@dataclass
class RecoveryReport:
    """The shape that pages and REST show (`as_dict`). `on_change` is called after every change, in recovery's thread."""

    started_ms: int
    on_change: Callable[[RecoveryReport], None] | None = None
    kind: str = "unknown"
    state: str = "running"
    finished_ms: int | None = None
    scanned_bytes: int = 0
    total_bytes: int = 0
    messages: int = 0
    log_end: int | None = None
    cut_bytes: int = 0
    redispatched: int = 0
    lost_and_found: dict | None = None  # files and bytes that this start and all before took away; None before it was looked at
    steps: list[Step] = field(default_factory=list)
    findings: list[dict] = field(default_factory=list)
    error: str | None = None

    @contextmanager
    def step(self, name: str, file: str | None = None):
        """Time a step; it is in the report from its beginning."""
        entry = Step(name, file, int(time.time() * 1000))
        self.steps.append(entry)
        self.changed()
        started = time.perf_counter()
        try:
            yield entry
        finally:
            entry.duration_ms = round((time.perf_counter() - started) * 1000, 3)
            self.changed()

    def finding(self, severity: str, what: str, file: str | None = None, offset: int | None = None) -> None:
        self.findings.append({"severity": severity, "file": file, "offset": offset, "what": what})
        self.changed()

    def changed(self) -> None:
        if self.on_change is not None:
            self.on_change(self)

    def finish(self, state: str, error: str | None = None) -> None:
        self.state, self.error = state, error
        self.finished_ms = int(time.time() * 1000)
        self.changed()

    def as_dict(self) -> dict:
        steps = list(self.steps)
        return {
            "id": str(self.started_ms),
            "started_ms": self.started_ms,
            "finished_ms": self.finished_ms,
            "kind": self.kind,
            "state": self.state,
            "step": steps[-1].name if steps else "",
            "scanned_bytes": self.scanned_bytes,
            "total_bytes": self.total_bytes,
            "messages": self.messages,
            "log_end": self.log_end,
            "cut_bytes": self.cut_bytes,
            "redispatched": self.redispatched,
            "lost_and_found": self.lost_and_found,
            "steps": [step.as_dict() for step in steps],
            "findings": list(self.findings),
            "error": self.error,
        }
