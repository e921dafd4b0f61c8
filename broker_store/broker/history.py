"""What the broker keeps of its past: samples of its store and its groups, and events of groups.

A worker's step takes a sample every SAMPLE_MS. The last ones stay in memory. Every minute one is written to
the files of `engine/status/samples.py`, with the resets and the changes of members that were noted
meanwhile. Only the notes are made on the loop. A sample that cannot be written is skipped, and `failed` has
the reason; the next one is tried again.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable

from broker_store.broker.clients import Clients
from broker_store.broker.offsets import Offsets
from broker_store.engine.status import samples
from broker_store.engine.status.file_facts import bytes_by_kind
from broker_store.engine.status.lag_offsets import Entry
from broker_store.engine.status.samples import Sample, SampleFiles
from broker_store.engine.store_protocol import Store
from broker_store.errors import StoreError

log = logging.getLogger(__name__)

SAMPLE_MS = 10_000
WRITE_MS = 60_000
FINE_MS = 15 * 60_000  # for which samples stay in memory
MAX_NOTES = 1_000  # between two steps
CLIENTS_NAMED = 5  # clients by name in one event


class History:
    """`step(now_ms)` is called by a worker, `note_..` on the loop, and reading functions in any thread."""

    def __init__(
        self,
        store: Store,
        offsets: Offsets,
        clients: Clients,
        files: SampleFiles,
        *,
        entries: Callable[[], Iterable[Entry]],
        clock: Callable[[], int],
    ):
        self._store, self._clock = store, clock
        self._entries = entries  # the offsets from which lags are counted
        self.files = files
        self.left_out = 0  # series beyond the limit
        self.failed: str | None = None
        # Each call on a deque is atomic, so no lock is needed that could make the loop wait for a background
        # thread.
        self._fine: deque[tuple[int, tuple[str, ...], array]] = deque()
        self._notes: deque[dict] = deque(maxlen=MAX_NOTES)
        self._written_ms = 0
        offsets.on_reset = self.note_reset
        clients.on_members_changed = self.note_members

    # Notes (loop) ---------------------------------------------------------------------------------

    def note_reset(self, group: str, topic: str, queue_id: int, before: int | None, after: int) -> None:
        """Note that a group's offset was set by a reset, not by its consumers."""
        self._notes.append(
            {
                "at_ms": self._clock(),
                "group": group,
                "kind": "reset",
                "topic": topic,
                "queue_id": queue_id,
                "before": before,
                "after": after,
            }
        )

    def note_members(self, group: str, joined: list[str], left: list[str], clients: int) -> None:
        """Note that members of a group joined or left, after which its members distribute the queues
        again."""
        named = {"joined": joined[:CLIENTS_NAMED], "left": left[:CLIENTS_NAMED]}
        self._notes.append(
            {
                "at_ms": self._clock(),
                "group": group,
                "kind": "rebalance",
                "clients": clients,
                "came": len(joined),
                "went": len(left),
                **named,
            }
        )

    # Sampling (a worker's thread) -----------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Take a sample, and write it when it is due."""
        try:
            # The interval also ends when the clock is set back, which must not stop the writing.
            is_due = not 0 <= now_ms - self._written_ms < WRITE_MS - SAMPLE_MS // 2
            values = self._measure(is_due)
            self._keep(now_ms, values)
            if is_due:
                self._written_ms = now_ms
                self.files.append(Sample(now_ms, WRITE_MS, values))
            self.write_events()
            self.failed = None
        except StoreError as error:
            if self.failed is None:
                log.warning("a sample is missing: %s", error)
            self.failed = str(error)
        return False

    def write_events(self) -> None:
        """Write the notes to their file. Raises StoreError, and keeps the notes."""
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        if not notes:
            return
        try:
            self.files.append_events(notes)
        except StoreError:
            self._notes.extendleft(reversed(notes))
            raise

    def _keep(self, now_ms: int, values: dict[str, int]) -> None:
        """Keep a sample in memory as numbers: up to 5,000 names are the same from sample to sample and
        shared."""
        names = tuple(values)
        if self._fine and self._fine[-1][1] == names:
            names = self._fine[-1][1]
        self._fine.append((now_ms, names, array("q", values.values())))
        while self._fine[0][0] < now_ms - FINE_MS:
            self._fine.popleft()

    def _measure(self, with_files: bool) -> dict[str, int]:
        store = self._store
        usage = store.disk.usage(store.root)
        values = {
            samples.LOG_END: store.log.wrote,
            samples.LOG_MINIMUM: store.log.minimum,
            samples.DISK_FREE: usage.free,
            samples.DISK_TOTAL: usage.total,
        }
        if with_files:
            values[samples.OWN_BYTES] = sum(
                bytes_by_kind(store.disk, store.root, store.log.directory).values()
            )
        left_out = 0
        for group, topic, queues in self._entries():
            for queue_id, at in queues.items():
                if len(values) + 3 > samples.MAX_SERIES:
                    left_out += 1
                    continue
                values[samples.position_of(group, topic, queue_id)] = at
                values[samples.maximum_of(topic, queue_id)] = store.reads.max_offset(topic, queue_id)
                values[samples.minimum_of(topic, queue_id)] = store.reads.min_offset(topic, queue_id)
        self.left_out = left_out
        return values

    # Reading --------------------------------------------------------------------------------------

    def read(self, wanted: Callable[[str], bool], from_ms: int) -> list[Sample]:
        """Return the samples since `from_ms`: one a minute or fewer, and more for the last minutes."""
        fine = []
        for at_ms, names, values in self._fine.copy():
            if at_ms >= from_ms:
                fine.append(
                    Sample(
                        at_ms,
                        SAMPLE_MS,
                        {name: value for name, value in zip(names, values, strict=True) if wanted(name)},
                    )
                )
        until = fine[0].at_ms if fine else None
        return [
            sample for sample in self.files.read(wanted, from_ms) if until is None or sample.at_ms < until
        ] + fine

    def events(self, group: str, from_ms: int) -> list[dict]:
        waiting = [note for note in self._notes.copy() if note["group"] == group and note["at_ms"] >= from_ms]
        return self.files.events(group, from_ms) + waiting
