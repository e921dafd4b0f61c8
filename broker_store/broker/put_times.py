"""How long puts took, in the 13 ranges that Apache's tools print (`putMessageDistributeTime`), message by
message.

A put lasts from the begin of its group's collection to the answer, including the sync if one is waited for.
The counts are those of the last whole minute, or of the run so far in its first minute, as in Apache's
broker. `add` is called for every send, so a group of messages costs only two comparisons while puts are
quick.
"""

from __future__ import annotations

from bisect import bisect_right

PERIOD_MS = 60_000
# Whole milliseconds, as Apache's broker counts: `[<=0ms]` means less than one.
_BELOW_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
NAMES = (
    "<=0ms",
    "0~10ms",
    "10~50ms",
    "50~100ms",
    "100~200ms",
    "200~500ms",
    "500ms~1s",
    "1~2s",
    "2~3s",
    "3~4s",
    "4~5s",
    "5~10s",
    "10s~",
)


class PutTimes:
    """Messages by the duration of their put; `longest_s` is the longest since the start, in seconds."""

    def __init__(self, now_ms: int):
        self.longest_s = 0.0
        self._counts = [0] * len(NAMES)
        self._last: list[int] | None = None
        self._began_ms = now_ms

    def add(self, messages: int, seconds: float) -> None:
        """Count a group of messages that was answered after `seconds`."""
        if seconds > self.longest_s:
            self.longest_s = seconds
        self._counts[0 if seconds < 0.001 else bisect_right(_BELOW_MS, int(seconds * 1000))] += messages

    def tick(self, now_ms: int) -> None:
        """Start a new minute when the current one is over."""
        if now_ms - self._began_ms >= PERIOD_MS:
            self._last, self._counts, self._began_ms = self._counts, [0] * len(NAMES), now_ms

    def counts(self) -> list[int]:
        """Return the messages of each range of NAMES."""
        return list(self._counts if self._last is None else self._last)

    def text(self) -> str:
        """Return the counts as Apache writes them: `[<=0ms]:12 [0~10ms]:3 ... `, with a blank at the end."""
        return "".join(f"[{name}]:{count} " for name, count in zip(NAMES, self.counts(), strict=True))
