"""What the crash lab tries: where a writer is killed, how it flushes, and whether the power fails as well.

This module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.errors import MisuseError
from broker_store.units import Small

POINTS = {
    "before-copy": "before the message is copied into the log's map",
    "after-copy": "after it was copied, before its sender is answered",
    "before-flush": "before the log is synced",
    "after-flush": "after the log was synced, before any sender is answered",
    "queue-index": "when the queue has its unit and the index not yet its entries",
    "roll": "when the next log file was made and the full one is not closed",
    "checkpoint": "when the checkpoint was written and not synced",
}
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
POWER_CUTS = ("no", "all", "some")
MAX_MESSAGES = 20_000


@dataclass(frozen=True)
class Experiment:
    """One experiment. The writer is killed when it reaches `point` first after `messages` were written."""

    point: str
    flush: str = "ASYNC_FLUSH"
    power_cut: str = "no"
    messages: int = 200
    seed: int = 1

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("point", self.point, tuple(POINTS)),
            ("flush", self.flush, FLUSHES),
            ("power_cut", self.power_cut, POWER_CUTS),
        ):
            if value not in allowed:
                raise MisuseError(f"{name} is {value!r:.40}, expected one of {', '.join(allowed)}")
        if not 1 <= self.messages <= MAX_MESSAGES:
            raise MisuseError(f"messages is {self.messages}, expected 1 to {MAX_MESSAGES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMessage:
    """A message that was acknowledged and is not where it was stored."""

    message: int  # its number in the lab
    queue_id: Small
    offset: int
    log_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an experiment found; the first five are the experiment."""

    point: str
    flush: str
    power_cut: str
    messages: int
    seed: int
    killed: str  # where, as POINTS says it
    killed_in: str | None  # the file that the writer was at, where the point has one
    recovery: str  # the id of the record of the start after the kill
    sent: int
    acknowledged: int
    there: int  # messages that can be read after the start
    lost: int  # of the acknowledged
    there_unacknowledged: int
    kept_its_word: bool  # nothing is lost that the flush setting promises
    sentence: str
    check_ok: bool  # check_store finds the store sound
    check_findings: int
    lost_messages: list[LostMessage]  # the first of them
    store: str  # its directory, from the data directory on
