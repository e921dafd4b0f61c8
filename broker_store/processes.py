"""Processes of this machine, by their number."""

from __future__ import annotations

import os

_MOST = 2**31 - 1  # of a C int, which the system's call takes


def exists(pid: object) -> bool:
    """Whether a process of this number exists, of any user. False for what is no number of a process: it may come from a file."""
    if not isinstance(pid, int) or not 0 < pid <= _MOST:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
