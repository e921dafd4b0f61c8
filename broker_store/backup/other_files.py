"""What a backup has beside the log: checkpoint and ends, queues, index, timer files, config, and files of the
data directory."""

from __future__ import annotations

from broker_store.backup import manifest
from broker_store.backup.source import Source
from broker_store.backup.target import Target, allocated, files_below
from broker_store.engine.disk.mapped_file import is_file_name
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.status.live_page import LivePosition
from broker_store.formats import index_file, timer_check, timer_log


class OtherFiles:
    """Copies the files of a store that are not its log into a backup."""

    def __init__(self, source: Source, target: Target):
        self._source, self._target, self._disk = source, target, target.disk

    def allocated_bytes(self) -> int:
        """Return the bytes on the disk of what is large: queues, index, and the timer log."""
        return sum(
            allocated(self._disk, path)
            for directory in ("consumequeue", "index", timer_log.PATH)
            for path in files_below(self._disk, self._source.root / directory)
        )

    def copy_root(self, live: LivePosition | None) -> None:
        """Copy the checkpoint, then the record of ends: it may say more than the stamps, never less."""
        for name in ("checkpoint", ENDS, "abort"):
            path = self._source.root / name
            if self._disk.exists(path):
                self._target.copy(path, f"{manifest.STORE}/{name}")
        if live is not None:
            # The picture of a running broker is one of a store that was not closed
            self._disk.write_file(self._target.directory / manifest.STORE / "abort", b"0")

    def copy_queues(self) -> None:
        self._target.copier.begin("queues")
        top = self._source.root / "consumequeue"
        for path in files_below(self._disk, top):
            if is_file_name(path.name):
                self._target.copy(path, f"{manifest.STORE}/{path.relative_to(self._source.root)}")

    def copy_index(self) -> None:
        self._target.copier.begin("the index")
        directory = self._source.root / "index"
        for name in self._disk.list_names(directory):
            if index_file.is_name(name):
                self._target.copy(directory / name, f"{manifest.STORE}/index/{name}")

    def copy_timer_and_config(self) -> None:
        """Copy config/timercheck before the timer log, of which it says how far it is sure, then config/. The
        wheel is made again from the timer log."""
        root = self._source.root
        self._target.copier.begin("timer files and config")
        names = [timer_check.PATH]
        names += [f"{timer_log.PATH}/{name}" for name in self._disk.list_names(root / timer_log.PATH)]
        names += [f"config/{name}" for name in self._disk.list_names(root / "config")]
        for name in dict.fromkeys(names):
            path = root / name
            if not name.endswith(".tmp") and self._disk.exists(path) and not self._disk.is_directory(path):
                self._target.copy(path, f"{manifest.STORE}/{name}")

    def copy_others(self) -> None:
        for path, name in self._source.others:
            if self._disk.exists(path):
                self._target.copy(path, name)
