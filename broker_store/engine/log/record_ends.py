"""The walk over records of the log that may end anywhere: a slave receives and reports any byte of it.

begin        at: the last whole record ends here      end: the last byte that is there
|------------|----------------------------------------|
"""

from __future__ import annotations

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.rows import Words
from broker_store.formats import record
from broker_store.kernels import context as c
from broker_store.kernels.scan import scan

_NEVER = 1 << 62


class RecordWalk:
    """A walk within one file by the scan kernel, with the CRC of each record if `checks`. Loop's thread."""

    def __init__(self, max_message_size: int, *, checks: bool):
        self.max_record = max_message_size + record.MAX_BEYOND_BODY
        self._words = words = Words(c.S_WORDS)
        words[c.S_CHECK_CRC] = int(checks)
        words[c.S_MAX_RECORD] = self.max_record
        words[c.S_STRICT_ABOVE_MS] = _NEVER

    def run(self, file: MappedFile, begin: int, end: int) -> int:
        """Walk from `begin` of the file to at most `end`; return why it stopped, as the scan kernel."""
        words = self._words
        words[c.S_ADDRESS], words[c.S_BASE], words[c.S_AT] = file.address, file.base, begin
        words[c.S_SIZE] = words[c.S_SLICE_END] = end
        words[c.S_COUNT] = 0
        return scan(words.address)

    @property
    def at(self) -> int:
        """Where in the file the last whole record ends."""
        return self._words[c.S_AT]

    @property
    def count(self) -> int:
        """How many whole records there were."""
        return self._words[c.S_COUNT]

    @property
    def last_ms(self) -> int:
        """The store time of the last record."""
        return self._words[c.S_LAST_MS]

    @property
    def reason(self) -> int:
        """Why no sound record begins at `at`, one of REASON_*."""
        return self._words[c.S_REASON]


class RecordEnds:
    """Where whole records end. Loop's thread."""

    def __init__(self, log: CommitLog, max_message_size: int):
        self._log, self._walk = log, RecordWalk(max_message_size, checks=False)

    def last(self, begin: int, position: int) -> int:
        """Return the end of the last whole record between log offset `begin`, where one begins, and
        `position`; `begin` without one."""
        while begin < position:
            file = self._log.file_at(begin)
            if file is None:
                break
            stopped = self._walk.run(file, begin - file.base, min(position, file.end) - file.base)
            begin = file.base + self._walk.at
            if stopped != c.LOG_FILE_END or position < file.end:
                break
            begin = file.end
        return begin

    def last_record(self, begin: int) -> tuple[int, int] | None:
        """Return log offset and size of the last whole record of the log; None where its files have none.
        The walk begins at `begin`, where a record begins, or at the begin of a later file."""
        for file in reversed(self._log.files):
            from_ = max(begin, file.base) - file.base
            written = min(self._log.wrote, file.end) - file.base
            if from_ < written:
                self._walk.run(file, from_, written)
                if self._walk.count:
                    end = self._walk.at
                    self._walk.run(file, from_, end - 1)
                    return file.base + self._walk.at, end - self._walk.at
        return None
