"""Status of a running store: positions, flags, totals, files. Cheap; loop's thread unless a docstring says
otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

from broker_store.engine.retention.cleaning import Cleaning
from broker_store.engine.status.file_facts import (
    hung_facts,
    index_file_facts,
    log_file_facts,
    queue_file_facts,
)
from broker_store.engine.status.store_state import (
    DiskSpace,
    Flush,
    Lag,
    LogPositions,
    LostAndFound,
    Sizes,
    Snapshot,
    Stamps,
    StoreFile,
    StorePool,
)
from broker_store.engine.store_parts import StoreParts
from broker_store.kernels import context as c


class StoreStatus:
    """Reads the parts of a store, and changes nothing."""

    def __init__(self, parts: StoreParts, cleaning: Cleaning):
        self._cleaning = cleaning
        self._disk, self._root, self._settings, self._clock = (
            parts.disk,
            parts.root,
            parts.settings,
            parts.clock,
        )
        self._view = parts.context.view
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index
        self._dispatcher, self._appender, self._reads = parts.dispatcher, parts.appender, parts.reads
        self._checkpoint, self._retention = parts.checkpoint, parts.retention
        self._log_flusher, self._round_flusher = parts.log_flusher, parts.round_flusher
        self._committer = parts.committer
        self._state, self._confirmation, self._report = parts.state, parts.confirmation, parts.report

    def positions(self) -> LogPositions:
        """Return the log offsets of now. None for what an inspection cannot know: how much is on the disk."""
        stamps = self._checkpoint.stamps
        is_known = not self._settings.inspect
        return LogPositions(
            min=self._log.minimum,
            wrote=self._log.wrote,
            confirmed=self._confirmation.confirmed,
            committed=None if self._committer is None else self._log.committed,
            flushed=self._log.flushed if is_known else None,
            dispatched=self._dispatcher.dispatched,
            checkpoint_position=self._round_flusher.position if is_known else None,
            checkpoint=Stamps(
                physic_ms=stamps.physic_msg_timestamp,
                logics_ms=stamps.logics_msg_timestamp,
                index_ms=stamps.index_msg_timestamp,
            ),
        )

    def lag_ms(self, position: int) -> int | None:
        """Return the age in ms of the first record at or after a log offset, 0 when there is none yet; None
        when it is not known."""
        if not self._state.is_open:
            return None
        if position >= self._log.wrote:
            return 0
        stored_ms = self._log.stored_ms(position)
        return None if stored_ms is None else max(0, self._clock() - stored_ms)

    @property
    def blocked_by(self) -> tuple[str, int | None, int | None] | None:
        """(the flag for which puts are SERVICE_NOT_AVAILABLE, the value found, its limit); the two numbers
        are None where no number decides. None without such a flag."""
        flag, decision = self._state.blocked_by, self._retention.last
        if flag in ("disk_full", "no_room") and decision is not None and decision.disk_full:
            limit = self._settings.disk_space_warning_level_ratio
            return flag, math.ceil(decision.usage.used_ratio * 100), limit
        return None if flag is None else (flag, None, None)

    def _unflushed_messages(self, unflushed_bytes: int) -> int | None:
        """Return the largest possible number of messages of this run that are not on the disk."""
        if not unflushed_bytes:
            return 0
        messages = self._log_flusher.messages
        return None if messages is None else self._view[c.STORED_COUNT] - messages

    def _lag(self, flushed: int | None) -> Lag:
        """Return what is written and not safe yet; `flushed` is None where that is not known."""
        wrote, committer = self._log.wrote, self._committer
        unflushed = None if flushed is None else wrote - flushed
        committed = None if committer is None else self._log.committed
        return Lag(
            dispatch_bytes=wrote - self._dispatcher.dispatched,
            unflushed_bytes=unflushed,
            oldest_unflushed_ms=None if flushed is None else self.lag_ms(flushed),
            unflushed_messages=None if unflushed is None else self._unflushed_messages(unflushed),
            uncommitted_bytes=None if committed is None else wrote - committed,
            oldest_uncommitted_ms=None if committed is None else self.lag_ms(committed),
            uncommitted_messages=None
            if committer is None
            else 0
            if wrote == committed
            else self._view[c.STORED_COUNT] - committer.messages,
        )

    def _pool(self) -> StorePool | None:
        free = self._log.available_buffers
        if free is None:
            return None
        return StorePool(
            buffers=self._settings.transient_store_pool_size,
            free_buffers=free,
            answers_early=self._confirmation.answers_early,
        )

    def snapshot(self) -> Snapshot:
        """Return all facts that are cheap to know, of one moment."""
        positions = self.positions()
        flusher, settings = self._log_flusher, self._settings
        return Snapshot(
            at_ms=self._clock(),
            state=self._state.value,
            positions=positions,
            lag=self._lag(positions.flushed),
            flags=self._state.facts(),
            flush=Flush(
                type=settings.flush_disk_type,
                count=flusher.count,
                last_duration_ms=flusher.last_duration_ms if flusher.count else None,
                max_duration_ms=flusher.max_duration_ms if flusher.count else None,
                errors=int(self._state.is_set("sync_failed")),
            ),
            totals=self._reads.totals(
                puts=self._view[c.STORED_COUNT],
                put_bytes=self._view[c.STORED_BYTES],
                refused=dict(self._appender.refused),
            ),
            disk=self._disk_space(),
            lost_and_found=self._report.lost_and_found or LostAndFound(),
            queues=len(self._queues),
            commit_log_files=len(self._log.files),
            index=self._index.newest_facts(),
            sizes=Sizes(
                commit_log_file=settings.mapped_file_size_commit_log,
                queue_file=settings.mapped_file_size_consume_queue,
                index_slots=settings.max_hash_slot_num,
                index_entries=settings.max_index_num,
            ),
            pool=self._pool(),
        )

    def _disk_space(self) -> DiskSpace:
        decision = self._retention.last
        if decision is None:
            return DiskSpace()
        usage = decision.usage
        return DiskSpace(total_bytes=usage.total, free_bytes=usage.free, used_ratio=usage.used_ratio)

    def files(self, *kinds: str) -> list[StoreFile]:
        """Return the files of the given kinds (commitlog, consumequeue, index), of all kinds without an
        argument.

        Those of the queues may be thousands.
        """
        facts: list[StoreFile] = []
        if not kinds or "commitlog" in kinds:
            facts += log_file_facts(
                self._log,
                self._confirmation.confirmed,
                self._reads.files_held(),
                self._cleaning.expired,
                self._appender.last_ms,
            )
        if not kinds or "consumequeue" in kinds:
            for queue in self._queues:
                facts += queue_file_facts(queue)
        if not kinds or "index" in kinds:
            facts += index_file_facts(self._index)
        return self._as_known(facts)

    def _as_known(self, facts: list[StoreFile]) -> list[StoreFile]:
        """Return the facts without what an inspection cannot know: how much of a file is on the disk."""
        return [replace(fact, flushed=None) for fact in facts] if self._settings.inspect else facts

    def queue_files(self, topic: str, queue_id: int) -> list[StoreFile]:
        """Return the files of one queue, as `files` does; none for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return [] if queue is None else self._as_known(queue_file_facts(queue))

    @property
    def last_round_duration_ms(self) -> float | None:
        """How long the last sync of queues and index took, in ms."""
        return self._round_flusher.last_duration_ms

    def hung_files(self) -> list[StoreFile]:
        """Return the files that were deleted while this process still holds them, as `files` does. It asks
        the system, so it is not for the loop."""
        return hung_facts(self._disk, self._root, self._log.directory)
