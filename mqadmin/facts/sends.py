"""The way of a send."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.broker.flow import Refused
from broker_store.facts.write_path import PathFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOfSends(PathFacts):
    """Where the time of sends goes, with what stands in their way."""

    loop: dict[str, int | None]  # Pauses.document(): how long the event loop did not turn
    refusals: list[Refused]  # in the order of their causes
