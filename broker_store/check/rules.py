"""Rules that `check_store` and the pipeline's audit share: kinds of findings, their severities and sentences.

The check walks a store in order, the audit divides it among tasks; both report the same for the same fault.
Rules for units are in `units.py`, those for index entries in `entries.py`, those for single records in
`records.py`.
"""

from __future__ import annotations

from broker_store.check.report import ERROR, WARNING

STORE_TIME = "store-time"
QUEUE_OFFSET = "queue-offset"
MISPLACED = "misplaced-file"
BAD_RECORD = "bad-record"
TORN_TAIL = "torn-tail"
STALE_TAIL = "stale-tail"
# In a finding: the doctor counts the unit's message as lost
AFTER_THE_LOG = "after the end of the log"


def late_severity(is_unclean_or_in_use: bool) -> str:
    """Return the severity of queues or index that lack what the next start makes again.

    A warning after a stop that was not in order and in a store in use, else an error.
    """
    return WARNING if is_unclean_or_in_use else ERROR


def missing_severity(late: str, is_at_end: bool, is_unclean: bool) -> str:
    """Return the severity of a missing unit whose record the log has; `late` is `late_severity` of the
    store."""
    return late if is_at_end or is_unclean else ERROR


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
