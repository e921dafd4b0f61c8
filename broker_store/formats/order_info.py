"""What a group got of one queue in its last pop in order, in consumerOrderInfo.json and in records of the log
(docs/spec/pop.md section 8).

    offsets      5   6   7   8           of the messages, ascending
    acked        1   0   1   0           bits: 5 and 7 are acknowledged
                     └── next offset: the first message without a bit; after the last one if there is none

Apache's broker keeps the same fields in consumerOrderInfo.json, with short names. A value of this type does
not change: each step returns a new one, so that a thread may write the file meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker_store.errors import FormatError
from broker_store.excerpts import text_excerpt
from broker_store.formats import config_json

# Messages of one queue: a pop gives at most 32, and some of before may remain. Their bits are a Java long.
MAX_OFFSETS = 63
# Characters of an attempt id. Apache's proxy sends a UUID.
MAX_ATTEMPT_ID = 255
# Begin of the topic with a record of each state, before the name of the cluster. Apache's broker has no such
# topic; by its prefix it is a system topic there, too.
LOG_PREFIX = "rmq_sys_POP_ORDER_LOG_"
LOG_TAG = "order"
MAX_RECORD_BYTES = 16_384
_LONG = 1 << 63


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """Messages of one queue that a group got in order.

    `changed_ms` states when a message is visible again whose time is not that of the pop. `counts` states how
    often a message was given before, absent for 0.
    """

    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    attempt_id: str | None = None
    acked: int = 0
    changed_ms: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    consumed_ms: int = 0

    def is_acked(self, offset: int) -> bool:
        """Return whether a message does not come again: it was acknowledged, or the group does not want
        it."""
        if offset in self.offsets:
            return bool(self.acked >> self.offsets.index(offset) & 1)
        return self.has(offset)

    def has(self, offset: int) -> bool:
        """Return whether a message is one of these, or passed between them."""
        return self.offsets[0] <= offset <= self.offsets[-1]

    def left(self) -> list[int]:
        """Return the messages without an acknowledgement."""
        return [offset for i, offset in enumerate(self.offsets) if not self.acked >> i & 1]

    def next_offset(self) -> int:
        """Return where the group's next pop begins."""
        left = self.left()
        return left[0] if left else self.offsets[-1] + 1

    def visible_ms(self, offset: int) -> int:
        """Return when a message is visible again, unless it is acknowledged."""
        return self.changed_ms.get(offset, self.pop_ms + self.invisible_ms)

    def free_ms(self) -> int:
        """Return when all messages without an acknowledgement are visible again; 0 if there are none."""
        return max(map(self.visible_ms, self.left()), default=0)

    # Steps

    def acknowledged(self, offsets: Sequence[int]) -> OrderInfo:
        """Return the state after acknowledgements. Offsets that are not there are left out."""
        acked = self.acked
        for offset in offsets:
            if offset in self.offsets:
                acked |= 1 << self.offsets.index(offset)
        return replace(self, acked=acked)

    def changed(self, offset: int, visible_ms: int) -> OrderInfo:
        """Return the state after a change of one message's invisible time."""
        return replace(self, changed_ms={**self.changed_ms, offset: visible_ms})

    def before_end(self, end: int) -> OrderInfo | None:
        """Return the state without messages from `end` on, which a power cut took; None if none is left."""
        offsets = tuple(offset for offset in self.offsets if offset < end)
        if not offsets:
            return None
        return replace(self, offsets=offsets, acked=self.acked & ((1 << len(offsets)) - 1))


def following(
    before: OrderInfo | None, attempt_id: str | None, pop_ms: int, invisible_ms: int, given: Sequence[int]
) -> OrderInfo:
    """Return the state after a pop gave messages.

    The messages of the state `before` that come after them remain, with their times and bits: none that is
    acknowledged comes again, and none of the others is skipped.
    """
    if before is None:
        return OrderInfo(pop_ms, invisible_ms, tuple(given), attempt_id, consumed_ms=pop_ms)
    remaining = [offset for offset in before.offsets if offset > given[-1]]
    offsets = (*given, *remaining)[:MAX_OFFSETS]
    counts = dict(before.counts)
    if attempt_id is None or before.attempt_id != attempt_id:
        for offset in given:
            if offset in before.offsets:
                counts[offset] = counts.get(offset, 0) + 1
    return OrderInfo(
        pop_ms,
        invisible_ms,
        offsets,
        attempt_id,
        sum(1 << i for i, offset in enumerate(offsets) if offset in remaining and before.is_acked(offset)),
        {offset: before.visible_ms(offset) for offset in remaining if not before.is_acked(offset)},
        {offset: count for offset, count in counts.items() if offset in offsets},
        pop_ms,
    )


