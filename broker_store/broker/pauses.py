"""How long the event loop stood still: during one long call, or while the process is stopped, no request is
read and none is answered.

A timer that is due every PERIOD_S notes how late it runs. A pause that begins within a period is measured up
to PERIOD_S too short, so short pauses are not noticed at all.

The probe of facts/threads.py measures turns of the loop more finely. It cannot replace the timer: its thread
stands still with the process, so it sees a stopped process only if a call to the loop was waiting then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PERIOD_S = 0.25
RECENT_MS = 5 * 60_000
_BUCKET_MS = 30_000  # the longest pause of each bucket is kept


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of `seconds` of the loop, from `at_ms` on (milliseconds since 1970)."""

    seconds: float
    at_ms: int


class Pauses:
    """The longest pauses of the last RECENT_MS, and of the run. `clock` returns milliseconds since 1970."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._longest: dict[int, Pause] = {}
        self.longest_of_run: Pause | None = None  # None: not measured yet

    def note(self, late_s: float) -> None:
        """Note that the timer ran `late_s` after it was due."""
        now_ms = self._clock()
        pause = Pause(late_s, now_ms - round(late_s * 1000))
        bucket = now_ms // _BUCKET_MS
        known = self._longest.get(bucket)
        if known is None:
            self._longest = {
                key: one for key, one in self._longest.items() if 0 <= bucket - key <= RECENT_MS // _BUCKET_MS
            }
        if known is None or late_s > known.seconds:
            self._longest[bucket] = pause
        if self.longest_of_run is None or late_s > self.longest_of_run.seconds:
            self.longest_of_run = pause

    def longest(self) -> Pause | None:
        """Return the longest pause that ended in the last RECENT_MS; None before the first measurement. On
        the loop."""
        now_ms = self._clock()
        recent = [
            pause
            for pause in self._longest.values()
            if pause.at_ms + pause.seconds * 1000 > now_ms - RECENT_MS
        ]
        return max(recent, key=lambda pause: pause.seconds, default=None)
