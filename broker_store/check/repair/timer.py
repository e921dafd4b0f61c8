"""Repair of the files of timer messages: a timer log that is not sound is moved away, and the wheel is made
from what is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_store.check.repair.actions import Action, Cut, MakeWheel, Replace, move_away, written_end
from broker_store.check.report import ERROR, NOTE, Finding
from broker_store.check.walk import StoreCheck
from broker_store.formats import timer_check, timer_log, timer_wheel

_OF_THE_LOG = {"timer-chain", "timer-unit", "file-length", "file-name", "file-missing", "unreadable"}
_OF_THE_WHEEL = ("timer-wheel", "timer-slot", "timer-slots", "timer-log")


class TimerPlan:
    """Plans the actions on timer log, wheel and timercheck."""

    def __init__(self, check: StoreCheck):
        self._check, self._disk, self._report = check, check.disk, check.report
        self._log = check.root / timer_log.PATH
        self._wheel = check.root / timer_wheel.PATH
        self._page = check.root / timer_check.PATH

    def is_own(self, finding: Finding) -> bool:
        """Return whether a finding is about the files of timer messages."""
        return finding.kind.startswith("timer-") or finding.file.startswith(
            (f"{self._log}/", str(self._wheel))
        )

    def actions(self) -> Iterator[Action]:
        found = [
            finding for finding in self._report.findings if finding.severity != NOTE and self.is_own(finding)
        ]
        if any(finding.kind == "timer-check" and finding.severity == ERROR for finding in found):
            what = "Take it away: those of the last seven days come once more, and none is passed over."
            yield move_away(self._disk, self._page, what)
        if any(
            finding.kind in _OF_THE_LOG and finding.severity == ERROR and Path(finding.file) != self._wheel
            for finding in found
        ):
            yield from self._without_log()
        elif any(finding.kind in _OF_THE_WHEEL or Path(finding.file) == self._wheel for finding in found):
            yield from self._new_wheel(found)

    def _without_log(self) -> Iterator[Action]:
        """Take timer log and wheel away. The queue also has the waiting messages, and timercheck states which
        were delivered."""
        content = self._disk.read_file(self._page)
        if (
            content is not None
            and len(content) >= timer_check.FILE_BYTES
            and (page := timer_check.decode(content)).log_flushed == 0
        ):
            # A start must see that the timer log ends before it: then it reads the queue from its begin.
            what = (
                "Let it say that there was a timer log, so that a start takes the messages from the "
                "queue again."
            )
            changed = timer_check.encode_page(page._replace(log_flushed=timer_log.SIZE))
            yield Replace(self._page, 0, len(content), what, changed)
        strays = {
            finding.file for finding in self._report.findings if finding.kind in ("stray-file", "file-name")
        }
        for name in reversed(self._disk.list_names(self._log)):
            path = self._log / name
            if not self._disk.is_directory(path) and str(path) not in strays:
                what = (
                    "Take the file away; the next start takes what waits from the queue of timer "
                    "messages again."
                )
                yield move_away(self._disk, path, what)
        if self._disk.exists(self._wheel):
            what = "Take the wheel away, which is made from the timer log."
            yield move_away(self._disk, self._wheel, what)

    def _new_wheel(self, found: list[Finding]) -> Iterator[Action]:
        """Cut the timer log where it ends, and make the wheel from it."""
        ends = sorted(
            (Path(finding.file), finding.offset or 0) for finding in found if finding.kind == "timer-log"
        )
        if ends:
            path, at = ends[0]
            for name in reversed(self._disk.list_names(self._log)):
                if name > path.name:
                    what = "Take the file away: the timer log ends before it."
                    yield move_away(self._disk, self._log / name, what)
            what = "Cut the timer log here; what follows is taken from the queue again."
            yield Cut(path, at, max(0, written_end(self._disk, path) - at), what)
        if any(finding.kind in ("timer-wheel", "unreadable") for finding in found):
            yield move_away(self._disk, self._wheel, "Take the wheel away: it has a wrong length.")
        size = self._check.lists.sizes.get(self._log)
        if size:
            held = written_end(self._disk, self._wheel) if self._is_whole() else 0
            what = "Make the wheel of timer messages from the timer log."
            yield MakeWheel(self._wheel, 0, held, what, size, self._check.log.end)

    def _is_whole(self) -> bool:
        return (
            self._disk.exists(self._wheel)
            and self._disk.size_of(self._wheel) == timer_wheel.SLOTS * timer_wheel.SLOT_BYTES
        )
