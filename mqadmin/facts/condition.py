"""How the broker is: one sentence, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

Severity = Literal["bad", "warn", "unknown", "good"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing that is not as it should be."""

    severity: Literal["bad", "warn", "unknown"]
    kind: Annotated[
        str,
        "state, flag, routes, refused, failed, disk, damage, lag, pause, jobs, children, database or samples",
    ]
    sentence: str
    number: Annotated[int | None, "what the sentence counts; null where no number decides"]
    page: Annotated[str, "the name of the dashboard's page that shows more"]  # "": no page shows more
    of: Annotated[str, "what it is of: a group, a flag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How the broker is. The sentence is made of the most severe notice, which is the first."""

    severity: Severity
    sentence: str
    notices: list[Notice]


NOT_MEASURED = Condition(  # during the first look
    severity="unknown", sentence="The condition of the broker is being measured.", notices=[]
)
