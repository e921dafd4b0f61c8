"""Guava's `Hashing.consistentHash`, by which Apache's proxy chooses the queue of a message group. When the
number of queues grows, a group keeps its queue or moves to one of the new ones."""

from __future__ import annotations

_MULTIPLIER = 2_862_933_555_777_941_757
_MASK = (1 << 64) - 1


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a number, from 0 to `buckets` - 1."""
    state = value & _MASK
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK
        random = ((state >> 33) + 1) / (1 << 31)  # Java's (double) ((int) (state >>> 33) + 1) / 0x1.0p31
        following = int((candidate + 1) / random)
        if following >= buckets:
            return candidate
        candidate = following
