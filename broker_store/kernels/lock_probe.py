"""A kernel that rests without the interpreter lock and returns the time at which it ended.

    Python ──► rest: releases the lock, sleeps, reads the clock ──► waits for the lock ──► Python
                                                                      └─ what is measured ─┘

Every kernel that runs without the lock waits like this at its end, and so does every thread after a system
call.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from broker_store.kernels.memory import load64, store64

MONOTONIC = 1  # CLOCK_MONOTONIC, which time.perf_counter_ns reads on Linux
TIMESPEC_WORDS = 2  # `struct timespec`: seconds and nanoseconds, 8 bytes each
_NANOSECONDS_AT = 8
_NS_PER_S = 1_000_000_000

# Compiled code calls them with integers; the stubs of Numba know them as types only.
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_clock_nanosleep: Any = types.ExternalFunction(
    "clock_nanosleep", types.int32(types.int32, types.int32, types.int64, types.int64)
)


@njit(types.int64(types.int64, types.int64), cache=True, nogil=True)
def rest(timespec, nanoseconds):
    """Sleep, then return the time in nanoseconds of CLOCK_MONOTONIC.

    `timespec` is the address of TIMESPEC_WORDS words of the caller's. A signal may end the sleep early.
    """
    store64(timespec, nanoseconds // _NS_PER_S)
    store64(timespec + _NANOSECONDS_AT, nanoseconds % _NS_PER_S)
    _clock_nanosleep(MONOTONIC, 0, timespec, 0)
    _clock_gettime(MONOTONIC, timespec)
    return load64(timespec) * _NS_PER_S + load64(timespec + _NANOSECONDS_AT)
