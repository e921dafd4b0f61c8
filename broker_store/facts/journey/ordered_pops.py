"""The pops in order that gave a message to a group, from the records of their log (docs/spec/pop.md section
8). Each record has the state of a queue after a change."""

from __future__ import annotations

import time
from dataclasses import dataclass

from broker_store.facts.journey.stop import State, Stop, clock_text, seconds_text, stop
from broker_store.facts.pointers import to_log
from broker_store.formats.order_info import OrderInfo, OrderState
from broker_store.formats.record import StoredMessage


@dataclass(slots=True)
class OrderedPop:
    """A pop in order of a message. `stored` is the first record of its state, and `visible_ms` is of the last
    one. `next_ms` is when a later pop gave the message again."""

    group: str
    queue_id: int
    offset: int
    messages: int
    pop_ms: int
    invisible_ms: int
    visible_ms: int
    stored: StoredMessage
    acknowledged: StoredMessage | None = None
    next_ms: int | None = None
    is_reset: bool = False


class OrderedPops:
    """The pops in order of a message, by the records in the order of the log."""

    def __init__(self, places: set[tuple[str, int, int]]):
        self._places = places
        self._last: dict[tuple[str, str, int, int], OrderedPop] = {}  # by group and place
        self.pops: list[OrderedPop] = []

    def take(self, stored: StoredMessage, state: OrderState) -> None:
        """Take the record of a state."""
        for topic, queue_id, offset in self._places:
            if (topic, queue_id) == (state.topic, state.queue_id):
                self._take(stored, state, offset)

    def _take(self, stored: StoredMessage, state: OrderState, offset: int) -> None:
        key = (state.group, state.topic, state.queue_id, offset)
        last, info = self._last.get(key), state.info
        if last is not None and last.acknowledged is not None:
            last = None  # a later state is of another pop, after a reset
        if info is None:
            if last is not None:
                last.is_reset = True
            return
        if offset not in info.offsets:
            return
        if last is None or last.pop_ms != info.pop_ms:
            # A message that remains from an earlier pop has a time of its own
            if info.is_acked(offset) or offset in info.changed_ms:
                return
            if last is not None:
                last.next_ms = info.pop_ms
            self.pops.append(_pop(stored, state, info, offset))
            self._last[key] = self.pops[-1]
        elif info.is_acked(offset):
            last.acknowledged = stored
        else:
            last.visible_ms = info.visible_ms(offset)


def _pop(stored: StoredMessage, state: OrderState, info: OrderInfo, offset: int) -> OrderedPop:
    given = [one for one in info.left() if one not in info.changed_ms]
    return OrderedPop(
        state.group,
        state.queue_id,
        offset,
        len(given),
        info.pop_ms,
        info.invisible_ms,
        info.visible_ms(offset),
        stored,
    )


def together(messages: int, queue_id: int) -> str:
    """Return the part of a sentence on the other messages of a pop."""
    others = messages - 1
    return f", together with {others:,} other{'s' * (others > 1)} of queue {queue_id}" if others else ""


def ordered_stop(pop: OrderedPop) -> Stop:
    """Return a pop in order as a stop."""
    state, became = _became(pop)
    others = together(pop.messages, pop.queue_id)
    sentence = f"It was given out in order for {seconds_text(pop.invisible_ms)}{others}. {became}"
    return stop_of_pop(pop.group, state, sentence, pop.pop_ms, pop.stored)


def stop_of_pop(group: str, state: State, sentence: str, pop_ms: int, stored: StoredMessage) -> Stop:
    """Return the stop of a pop; `stored` is its record."""
    at = stored.log_offset
    return stop(
        "pop",
        f"Popped by {group}",
        state,
        sentence,
        at_ms=pop_ms,
        offset=at,
        pointer=to_log(at),
        log_offset=at,
    )


def _became(pop: OrderedPop) -> tuple[State, str]:
    if pop.acknowledged is not None:
        took_ms = max(0, pop.acknowledged.store_timestamp - pop.pop_ms)
        return "done", f"Acknowledged after {seconds_text(took_ms)}."
    if pop.next_ms is not None:
        return "done", f"It was not acknowledged, and given out again at {clock_text(pop.next_ms)}."
    if pop.is_reset:
        return "done", "Then the group's offset in the queue was reset."
    if pop.visible_ms > time.time() * 1000:
        text = clock_text(pop.visible_ms)
        return "waiting", f"Invisible to the group until {text}, unless it is acknowledged."
    return "waiting", f"Visible again since {clock_text(pop.visible_ms)}; the group has not taken it since."
