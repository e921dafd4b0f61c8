"""Which timer messages are accepted: within the longest delay, and not for a second that is too full."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from broker_store.broker.timer_request import requested_ms
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.formats import properties
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.messages import Message, PutStatus

_MAX_SLOT_COUNT = (1 << 31) - 1  # the wheel's count is an int32; this as a limit means none


class TimerAdmission:
    """Accepts or refuses timer messages when they are sent.

    The settings are Apache's timerWheelEnable, timerMaxDelaySec and timerCongestNumEachSlot. `chance` returns
    a random number from 0 to 1. `refused_for` has the value and the limit of the last refused message.
    """

    def __init__(
        self,
        files: TimerFiles,
        *,
        clock: Callable[[], int],
        enabled: bool = True,
        max_delay_ms: int = 3 * 86_400_000,
        max_per_slot: int = _MAX_SLOT_COUNT,
        chance: Callable[[], float] = random.random,
    ):
        self._files, self._clock, self._chance = files, clock, chance
        self._enabled = enabled
        self._max_delay_ms, self._max_per_slot = max_delay_ms, max_per_slot
        self.refused_for: tuple[int | None, int | None] = (None, None)

    def schedule(self, message: Message, pairs: Mapping[str, str]) -> PutStatus | None:
        """Turn a message with a delivery time into one that waits in the timer topic; return why it is
        refused, else None.

        `refused_for` then has the numbers. A message whose time is over stays as it is, to be delivered at
        once.
        """
        self.refused_for = (None, None)
        if not self._enabled:
            return PutStatus.WHEEL_TIMER_NOT_ENABLE
        now_ms = self._clock()
        due_ms = requested_ms(pairs, now_ms)
        if due_ms is None:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        if due_ms <= now_ms:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL if properties.TIMER_DELETE_KEY in pairs else None
        if due_ms - now_ms > self._max_delay_ms:
            self.refused_for = (due_ms - now_ms, self._max_delay_ms)
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        out_ms = (due_ms - 1) // PRECISION_MS * PRECISION_MS
        if self._is_crowded(out_ms):
            return PutStatus.WHEEL_TIMER_FLOW_CONTROL
        message.properties = properties.set_values(
            message.properties,
            {
                properties.TIMER_OUT_MS: str(out_ms),
                properties.REAL_TOPIC: message.topic,
                properties.REAL_QUEUE_ID: str(message.queue_id),
            },
        )
        message.topic, message.queue_id = TIMER_TOPIC, 0
        return None

    def _is_crowded(self, out_ms: int) -> bool:
        if self._max_per_slot >= _MAX_SLOT_COUNT:
            return False
        slot = self._files.slot(out_ms // PRECISION_MS)
        count = 0 if slot is None else slot.count
        self.refused_for = (count, self._max_per_slot)
        beyond = count - self._max_per_slot
        # The fuller the slot, the more are refused: all of them from twice the limit on.
        return beyond > 0 and beyond > self._chance() * self._max_per_slot
