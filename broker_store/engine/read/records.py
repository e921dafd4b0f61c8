"""Single records by their place in the log, and whether they are damaged.

    record_now    the loop: what is in memory at once, else from a thread     no comparison
    record_by_id  the loop: as record_now where this run wrote it, else
                  a thread compares it with its unit                          compared
    record_at     any thread, by position; it may wait for the disk           CRC of its body

A record that this run wrote is as it was stored. One that an earlier run wrote may have changed on the disk
since: it must be as it was stored, and state what its unit states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.read.cold import ColdReads, LogReaders, agrees, is_sound
from broker_store.engine.read.stops import ReadStops
from broker_store.engine.rows import WriterContext
from broker_store.errors import FormatError, StoreError
from broker_store.formats import index_file, record
from broker_store.formats.properties import KEYS
from broker_store.kernels import context as c
from broker_store.kernels.lookup import read_record

MAX_STOPS = 64  # of one request; each may ask the system once
_MAX_RECORD_FIT = 2048  # bytes: read at once, before the record's size is known


class RecordReads:
    """`words` are the R_* words of the kernels, `address` is where they lie."""

    def __init__(
        self,
        context: WriterContext,
        log: CommitLog,
        queues: ConsumeQueues,
        readers: LogReaders,
        cold: ColdReads,
        stops: ReadStops,
        words: memoryview,
        address: int,
        wake: Callable[[Callable[[], None]], None],
        on_damage: Callable[[str, int], None],
    ):
        self._context, self._view = context, context.view
        self._log, self._queues, self._readers, self._cold = log, queues, readers, cold
        self._stops, self._words, self._address = stops, words, address
        self._wake, self._on_damage = wake, on_damage

    def record_now(self, log_offset: int) -> bytes | None | Future[bytes | None]:
        """Return `record_at` for the loop: a record in memory at once, a cold one as a future."""
        found = self._record_in_memory(log_offset)
        return self._cold.run(self.record_at, log_offset) if found is None else found or None

    def _record_in_memory(self, log_offset: int) -> bytes | None:
        """Return the record; b"" when no sound record begins there, None when that is not known without the
        disk."""
        for _ in range(MAX_STOPS):
            found = read_record(self._address, log_offset)
            if found.__class__ is bytes:
                return found
            if not self._stops.can_continue_lookup(found):
                break
        return None

    def get_records(
        self, log_offsets: Sequence[int], done: Callable[[list[bytes | None] | None], None]
    ) -> list[bytes | None] | None:
        """Return the records at these log offsets, None for each that does not exist.

        Return None when some are cold: `done` is called later on the loop with the list, or with None when a
        read failed.
        """
        records = []
        for log_offset in log_offsets:
            found = self._record_in_memory(log_offset)
            if found is None:
                self._cold.run(self._records_at, tuple(log_offsets), done)
                return None
            records.append(found or None)
        return records

    def _records_at(
        self, log_offsets: tuple[int, ...], done: Callable[[list[bytes | None] | None], None]
    ) -> None:
        """Read records by position, in a reader's thread."""
        try:
            records = [self.record_at(log_offset) for log_offset in log_offsets]
        except StoreError as error:
            cause = f"a read failed: {error}"
            self._wake(lambda: self._on_damage(cause, -1))
            records = None
        self._wake(lambda: done(records))

    def record_at(self, log_offset: int, check_crc: bool = True, below: int | None = None) -> bytes | None:
        """Return the raw record at a log offset, None when no sound one begins there. Any thread; it may wait
        for the disk.

        Without `check_crc` also a record whose body or properties have changed, for a caller that shows
        damage. The record ends at or before log offset `below`, by default what is confirmed.
        """
        below = self._view[c.CONFIRMED] if below is None else below
        if not self._log.minimum <= log_offset < below:
            return None
        raw = self._readers.read(log_offset, _MAX_RECORD_FIT)
        if len(raw) < record.MIN_RECORD:
            return None
        size, magic = record.read_head(raw)
        if magic not in record.TOPIC_LENGTH or not record.MIN_RECORD <= size <= self._view[c.MAX_RECORD]:
            return None
        if log_offset + size > below:
            return None
        raw = raw[:size] if size <= len(raw) else self._readers.read(log_offset, size)
        if len(raw) < size or raw[28:36] != log_offset.to_bytes(8, "big"):
            return None
        if check_crc and not is_sound(raw, log_offset):
            self._wake(
                lambda: self._on_damage(
                    f"the record at {log_offset} of the log is not as it was stored", log_offset
                )
            )
            return None
        return raw

    def record_by_id(self, log_offset: int) -> bytes | str | None | Future[bytes | str | None]:
        """Return the record at a log offset, a sentence about its damage, or None when none begins there. For
        the loop: an old record comes as a future."""
        if log_offset < self._words[c.R_HOT_FROM]:
            return self._cold.run(self._compared, log_offset)
        found = self._record_in_memory(log_offset)
        return self._cold.run(self.record_at, log_offset) if found is None else found or None

    def _compared(self, log_offset: int) -> bytes | str | None:
        """Read a record and compare it with its unit, in a reader's thread."""
        raw = self.record_at(log_offset, check_crc=False)
        damage = self._damage_of(raw, log_offset) if raw is not None else None
        if damage is None:
            return raw
        self.report_damage(log_offset, damage)
        return damage

    def damage_at(self, log_offset: int) -> str | None:
        """Return a sentence about the damage of the record at a log offset; None when it is sound or does not
        exist. Any thread; it may wait for the disk."""
        raw = self.record_at(log_offset, check_crc=False)
        return self._damage_of(raw, log_offset) if raw is not None else None

    def record_of_entry(self, log_offset: int, entry_hash: int) -> tuple[bytes | None, str | None]:
        """Return (the record to which an index entry leads, a sentence about its damage). A damaged record
        may be returned or None.

        Both are None where retention removed the record. Any thread; it may wait for the disk.
        """
        raw = self.record_at(log_offset, check_crc=False)
        if raw is None:
            is_inside = self._log.minimum <= log_offset < self._view[c.CONFIRMED]
            return (
                None,
                "no record begins there, but an entry of the index leads to it" if is_inside else None,
            )
        # A record's unit is written before its entries
        return raw, self._damage_of(raw, log_offset, entry_hash)

    def log_bytes(self, log_offset: int, length: int) -> bytes:
        """Return raw bytes of the log, cut at its end in the files and at a file's end. Any thread."""
        length = min(length, self._log.committed - log_offset)
        return self._readers.read(log_offset, length) if length > 0 else b""

    def _damage_of(self, raw: bytes, log_offset: int, entry_hash: int | None = None) -> str | None:
        """Return a sentence about a record's damage, None when it is sound, by the rules of a read of its
        queue: it must be as it was stored, and state what its unit states.

        With the hash of an index entry, the record must have a key with that hash. A record that has one is
        served without a unit if its topic has no queue, since the topic was deleted.
        """
        try:
            stored = record.decode(raw, log_offset=log_offset)
        except FormatError as error:
            return str(error)
        if not is_sound(raw, log_offset):
            return "it is not as it was stored"
        topic = self._context.topics.get(stored.topic)
        if entry_hash is not None:
            texts = index_file.texts_of(
                stored.topic, stored.unique_key, stored.properties.get(KEYS), stored.tags
            )
            if entry_hash not in map(index_file.key_hash, texts):
                return "its topic or its keys are not those of the index entry that leads to it"
            if topic is None:
                return None
        if not stored.is_queued or (topic is not None and log_offset < topic.row[c.T_DELETED_BEFORE]):
            return None
        place = f"offset {stored.queue_offset} of {stored.topic}/{stored.queue_id}"
        queue = self._queues.find(stored.topic, stored.queue_id)
        if queue is None or not 0 <= stored.queue_offset < queue.maximum:
            return f"it states {place}, which is not there"
        unit = queue.unit(stored.queue_offset)
        if unit is None or stored.queue_offset < queue.minimum:
            return None  # retention removed the unit, or soon will
        if (unit.log_offset, unit.size) != (log_offset, len(raw)):
            return f"it states {place}, whose unit leads to {unit.size} bytes at {unit.log_offset}"
        return (
            None
            if agrees(raw, unit, stored.queue_offset, queue)
            else f"its tag is not that of its unit, {place}"
        )

    def report_damage(self, log_offset: int, damage: str) -> None:
        """Report a damaged record on the loop. Any thread."""
        cause = f"the record at {log_offset} of the log is damaged: {damage}"
        self._wake(lambda: self._on_damage(cause, log_offset))
