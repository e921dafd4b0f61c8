"""What a group read, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReads:
    """The reads of a group from a topic since the start, and a second over the last ten.

    `cold` are those that a thread had to make.
    """

    group: str
    topic: str
    reads: int
    messages: int
    bytes: int
    per_s: float  # messages
    bytes_per_s: float
    cold_reads: int
    cold_messages: int
    cold_bytes: int
    cold_per_s: float
    cold_bytes_per_s: float
