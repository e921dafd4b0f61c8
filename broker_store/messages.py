"""The values that the rooms exchange: messages to put, results of puts, requests and results of reads."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

LOOPBACK_HOST = (b"\x7f\x00\x00\x01", 0)


@dataclass(slots=True)
class Message:
    """A message as the store gets it (docs/spec/store-format.md section 2.1).

    `properties` is the encoded string (`name \\x01 value \\x02` repeated) in UTF-8. Hosts are (address of 4
    or 16 bytes, port). Times are milliseconds since 1970.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: tuple[bytes, int] = LOOPBACK_HOST
    store_host: tuple[bytes, int] | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class PutStatus(enum.IntEnum):
    """Apache's PutMessageStatus, as far as this store uses it (docs/spec/store-format.md section 9)."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    WAITED_TOO_LONG = 10  # ours: not put, because it had waited too long
    PAGE_CACHE_BUSY_WAITED = 11  # ours: not put, because it waited when the page cache became busy
    WHEEL_TIMER_FLOW_CONTROL = 12
    WHEEL_TIMER_MSG_ILLEGAL = 13
    WHEEL_TIMER_NOT_ENABLE = 14
    # ours: its queue has no file, and the time that the caller allows for creating files is used up; put
    # again
    PUT_OFF = 15
    IN_SYNC_REPLICAS_NOT_ENOUGH = 16
    PUT_TO_REMOTE_BROKER_FAIL = 17  # of a slave that acts for its master: no other master has stored it


# Statuses that another attempt would return again, so a message that waited is not tried again.
FINAL = (PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


@dataclass(slots=True)
class PutResult:
    """The result of one put. Offsets are -1 when nothing was stored.

    `log_end` is the commit log position that `confirmed` must reach before the put may be acknowledged.
    `log_offsets` has an entry for each record: one for a message, one for each inner message of a batch.
    """

    status: PutStatus
    log_offset: int = -1
    queue_offset: int = -1
    store_timestamp: int = 0
    log_end: int = -1
    count: int = 1
    log_offsets: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status is PutStatus.PUT_OK


class MovedOn(NamedTuple):
    """The result of putting records that waited to their real queues.

    `statuses` has one for each record, `log_end` is the log position after the last stored one, and `stored`
    has (topic, messages, bytes of their bodies) for each queue that got messages.
    """

    statuses: list[PutStatus]
    log_end: int = 0
    stored: Sequence[tuple[str, int, int]] = ()


class GetStatus(enum.Enum):
    """Apache's GetMessageStatus and two of ours; the name is the remark of a pull's answer."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9
    MESSAGE_DAMAGED = 10  # ours: the next message is not as it was stored
    READ_FAILED = 11  # ours: the disk failed


@dataclass(frozen=True, slots=True, eq=False)
class FilterProgram:
    """A filter that a kernel can run: words up to its slots, and texts (formats/filter_program.py).

    Two programs are never equal, so that one is found by its identity.
    """

    words: tuple[int, ...]
    pool: bytes


class MessageFilter(Protocol):
    """What a read requires of a message beyond its tag. Any thread may use it."""

    @property
    def steps(self) -> int:
        """How much work one evaluation is, at most: nodes of its expression."""

    @property
    def program(self) -> FilterProgram | None:
        """What a kernel can run in the place of `passes` for most messages, if there is such a form."""

    def passes(self, properties: bytes) -> bool:
        """Return whether a message with this stored properties string passes."""


@dataclass(slots=True)
class GetRequest:
    """One read of a queue. `tag_codes` is the set of Java hashes that pass, None for every tag.

    A `message_filter`, in the place of tags, judges the properties of each record. A read passes a bounded
    number of records.
    """

    topic: str
    queue_id: int
    offset: int
    max_count: int = 32
    max_bytes: int = 256 * 1024
    tag_codes: frozenset[int] | None = None
    group: str = ""
    message_filter: MessageFilter | None = None


@dataclass(slots=True)
class GetResult:
    """The result of a read: `count` records, back to back in `body`; each begins with its size.

    With `cold` they were read by position in another thread, because they were possibly not in memory.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0
    cold: bool = False

    def skipped_to(self, offset: int) -> int | None:
        """Return where to read on after a read at `offset` that found nothing: after records that are gone or
        damaged. None if the read made no progress, because the readers are busy."""
        following = self.next_offset + (self.status is GetStatus.MESSAGE_DAMAGED)
        return following if following > offset else None


class DamagedRecord(NamedTuple):
    """A damaged record to which an entry of the index leads, and its damage in words."""

    log_offset: int
    damage: str


def damage_doubt(damaged: Sequence[DamagedRecord]) -> str | None:
    """Return a sentence why a lookup may miss messages, None without damage."""
    if not damaged:
        return None
    first, more = damaged[0], len(damaged) - 1
    others = f", and {more} more" if more else ""
    return (
        f"the record at {first.log_offset:,} of the log is damaged ({first.damage}){others}: messages "
        f"may be missing"
    )


class KeyQueryResult(NamedTuple):
    """Records whose key hash matched, oldest first; the caller has to remove hash collisions.

    `damaged` records are left out, so messages may be missing.
    """

    offsets: list[int]
    records: list[bytes]
    index_last_timestamp: int = 0
    index_last_offset: int = 0
    damaged: tuple[DamagedRecord, ...] = ()
