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

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_store import __version__
from broker_store.backup import manifest
from broker_store.backup.copying import Copier, Sum
from broker_store.backup.manifest import Manifest, SavedFile, SourceFile
from broker_store.backup.recovered import LogRange, recover
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.disk.mapped_file import file_name, is_file_name
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.live_page import LivePosition
from broker_store.errors import DamagedStoreError, StoreError, StoreLockedError
from broker_store.formats import index_file, timer_check, timer_log

MAX_WAIT_S = 30.0  # for the broker to sync what was copied: it does so each half second
_POLL_S = 0.02


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is saved. `live` returns the positions of the broker that runs on the store, None without one."""

    settings: StoreSettings
    live: Callable[[], LivePosition | None]
    # Other files of the data directory, as (file, name in the backup); one that is absent is left out
    others: Sequence[tuple[Path, str]] = ()
    # Saves the dashboard's database into the directory; returns the file's name, None where it saves none
    save_database: Callable[[Path], str | None] = lambda directory: None
    notes: Sequence[str] = ()

    @property
    def root(self) -> Path:
        return self.settings.store_path_root_dir

    @property
    def log_directory(self) -> Path:
        assert self.settings.store_path_commit_log is not None  # StoreSettings sets it
        return self.settings.store_path_commit_log


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
        self._source, self._target, self._disk, self._copier = source, target, disk, copier
        self._may_link, self._sleep = may_link, sleep
        self._earlier_directory = earlier
        self._earlier = None if earlier is None else manifest.read(disk, earlier)
        self._file_bytes = source.settings.mapped_file_size_commit_log
        self._pid: int | None = None  # of the broker that runs
        # How each file came into the backup, by its name in it; a closed log file with its source
        self._how: dict[str, str] = {}
        self._sources: dict[str, SourceFile] = {}

    def take(self) -> Manifest:
        """Take the picture. Raises StoreError: the directory is then no whole backup."""
        started_ms = now_ms()
        self._require_empty(self._target)
        with self._held() as live:
            closed_to = self._closed_to(live)
            self._estimate(closed_to)
            self._make(self._target / manifest.STORE / "commitlog")
            self._take_closed(closed_to)
            self._copy_root(live)
            for copy in (self._copy_queues, self._copy_index, self._copy_timer_and_config):
                copy()
                if live is not None:  # log files that were closed meanwhile, before retention is at them
                    self._take_closed(self._now().flushed)
            self._copy_others()
            taken_ms = now_ms()
            live = self._synced(live)
            end = self._take_rest(live)
        database = self._source.save_database(self._target)
        begin, log_end = self._recover(end)
        files = self._summed()
        self._copier.begin("bring all of it to the disk")
        self._disk.sync_file_system(self._target)
        settings = self._source.settings
        made = Manifest(
            version=manifest.VERSION,
            program=__version__,
            store=str(self._source.root),
            of_running_broker=live is not None,
            started_ms=started_ms,
            taken_ms=taken_ms,
            finished_ms=now_ms(),
            log_begin=begin,
            log_end=log_end,
            sizes=FileSizes(
                mapped_file_size_commit_log=settings.mapped_file_size_commit_log,
                mapped_file_size_consume_queue=settings.mapped_file_size_consume_queue,
                max_hash_slot_num=settings.max_hash_slot_num,
                max_index_num=settings.max_index_num,
            ),
            timer_log_file_bytes=settings.mapped_file_size_timer_log,
            delay_levels=settings.message_delay_level,
            earlier=None if self._earlier_directory is None else self._earlier_directory.name,
            database=database,
            notes=list(self._source.notes),
            files=files,
        )
        manifest.write(self._disk, self._target, made)
        self._disk.sync_directory(self._target.parent)
        return made

    # The source -----------------------------------------------------------------------------------

    def _require_empty(self, directory: Path) -> None:
        self._disk.require_directory(directory)
        if self._disk.list_names(directory):
            raise StoreError(
                f"{directory} is not empty: a backup needs a directory of its own. Choose another name; "
                f"remove what is left of an interrupted backup"
            )
        self._disk.make_directory(directory)

    @contextmanager
    def _held(self) -> Iterator[LivePosition | None]:
        """Hold a store on which no broker runs, so that none starts meanwhile. Yield the positions of the
        broker that runs on it, else None."""
        if not self._disk.is_directory(self._source.log_directory):
            raise StoreError(
                f"{self._source.root} is no store: it has no directory commitlog. Name the data directory of "
                f"a broker with --data"
            )
        live = self._source.live()
        if live is not None:
            self._pid = live.pid
            yield live
            return
        try:
            lock = self._disk.lock(self._source.root / "lock")
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{error}, which has not published how far it is: a start or a repair may be under way, or "
                f"Apache's broker runs. Try again when it is done"
            ) from None
        try:
            yield None
        finally:
            lock.release()

    def _now(self) -> LivePosition:
        """Return the positions of the broker that the backup began with. Raises StoreError when it is
        gone."""
        live = self._source.live()
        if live is None or live.pid != self._pid:
            raise StoreError(
                f"{self._source.root}: the broker stopped or was started again during the backup: make the "
                f"backup again"
            )
        return live

    def _closed_to(self, live: LivePosition | None) -> int:
        """Return the log offset below which log files do not change any more."""
        if live is not None:
            return live.flushed
        ends = EndsFile(self._disk, self._source.root / ENDS)
        ends.load()
        return ends.position

    def _synced(self, live: LivePosition | None) -> LivePosition | None:
        """Wait until the broker has synced its log beyond all that was dispatched by now; return its
        positions. Raises StoreError."""
        if live is None:
            return None
        self._copier.begin("wait for the broker's next sync")
        copied_ms, dispatched, waited_s = now_ms(), None, 0.0
        while waited_s < MAX_WAIT_S:
            live = self._now()
            # What the page showed before the last file was copied may be less than what was copied
            if dispatched is None and live.updated_ms > copied_ms:
                dispatched = live.dispatched
            if dispatched is not None and live.flushed >= dispatched:
                return live
            self._sleep(_POLL_S)
            waited_s += _POLL_S
        raise StoreError(
            f"{self._source.root}: the broker has not synced its log for {MAX_WAIT_S:.0f} s: manage.py store "
            f"status shows why"
        )

    # The log --------------------------------------------------------------------------------------

    def _log_files(self) -> list[tuple[int, Path]]:
        directory = self._source.log_directory
        return [
            (int(name), directory / name) for name in self._disk.list_names(directory) if is_file_name(name)
        ]

    def _estimate(self, closed_to: int) -> None:
        """Set what progress counts to, and check that what must be copied has room."""
        disk, root = self._disk, self._source.root
        copied = 0
        for directory in ("consumequeue", "index", timer_log.PATH):
            copied += sum(map(self._allocated, self._below(root / directory)))
        closed = 0
        for base, path in self._log_files():
            if base + self._file_bytes <= closed_to:
                closed += self._file_bytes
            else:
                copied += self._allocated(path)
        needed = copied
        device = disk.identity_of(self._source.log_directory).device
        if not (self._may_link and disk.identity_of(self._target).device == device):
            known = {} if self._earlier is None else self._earlier.by_path
            needed += sum(
                self._allocated(path)
                for base, path in self._log_files()
                if base + self._file_bytes <= closed_to and self._of_earlier(known, path) is None
            )
        self._copier.require_room(self._target, needed, f"a backup of {root}")
        self._copier.total_bytes = closed + 2 * copied

    def _allocated(self, path: Path) -> int:
        """Return the bytes that a file takes on the disk, 0 for one that the broker removed meanwhile."""
        try:
            return self._disk.allocated_bytes(path)
        except StoreError:
            if self._disk.exists(path):
                raise
            return 0

    def _take_closed(self, closed_to: int) -> None:
        """Take the log files that end at or before `closed_to` and were not taken yet."""
        self._copier.begin("closed log files")
        known = {} if self._earlier is None else self._earlier.by_path
        for base, path in self._log_files():
            name = f"{manifest.STORE}/commitlog/{path.name}"
            if base + self._file_bytes <= closed_to and name not in self._how:
                try:
                    self._take_file(path, name, known)
                except StoreError:
                    if self._disk.exists(path):
                        raise
                    # Retention deleted it and all before it: the record of ends, read later, states that

    def _take_file(self, path: Path, name: str, known: dict[str, SavedFile]) -> None:
        target, found = self._target / name, self._disk.identity_of(path)
        source = SourceFile(device=found.device, inode=found.inode, modified_ns=found.modified_ns)
        if self._of_earlier(known, path) is not None and self._link_of_earlier(name):
            how = manifest.SHARED
        elif self._may_link and self._disk.clone(path, target):
            how = manifest.CLONED
        elif self._may_link and self._link(path, target):
            how = manifest.LINKED
        else:
            self._disk.unlink(target, missing_ok=True)
            self._copier.copy(path, target)
            how = manifest.COPIED
        self._how[name], self._sources[name] = how, source

    def _of_earlier(self, known: dict[str, SavedFile], path: Path) -> SavedFile | None:
        """Return the file of the earlier backup that was made of this closed log file, None without one."""
        name = f"{manifest.STORE}/commitlog/{path.name}"
        saved = known.get(name)
        if saved is None or saved.source is None or self._earlier_directory is None:
            return None
        found, earlier = self._disk.identity_of(path), self._earlier_directory / name
        same = SourceFile(device=found.device, inode=found.inode, modified_ns=found.modified_ns)
        if saved.source != same or saved.size_bytes != found.size or not self._disk.exists(earlier):
            return None
        # Another name of the store's own file is no copy of it
        is_own = self._disk.identity_of(earlier)[:2] != found[:2]
        return saved if is_own or self._may_link else None

    def _link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; return False where the file system cannot."""
        try:
            self._disk.link(source, target)
        except StoreError:
            if not self._disk.exists(source):
                raise
            return False
        return True

    def _link_of_earlier(self, name: str) -> bool:
        assert self._earlier_directory is not None  # it has the file
        return self._link(self._earlier_directory / name, self._target / name)

    def _take_rest(self, live: LivePosition | None) -> int | None:
        """Take the rest of the log: closed files, and the live end up to what is on the disk. Return where
        the log of the backup ends; None for a store that no broker runs on, where recovery finds it."""
        if live is not None:
            self._take_closed(live.flushed)
        self._copier.begin("the end of the log")
        for base, path in self._log_files():
            name = f"{manifest.STORE}/commitlog/{path.name}"
            if name in self._how or (live is not None and base >= live.flushed):
                continue
            self._copy(path, name, None if live is None else live.flushed - base)
        if live is None:
            return None
        self._require_no_gap(live.flushed)
        return live.flushed

    def _require_no_gap(self, end: int) -> None:
        """Check that retention did not delete a file that the record of ends of the backup counts as there
        before it was taken, so that the log of the backup leads to `end`."""
        ends = EndsFile(self._disk, self._target / manifest.STORE / ENDS)
        ends.load()
        names = self._disk.list_names(self._target / manifest.STORE / "commitlog")
        expected = max(ends.log_minimum, 0) if ends.found else int(names[0]) if names else 0
        for base in map(int, names):
            if base > expected:
                break
            expected = max(expected, base + self._file_bytes)
        if expected < end:
            raise StoreError(
                f"{self._source.log_directory}: retention deleted the log file of {expected:,} before it was "
                f"saved: the disk is nearly full. Make room, then make the backup again"
            )

    # Everything else ------------------------------------------------------------------------------

    def _make(self, directory: Path) -> None:
        self._disk.make_directory(directory, sync=False)

    def _copy(self, path: Path, name: str, limit: int | None = None) -> None:
        """Copy a file; one that the broker removed meanwhile is left out."""
        target = self._target / name
        self._make(target.parent)
        try:
            self._copier.copy(path, target, limit)
        except StoreError:
            if self._disk.exists(path):
                raise
            self._disk.unlink(target, missing_ok=True)
            return
        self._how[name] = manifest.COPIED

    def _copy_root(self, live: LivePosition | None) -> None:
        """Copy the checkpoint, then the record of ends: it may say more than the stamps, never less."""
        for name in ("checkpoint", ENDS, "abort"):
            path = self._source.root / name
            if self._disk.exists(path):
                self._copy(path, f"{manifest.STORE}/{name}")
        if live is not None:
            # The picture of a running broker is one of a store that was not closed
            self._disk.write_file(self._target / manifest.STORE / "abort", b"0")

    def _copy_queues(self) -> None:
        self._copier.begin("queues")
        top = self._source.root / "consumequeue"
        for path in self._below(top):
            if is_file_name(path.name):
                self._copy(path, f"{manifest.STORE}/{path.relative_to(self._source.root)}")

    def _copy_index(self) -> None:
        self._copier.begin("the index")
        directory = self._source.root / "index"
        for name in self._disk.list_names(directory):
            if index_file.is_name(name):
                self._copy(directory / name, f"{manifest.STORE}/index/{name}")

    def _copy_timer_and_config(self) -> None:
        """Copy config/timercheck before the timer log, of which it says how far it is sure, then config/. The
        wheel is made again from the timer log."""
        root = self._source.root
        self._copier.begin("timer files and config")
        names = [timer_check.PATH]
        names += [f"{timer_log.PATH}/{name}" for name in self._disk.list_names(root / timer_log.PATH)]
        names += [f"config/{name}" for name in self._disk.list_names(root / "config")]
        for name in dict.fromkeys(names):
            path = root / name
            if not name.endswith(".tmp") and self._disk.exists(path) and not self._disk.is_directory(path):
                self._copy(path, f"{manifest.STORE}/{name}")

    def _copy_others(self) -> None:
        for path, name in self._source.others:
            if self._disk.exists(path):
                self._copy(path, name)

    def _below(self, directory: Path) -> Iterator[Path]:
        """Yield the files below a directory, whose names the running broker may remove meanwhile."""
        for name in self._disk.list_names(directory):
            path = directory / name
            if self._disk.is_directory(path):
                yield from self._below(path)
            elif self._disk.exists(path):
                yield path

    # The copy -------------------------------------------------------------------------------------

    def _recover(self, end: int | None) -> LogRange:
        """Make the copy a store that was closed in order. Return where its log begins and ends. Raises
        StoreError when the log ends before `end`."""
        self._copier.begin("recovery of the copy")
        found = recover(self._disk, self._target / manifest.STORE, self._source.settings)
        if end is not None and found.end < end:
            raise DamagedStoreError(
                f"the log of the backup ends at {found.end:,}, and {end:,} was on the disk",
                file=str(self._source.log_directory / file_name(found.end - found.end % self._file_bytes)),
                offset=found.end % self._file_bytes,
                advice=f"To see what is wrong with the store: manage.py check_store {self._source.root}",
            )
        return found

    def _summed(self) -> list[SavedFile]:
        """Sum all files of the backup; those that the earlier one has too become names of its files."""
        self._copier.begin("sums")
        known = {} if self._earlier is None else self._earlier.by_path
        files = []
        for path in self._below(self._target):
            name, how = (
                str(path.relative_to(self._target)),
                self._how.get(str(path.relative_to(self._target))),
            )
            saved, source = known.get(name), self._sources.get(name)
            found = self._disk.identity_of(path)
            if saved is not None and how in (manifest.SHARED, manifest.LINKED, manifest.CLONED):
                if saved.source == source and saved.size_bytes == found.size:
                    files.append(dataclasses.replace(saved, how=how, source=source))
                    continue
            found_sum = self._copier.sum_of(path)
            if saved is not None and (saved.size_bytes, saved.data_bytes, saved.crc) == found_sum:
                how = manifest.SHARED if self._share(name, found_sum, source) else how
            size, data, crc = found_sum
            files.append(
                SavedFile(
                    path=name,
                    size_bytes=size,
                    data_bytes=data,
                    crc=crc,
                    how=how or manifest.COPIED,
                    source=source,
                )
            )
        return files

    def _share(self, name: str, own: Sum, source: SourceFile | None) -> bool:
        """Replace a file by another name of the earlier backup's, where that has the same bytes and, for a
        backup that copies all, is not the store's own file."""
        assert self._earlier_directory is not None  # it has the file
        earlier, path = self._earlier_directory / name, self._target / name
        if not self._disk.exists(earlier):
            return False
        found = self._disk.identity_of(earlier)[:2]
        if found == self._disk.identity_of(path)[:2]:
            return True
        if not self._may_link and source is not None and found == (source.device, source.inode):
            return False
        # It may have changed since it was saved, also after its data
        if self._copier.sum_of(earlier) != own or not self._copier.are_equal(earlier, path, own.data_bytes):
            return False
        fresh = path.with_name(f"{path.name}.tmp")
        if not self._link(earlier, fresh):
            return False
        self._disk.rename(fresh, path)
        return True
