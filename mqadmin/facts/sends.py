"""The way of a send."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.facts.write_path import PathFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A cause of refusals since the start, with its last case."""

    cause: str
    count: int
    at_ms: int
    value: int | None  # what exceeded `limit`; both None where no number decides
    limit: int | None
    who: str  # address of the client
    said: str  # text of the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOfSends(PathFacts):
    """Where the time of sends goes, with what stands in their way."""

    loop: dict[str, int | None]  # Pauses.document(): how long the event loop did not turn
    refusals: list[Refused]  # in the order of their causes
