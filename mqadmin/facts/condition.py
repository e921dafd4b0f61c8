"""The condition of the broker: one sentence, and notices of what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

Severity = Literal["bad", "warn", "unknown", "good"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A thing that is wrong, or unknown."""

    severity: Literal["bad", "warn", "unknown"]
    kind: Annotated[
        str,
        "state, flag, routes, refused, failed, disk, memory, replication, damage, lag, pause, jobs, "
        "children, database or samples",
    ]
    sentence: str
    number: Annotated[int | None, "the number in the sentence; null where it has none"]
    page: Annotated[str, "the name of the dashboard's page that shows more"]  # "": no page shows more
    of: Annotated[str, "the group or flag that the notice is about; empty for others"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The condition of the broker. The sentence is made of the most severe notice, which is the first."""

    severity: Severity
    sentence: str
    notices: list[Notice]


NOT_MEASURED = Condition(  # during the first measurement
    severity="unknown", sentence="The condition of the broker is being measured.", notices=[]
)
