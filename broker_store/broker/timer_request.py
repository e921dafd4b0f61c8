"""What a timer message requests: its delivery time, from its properties or from its row of `read_timed`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker_store.engine.timer.timed import NO_NUMBER, Timed
from broker_store.engine.timer.timer_files import WheelEntry
from broker_store.formats import properties, record, timer_log
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.messages import Message

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LONG = 1 << 63


def is_timed(pairs: Mapping[str, str]) -> bool:
    """True if a message with these properties, and without a delay level, requests a delivery time."""
    return properties.TIMER_OUT_MS not in pairs and not pairs.keys().isdisjoint(properties.TIMER_ASKING)


def second_of(time_ms: int) -> int:
    """Return the begin (ms) of the second that holds a time."""
    return time_ms // PRECISION_MS * PRECISION_MS


def requested_ms(pairs: Mapping[str, str], now_ms: int) -> int | None:
    """Return the delivery time (ms) that a message requests at `now_ms`; None when it states no number."""
    if (text := pairs.get(properties.TIMER_DELAY_SECONDS)) is not None:
        seconds = parse_long(text)
        return None if seconds is None else now_ms + seconds * 1000
    if (text := pairs.get(properties.TIMER_DELAY_MS)) is not None:
        delay_ms = parse_long(text)
        return None if delay_ms is None else now_ms + delay_ms
    return parse_long(pairs.get(properties.TIMER_DELIVER_MS))


def row_due_ms(row: Timed, slot_ms: int) -> int:
    """Return when (ms) a message of a slot is due: when requested, at the latest at the end of its second."""
    latest_ms = (slot_ms if row.out_ms == NO_NUMBER else min(slot_ms, row.out_ms)) + PRECISION_MS
    return latest_ms if row.asked_ms == NO_NUMBER else min(row.asked_ms, latest_ms)


def wheel_entry(row: Timed, now_ms: int, read_ms: int, window_ms: int) -> WheelEntry | None:
    """Return where on the wheel a message goes; None for a record without a time or a topic.

    A time before `read_ms` is late and goes to the slot of `read_ms`. A time beyond the window is rolled: the
    message goes to the end of the window, and from there to the timer topic again.
    """
    if not row.is_sound or row.out_ms == NO_NUMBER or not row.topic_length:
        return None
    write_ms = second_of(now_ms)
    magic = timer_log.DEFAULT
    slot_ms = max(second_of(row.out_ms), read_ms)
    beyond_ms = slot_ms - write_ms - window_ms
    if beyond_ms >= 0:
        magic |= timer_log.ROLL
        # With little time left after a whole window, the last roll would be due at once: roll after half of
        # it.
        slot_ms = second_of(write_ms + (window_ms // 2 if beyond_ms < window_ms // 3 else window_ms))
    if row.deletes:
        magic |= timer_log.DELETE
    return WheelEntry(slot_ms // PRECISION_MS, magic, write_ms, row.log_offset, row.size, row.topic_hash)


def rolled(raw: bytes, write_ms: int, now_ms: int) -> Message:
    """Return the message as it is stored in the timer topic again, with the times of this round."""
    stored = record.decode(raw, check_crc=False)
    changes = {
        properties.TIMER_ENQUEUE_MS: str(write_ms),
        properties.TIMER_DEQUEUE_MS: str(now_ms),
        properties.TIMER_ROLL_TIMES: str(
            (parse_long(stored.properties.get(properties.TIMER_ROLL_TIMES)) or 0) + 1
        ),
    }
    return stored.as_message(TIMER_TOPIC, 0, stored.properties_with(changes))


def parse_long(text: str | None) -> int | None:
    """Parse a text as Java's Long.parseLong; None where that raises."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -_LONG <= number < _LONG else None