class OrderState(NamedTuple):
    """The state of one queue. `info` is None after a reset."""

    group: str
    topic: str
    queue_id: int
    info: OrderInfo | None


# JSON


def encode_state(state: OrderState) -> bytes:
    """Return the body of a record."""
    value: dict[str, object] = {"c": state.group, "q": state.queue_id, "t": state.topic}
    if state.info is not None:
        value["state"] = to_json(state.info)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_state(body: bytes) -> OrderState:
    """Return the state in the body of a record. Raises FormatError."""
    if len(body) > MAX_RECORD_BYTES:
        raise FormatError(
            "bytes of a record of pops in order", expected=f"at most {MAX_RECORD_BYTES}", found=len(body)
        )
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a record of pops in order is not readable as JSON: {error!s:.80}") from None
    if not isinstance(value, dict):
        raise FormatError("a record of pops in order must be an object", found=text_excerpt(value))
    group, topic, queue_id = value.get("c"), value.get("t"), value.get("q")
    if not isinstance(group, str) or not isinstance(topic, str) or not group or not topic:
        raise FormatError("c and t of a record of pops in order must be texts", found=text_excerpt(value))
    if type(queue_id) is not int or not 0 <= queue_id < 1 << 31:
        raise FormatError("q of a record of pops in order must be an int", found=text_excerpt(queue_id))
    state = value.get("state")
    return OrderState(group, topic, queue_id, None if state is None else from_json(state))


def to_json(info: OrderInfo) -> dict[str, object]:
    """Return the object of consumerOrderInfo.json."""
    first = info.offsets[0]
    value: dict[str, object] = {} if info.attempt_id is None else {"a": info.attempt_id}
    acked = info.acked - (2 * _LONG if info.acked >= _LONG else 0)
    value |= {
        "cm": acked,
        "i": info.invisible_ms,
        "l": info.consumed_ms,
        "o": [first, *(offset - first for offset in info.offsets[1:])],
    }
    if info.counts:
        value["oc"] = dict(info.counts)
    if info.changed_ms:
        value["ot"] = dict(info.changed_ms)
    return value | {"popTime": info.pop_ms}


def from_json(value: object) -> OrderInfo | None:
    """Return the state in such an object; None if it has no messages. Raises FormatError."""
    if not isinstance(value, dict):
        raise FormatError("an order info must be an object", found=text_excerpt(value))
    listed = value.get("o") or []
    if not isinstance(listed, list) or len(listed) > MAX_OFFSETS + 1:
        raise FormatError(
            "o of an order info", expected=f"at most {MAX_OFFSETS + 1} integers", found=text_excerpt(listed)
        )
    if not listed:
        return None
    first = _whole("o", listed[0])
    offsets = (first, *(first + _whole("o", diff) for diff in listed[1:]))
    if any(left >= right for left, right in zip(offsets, offsets[1:], strict=False)):
        raise FormatError("o of an order info must ascend", found=text_excerpt(listed))
    attempt_id = value.get("a")
    if attempt_id is not None and (not isinstance(attempt_id, str) or len(attempt_id) > MAX_ATTEMPT_ID):
        raise FormatError(
            "a of an order info",
            expected=f"a text of at most {MAX_ATTEMPT_ID} characters",
            found=text_excerpt(attempt_id),
        )
    acked = value.get("cm") or 0
    if type(acked) is not int or not -_LONG <= acked < _LONG:
        raise FormatError("cm of an order info must be a long", found=text_excerpt(acked))
    return OrderInfo(
        _whole("popTime", value.get("popTime")),
        _whole("i", value.get("i") or 0),
        offsets,
        attempt_id,
        acked & ((1 << len(offsets)) - 1),
        _numbers("ot", value.get("ot"), offsets),
        _numbers("oc", value.get("oc"), offsets),
        _whole("l", value.get("l") or 0),
    )


def _numbers(name: str, value: object, offsets: tuple[int, ...]) -> dict[int, int]:
    """Return offset -> number, as far as the offsets are those of messages."""
    table = config_json.int_keys({} if value is None else value, f"{name} of an order info")
    return {offset: _whole(name, number) for offset, number in table.items() if offset in offsets}


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < _LONG:
        raise FormatError(
            f"{name} of an order info must be an integer of 0 to 2^63 - 1", found=text_excerpt(value)
        )
    return value
