"""Messages with a delivery time (docs/spec/store-behaviour.md section 9).

    send with TIMER_*  ──► record in rmq_sys_wheel_timer, with its second in TIMER_OUT_MS and its real place
                       in REAL_*
    step(now) enqueues ──► a unit of the timer log, in the slot of its second
                           (engine/timer/timer_files.py)
              loads    ──► the units of a second that is near, with their messages' times (`LoadedSlot`)
              delivers ──► the message to its real place, or to the timer topic again when it was only rolled

The wheel has a slot for each second, and each message a unit in the timer log. The units of a second are a
chain from newest to oldest, each naming the one before it:

    wheel      │ slot of 12:00:07: first, last, count │ slot of 12:00:08 │ ...         a ring of two weeks
                                 │      │
                                 │      └──────────────────────┐
                                 ▼                             ▼
    timer log  │ unit │ unit │ unit A │ unit │ unit B ─► A │ unit C ─► B │ unit │      ─► previous
                                 │               │             │
                                 ▼               ▼             ▼
    commit log │ ... records of the timer topic; a unit has the log offset and the size of its record ...

A slot holds the messages that are due after its time, by at most a second. Apache's broker delivers all of
them at the end of that second. Here each message is delivered at its own millisecond: at the requested time,
or at the time when it was stored plus the requested delay. It is never delivered earlier, and never later
than Apache's broker would. A rolled message with a requested delay comes at that latest moment, since the
time at which it was first stored is not known any more.

What was enqueued and which slots are delivered is saved once a second (`capture`), when the log is synced as
far. After a crash the messages delivered since are delivered again, as by Apache's broker: at most those of
two seconds and the time of a sync. A stop in order first delivers the rest of a slot that it has begun, so
nothing is delivered twice.

What a slave does of this: `timer_role.py`.

A request to delete carries a message's unique key in TIMER_DEL_UNIQKEY and is put in the same slot. A message
of the slot with that key is dropped if it is not delivered yet. A message that arrives for a slot that is
over is put in the slot that is delivered now.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Sequence

from broker_store.broker.loaded_slots import LoadedSlot, LoadedSlots, WaitingMessage
from broker_store.broker.skipped_records import SkippedTimerRecords
from broker_store.broker.step_pacing import PAUSE_MS, RETRY_MS
from broker_store.broker.timer_admission import TimerAdmission
from broker_store.broker.timer_counts import TimerCounts, TimerFacts
from broker_store.broker.timer_queue import MAX_BYTES_PER_STEP, TimerQueue
from broker_store.broker.timer_request import rolled, second_of
from broker_store.broker.timer_role import TimerRole
from broker_store.engine.store_protocol import Store
from broker_store.engine.timer.timed import read_timed
from broker_store.formats import timer_log
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.timer_wheel import BLANK_SLOTS, PRECISION_MS, WINDOW_SLOTS
from broker_store.formats.topics import FORBIDDEN_TO_SEND
from broker_store.messages import FINAL, PutStatus

# Limits of one step, so that it takes the loop for a millisecond or two. The next step continues.
MAX_LOADED_PER_STEP = 64
MAX_DELIVERED_PER_STEP = 128


class Timer:
    """The timer messages of one broker. All methods run on the event loop.

    The settings are Apache's timerWheelEnable, timerRollWindowSlot and, as `limits`, those of
    `TimerAdmission`. `on_ready()` requests a step as soon as possible. The watcher of the timer topic calls
    `on_arrival()`, which requests a step soon.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int],
        enabled: bool = True,
        window_ms: int = 2 * 86_400_000,
        **limits,
    ):
        self._store, self._clock = store, clock
        self._files = store.timer_files
        self.enabled = enabled
        self.admission = TimerAdmission(self._files, clock=clock, enabled=enabled, **limits)
        self.slots = LoadedSlots(self._files)
        self._skipped = SkippedTimerRecords(store)
        self._reading = self._watched = False
        self._retry_ms = self._pause_until_ms = 0
        self._changed = False
        self.waiting = TimerCounts(clock)
        self.counts = {"enqueued": 0, "delivered": 0, "rolled": 0, "deleted": 0, "dropped": 0, "failures": 0}
        self.queue = TimerQueue(
            store,
            self.slots,
            self.waiting,
            self._skipped,
            self.counts,
            clock=clock,
            window_ms=window_ms,
        )
        self.queue.on_read = lambda: self.on_ready()
        self.role = TimerRole(self._files, self.slots, self.queue, self.waiting, lambda: self.on_ready())
        self.on_ready: Callable[[], None] = lambda: None
        self.on_arrival: Callable[[], None] = lambda: None
        self.on_delivered: Callable[[Sequence[tuple[str, int, int]]], None] = lambda stored: None

    # Starting -------------------------------------------------------------------------------------

    def start(self, topics: Iterable[str] = ()) -> None:
        """Start from the numbers in the files. `topics` are the names that may wait, since the wheel has only
        their hashes."""
        if not self.enabled:
            return
        check = self._files.check
        now_ms = self._clock()
        oldest_ms = second_of(now_ms) - (WINDOW_SLOTS - BLANK_SLOTS) * PRECISION_MS
        delivered_ms = max(second_of(check.read_ms), oldest_ms)
        self.role.start(check, delivered_ms)
        self.waiting.start(topics, *self._files.count_from(delivered_ms // PRECISION_MS))

    # Steps ----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Deliver what is due, load what is near, enqueue what arrived.

        Returns when to call again (ms); None when `on_arrival` or `on_ready` will request it.
        """
        if self._reading or self.queue.is_reading:
            return None
        if self._retries_ms > now_ms:
            return self._retries_ms
        if self.role.follows:
            works: tuple[Callable[[int], None], ...] = (self.queue.step,)
        else:
            self._pass(now_ms)
            self.slots.open_near(now_ms)
            works = (self._deliver, self._load, self.queue.step)
        for work in works:
            work(now_ms)
            if self._reading or self.queue.is_reading:
                return None
            if self._retries_ms > now_ms:
                return self._retries_ms
        if self.role.follows and self.role.pass_delivered():
            return now_ms
        return self._next_ms(now_ms)

    @property
    def _retries_ms(self) -> int:
        return max(self._retry_ms, self.queue.retry_ms)

    def _next_ms(self, now_ms: int) -> int | None:
        is_behind = self.queue.is_behind
        if self._watched == is_behind:
            self._watched = not is_behind
            (self._store.confirmation.unwatch if is_behind else self._store.confirmation.watch)(
                TIMER_TOPIC, 0
            )
        if is_behind:
            return now_ms
        open_ms = self.slots.next_open_ms()
        times = [] if open_ms is None else [open_ms]
        for slot in self.slots.in_order():
            if self.role.finishes and not slot.has_begun:
                break
            if not slot.is_loaded:
                return now_ms
            # An empty slot is passed when its second is over.
            times.append(
                max(slot.slot_ms, slot.waiting[0].due_ms, self._paused_until(now_ms))
                if slot.waiting
                else slot.slot_ms + PRECISION_MS
            )
        return max(now_ms, min(times)) if times else None

    def _pass(self, now_ms: int) -> None:
        self._changed |= self.slots.pass_finished(now_ms)

    # Loading --------------------------------------------------------------------------------------

    def _load(self, now_ms: int) -> None:
        slot = next((slot for slot in self.slots.in_order() if not slot.is_loaded), None)
        if slot is None:
            return
        units: list[timer_log.TimerUnit] = []
        position = slot.next
        while position != timer_log.NONE and len(units) < MAX_LOADED_PER_STEP:
            unit = self._files.unit(position)
            if unit is None:  # its file was deleted with the messages
                position = timer_log.NONE
                break
            units.append(unit)
            position = unit.previous
        offsets = [unit.log_offset for unit in units]
        self._with_records(
            offsets, now_ms, lambda records, now_ms: self._take_units(slot, units, position, records)
        )

    def _with_records(
        self, offsets: list[int], now_ms: int, take: Callable[[list[bytes | None], int], None]
    ) -> None:
        """Call `take` with the records at these log offsets, now or when the disk has delivered them."""

        def taken(records: list[bytes | None] | None, now_ms: int) -> None:
            if records is None:
                self._retry_ms = now_ms + RETRY_MS
            else:
                take(records, now_ms)

        def arrived(records: list[bytes | None] | None) -> None:
            self._reading = False
            taken(records, self._clock())
            self.on_ready()

        records = self._store.reads.records.get_records(offsets, arrived)
        if records is None:
            self._reading = True
        else:
            taken(records, now_ms)

    def _take_units(self, slot: LoadedSlot, units: list, following: int, records: list[bytes | None]) -> None:
        if self.slots.get(slot.slot_ms) is not slot:
            return  # a slave ended to act meanwhile
        slot.next = following
        here = [(unit, raw) for unit, raw in zip(units, records, strict=True) if raw is not None]
        for unit, raw in zip(units, records, strict=True):
            if raw is None:
                self._drop(slot, unit)
        joined = b"".join([raw for _, raw in here])
        for (unit, _), row in zip(here, read_timed(joined, len(here)), strict=True):
            if self.queue.was_passed(unit, row, slot.slot_ms):
                self._changed = True
                self.waiting.remove(unit.topic_hash, slot.slot_ms)
            elif row.is_sound:
                self.slots.take(slot, row, joined, unit.magic, unit.write_ms)
            else:
                self._drop(slot, unit)

    # Delivering -----------------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> None:
        if self._paused_until(now_ms) > now_ms:
            return
        for slot in self.slots.in_order():
            if slot.slot_ms > now_ms or not slot.is_loaded or (self.role.finishes and not slot.has_begun):
                return
            slot.in_hand += self._take_due(slot, now_ms)
            if slot.in_hand:
                offsets = [each.log_offset for each in slot.in_hand]
                self._with_records(offsets, now_ms, functools.partial(self._put, slot))
                return
            if slot.waiting:
                return

    def _take_due(self, slot: LoadedSlot, now_ms: int) -> list[WaitingMessage]:
        """Take the next due messages out of a slot; none while others are in hand."""
        due: list[WaitingMessage] = []
        size = 0
        while (
            not slot.in_hand
            and slot.waiting
            and slot.waiting[0].due_ms <= now_ms
            and len(due) < MAX_DELIVERED_PER_STEP
            and size < MAX_BYTES_PER_STEP
        ):
            due.append(heapq.heappop(slot.waiting))
            size += due[-1].size
        if due:
            is_behind = slot.slot_ms + PRECISION_MS <= now_ms or (
                bool(slot.waiting) and slot.waiting[0].due_ms <= now_ms
            )
            self._pause_until_ms = 0 if is_behind else now_ms + PAUSE_MS
        return due

    def _paused_until(self, now_ms: int) -> int:
        # A pause that ends later than a pause lasts means that the clock was set back: ignore it
        return self._pause_until_ms if self._pause_until_ms <= now_ms + PAUSE_MS else 0

    def _put(self, slot: LoadedSlot, records: list[bytes | None], now_ms: int) -> None:
        if self.slots.get(slot.slot_ms) is not slot:
            return  # a slave ended to act meanwhile
        due, slot.in_hand = slot.in_hand, []
        self.slots.loaded -= len(due)
        self._changed = True
        goes: list[tuple[WaitingMessage, bytes]] = []
        for each, raw in zip(due, records, strict=True):
            if raw is None:
                self._drop(slot, each)
            elif slot.is_deleted(raw):
                self._gone("deleted", each.topic_hash, slot.slot_ms)
            elif each.rolls and self.role.escape is None:
                self._roll(slot, each, raw, now_ms)
            else:
                goes.append((each, raw))
        if not goes:
            return
        if self.role.escape is not None:
            slot.in_hand, self._reading = [each for each, _ in goes], True
            self.slots.loaded += len(goes)
            self.role.escape(goes, functools.partial(self._escaped, slot))
            return
        moved = self._store.appender.put_waited(
            b"".join([raw for _, raw in goes]),
            len(goes),
            TIMER_TOPIC,
            FORBIDDEN_TO_SEND,
            [each.write_ms for each, _ in goes],
        )
        late_ms = 0
        for (each, _), status in zip(goes, moved.statuses, strict=True):
            if status is PutStatus.PUT_OK:
                late_ms = max(late_ms, now_ms - each.due_ms)
            else:
                self._not_put(slot, each, status, now_ms)
        if moved.stored:
            for topic, messages, _ in moved.stored:
                slot.delivered += messages
                self.counts["delivered"] += messages
                self.waiting.add(topic, slot.slot_ms, -messages)
            self.waiting.note_lateness(late_ms, now_ms)
            self.on_delivered(moved.stored)

    def _escaped(self, slot: LoadedSlot, statuses: Sequence[PutStatus]) -> None:
        """Count what another broker has stored of what is in hand, from the first on."""
        self._reading = False
        if self.slots.get(slot.slot_ms) is slot:
            now_ms, (sent, slot.in_hand) = self._clock(), (slot.in_hand, [])
            self.slots.loaded -= len(sent)
            self._changed = True
            not_sent = [PutStatus.SERVICE_NOT_AVAILABLE] * (len(sent) - len(statuses))
            for each, status in zip(sent, [*statuses, *not_sent], strict=True):
                if status is PutStatus.PUT_OK:
                    slot.delivered += 1
                    self._gone("rolled" if each.rolls else "delivered", each.topic_hash, slot.slot_ms)
                    self.waiting.note_lateness(now_ms - each.due_ms, now_ms)
                else:
                    self._not_put(slot, each, status, now_ms)
        self.on_ready()

    def _not_put(self, slot: LoadedSlot, each: WaitingMessage, status: PutStatus, now_ms: int) -> None:
        if status in FINAL:
            self._drop(slot, each)
        else:
            self.counts["failures"] += 1
            self._retry_ms = now_ms + RETRY_MS
            self.slots.add(slot, each)

    def _roll(self, slot: LoadedSlot, each: WaitingMessage, raw: bytes, now_ms: int) -> None:
        """Store a message whose time is beyond the wheel's window in the timer topic again."""
        put = self._store.appender.put(rolled(raw, each.write_ms, now_ms))
        if put.ok:
            slot.delivered += 1
            self._gone("rolled", each.topic_hash, slot.slot_ms)
        else:
            self._not_put(slot, each, put.status, now_ms)

    # State ----------------------------------------------------------------------------------------

    def _drop(self, slot: LoadedSlot, each: WaitingMessage | timer_log.TimerUnit) -> None:
        self._skipped.not_delivered(each.log_offset)
        self._gone("dropped", each.topic_hash, slot.slot_ms)

    def _gone(self, what: str, topic_hash: int, slot_ms: int) -> None:
        """Count a message that does not wait any more and was not delivered."""
        self.counts[what] += 1
        self._changed = True
        self.waiting.remove(topic_hash, slot_ms)

    @property
    def has_begun_a_slot(self) -> bool:
        """True if a slot is delivered in part: after a stop now, a start would deliver all of it again."""
        return any(slot.has_begun and not slot.is_empty for slot in self.slots.in_order())

    def has_delivered(self, queue_offset: int, until_ms: int) -> bool:
        """True if the messages before an offset of the timer topic are delivered, as far as they were due at
        `until_ms`."""
        is_read = self.queue.offset >= queue_offset and not self._reading and not self.queue.is_reading
        return not self.enabled or (is_read and self.slots.has_delivered(until_ms))

    def check(self) -> TimerCheck:
        """Return the numbers of now."""
        version, offset = self.role.data_version, self.queue.offset
        stated = offset if self.queue.until is None else self.queue.until
        return TimerCheck(
            self.slots.read_ms,
            self._files.log_end,
            offset,
            stated,
            version.state_version,
            version.timestamp,
            version.counter,
        )

    def stated(self) -> TimerCheck:
        """Return the numbers for brokers of this name, as the answer to GET_TIMER_CHECK_POINT has them.

        A master states what a power cut leaves it, so that what it loses does not count as delivered. A slave
        has delivered elsewhere.
        """
        check = self.check()
        saved = self._files.check
        if self.role.follows or self.role.escape is not None or not saved.read_ms:
            saved = check
        return saved._replace(read_ms=min(saved.read_ms, self.queue.undelivered_ms()))

    def capture(self, *, ending: bool = False) -> None:
        """Save the numbers of now as soon as the log is synced as far. With `ending` an empty slot counts as
        delivered."""
        if not self.enabled:
            return
        if not self.role.follows:
            self._pass(self._clock())
        slot = self.slots.get(self.slots.read_ms)
        ends_slot = ending and slot is not None and slot.delivered > 0 and slot.is_empty
        has_changed = self._changed or self.queue.has_changed or self.role.has_changed
        if not has_changed and not ends_slot:
            return
        self._changed = self.queue.has_changed = self.role.has_changed = False
        if not self.role.follows:
            self.role.data_version = self.role.data_version.next(self._clock())
        check = self.check()
        if ends_slot:
            check = check._replace(read_ms=self.slots.read_ms + PRECISION_MS)
        self._files.save(check, self._store.log.wrote)

    def clean(self) -> None:
        """Remove files of the timer log whose messages are gone."""
        if self.enabled:
            self._files.delete_before(self._store.log.minimum)

    def facts(self) -> TimerFacts:
        now_ms, waiting = self._clock(), self.waiting.facts()
        due = [slot for slot in self.slots.in_order() if slot.slot_ms <= now_ms]
        oldest_ms = min((slot.waiting[0].due_ms for slot in due if slot.waiting), default=now_ms)
        return TimerFacts(
            enabled=self.enabled,
            waiting=waiting.messages,
            hours=waiting.hours,
            topics=waiting.topics,
            not_enqueued=max(0, self._store.reads.max_offset(TIMER_TOPIC, 0) - self.queue.offset),
            due=sum(sum(each.due_ms <= now_ms for each in slot.waiting) for slot in due),
            overdue_ms=max(0, now_ms - oldest_ms),
            late_ms=self.waiting.recent_lateness_ms(now_ms),
            read_ms=self.slots.read_ms,
            queue_offset=self.queue.offset,
            **self.counts,
        )
