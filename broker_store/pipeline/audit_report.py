"""The findings of an audit: the first of each kind, and a count of all."""

from __future__ import annotations

from pathlib import Path

from broker_store.check import entries
from broker_store.check.report import NOTE

MAX_LISTED = 100  # findings of a kind


class AuditReport:
    """`findings` are {severity, kind, file, offset, what}, files named as seen from the store; `kinds` counts
    all by kind."""

    def __init__(self, store: Path):
        self.store = store
        self.findings: list[dict] = []
        self.kinds: dict[str, int] = {}

    def add(
        self, severity: str, kind: str, file: Path | str, offset: int | None, what: str, count: int = 1
    ) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + count
        if sum(one["kind"] == kind for one in self.findings) < MAX_LISTED:
            inside = Path(file).relative_to(self.store) if Path(file).is_relative_to(self.store) else file
            self.findings.append(
                {"severity": severity, "kind": kind, "file": str(inside), "offset": offset, "what": what}
            )

    def forget_index(self) -> None:
        """A broker made the index again meanwhile: what was read of the old one and of the new one says
        nothing."""
        self.findings = [
            one
            for one in self.findings
            if not one["kind"].startswith("index-") and one["kind"] != entries.NO_INDEX
        ]
        self.kinds = {
            kind: count
            for kind, count in self.kinds.items()
            if not kind.startswith("index-") and kind != entries.NO_INDEX
        }
        self.add(NOTE, entries.INDEX_REBUILT, self.store / "index", None, entries.INDEX_WAS_REBUILT)
