"""True if a process of this machine exists, and the id of the machine's current boot."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX_PID = 2**31 - 1  # a C int, which kill(2) takes


def exists(pid: object) -> bool:
    """True if a process with this id exists, of any user. False for a value that is no process id, since it
    may come from a file."""
    if not isinstance(pid, int) or not 0 < pid <= _MAX_PID:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def boot_id() -> str:
    """Return the kernel's boot id, which changes with each start of the machine; "" without one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
