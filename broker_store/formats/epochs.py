"""The epochs of a log in controller mode, and the file `epochFileCheckpoint` that keeps them.

    log      | epoch 1          | epoch 2   | epoch 4 ...
             0                  1000        1500            each begins where its master's log ended then

    file     2                  how many entries
             1725254278         CRC-32 of the entry lines, without its sign bit; 0 is not checked
             1-0                epoch and the log offset where it begins, a line each
             2-1000

Two logs with an epoch of the same number and begin were written by the same masters up to there. Source:
Apache's `EpochFileCache` and `CheckpointFile`, which end lines with LF on Linux.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from broker_store.errors import FormatError

FILE_NAME = "epochFileCheckpoint"  # in the store
LAST_END = (1 << 63) - 1  # the end of an epoch that has not ended
# Apache's master sends at most so many to a slave.
MAX_EPOCHS = 1_000


class Epoch(NamedTuple):
    """One epoch: its number, and the log offset where it begins."""

    number: int
    begin: int


def encode(epochs: Sequence[Epoch]) -> bytes:
    """Return the content of the file."""
    lines = "".join(f"{epoch.number}-{epoch.begin}\n" for epoch in epochs).encode()
    return f"{len(epochs)}\n{_sum(lines)}\n".encode() + lines


def decode(data: bytes) -> tuple[Epoch, ...]:
    """Return the epochs of a file. Raises FormatError."""
    try:
        count, crc, *lines = data.decode("ascii").splitlines()
        epochs = tuple(Epoch(*map(int, line.split("-"))) for line in lines)
        expected, stated = int(count), int(crc)
    except (ValueError, TypeError):
        raise FormatError("no file of epochs: a count, a CRC, and lines of epoch-offset") from None
    if len(epochs) != expected:
        raise FormatError("the file of epochs is not whole", expected=expected, found=len(epochs))
    found = _sum("".join(f"{line}\n" for line in lines).encode())
    if stated not in (0, found):
        raise FormatError("the file of epochs has another CRC", expected=stated, found=found)
    if any(
        after.number <= before.number or after.begin < before.begin
        for before, after in zip(epochs, epochs[1:], strict=False)
    ):
        raise FormatError("the epochs of the file do not go up")
    return epochs


def _sum(lines: bytes) -> int:
    return zlib.crc32(lines) & 0x7FFFFFFF


def common_epoch(own: Sequence[Epoch], other: Sequence[Epoch]) -> Epoch | None:
    """Return the newest epoch of `own` that the other log has with the same begin; None without one."""
    known = set(other)
    return next((epoch for epoch in reversed(own) if epoch in known), None)


def common_end(own: Sequence[Epoch], own_end: int, other: Sequence[Epoch], other_end: int) -> int | None:
    """Return the log offset up to which two logs are the same by their epochs; None without a common one.

    They end at `own_end` and `other_end`.
    """
    common = common_epoch(own, other)
    if common is None:
        return None
    return min(_end_of(common, own, own_end), _end_of(common, other, other_end))


def _end_of(epoch: Epoch, epochs: Sequence[Epoch], log_end: int) -> int:
    following = [one.begin for one in epochs if one.number > epoch.number]
    return min(log_end, *following) if following else log_end
