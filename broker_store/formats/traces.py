"""What clients write about their messages: the bodies of RMQ_SYS_TRACE_TOPIC (Apache's TraceDataEncoder).

A body holds records that end with U+0002, of fields with U+0001 between them; the first is the record's kind:

    Pub             time region group topic id tags keys store-host body-length took kind offset-id success
                    [client]
    SubBefore       time region group request id tries keys [client]
    SubAfter        request id took success keys code [time group]
    EndTransaction  time region group topic id tags keys store-host kind transaction state from-check
    Recall          time region group topic id success

Any program may write there, so what cannot be understood is left out and never an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_RECORD_END = "\x02"
_FIELD_END = "\x01"
# In the order in which they happen to a message, where times are equal.
_KINDS = ("sent", "ended", "recalled", "handed", "consumed")
# How a listener returned, by Java's ConsumeReturnType.
_RETURNS = {
    "0": "consumed it",
    "1": "did not finish it in time",
    "2": "failed at it with an exception",
    "3": "returned nothing for it",
    "4": "asked for it again",
}
_ENDS = {
    "COMMIT_MESSAGE": "committed it",
    "ROLLBACK_MESSAGE": "rolled it back",
    "UNKNOW": "did not know yet what becomes of it",
}


class TraceEvent(NamedTuple):
    """One thing that a client did with a message. `request_id` binds the two records of one delivery to a
    consumer."""

    kind: str
    message_id: str
    at_ms: int | None
    group: str
    took_ms: int | None
    success: bool | None
    request_id: str
    words: str


def decode(body: bytes) -> list[TraceEvent]:
    """The records of a body in their order."""
    found = []
    for text in body.decode("utf-8", "replace").split(_RECORD_END):
        kind, *fields = text.split(_FIELD_END)
        read = _READERS.get(kind)
        if read is not None and len(fields) >= read[0]:
            found.append(read[1](fields))
    return found


def in_order(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Return events by their time; those of a consumer without a time follow its delivery."""
    events = list(events)
    handed = {event.request_id: event.at_ms or 0 for event in events if event.kind == "handed"}
    return sorted(
        events,
        key=lambda event: (
            handed.get(event.request_id, 0) if event.at_ms is None else event.at_ms,
            _KINDS.index(event.kind),
        ),
    )


def _sent(fields: list[str]) -> TraceEvent:
    # Versions before the offset id have the success where later ones have the id.
    success = fields[12] if len(fields) > 12 else fields[11]
    took_ms = _number(fields[9])
    words = f"sent it to {fields[3]}" if success == "true" else f"could not send it to {fields[3]}"
    return TraceEvent("sent", fields[4], _number(fields[0]), fields[2], took_ms, success == "true", "", words)


def _handed(fields: list[str]) -> TraceEvent:
    tries = _number(fields[5]) or 0
    words = "was given it" if not tries else f"was given it again, for the {ordinal(tries + 1)} time"
    return TraceEvent("handed", fields[4], _number(fields[0]), fields[2], None, None, fields[3], words)


def _consumed(fields: list[str]) -> TraceEvent:
    success = fields[3] == "true"
    words = _RETURNS["0"] if success else _RETURNS.get(fields[5], "failed at it")
    at_ms, group = (_number(fields[6]), fields[7]) if len(fields) > 7 else (None, "")
    return TraceEvent("consumed", fields[1], at_ms, group, _number(fields[2]), success, fields[0], words)


def _ended(fields: list[str]) -> TraceEvent:
    words = _ENDS.get(fields[10], "ended its transaction") + (
        " when it was asked" if fields[11] == "true" else ""
    )
    return TraceEvent("ended", fields[4], _number(fields[0]), fields[2], None, None, "", words)


def _recalled(fields: list[str]) -> TraceEvent:
    words = "took it back" if fields[5] == "true" else "could not take it back"
    return TraceEvent(
        "recalled", fields[4], _number(fields[0]), fields[2], None, fields[5] == "true", "", words
    )


# Kind -> fields that it must have, reader.
_READERS = {
    "Pub": (12, _sent),
    "SubBefore": (7, _handed),
    "SubAfter": (6, _consumed),
    "EndTransaction": (12, _ended),
    "Recall": (6, _recalled),
}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th; 11th, 12th and 13th in each hundred. `number` is 1 or more."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number:,}{ending}"
