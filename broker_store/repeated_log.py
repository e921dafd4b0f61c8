"""A log with at most one line per second for each cause, so that a flood of bad connections does not fill the
disk.

Lines that are left out are counted; the next line of the cause has their number, at the latest when `flush`
is called a second later.
"""

from __future__ import annotations

import logging

MIN_INTERVAL_S = 1.0


class RepeatedLog:
    """`now_s` is of any clock that never steps back. Causes are a few fixed words."""

    def __init__(self, log: logging.Logger):
        self._log = log
        self._last_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def write(self, level: int, cause: str, now_s: float, text: str, *arguments: object) -> None:
        """Log a line, or count it when its cause had a line less than a second ago."""
        last_s = self._last_s.get(cause)
        if last_s is not None and now_s - last_s < MIN_INTERVAL_S:
            self._left_out[cause] = self._left_out.get(cause, 0) + 1
            return
        self._last_s[cause] = now_s
        left_out = self._left_out.pop(cause, 0)
        if left_out:
            self._log.log(
                level, text + " (and %d more of %s since the last line)", *arguments, left_out, cause
            )
        else:
            self._log.log(level, text, *arguments)

    def flush(self, now_s: float) -> None:
        """Log the counts of causes whose last line is a second old or more."""
        for cause in [cause for cause in self._left_out if now_s - self._last_s[cause] >= MIN_INTERVAL_S]:
            self._last_s[cause] = now_s
            self._log.info("%d more of %s since the last line", self._left_out.pop(cause), cause)
