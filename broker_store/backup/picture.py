"""A consistent picture of a store, taken from its files while the broker runs; the broker is not asked.

    1  closed log files     linked or cloned, else copied
    2  checkpoint, then the record of ends
    3  queues, index, timer files, config, what belongs to the dashboard
    4  wait                 until the broker has synced its log beyond all that 2 and 3 may name
    5  the rest of the log  up to what is on the disk; zeros after it, as in a fresh file
    6  recovery             of the copy (recovered.py), so it is a store that was closed in order
    7  sums, shared files, sync, manifest

The log comes first and last. What retention deletes after 1 is kept by 1; a file that it deletes before lies
below the begin that the record of ends of 2 states, so recovery expects none. Whatever queues, index and
config of 3 name lies before the end of 5. So the copy is a state that a crash could have left: each page of
its files was there at a moment after the checkpoint of 2, and the log is whole. Recovery makes a store of it
(docs/durability.md G20).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from broker_store import __version__
from broker_store.backup import manifest
from broker_store.backup.copying import Copier
from broker_store.backup.log_files import LogFiles
from broker_store.backup.manifest import Manifest
from broker_store.backup.other_files import OtherFiles
from broker_store.backup.recovered import LogRange, recover
from broker_store.backup.source import Source, SourceStore, now_ms
from broker_store.backup.sums import Sums
from broker_store.backup.target import Target
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.disk.mapped_file import file_name
from broker_store.errors import DamagedStoreError


class Picture:
    """One backup, into a directory that is empty or absent. `earlier` is the backup whose files it shares;
    `may_link` False copies all, so the backup shares no block with the store."""

    def __init__(
        self,
        source: Source,
        target: Path,
        disk: Disk,
        copier: Copier,
        *,
        earlier: Path | None = None,
        may_link: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._source, self._disk, self._copier = source, disk, copier
        self._target = Target(target, disk, copier, earlier=earlier, may_link=may_link)
        self._store = SourceStore(source, disk, copier, sleep)
        self._log = LogFiles(source, self._target)
        self._others = OtherFiles(source, self._target)

    def take(self) -> Manifest:
        """Take the picture. Raises StoreError: the directory is then no whole backup."""
        source, directory, log, others = self._source, self._target.directory, self._log, self._others
        started_ms = now_ms()
        self._target.require_empty()
        with self._store.held() as live:
            closed_to = self._store.closed_to(live)
            self._estimate(closed_to)
            self._target.make(directory / manifest.STORE / "commitlog")
            log.take_closed(closed_to)
            others.copy_root(live)
            for copy in (others.copy_queues, others.copy_index, others.copy_timer_and_config):
                copy()
                if live is not None:  # log files that were closed meanwhile, before retention is at them
                    log.take_closed(self._store.now().flushed)
            others.copy_others()
            taken_ms = now_ms()
            live = self._store.synced(live)
            end = log.take_rest(live)
        database = source.save_database(directory)
        kept = self._recover(end)
        files = Sums(self._target).files()
        self._copier.begin("bring all of it to the disk")
        self._disk.sync_file_system(directory)
        settings, earlier = source.settings, self._target.earlier_directory
        made = Manifest(
            version=manifest.VERSION,
            program=__version__,
            store=str(source.root),
            of_running_broker=live is not None,
            started_ms=started_ms,
            taken_ms=taken_ms,
            finished_ms=now_ms(),
            log_begin=kept.begin,
            log_end=kept.end,
            sizes=FileSizes(
                mapped_file_size_commit_log=settings.mapped_file_size_commit_log,
                mapped_file_size_consume_queue=settings.mapped_file_size_consume_queue,
                max_hash_slot_num=settings.max_hash_slot_num,
                max_index_num=settings.max_index_num,
            ),
            timer_log_file_bytes=settings.mapped_file_size_timer_log,
            delay_levels=settings.message_delay_level,
            earlier=None if earlier is None else earlier.name,
            database=database,
            notes=list(source.notes),
            files=files,
        )
        manifest.write(self._disk, directory, made)
        self._disk.sync_directory(directory.parent)
        return made

    def _estimate(self, closed_to: int) -> None:
        """Set what progress counts to, and check that what must be copied has room."""
        closed, rest, copied_of_closed = self._log.sizes(closed_to)
        copied = self._others.allocated_bytes() + rest
        self._copier.require_room(
            self._target.directory, copied + copied_of_closed, f"a backup of {self._source.root}"
        )
        self._copier.total_bytes = closed + 2 * copied

    def _recover(self, end: int | None) -> LogRange:
        """Make the copy a store that was closed in order. Return where its log begins and ends. Raises
        StoreError when the log ends before `end`."""
        self._copier.begin("recovery of the copy")
        settings = self._source.settings
        found = recover(self._disk, self._target.directory / manifest.STORE, settings)
        if end is not None and found.end < end:
            in_file = found.end % settings.mapped_file_size_commit_log
            raise DamagedStoreError(
                f"the log of the backup ends at {found.end:,}, and {end:,} was on the disk",
                file=str(self._source.log_directory / file_name(found.end - in_file)),
                offset=in_file,
                advice=f"To see what is wrong with the store: manage.py check_store {self._source.root}",
            )
        return found
