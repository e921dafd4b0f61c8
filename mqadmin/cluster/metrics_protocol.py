"""The part of a cluster from which metrics under Apache's names come; see protocol.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqadmin.facts.scrape import Scrape


class Metrics(Protocol):
    """What scrapers get."""

    def families(self) -> frozenset[str]:
        """Return which families of metrics are served: ours, apache, exporter. Before the broker runs,
        too."""

    async def measure(
        self, topics: Sequence[str], groups: Sequence[str], most_pairs: int, most_names: int
    ) -> Scrape:
        """Return what is measured of these topics, and of these groups with the topics that each reads, at
        most `most_pairs` of them. Other lists have at most `most_names`, the largest first."""
