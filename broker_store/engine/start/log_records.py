"""Single records of the log, as a start reads them: by log offset, without queue or index.

The scan kernel (`kernels/scan.py`) always decides whether a record is good, so the scan of step 4 and the
functions here agree.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.flusher import CheckpointFile
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.whole_records import is_whole
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.rows import Words
from broker_store.engine.start.bridge import Bridge
from broker_store.engine.start.report import RecoveryReport
from broker_store.errors import FormatError
from broker_store.formats import record
from broker_store.formats.record import (
    FIXED,
    FIXED_IPV4,
    MAX_BEYOND_BODY,
    MIN_RECORD,
    STORE_TIMESTAMP,
    SYS_FLAG,
    SYS_FLAG_AT,
)
from broker_store.kernels import context as c
from broker_store.kernels.scan import scan

_MAX_SEARCH_BYTES = 64 << 20  # of the log, in which the next record of a queue is searched for


class LogRecords:
    """Records of the log of one start. `was_clean`: the last run ended in order."""

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        checkpoint: CheckpointFile,
        report: RecoveryReport,
        was_clean: bool,
    ):
        self._log, self._settings, self._checkpoint = log, settings, checkpoint
        self._report, self._was_clean = report, was_clean
        self._max_record = settings.max_message_size + MAX_BEYOND_BODY

    def scan_words(self, file: MappedFile) -> Words:
        """Return the words with which the scan kernel reads the whole of a file."""
        words = Words(c.S_WORDS)
        words[c.S_ADDRESS] = file.address
        words[c.S_BASE] = file.base
        words[c.S_SIZE] = file.size
        words[c.S_SLICE_END] = file.size
        words[c.S_CHECK_CRC] = int(self._settings.check_crc_on_recover)
        words[c.S_MAX_RECORD] = self._max_record
        # A torn write may leave zeros in the properties, which no CRC covers; what was synced is not torn.
        # Of records of the stamp's very ms that is certain only after a clean stop.
        words[c.S_STRICT_ABOVE_MS] = self._checkpoint.stamps.physic_msg_timestamp - (not self._was_clean)
        return words

    def begins_record(self, offset: int) -> bool:
        """Return whether a good record, or the blank that closes a file, begins at a log offset."""
        file = self._log.file_at(offset)
        if file is None:
            return False
        words = self.scan_words(file)
        words[c.S_AT], words[c.S_SLICE_END] = offset - file.base, offset - file.base + 1
        return scan(words.address) == c.LOG_FILE_END or words[c.S_COUNT] == 1

    def record_at(self, offset: int) -> record.StoredMessage | None:
        """Return the record at a log offset, with no check of its CRC; None where none can be read."""
        file = self._log.file_at(offset)
        if file is None or file.end - offset < MIN_RECORD:
            return None
        try:
            size = record.read_head(file.map().read(offset - file.base, record.BLANK_BYTES)).total_size
            return record.decode(
                file.map().read(offset - file.base, min(max(size, 0), file.end - offset)),
                log_offset=offset,
                check_crc=False,
            )
        except FormatError:
            return None

    def known_record_at(self, offset: int) -> record.StoredMessage:
        """Return the record at a log offset where a kernel has found one."""
        found = self.record_at(offset)
        assert found is not None
        return found

    def whole_record_at(self, offset: int) -> record.StoredMessage | None:
        """Return the record at a log offset if the CRC of its body is right, else None."""
        found = self.record_at(offset)
        return found if found is not None and self.begins_record(offset) else None

    def records_from(self, begin: int) -> Iterator[record.StoredMessage]:
        """Yield the records of queues in _MAX_SEARCH_BYTES of the log from `begin` on; bad bytes between them
        are skipped."""
        offset = begin
        while offset < begin + _MAX_SEARCH_BYTES and (file := self._log.file_at(offset)) is not None:
            found = self.record_at(offset)
            if found is None:
                # A blank, since no record could be read
                is_end = file.end - offset < MIN_RECORD or self.begins_record(offset)
                following = file.end if is_end else Bridge(self._log, self.begins_record).following(offset)
                if following is None:
                    return
                offset = following
                continue
            if found.is_queued:
                yield found
            offset += found.size

    def next_stated(self, queue: ConsumeQueue, begin: int) -> int | None:
        """Return the queue offset that the queue's first record from log offset `begin` on states; None when
        no record of the queue follows within _MAX_SEARCH_BYTES."""
        name = queue.topic, queue.queue_id
        return next(
            (
                found.queue_offset
                for found in self.records_from(begin)
                if (found.topic, found.queue_id) == name
            ),
            None,
        )

    # Ends of files --------------------------------------------------------------------------------

    def is_end(self, offset: int) -> bool:
        """Return whether nothing lies at `offset` of the log, where the record of ends says that it ended."""
        file = self._log.file_at(offset)
        return (
            file is not None and not any(file.map().read(offset - file.base, min(8, file.end - offset)))
        ) or (file is None and offset == self._log.files[-1].end)

    def is_blank(self, file: MappedFile, at: int) -> bool:
        """Return whether the blank that closes a file begins at byte `at` of it."""
        return record.read_head(file.map().read(at, record.BLANK_BYTES)).is_blank

    def is_data(self, file: MappedFile, at: int) -> bool:
        """Return whether the 8 bytes at `at` of a file are in it and not all zero."""
        return at + 8 <= file.size and any(file.map().read(at, 8))

    def end_of_data(self) -> int:
        """Return the log offset after the last byte of the log that may hold data; a file that was made ahead
        is not read."""
        for file in reversed(self._log.files):
            end = file.map().data_end()
            if end or file is self._log.files[0]:
                return file.base + end
        return 0

    def came_meanwhile(self, file: MappedFile, at: int) -> bool:
        """Return whether a good record now begins at byte `at` (another process writes this store; there was
        none when it was scanned)."""
        if not self._report.in_use:
            return False
        return is_whole(self.scan_words(file), at)

    # Store times, in ms ---------------------------------------------------------------------------

    def first_store_ms(self, file: MappedFile) -> int | None:
        """Return the store time of the file's first record, None when that is not good."""
        words = self.scan_words(file)
        words[c.S_SLICE_END] = 1
        scan(words.address)
        return words[c.S_LAST_MS] if words[c.S_COUNT] == 1 else None

    def stored_ms(self, log_offset: int) -> int | None:
        """Return the store time of the record that begins at `log_offset`, None when it is not in the log."""
        file = self._log.file_at(log_offset)
        return None if file is None else self.stated_ms(file, log_offset - file.base)

    def stated_ms(self, file: MappedFile, at: int) -> int | None:
        """Return the store time that the record at `at` of a file states, also for a bad record; None when it
        does not state its own place."""
        if at + MIN_RECORD > file.size:
            return None
        place_at = FIXED_IPV4.offset["log_offset"]
        raw = file.map().read(at, MIN_RECORD)
        if raw[place_at : place_at + 8] != (file.base + at).to_bytes(8, "big"):
            return None
        (sys_flag,) = SYS_FLAG.unpack(raw, SYS_FLAG_AT)
        (stated_ms,) = STORE_TIMESTAMP.unpack(raw, FIXED[(sys_flag >> 4) & 1].offset["store_timestamp"])
        return stated_ms
