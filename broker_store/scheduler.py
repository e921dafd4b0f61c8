"""How soon Linux gives a core to a thread that wakes while another thread computes.

A computing thread may keep a core for three milliseconds while a woken one waits, even if that one has only
microseconds of work. Since Linux 6.12 a thread can ask for shorter time slices. It gets no more processor
time in all, but when it wakes it preempts a thread with longer slices at once. The event loop asks for short
slices, which help it against other processes, too. Threads that scan or render ask for long ones, so that the
loop and clients on the same machine preempt them.
"""

from __future__ import annotations

import ctypes
import platform
import struct

# The shortest slice that Linux accepts, and one that is longer than the default of each machine
SHORT_NS, LONG_NS = 100_000, 5_000_000
# struct sched_attr of sched_setattr(2): size, policy, flags, nice, priority, runtime, deadline, period.
# Python has no function for this system call.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (None, None))
_OTHER = 0  # SCHED_OTHER, the policy of threads that are not real-time
_NOT_INHERITED = 1  # SCHED_FLAG_RESET_ON_FORK


def ask_for_short_slices() -> bool:
    """Request short slices for the calling thread; return whether it has them.

    Threads that it starts do not inherit them. Without support in the system nothing changes.
    """
    return _ask(SHORT_NS)


def ask_for_long_slices() -> bool:
    """Request long slices for the calling thread; return whether it has them. See `ask_for_short_slices`."""
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
    """Return the slice of the calling thread in nanoseconds, None where Linux does not report it."""
    attributes = _attributes()
    return attributes[5] or None if attributes else None


def _attributes() -> tuple | None:
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if _GET is None or ctypes.CDLL(None).syscall(_GET, 0, found, _ATTRIBUTES.size, 0):
        return None
    return _ATTRIBUTES.unpack(found.raw)
