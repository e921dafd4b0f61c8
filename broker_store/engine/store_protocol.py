"""What the broker and its server need of a store.

    server/send_group.py ──► store.appender.put_many ──► kernels/append.py
    server/consume.py ─────► store.reads.get ─────────► kernels/read.py

`engine.store.MessageStore` is the store over a directory. Tests have one in memory. A store gives the parts
that write and read as they are. A method of the store that only passes on would cost a frame for each
message, and a bound copy of the method hides where it is defined. The figures are in
docs/decisions/0062-the-store-gives-its-parts.md.

All members are for the loop's thread, unless it is said otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from broker_store.engine.config_files import Take
from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.appender import Appender
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.confirmation import Confirmation
from broker_store.engine.log.log_copy import LogCopy
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.queue.tombstones import Tombstones
from broker_store.engine.read.reads import Reads
from broker_store.engine.retention.cleaning import Cleaning
from broker_store.engine.status.status import StoreStatus
from broker_store.engine.timer.timer_files import TimerFiles


class Store(Protocol):
    """One open store."""

    root: Path
    disk: Disk  # of the store's files, for readers of them; any thread
    log: CommitLog
    appender: Appender  # puts
    reads: Reads
    confirmation: Confirmation  # what is acknowledged; watched queues
    cleaning: Cleaning
    tombstones: Tombstones  # where in the log topics were deleted
    status: StoreStatus  # positions, files, why puts are refused
    timer_files: TimerFiles
    write_path: WritePath  # how long the steps of a put take, sampled
    # The flag for which sends are refused before they are put: "slave", "page_cache_busy" or "no_buffer".
    # Read for each send.
    rejects_sends: str | None

    copy: LogCopy | None  # of a slave that has started

    @property
    def confirmed(self) -> int:
        """Return the log offset up to which messages are acknowledged and shown to consumers
        (docs/durability.md section 2)."""

    @property
    def flushed(self) -> int:
        """Return the log offset up to which this process has nothing left to sync."""

    @property
    def flags(self) -> dict[str, str]:
        """Return the cause of each flag that is set."""

    def set_flag(self, flag: str, cause: str) -> None:
        """Set a flag of the broker around the store, such as a config file that cannot be written."""

    def clear_flag(self, flag: str) -> None:
        """Clear a flag that `set_flag` set."""

    @property
    def index_doubt(self) -> str | None:
        """Return why a search by key may miss messages; None if it does not."""

    # Queues

    def queues(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of each queue, in order."""

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues, in order."""

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues. Raises StoreError."""

    # Config files: any thread

    def load_config(
        self, name: str, take: Take, *, is_needed: bool = True, when_gone: str = "", takes_backup: bool = True
    ) -> str | None:
        """Give the text of config/`name` to `take`. Return what was wrong with the file, None if nothing
        was."""

    def has_config(self, name: str) -> bool:
        """Return True if config/`name` or its .bak is there."""

    def read_config(self, name: str) -> str | None:
        """Return the text of config/`name`, or of its .bak; None when neither is there."""

    def write_config(self, name: str, data: bytes) -> None:
        """Replace config/`name` atomically; the old one stays as .bak. Raises StoreError."""

    def note_of_config(self, name: str, what: str) -> None:
        """Add a warning about config/`name` to the report of the start."""
