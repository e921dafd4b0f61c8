"""The report of a check: findings, each with its file and place, and how much was read."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_store.engine.disk.file_sizes import FileSizes

ERROR, WARNING, NOTE = "error", "warning", "note"
MAX_LISTED_PER_KIND = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation; `offset` counts in the file, None when it is about the whole file."""

    severity: str
    kind: str
    file: str
    offset: int | None
    what: str
    queue: tuple[str, int] | None = None  # topic and number, when it is about one queue

    def __str__(self) -> str:
        place = self.file if self.offset is None else f"{self.file} at {self.offset}"
        return f"{self.severity}: {place}: {self.what}"


@dataclass
class CheckReport:
    """What was found and how much was read. `kinds` counts every finding, also those that are not listed."""

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    bad_queues: set[tuple[str, int]] = field(default_factory=set)  # those with an error, listed or not
    sizes: FileSizes = FileSizes()
    log_end: int = 0
    stopped: bool = False

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def ok(self) -> bool:
        """True if the whole store was checked and nothing is wrong."""
        return not self.stopped and not self.errors

    def add(
        self,
        severity: str,
        kind: str,
        file: str,
        offset: int | None,
        what: str,
        *,
        queue: tuple[str, int] | None = None,
    ) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if queue is not None and severity == ERROR:
            self.bad_queues.add(queue)
        if self.kinds[kind] <= MAX_LISTED_PER_KIND:
            self.findings.append(Finding(severity, kind, file, offset, what, queue))
        elif severity == ERROR and not self.errors:
            self.findings.append(Finding(severity, kind, file, offset, what, queue))

    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more
