"""The path of sends through the broker, and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from broker_store.facts.write_path import PathFacts
from broker_store.units import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A cause of refusals since the start, with its last case."""

    cause: str
    count: int
    at_ms: Moment
    value: Annotated[
        int | None, "the value that was refused in the last case; null where the cause has no number"
    ]
    limit: Annotated[int | None, "the largest value that is allowed"]
    who: Annotated[str, "the client's address"]
    answer: Annotated[str, "the text of the answer that the client got"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPauses:
    """The longest times that the event loop was blocked; None before the first measurement."""

    longest_us: int | None  # of the last minutes (RECENT_MS of broker_store/broker/pauses.py)
    at_ms: Moment | None  # when that began
    longest_of_run_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOfSends(PathFacts):
    """The times of the parts of sends, with pauses of the loop and refusals."""

    loop: LoopPauses
    refusals: list[Refused]  # in the order of their causes
