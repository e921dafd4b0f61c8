"""Removal of old files, and detection of log files that were removed from outside.

    worker   `step`: the lock, the names of the log files, disk use ──► wake
    loop     flags; then delete, a file at a time, since the loop owns the tables

`engine/retention/retention.py` decides what goes and when.
"""

from __future__ import annotations

import itertools

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.retention.retention import Decision
from broker_store.engine.store_parts import StoreParts
from broker_store.errors import StoreError, StoreLockedError, SyncError


class Cleaning:
    """Loop's thread, except `step`."""

    def __init__(self, parts: StoreParts):
        self._disk, self._settings = parts.disk, parts.settings
        self._log, self._queues, self._index, self._reads = parts.log, parts.queues, parts.index, parts.reads
        self._retention, self._round_flusher = parts.retention, parts.round_flusher
        self._ends, self._tombstones, self._damage = parts.ends, parts.tombstones, parts.damage
        self._state, self._confirmation = parts.state, parts.confirmation
        self._lock, self._clock, self._wake = parts.lock, parts.clock, parts.wake
        # Bases of the log files that are old enough to be deleted. The worker replaces the whole set.
        self.expired: frozenset[int] = frozenset()

    # The worker's step

    def step(self, now_ms: int) -> bool:
        """Check lock and files, decide, and pass the decision to the loop. Worker's step. Raises
        StoreLockedError, and SyncError for a log file that was replaced: both end the process's writing."""
        self._check_lock()
        # Each sync of the log checks it too, but without messages there is none.
        self._log.current.map().require_in_place()
        try:
            older = [file.path.name for file in self._log.files[:-1]]
            names = set(self._disk.list_names(self._log.directory))
            self._wake(lambda: self._name_removed([name for name in older if name not in names]))
            decision = self._retention.decide(now_ms)
            self.expired = self._expired_now(now_ms)
        except StoreError:
            return False  # nothing is known now, and the next step is soon
        self._wake(lambda: self.apply_decision(decision))
        return False

    def _check_lock(self) -> None:
        """Check that the lock's file is in place. Raises StoreLockedError. Another failure, such as a full
        disk, may pass: a flag reports it until then."""
        lock = self._lock()
        assert lock is not None  # workers run while the store is held
        try:
            lock.require_in_place()
        except StoreLockedError:
            raise
        except StoreError as error:
            cause = (
                f"the lock was removed and cannot be made again, so another process could open the "
                f"store: {error}"
            )
            self._wake(lambda: self._state.set_flag("lock_gone", cause))
        else:
            self._wake(lambda: self._state.clear_flag("lock_gone"))

    def _expired_now(self, now_ms: int) -> frozenset[int]:
        """Return the bases of the log files that are old enough to be deleted, from the oldest on, which is
        the order of deletion."""
        expired = itertools.takewhile(
            lambda file: self._retention.is_expired(self._disk.modified_ms(file.path), now_ms),
            self._log.files[:-1],
        )
        return frozenset(file.base for file in expired)

    # On the loop

    def _name_removed(self, names: list[str]) -> None:
        """Set the flag of removed log files. `names` were missing from the directory; files that retention
        removed are no longer in `log.files`."""
        here = {file.path.name for file in self._log.files}
        gone = [name for name in names if name in here]
        if not gone:
            self._state.clear_flag("log_file_gone")
            return
        what = (
            f"commitlog/{gone[0]} is"
            if len(gone) == 1
            else f"commitlog/{gone[0]} and {len(gone) - 1:,} more log files are"
        )
        self._state.set_flag(
            "log_file_gone",
            f"{what} not there: what is mapped can be read until the broker stops, and then it is "
            f"lost; put the file back, or copy its messages now",
        )

    def apply_decision(self, decision: Decision) -> None:
        """Set the flags of a decision, or clear them when their cause is gone, and delete the files that it
        names."""
        if decision.disk_full:
            self._state.set_flag("disk_full", decision.why)
        else:
            self._state.clear_flag("disk_full")
            self._state.clear_flag("no_room")
        if self._disk.spare_maps() > 0:
            self._state.clear_flag("map_limit")
        if not decision.delete_any:
            self._state.clear_flag("deleted_early")
        if decision.delete_expired or decision.delete_any:
            self._delete_files(decision.delete_any, decision.why)

    def clean_expired(self) -> None:
        """Delete the log files that are older than fileReservedTime now, at any hour, for an administrator.

        No file is deleted before its time by this, however full the disk is. A failure becomes a flag.
        """
        self._delete_files(any_age=False, why="an administrator asked for it")

    def _delete_files(self, any_age: bool, why: str) -> None:
        if not self._state.is_open:
            return
        try:
            self.delete_expired(any_age=any_age, why=why)
            self._state.clear_flag("cleaning_failed")
        except SyncError as error:
            self._confirmation.stop_writing(str(error))
        except StoreError as error:
            self._state.set_flag("cleaning_failed", str(error))

    def delete_expired(
        self, any_age: bool = False, most: int | None = None, why: str = "it was asked for"
    ) -> int:
        """Remove log files that are too old (or the oldest of any age), then queue and index files that only
        pointed to them. Return how many log files were removed.

        For a file that is removed before its time a flag is set with the reason `why`: its messages may be
        unread (docs/durability.md R13). Raises StoreError.
        """
        removed = 0
        now_ms = self._clock()
        most = self._settings.delete_file_batch_max if most is None else most
        # Units and entries of what is removed must be on the disk: after a power cut they could not be built
        # again. And a younger record must stay on the disk: by its time the next start sees that nothing
        # which the stamps cover is missing.
        safe_to = self._round_flusher.position or 0
        going: list[MappedFile] = []
        for file in self._log.files[: min(most, len(self._log.files) - 1)]:
            if file.end >= safe_to or file.flushed < file.size:
                break
            if not any_age and not self._retention.is_expired(self._disk.modified_ms(file.path), now_ms):
                break
            going.append(file)
        # The record of ends first: a later start counts a log that begins after the recorded begin as
        # damaged. On a full disk the removal of the first file makes room for the record.
        if going and not self._ends.raise_minimum(going[-1].end):
            going = going[:1]
        try:
            for file in going:
                is_expired = self._retention.is_expired(self._disk.modified_ms(file.path), now_ms)
                # Unlink first: a file that cannot be removed stays in the tables too, or a later start would
                # find a gap.
                self._disk.unlink(file.path)
                self._log.drop_first()
                self._reads.forget(file.base)
                file.unmap()
                removed += 1
                if not is_expired:
                    self._state.set_flag(
                        "deleted_early",
                        f"{why}: the oldest log files are deleted before their time, read or not",
                    )
        finally:
            if removed:
                self._disk.sync_directory(self._log.directory)
                self._ends.raise_minimum(self._log.minimum)
                self._correct_tables()
        return removed

    def _correct_tables(self) -> None:
        """Remove the queue and index files that only pointed to what went."""
        minimum = self._log.minimum
        self._damage.cleaned_below(minimum)
        for queue in self._queues:
            for file in queue.files_before(minimum):
                self._disk.unlink(file.path)
                queue.drop(file)
            queue.correct_minimum(minimum)
        for file in self._index.files_before(minimum):
            self._disk.unlink(file.path)
            self._index.drop_first()
            file.unmap()
        self._tombstones.drop_below(minimum)
