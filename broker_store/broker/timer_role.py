"""What a timer does as a master, as a slave, and as a slave that acts for its master.

    master    wheel ──► what is due to its real place
    slave     wheel as far as the master's, without what the master has delivered (`follow`)
    acts      wheel ──► what is due to another master (`act`, `end_acting`)

A master that comes again leaves out what its slave has delivered (`take_newer`): the slots before the slave's
present one, as far as their messages were on the slave's wheel. What the slave never had is delivered late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker_store.broker.loaded_slots import LoadedSlots, WaitingMessage
from broker_store.broker.offsets import RECENT_SAVES, is_outdated
from broker_store.broker.timer_counts import TimerCounts
from broker_store.broker.timer_queue import TimerQueue
from broker_store.broker.timer_request import second_of
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.formats import timer_log
from broker_store.formats.config_json import DataVersion
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_wheel import PRECISION_MS
from broker_store.messages import PutStatus

# Limits of one step of a slave
_MAX_UNITS = 256
_MAX_SECONDS = 1 << 16

# (messages that are due with their records, function for what became of the first of them)
Escape = Callable[[list[tuple[WaitingMessage, bytes]], Callable[[Sequence[PutStatus]], None]], None]


class TimerRole:
    """Loop's thread. `on_change()` is called when there is another thing to do."""

    def __init__(
        self,
        files: TimerFiles,
        slots: LoadedSlots,
        queue: TimerQueue,
        waiting: TimerCounts,
        on_change: Callable[[], None],
    ):
        self._files, self._slots, self._queue, self._waiting = files, slots, queue, waiting
        self._on_change = on_change
        self.follows = False  # a slave does, unless it acts
        self.escape: Escape | None = None  # of a slave that acts: sends what is due
        self.finishes = False  # it ends to act: only the rest of a second that it has begun is sent
        self.has_changed = False
        self.data_version = DataVersion()
        self._knows_master = False  # the master has said once how far it is
        # Of a slave: the first second (ms) whose messages are still counted as waiting, and the unit of that
        # second that comes next
        self._counted_ms = 0
        self._position: int | None = None

    def start(self, check: TimerCheck, delivered_ms: int) -> None:
        """Start with the numbers of the files; slots before `delivered_ms` are delivered."""
        self.data_version = DataVersion(check.state_version, check.counter, check.timestamp)
        self._queue.start()
        self._counted_ms = delivered_ms
        if self.follows:
            self._queue.until = check.master_queue_offset
            self._queue.delivered = [(check.master_queue_offset, delivered_ms)]
            self._slots.start(delivered_ms, ())
            self._knows_master = check.read_ms > 0
        else:
            self._queue.delivered = [(self._files.taken_again_before, delivered_ms)]
            self._begin(delivered_ms)

    def _begin(self, read_ms: int) -> None:
        """Let the slots that are not delivered be loaded when they are near."""
        seconds = (second for second, _ in self._files.pending(read_ms // PRECISION_MS))
        self._slots.start(read_ms, seconds)

    # A slave

    def follow(self, check: TimerCheck) -> None:
        """Take how far the master of this slave is."""
        if not self.follows or not check.read_ms:
            return
        read_ms = second_of(check.read_ms)
        self._slots.start(read_ms, ())
        self._queue.until = check.master_queue_offset
        self._queue.delivered = [(check.master_queue_offset, read_ms)]
        self.data_version = DataVersion(check.state_version, check.counter, check.timestamp)
        self._knows_master = self.has_changed = True
        self._on_change()

    def pass_delivered(self) -> bool:
        """Count what the master has delivered as waiting no more, some of it; return whether there is
        more."""
        until_ms, units = self._slots.read_ms, 0
        if not self._files.log_end:
            self._counted_ms = max(self._counted_ms, until_ms)
        last_ms = min(until_ms, self._counted_ms + _MAX_SECONDS * PRECISION_MS)
        while self._counted_ms < last_ms:
            if self._position is None:
                held_s = self._files.first_held(self._counted_ms // PRECISION_MS, last_ms // PRECISION_MS)
                self._counted_ms = held_s * PRECISION_MS
                if self._counted_ms >= last_ms:
                    break
                slot = self._files.slot(self._counted_ms // PRECISION_MS)
                self._position = timer_log.NONE if slot is None else slot.last
            while self._position != timer_log.NONE:
                if units == _MAX_UNITS:
                    return True
                units += 1
                unit = self._files.unit(self._position)
                if unit is not None and (not unit.magic & timer_log.DELETE or unit.magic & timer_log.ROLL):
                    self._waiting.remove(unit.topic_hash, self._counted_ms)
                self._position = timer_log.NONE if unit is None else unit.previous
            self._position = None
            self._counted_ms += PRECISION_MS
        return self._counted_ms < until_ms

    # An acting slave

    def act(self, escape: Escape) -> bool:
        """Go on where the master was, with `escape`. Return False, and do nothing, if the master has never
        said where that is."""
        if not self._knows_master or not self.follows:
            return False
        while self.pass_delivered():
            pass
        self.escape, self.follows, self.finishes, self._queue.until = escape, False, False, None
        self._begin(self._slots.read_ms)
        # What changes now is newer than what the master had
        version = self.data_version
        self.data_version = replace(version, counter=version.counter + RECENT_SAVES)
        self.has_changed = True
        self._on_change()
        return True

    def end_acting(self) -> None:
        """Deliver nothing any more. What is being sent now is not counted; a second of which all is sent
        counts as delivered."""
        if self.escape is None:
            return
        self.escape, self.follows, self.finishes, self._queue.until = None, True, False, self._queue.offset
        slot = self._slots.get(self._slots.read_ms)
        is_sent = slot is not None and slot.has_begun and slot.is_empty
        read_ms = self._slots.read_ms + (PRECISION_MS if is_sent else 0)
        self._slots.clear()
        self._slots.start(read_ms, ())
        self._counted_ms, self._position = read_ms, None
        self.has_changed = True

    # A master that comes again

    def take_newer(self, check: TimerCheck) -> bool:
        """Leave out what a slave has delivered, unless its numbers are outdated. Return whether they were
        taken."""
        version = DataVersion(check.state_version, check.counter, check.timestamp)
        if is_outdated(version, self.data_version):
            return False
        self._queue.elsewhere = check.master_queue_offset, second_of(check.read_ms)
        self._queue.delivered.append(self._queue.elsewhere)
        if not version.is_older_than(self.data_version):
            self.data_version = version
        self.has_changed = True
        return True
