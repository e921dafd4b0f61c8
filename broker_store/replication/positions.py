"""What is known of the slaves of a master, and which records enough brokers have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from broker_store.replication.feeder import Slave


class SlavePosition(NamedTuple):
    """One slave, as its master knows it. Log offsets and bytes."""

    address: str
    reported: int | None  # it has the log up to here; None before its first report
    sent: int  # the next byte for it
    behind: int | None  # bytes that it lacks
    is_in_step: bool  # it lacks less than haMaxGapNotInSync
    sent_bytes: int
    connected_s: float  # how long
    silent_s: float  # since its last report
    bytes_per_s: float | None  # sent in the last 10 s
    number: int | None = None  # its broker id, in controller mode


def positions_of(
    slaves: Iterable[Slave], end: int, max_gap: int, seconds: Callable[[], float] = time.monotonic
) -> list[SlavePosition]:
    """Return the position of each slave of a log that ends at `end`."""
    now_s = seconds()
    found = []
    for slave in slaves:
        behind = None if slave.reported is None else max(0, end - slave.reported)
        found.append(
            SlavePosition(
                slave.address,
                slave.reported,
                slave.following,
                behind,
                behind is not None and behind < max_gap,
                slave.sent_bytes,
                now_s - slave.connected_s,
                now_s - slave.heard_s,
                _rate(slave, now_s),
                slave.number,
            )
        )
    return found


def _rate(slave: Slave, now_s: float) -> float | None:
    """Return the bytes a second since the oldest sample; None before there is one of some time ago."""
    samples = tuple(slave.samples)  # the feeder's thread adds to it
    if not samples or now_s - samples[0][0] < 1:
        return None
    return (slave.sent_bytes - samples[0][1]) / (now_s - samples[0][0])


def held_by(slaves: Iterable[Slave], count: int) -> int:
    """Return the log offset up to which `count` slaves have the log, 0 if there are fewer.

    The protocol does not say which slave connects. So a connection that was not heard since a newer one of
    the same host reported is not counted: both may be of one slave, whose link forgot the older one.
    """
    reporting = [(slave, slave.reported) for slave in slaves if slave.reported is not None]
    newest_s: dict[str, float] = {}
    for slave, _ in reporting:
        host = slave.address.rpartition(":")[0]
        newest_s[host] = max(newest_s.get(host, 0.0), slave.connected_s)
    reported = [
        offset for slave, offset in reporting if slave.heard_s >= newest_s[slave.address.rpartition(":")[0]]
    ]
    reported.sort(reverse=True)
    return reported[count - 1] if 0 < count <= len(reported) else 0
