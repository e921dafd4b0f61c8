"""The states of the broker's child processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChildren:
    """The children that run now."""

    redis: Literal["own", "external", "stopped"]
    workers: dict[str, bool]  # by name
