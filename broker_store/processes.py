"""Processes of this machine, by their number, and since when it runs."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST = 2**31 - 1  # of a C int, which the system's call takes


def exists(pid: object) -> bool:
    """Whether a process of this number exists, of any user. False for what is no number of a process: it may
    come from a file."""
    if not isinstance(pid, int) or not 0 < pid <= _MOST:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def boot_id() -> str:
    """Return the kernel's boot id, which is another after each start of the machine; "" where there is
    none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
