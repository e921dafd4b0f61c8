"""Rules that `check_store` and the pipeline's audit share: kinds of findings, how grave each is, and its
sentence.

One walks a store in order, the other shares it out among tasks; what they say of the same fault is the same.
`late` is what the next start makes again by itself: a warning after a stop that was not in order, else an
error.
"""

from __future__ import annotations

import numpy as np

from broker_store.check.report import ERROR, WARNING
from broker_store.formats import index_file

STORE_TIME = "store-time"
QUEUE_OFFSET = "queue-offset"
NO_INDEX = "no-index"
INDEX_HEADER = "index-header"
WRONG_ENDS = "its begin and end offset are not those of its first and last entry"
MISPLACED = "misplaced-file"
MOST_CONTRADICTED = 10_000  # units without a record of theirs whose place is read: each costs a read
INDEX_REBUILT = "index-rebuilt"
INDEX_WAS_REBUILT = "the index was made again while it was read, so nothing is known of it: audit it again"


def late_severity(is_unclean_or_in_use: bool) -> str:
    """How grave it is that queues or index lack what the next start makes again."""
    return WARNING if is_unclean_or_in_use else ERROR


def missing_severity(behind: str, is_at_end: bool, is_unclean: bool) -> str:
    """How grave it is that the log has a record whose unit is missing; `behind` is `late_severity` of the
    store."""
    return behind if is_at_end or is_unclean else ERROR


def time_goes_back(back_ms: int) -> str:
    return (
        f"was stored {back_ms:,} ms before the record before it: a search by time may miss messages near here"
    )


def times_go_back_more(count: int) -> str:
    return f"{count:,} more records after this one were stored before the record before them"


def offset_given_again(found: int, wanted: int) -> str:
    return f"queue offset {found} is given again, the queue was at {wanted}"


def offsets_given_again(count: int, first: int, queue: str, unit_at: int) -> str:
    which = f"queue offset {first}" if count == 1 else f"{count} queue offsets from {first} on"
    return (
        f"{which} of {queue} {'is' if count == 1 else 'are'} given again: the unit leads to the record "
        f"at {unit_at} of the log"
    )


def offsets_in_no_record(first: int, last: int, queue: str) -> str:
    return f"queue offsets {first} to {last} of {queue} are in no record"


def entry_seconds(store_ms: np.ndarray, begin_ms: np.ndarray | int) -> np.ndarray:
    """Return the seconds that index entries state, of records stored at `store_ms` in files that begin at
    `begin_ms`; as `seconds_since` of kernels/index.py."""
    return np.where(begin_ms > 0, np.clip((store_ms - begin_ms) // 1000, 0, index_file.MAX_SECONDS), 0)


def keys_not_in_index(keys: int, log_offset: int) -> str:
    return f"{keys} keys of the records from {log_offset} on are not in the index"


def keys_without_index(keys: int) -> str:
    return f"there is no index: {keys} keys cannot be looked up"


def points_back(to: int, behind: int) -> str:
    """Entries stand in the order of the log, over all files of the index."""
    return f"points back to {to} behind {behind}"


def wrong_stamp(name: str, stated_ms: int, record_ms: int) -> str:
    return f"{name} is {stated_ms}, its record was stored at {record_ms}"
