"""The record of a change that was requested through the port of the broker or the name server."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One requested change, or `count` of one kind. `outcome` is `done` or the name of the answer's code."""

    at_ms: int
    action: str
    kind: str
    name: str
    outcome: str
    address: str
    code: str
    client_id: str | None = None
    language: str = ""
    version: int = 0
    count: int = 1
    detail: dict = field(default_factory=dict)

    @property
    def has_effect(self) -> bool:
        """Return True if something was changed, as far as the record shows."""
        is_the_same = (
            "after" in self.detail
            and self.detail["before"] == self.detail["after"]
            and not self.detail.get("not_shown")
        )
        is_the_same |= self.detail.get("topics") == 0  # a permission of a broker that has no topics
        return self.outcome == "done" and not is_the_same
