"""How long the files of a sequence should be, when some of them may have a wrong length.

    the setting of who asks          is taken as it is
    what the last start noted        is taken where every name agrees with it: a file begins at a multiple of the length
    else the majority                of the lengths, and of the distances between names of neighbours, that all names agree with

All queues of a store have files of one length, so they are asked together: a queue with one file has no neighbour to compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class NamedFile(NamedTuple):
    """A file of a sequence: the offset that its name states, and its length in bytes."""

    base: int
    size: int


def likely_size(sequences: Iterable[Sequence[NamedFile]], noted: int | None = None, unit: int = 1) -> int | None:
    """The length that files of these sequences should have, in bytes, a multiple of `unit`; None when nothing shows it.

    `sequences` are the files of a directory each, in the order of their names. `noted` is the length that the last start used.
    """
    votes: Counter[int] = Counter()
    bases: set[int] = set()
    for files in sequences:
        bases.update(file.base for file in files)
        votes.update(file.size for file in files)
        votes.update(after.base - before.base for before, after in zip(files, files[1:], strict=False))
    if noted and bases and _fits(noted, bases, unit):
        return noted
    sizes = [size for size in votes if size > 0 and size % unit == 0]
    # A foreign name may stand beside the others: then the length that most names agree with.
    return max(sizes, key=lambda size: (sum(base % size == 0 for base in bases), votes[size], size), default=None)


def _fits(size: int, bases: set[int], unit: int) -> bool:
    return size % unit == 0 and all(base % size == 0 for base in bases)
