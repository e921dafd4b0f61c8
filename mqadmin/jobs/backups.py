"""Backups as a job: each is a directory of its own in the directory that BROKER_BACKUP_DIR names, made by
`manage.py backup` in a process of its own.

    BACKUP_DIRECTORY/2026-11-29T03-00-00Z/      UTC, when the job began; whole when it has a manifest

No parameter of a job is a path: a job may be started by REST and by a schedule, and it writes nowhere else.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from broker_store.rest.problems import Problem

TAKES = ("keep", "max_mb_s", "copy_log")
MAX_KEPT = 1_000
MAX_MB_S = 100_000
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ")
_MANIFEST = "manifest.json"  # of backup/manifest.py, which a worker does not import: it loads the kernels
_ABANDONED_SECONDS = 24 * 3600  # longer than a job may take


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupArguments:
    """The arguments of a backup."""

    keep: int  # whole backups that stay, with the new one; 0: all
    max_mb_s: int  # MB that are read and copied a second; 0: no limit
    copy_log: bool  # closed log files are copied too


def directory() -> Path:
    """Return the directory of backups. Raises Problem if none is set, or if it cannot be that."""
    found: Path | None = settings.BACKUP_DIRECTORY
    if found is None:
        raise Problem(
            "conflict",
            "no directory for backups is set",
            "start the broker with BROKER_BACKUP_DIR, a directory outside of the data directory",
        )
    data, own = Path(settings.DATA_DIRECTORY).resolve(), found.resolve()
    if own == data or data in own.parents or own in data.parents:
        raise Problem("conflict", "BROKER_BACKUP_DIR is in the data directory, or holds it: choose another")
    return found


def new_name(now_s: float) -> str:
    """Return the name of a backup that begins now."""
    return time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(now_s))


def arguments(target: Path, data: Path, given: BackupArguments) -> list[str]:
    """Return the arguments of `manage.py` for a backup."""
    more = [f"--keep={given.keep}"] if given.keep else []
    more += [f"--max-mb-s={given.max_mb_s}"] if given.max_mb_s else []
    more += ["--copy"] if given.copy_log else []
    return ["backup", str(target), f"--data={data}", "--json", *more]


def remove_unfinished(target: Path) -> None:
    """Remove what a backup of a job left that has failed. A whole one stays."""
    if not (target / _MANIFEST).exists():
        shutil.rmtree(target, ignore_errors=True)


def remove_abandoned(root: Path, now_s: float) -> None:
    """Remove what backups of jobs left that were killed: directories with such a name, without a manifest,
    that are older than a job can be."""
    for path in root.iterdir():
        if not _NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        if path.stat().st_mtime < now_s - _ABANDONED_SECONDS:
            remove_unfinished(path)
