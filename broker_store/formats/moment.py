"""A moment as people and programs write it: milliseconds since 1970, or ISO 8601. A time without a zone is
UTC."""

from __future__ import annotations

from datetime import UTC, datetime

MAX_MS = 253_402_300_799_999  # the end of the year 9999, the last that ISO 8601 can write in four digits
EXAMPLE = "2026-11-21T10:00:00Z"


def read(text: str) -> int:
    """Return milliseconds since 1970, rounded down. Raises ValueError, which names the accepted formats."""
    return read_microseconds(text) // 1000


def read_microseconds(text: str) -> int:
    """Return microseconds since 1970, rounded down. Raises ValueError as `read`."""
    given = text.strip()
    if given.isascii() and given.isdigit() and len(given) < 20:
        if int(given) > MAX_MS:
            raise ValueError(
                f"{given} ms is after the year 9999; expected milliseconds since 1970, or a time such as "
                f"{EXAMPLE}"
            )
        return int(given) * 1000
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is not a time: expected milliseconds since 1970, or a time such as {EXAMPLE}"
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    found = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if found < 0:
        raise ValueError(f"{text[:40]!r} is before 1970")
    return found
