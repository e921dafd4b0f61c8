"""How soon a thread that wakes gets a core on which another one runs.

A thread that computes may keep a core for three milliseconds while one that wakes waits for it, however
little that one has to do. Linux (6.12 and later) lets a thread ask for shorter slices: it gets no more of the
processor, but when it wakes it takes the core at once from one that has longer slices. A thread that waits
for requests wants that, also beside other processes. One that looks at something wants longer ones: then
whoever wakes, also a client on the same machine, takes the core from it.
"""

from __future__ import annotations

import ctypes
import platform
import struct

# The shortest that Linux gives; longer than what threads have by themselves
SHORT_NS, LONG_NS = 100_000, 5_000_000
# struct sched_attr of sched_setattr(2): size, policy, flags, nice, priority, runtime, deadline, period.
# Python does not wrap it.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (None, None))
_OTHER = 0  # the policy of threads that are not for real time
_NOT_INHERITED = 1  # SCHED_FLAG_RESET_ON_FORK


def ask_for_short_slices() -> bool:
    """For the thread that calls, not for those that it starts; whether it has them. Where there is no such
    thing all stays as it was."""
    return _ask(SHORT_NS)


def ask_for_long_slices() -> bool:
    """The same for one that others need not wait for."""
    return _ask(LONG_NS)


def _ask(wanted_ns: int) -> bool:
    attributes = _attributes()
    if attributes is None or attributes[1] != _OTHER:
        return False
    nice = attributes[3]
    wanted = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(_ATTRIBUTES.size, _OTHER, _NOT_INHERITED, nice, 0, wanted_ns, 0, 0), _ATTRIBUTES.size
    )
    ctypes.CDLL(None).syscall(_SET, 0, wanted, 0)
    return slice_ns() == wanted_ns


def slice_ns() -> int | None:
    """The slice of the thread that calls; None where Linux does not say."""
    attributes = _attributes()
    return attributes[5] or None if attributes else None


def _attributes() -> tuple | None:
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if _GET is None or ctypes.CDLL(None).syscall(_GET, 0, found, _ATTRIBUTES.size, 0):
        return None
    return _ATTRIBUTES.unpack(found.raw)
