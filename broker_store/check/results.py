"""The result of a check as commands print it, jobs keep it, and pages and REST show it.

Files are named relative to the store.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.units import Small

# What a finding means for the store; `doctor.py` grades findings.
HARMLESS, NEXT_START, REPAIR, LOST = GRADES = ("harmless", "next start", "repair", "lost")
# Words for counts whose name alone would mislead.
WORDS_OF_COUNTS = {"log_bytes": "bytes of log files, which are made with room for records to come"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedFinding:
    """A finding of a check."""

    severity: str  # error, warning or note
    grade: str  # one of GRADES
    kind: str
    file: str
    offset: int | None  # byte in the file; None: it is about the whole file
    what: str
    means: str  # what its kind means to the reader of the store
    repair: str  # what a repair does about it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """A step of a repair."""

    number: int  # from 1
    action: str  # kind of action
    file: str
    offset: int | None  # byte in the file; None: it is about the whole file
    bytes: int  # of the store that it changes or takes away
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMessages:
    """Neighbouring messages of a queue that no repair restores."""

    topic: str
    queue_id: Small
    first: int  # offsets in the queue
    last: int
    messages: int
    is_stale: bool  # they are whole, but after the end of the log, and no queue has them


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSummary:
    """What is lost, whatever a repair does; `Losses` of losses.py says more of each field."""

    messages: int
    ranges: list[LostMessages]
    ranges_left_out: int
    unnamed_bytes: int  # missing or damaged bytes that held what no queue names
    perhaps_expired: int  # messages before `log_begin`
    log_begin: int  # log offset
    ends_unknown: list[str]  # queues (topic/queue id) of which the lost end of the log may have held more


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair would do."""

    actions: list[PlannedAction]  # in order
    left: list[str]  # sentences about what it cannot repair
    lost: LossSummary
    bytes: int  # that its actions change or take away
    kept_in: str | None  # where copies of them are kept; None: nothing is changed


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSummary:
    """What a check found, in numbers."""

    ok: bool  # the whole store was checked, and nothing is wrong
    log_end: int  # log offset
    counts: dict[str, int]  # of what was read
    kinds: dict[str, int]  # findings by kind, also those that are not listed
    grades: dict[str, int]  # listed findings by grade


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult(CheckSummary):
    """What a check found."""

    findings: list[GradedFinding]  # the most severe first
    plan: RepairPlan | None = None  # None: it was not asked for
