"""Records of changes that were made through the ports of the broker and the name server: by which address,
what, and with what result.

These ports have no login, so a record has an address and the client's own statements. `note` runs on the loop
and only appends. Once a second a thread writes the new records to the audit trail of the dashboard, or to the
log if there is no dashboard. The amount that is written is bounded:

- each record costs a token; there are MAX_TOKENS, and one more each TOKEN_MS;
- requests that changed nothing (refused, or equal before and after) have their own tokens, a fifth as many,
  so that they cannot displace the records of changes. A day has at most 9,640 records of changes and 1,928
  others;
- without a token, and for a repeat within a minute, requests with equal address, code and outcome are counted
  in one sum, with the first of their names. The sum becomes a record when there is a token again, at the
  latest when the broker stops;
- if the writer fails, its records are kept and written again. Above MAX_PENDING records are dropped and
  counted, and a record has their number.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from broker_store.rest.change_record import ChangeRecord

log = logging.getLogger(__name__)

MAX_TOKENS = 1_000  # for one run of an administrator's script
TOKEN_MS = 10_000  # a record has about 500 bytes, so at most some 6 MB a day
WITHOUT_EFFECT = 5  # requests that changed nothing have a fifth of the tokens
REPEAT_MS = 60_000
MAX_REMEMBERED = 1_000  # requests that are compared to find repeats
MAX_SUMS = 50  # different sums; all further requests are counted in one more
MAX_NAMES = 20  # in one sum
MIN_SUM_MS = 10_000  # age at which a sum may become a record
MAX_PENDING = 2_000
CLOSE_LIMIT_S = 2.0
ELSEWHERE = "others"  # address of the sum for all further requests


@dataclass(slots=True)
class _Sum:
    """Requests that are counted in one record."""

    first: ChangeRecord
    count: int = 0
    last_ms: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, record: ChangeRecord) -> None:
        self.count += record.count
        self.last_ms = record.at_ms
        if record.name not in self.names and len(self.names) < MAX_NAMES:
            self.names.append(record.name)

    def record(self, address: str) -> ChangeRecord:
        detail = {
            "first_ms": self.first.at_ms,
            "last_ms": self.last_ms,
            "names": self.names,
            "said": self.first.detail.get("said"),
        }
        return dataclasses.replace(
            self.first, at_ms=self.last_ms, address=address, count=self.count, detail=detail
        )


class _Allowance:
    """The tokens for records of one kind, and the sums of requests that got no token."""

    def __init__(self, now_ms: int, most: int, token_ms: int):
        self._most, self._token_ms = most, token_ms
        self._tokens, self._refilled_ms = float(most), now_ms
        self._sums: dict[tuple[str, str, str], _Sum] = {}

    def take_token(self, now_ms: int) -> bool:
        self._tokens = min(self._most, self._tokens + max(0, now_ms - self._refilled_ms) / self._token_ms)
        self._refilled_ms = now_ms
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def add_to_sum(self, host: str, record: ChangeRecord) -> None:
        key = (host, record.code, record.outcome)
        if key not in self._sums and len(self._sums) >= MAX_SUMS:
            key = (ELSEWHERE, "", "")
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum(record)
        found.add(record)

    def settled(self, now_ms: int, *, all_of_them: bool) -> Iterator[ChangeRecord]:
        """Yield the records of sums, the oldest first, while there are tokens."""
        for key, found in list(self._sums.items()):
            if not all_of_them and (now_ms - found.first.at_ms < MIN_SUM_MS or not self.take_token(now_ms)):
                return
            del self._sums[key]
            yield found.record(key[0])


def write_to_log(records: Sequence[ChangeRecord]) -> None:
    """Log a line of JSON for each record."""
    for record in records:
        log.info("change %s", json.dumps(dataclasses.asdict(record), default=str, ensure_ascii=True))


class ChangeRecords:
    """The records that wait to be written. `write(records)` runs in a thread; `dropped(count)` is called with
    the number of lost records."""

    def __init__(
        self,
        clock: Callable[[], int],
        write: Callable[[Sequence[ChangeRecord]], None] = write_to_log,
        dropped: Callable[[int], None] = lambda count: None,
    ):
        self._clock, self.write, self._dropped = clock, write, dropped
        now_ms = clock()
        self._changes = _Allowance(now_ms, MAX_TOKENS, TOKEN_MS)
        self._without_effect = _Allowance(now_ms, MAX_TOKENS // WITHOUT_EFFECT, TOKEN_MS * WITHOUT_EFFECT)
        self._seen: dict[tuple, int] = {}
        self._pending: deque[ChangeRecord] = deque()
        self._lost = 0
        self._batch: list[ChangeRecord] = []
        self._writing: Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._failed = False

    def note(self, record: ChangeRecord, client_id: Callable[[], str | None] = lambda: None) -> None:
        """Add a record. `client_id()` is called only if the record is not counted in a sum."""
        host = record.address.rpartition(":")[0]
        what = (host, record.code, record.outcome, record.name, hash(str(record.detail)))
        is_repeat = self._seen.get(what, -REPEAT_MS) > record.at_ms - REPEAT_MS
        allowance = self._changes if record.has_effect else self._without_effect
        if is_repeat or not allowance.take_token(self._clock()):
            allowance.add_to_sum(host, record)
            return
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[what] = record.at_ms
        self._append(dataclasses.replace(record, client_id=client_id()))

    def _append(self, record: ChangeRecord) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._lost += 1
            self._dropped(1)
        else:
            self._pending.append(record)

    def _settle_sums(self, now_ms: int, *, all_of_them: bool = False) -> None:
        for allowance in (self._changes, self._without_effect):
            for record in allowance.settled(now_ms, all_of_them=all_of_them):
                self._append(record)

    def tick(self, now_ms: int) -> None:
        """Start the writing of new records unless the thread is busy; called once a second."""
        self._settle_sums(now_ms)
        if self._has_written() and (self._batch or self._pending):
            self._start_writing()

    def _start_writing(self) -> Future[None]:
        if not self._batch:
            self._batch = list(self._pending)
            self._pending.clear()
            if self._lost:
                self._batch.append(
                    ChangeRecord(self._clock(), "drop", "audit", "", "dropped", "", "", count=self._lost)
                )
                self._lost = 0
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="change-records")
        self._writing = self._thread.submit(self.write, self._batch)
        return self._writing

    def _has_written(self) -> bool:
        """Return True if the thread is free. A batch that could not be written is kept for the next
        attempt."""
        if self._writing is None:
            return True
        if not self._writing.done():
            return False
        error, self._writing = self._writing.exception(), None
        if error is None:
            self._batch, self._failed = [], False
        elif not self._failed:
            self._failed = True
            log.error("records of changes cannot be written, it is tried again each second: %s", error)
        return True

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Write the remaining records for at most `limit_s` seconds; the others go to the log."""
        self._settle_sums(self._clock(), all_of_them=True)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        while loop.time() < until_s:
            writing = self._writing
            if writing is None:
                if not self._batch and not self._pending:
                    break
                writing = self._start_writing()
            await asyncio.wait([asyncio.wrap_future(writing)], timeout=max(0.0, until_s - loop.time()))
            if self._has_written() and self._failed:
                break
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
        write_to_log([*self._batch, *self._pending])
        self._batch, self._pending = [], deque()
