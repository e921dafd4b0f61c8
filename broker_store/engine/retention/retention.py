"""Retention: which old files are deleted, by age or by disk use (docs/spec/store-behaviour.md section 5).

    use > warning   : the disk-full flag is set, nothing is written; the oldest files are deleted at once
    use > forcibly  : the oldest files are deleted at once
    use > normal    : expired files are deleted now, not only at the hour of deleteWhen

`Retention.decide` may run in a worker. The loop carries the decision out, a file at a time, because it owns
the tables. The flag is cleared when its cause is gone.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk, Usage

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Decision:
    """What `Retention.decide` found: disk use, and whether and what to delete."""

    usage: Usage
    disk_full: bool
    delete_expired: bool
    delete_any: bool
    why: str


class Retention:
    """Decides; `Cleaning` acts."""

    def __init__(self, disk: Disk, settings: StoreSettings, *paths: Path):
        """`paths` are the directories that may lie on different disks; the fullest one counts."""
        self._disk, self._settings, self._paths = disk, settings, paths
        self.last: Decision | None = None

    @property
    def hours(self) -> frozenset[int]:
        """The hours of the day at which expired files are deleted."""
        return self._settings.delete_hours

    def decide(self, now_ms: int) -> Decision:
        settings = self._settings
        usage = max(
            (self._disk.usage(path) for path in self._paths if self._disk.exists(path)),
            key=lambda found: found.used_ratio,
        )
        used = usage.used_ratio * 100
        full = used > settings.disk_space_warning_level_ratio
        forcibly = full or used > settings.disk_space_clean_forcibly_ratio
        tight = used > settings.disk_max_used_space_ratio
        its_hour = is_cleaning_hour(now_ms, self.hours)
        why = f"{used:.1f} % of the disk is used"
        self.last = Decision(
            usage=usage,
            disk_full=full,
            delete_expired=tight or forcibly or its_hour,
            delete_any=forcibly and settings.clean_file_forcibly_enable,
            why=why if tight or forcibly else "the hour of deleteWhen" if its_hour else "nothing to do",
        )
        return self.last

    def is_expired(self, modified_ms: int, now_ms: int) -> bool:
        return expires_ms(modified_ms, self._settings.file_reserved_time) <= now_ms


def expires_ms(modified_ms: int, reserved_hours: int) -> int:
    """Return when a log file that was last written at `modified_ms` is too old, in ms."""
    return modified_ms + reserved_hours * _HOUR_MS


def is_cleaning_hour(at_ms: int, hours: Collection[int]) -> bool:
    """Return whether a time, in ms, lies in one of the host's `hours`."""
    return time.localtime(at_ms / 1000).tm_hour in hours


def next_cleaning_ms(from_ms: int, hours: Collection[int]) -> int | None:
    """Return the first time not before `from_ms` in one of the host's `hours`, in ms; None when there are
    none."""
    at_ms = from_ms
    for _ in range(26):  # a day may have 25 hours
        if is_cleaning_hour(at_ms, hours):
            return at_ms
        local = time.localtime(at_ms / 1000)
        at_ms = at_ms // 1000 * 1000 - (60 * local.tm_min + local.tm_sec) * 1000 + _HOUR_MS
    return None
