"""A journey and its stops."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

from broker_store.facts.bytes.field import MAX_TIME_MS
from broker_store.facts.pointers import Pointer
from broker_store.units import Moment, Small

# done: it is so. waiting: it will be so, or something has to be done for it. absent: it is not there, and
# will not be. unknown: the sentence says why. wrong: it is there and disagrees.
State: TypeAlias = Literal["done", "waiting", "absent", "unknown", "wrong"]
Form: TypeAlias = Literal["delayed", "prepared", "timed"]
StopKind: TypeAlias = (
    Literal["born", "stored", "disk", "queue", "index", "group", "pop", "waits"]
    | Form
    | Literal["unsettled", "retry", "dead", "real", "trace"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One stop of a message."""

    stop: StopKind
    title: str
    state: State
    at_ms: Moment | None
    offset: int | None  # the number by which one finds it
    sentence: str
    pointer: Pointer | None  # to its bytes
    log_offset: int | None  # of another record of the same message


@dataclass(frozen=True, slots=True, kw_only=True)
class JourneyMessage:
    """The message of a journey."""

    message_id: str
    offset_message_id: str
    topic: str
    queue_id: Small
    queue_offset: int
    log_offset: int
    tag: str | None
    keys: list[str]  # the first SHOWN_KEYS; the index is searched for these alone
    keys_left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """The stops of one message, in their order."""

    at_ms: Moment
    source: str
    message: JourneyMessage
    stops: list[Stop]
    complete: bool
    reason: str  # why it may not be complete; "": it is


def stop(
    kind: StopKind,
    title: str,
    state: State,
    sentence: str,
    *,
    at_ms: int | None = None,
    offset: int | None = None,
    pointer: Pointer | None = None,
    log_offset: int | None = None,
) -> Stop:
    return Stop(
        stop=kind,
        title=title,
        state=state,
        at_ms=at_ms,
        offset=offset,
        sentence=sentence,
        pointer=pointer,
        log_offset=log_offset,
    )


def clock_text(time_ms: int) -> str:
    """Return a time of a sentence, in UTC."""
    if not 0 < time_ms < MAX_TIME_MS:
        return f"{time_ms} ms"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000)) + f".{time_ms % 1000:03d} UTC"


def seconds_text(ms: int) -> str:
    """Return a length of time of a sentence."""
    return f"{ms:,} ms" if ms < 1_000 else f"{ms / 1_000:,.1f} s".replace(".0 s", " s")
