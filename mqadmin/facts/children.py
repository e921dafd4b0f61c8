"""Which of the processes beside the broker run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChildren:
    """Which children run now."""

    redis: Literal["own", "external", "stopped"]
    workers: dict[str, bool]  # by name
