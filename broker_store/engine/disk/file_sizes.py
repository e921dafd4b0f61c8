"""How long the files of a sequence should be, when some of them may have a wrong length.

    a size that the caller gives     is used as it is
    the size of the last start       is used where more than half of the names agree: a file begins at a
                                     multiple of the length; or half, and a file has it
    else the length of most files    of those that hold any byte, at least two
    else what most names agree with  of the lengths, and of the distances between names of neighbours

A name may be wrong as well as a length, so one renamed file invalidates neither. All queues of a store have
files of one length, so they are evaluated together: a queue with one file has no neighbour to compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MIN_MAJORITY = 2  # one file alone may be the one that is wrong


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The sizes that a store is made with, as its files show them; None where there is no file."""

    mapped_file_size_commit_log: int | None = None
    mapped_file_size_consume_queue: int | None = None
    max_hash_slot_num: int | None = None
    max_index_num: int | None = None


class NamedFile(NamedTuple):
    """A file of a sequence: the offset that its name states, and its length in bytes."""

    base: int
    size: int


def likely_size(
    sequences: Iterable[Sequence[NamedFile]], noted: int | None = None, unit: int = 1, least: int = 1
) -> int | None:
    """Return the length that files of these sequences should have, in bytes, a multiple of `unit` and at
    least `least`; None when nothing shows it.

    `sequences` are the files of one directory each, in the order of their names. `noted` is the length that
    the last start used.
    """
    votes: Counter[int] = Counter()
    lengths: Counter[int] = Counter()
    bases: list[int] = []
    for files in sequences:
        bases += [file.base for file in files]
        lengths.update(file.size for file in files)
        votes.update(after.base - before.base for before, after in zip(files, files[1:], strict=False))
    votes.update(lengths)
    if noted and noted >= least and noted % unit == 0:
        agreeing = 2 * _agreeing(noted, bases)
        if agreeing > len(bases) or (agreeing == len(bases) and lengths[noted]):
            return noted
    held = sum(lengths[size] for size in lengths if size)
    for size, count in lengths.most_common(1):
        if size >= least and size % unit == 0 and count >= MIN_MAJORITY and 2 * count > held:
            return size
    sizes = [size for size in votes if size >= least and size % unit == 0]
    return max(sizes, key=lambda size: (_agreeing(size, bases), votes[size], size), default=None)


def _agreeing(size: int, bases: list[int]) -> int:
    return sum(base % size == 0 for base in bases)
