"""The condition of the broker: one sentence for the overview, made of everything that is known to be wrong.

`judge` has the whole rule. It takes signs that were measured elsewhere (signs.py) and reads nothing itself,
so equal signs give equal results. Each sign that is bad enough becomes a notice, with its number and the page
that shows more; the most severe notice gives the sentence. A sign that could not be measured is a notice too:
what is unknown is not good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from broker_store.broker.flow import RECENT_MS
from broker_store.broker.pauses import Pause
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.facts.memory import MemoryFacts
from broker_store.messages import PutStatus
from mqadmin.cluster.embedded.write_routes import Withheld
from mqadmin.facts.condition import Condition, Notice
from mqadmin.facts.replication import ReplicationFacts
from mqadmin.templatetags.units import bytes_text, duration_text, moment_text

Severity = Literal["bad", "warn", "unknown"]  # of a notice
ORDER: tuple[Severity, ...] = ("bad", "warn", "unknown")

MIN_GROWTH = 100  # messages; by less a lag grows and shrinks where sends and pulls alternate
# Of the messages that came in: from one sample to the next a lag may grow by less where sends and pulls
# alternate
MIN_GROWTH_SHARE = 0.1
# Of the messages that came in, if the least lag of each third of the time was above that of the third before
MIN_STEADY_SHARE = 0.01
SOON_MS = 3_600_000  # a refusal expected within this time is bad
MIN_NOTED_PAUSE_S = 1.0  # a client notices when it waits so long for an answer
MAX_AHEAD_MS = 24 * 3_600_000  # a refusal expected later than this gives no notice
# Of the memory that the process may use: what it holds and the system cannot take back
MEMORY_PERCENT, FULL_MEMORY_PERCENT = 80, 95
# Flags with which messages are accepted, or need not be
NOTED_FLAGS = frozenset(
    {"inspect", "slave", "page_cache_busy", "no_buffer", "deleted_early", "cleaning_failed", "map_limit"}
)
# Statuses of a message that any store would refuse.
_OF_THE_MESSAGE = {
    PutStatus.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
    PutStatus.WHEEL_TIMER_NOT_ENABLE,
}
# Causes of refused sends that lie in the state of the store or in a flag. The other causes lie in the send
# itself, such as a bad topic name or a body that is too large.
SEND_CAUSES = frozenset(status.name for status in PutStatus if status not in _OF_THE_MESSAGE) | {
    "disk full",
    "no room",
    "sync failed",
    "dispatch failed",
    "page cache busy",
    "REST bodies under way",
}
_WORDS = {
    "MESSAGE_ILLEGAL": "message too large or malformed",
    "PROPERTIES_SIZE_EXCEEDED": "properties too large",
}
# Causes of requests that failed because of a file of the store.
FAILED_CAUSES = frozenset({StoreError.cause, DamagedStoreError.cause})


@dataclass(frozen=True, slots=True)
class Growth:
    """The lag of a group in messages, and its growth over `over_ms`. In that time `came` messages came into
    its queues.

    `steadily` is by how much the least lag of the last third of that time is above that of the first third,
    if it rose in the second third as well; 0 if it did not, or if there are too few samples. `has_stopped`:
    the lag grew in that time, and does not grow any more.
    """

    group: str
    lag: int
    grown: int
    over_ms: int
    came: int
    steadily: int = 0
    has_stopped: bool = False

    @property
    def is_growing(self) -> bool:
        if self.grown < MIN_GROWTH or self.has_stopped:
            return False
        return self.grown >= self.came * MIN_GROWTH_SHARE or self.steadily >= max(
            MIN_GROWTH, self.came * MIN_STEADY_SHARE
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """The time at which sends will be refused for lack of room, by the disk's forecast, and the use of the
    disk then. `at_ms` None: not within the forecast."""

    percent: int
    is_reached: bool
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Signs:
    """The measured values by which the condition is judged; None: it could not be measured."""

    now_ms: int
    state: str
    sentence: str  # of the state
    flags: tuple[tuple[str, str], ...] = ()  # name, cause
    refused: Mapping[str, int] | None = None  # by cause, of the last RECENT_MS
    lags: tuple[Growth, ...] | None = None  # of groups whose lag was sampled twice
    disk: Refusal | None = None
    failed_jobs: int | None = None  # of the last day
    stopped_children: tuple[str, ...] | None = None
    findings: int | None = 0  # of the last check of the store, worse than harmless
    database_failed: str = ""  # why; "" when it answers
    samples_failed: str = ""  # why; "" when they are taken
    pause: Pause | None = None  # the longest of the last 5 minutes
    memory: MemoryFacts | None = None  # None before the first measurement
    withheld: Withheld | None = None  # write permission that this process's name server does not give out
    refused_sends: Mapping[str, int] = field(default_factory=dict)  # of `refused`
    replication: ReplicationFacts | None = None


def judge(signs: Signs) -> Condition:
    """Return the notices that signs give, the most severe first, and the sentence of the condition."""
    notices = [
        *_of_state(signs),
        *_of_flags(signs),
        *_of_routes(signs),
        *_of_refused(signs),
        *_of_disk(signs),
        *_of_replication(signs),
        *_of_memory(signs),
        *_of_findings(signs),
        *_of_lags(signs),
        *_of_pause(signs),
        *_of_jobs(signs),
        *_of_database(signs),
        *_of_samples(signs),
    ]
    notices.sort(key=lambda notice: ORDER.index(notice.severity))
    if not notices:
        return Condition(severity="good", sentence=f"Everything runs.{_waiting(signs)}", notices=[])
    more = len(notices) - 1
    first = notices[0].sentence
    if notices[0].severity == "unknown":
        first = f"Nothing is known to be wrong, but some things are unknown. {first}"
    return Condition(
        severity=notices[0].severity,
        sentence=first + (f" And {more} more." if more else ""),
        notices=notices,
    )


def judge_state(now_ms: int, state: str, sentence: str) -> Condition:
    """Return the condition of a broker that does not serve: only its state is known."""
    return Condition(
        severity="warn" if state not in ("failed", "closed") else "bad",
        sentence=sentence,
        notices=_of_state(Signs(now_ms, state, sentence)),
    )


def _notice(
    severity: Severity, kind: str, sentence: str, number: int | None, page: str, of: str = ""
) -> Notice:
    return Notice(severity=severity, kind=kind, sentence=sentence, number=number, page=page, of=of)


def _of_state(signs: Signs) -> list[Notice]:
    if signs.state == "running":
        return []
    severity: Severity = "bad" if signs.state in ("failed", "closed", "read_only") else "warn"
    if signs.state == "read_only" and any(name in NOTED_FLAGS for name, _ in signs.flags):
        severity = "warn"
    is_of_start = signs.state != "read_only" or any(name == "inspect" for name, _ in signs.flags)
    return [_notice(severity, "state", signs.sentence, None, "recovery" if is_of_start else "store")]


def _of_flags(signs: Signs) -> list[Notice]:
    if signs.state == "read_only":  # its sentence has the causes
        return []
    return [
        _notice(
            "warn" if name in NOTED_FLAGS else "bad",
            "flag",
            f"The store reports: {cause.rstrip('.')}.",
            None,
            "store",
            name,
        )
        for name, cause in signs.flags
    ]


def _of_routes(signs: Signs) -> list[Notice]:
    if signs.withheld is None:
        return []
    found = signs.withheld
    which = "" if found.topics == found.of else f" for {found.topics:,} of {found.of:,} topics"
    text = (
        f"The name server gives out {found.broker} without write permission{which}: clients cannot send; "
        f"{found.remedy}."
    )
    return [_notice("bad", "routes", text, found.topics, "topics")]


def _of_refused(signs: Signs) -> list[Notice]:
    if signs.refused is None:
        return [
            _notice("unknown", "refused", "The number of refused requests is unknown.", None, "store_write")
        ]
    found, minutes = [], RECENT_MS // 60_000
    if failed := sum(signs.refused[cause] for cause in signs.refused.keys() & FAILED_CAUSES):
        text = (
            f"{failed:,} {'request' if failed == 1 else 'requests'} failed in the last {minutes} minutes "
            f"because of a file of the store; the broker's log names it."
        )
        found.append(_notice("bad", "failed", text, failed, "doctor"))
    by_the_store = {cause: count for cause, count in signs.refused.items() if cause in SEND_CAUSES}
    by_themselves = {
        cause: count
        for cause, count in signs.refused_sends.items()
        if cause not in SEND_CAUSES | FAILED_CAUSES
    }
    others = {
        cause: count - by_themselves.get(cause, 0)
        for cause, count in signs.refused.items()
        if cause not in SEND_CAUSES | FAILED_CAUSES
    }
    kinds: tuple[tuple[Literal["bad", "warn"], str, str, dict[str, int]], ...] = (
        ("bad", "send", "sends", by_the_store),
        (
            "warn",
            "other send" if by_the_store else "send",
            "other sends" if by_the_store else "sends",
            by_themselves,
        ),
        ("warn", "other request or connection", "other requests or connections", others),
    )
    for severity, one, many, counts in kinds:
        counts = {cause: count for cause, count in counts.items() if count > 0}
        if counts:
            count, worst = sum(counts.values()), max(sorted(counts), key=lambda cause: counts[cause])
            text = (
                f"{count:,} {one if count == 1 else many} {'was' if count == 1 else 'were'} refused in "
                f"the last {minutes} minutes, "
                f"{'' if len(counts) == 1 else f'{counts[worst]:,} of them '}for “{words_of(worst)}”."
            )
            found.append(_notice(severity, "refused", text, count, "store_write"))
    return found


def words_of(cause: str) -> str:
    """Return a cause of refusals as it is written in a sentence."""
    if cause in _WORDS:
        return _WORDS[cause]
    return cause.replace("_", " ").lower() if cause.isupper() else cause


def _of_disk(signs: Signs) -> list[Notice]:
    if signs.disk is None:
        return [_notice("unknown", "disk", "The forecast of the disk is unknown.", None, "disk")]
    mark = signs.disk
    if mark.is_reached:
        return [
            _notice(
                "bad", "disk", f"The disk is {mark.percent} % full: sends are refused.", mark.percent, "disk"
            )
        ]
    if mark.at_ms is None or mark.at_ms - signs.now_ms > MAX_AHEAD_MS:
        return []
    left = max(0, mark.at_ms - signs.now_ms)
    return [
        _notice(
            "bad" if left <= SOON_MS else "warn",
            "disk",
            f"In about {duration_text(left)} the disk is {mark.percent} % full, and sends are refused.",
            left,
            "disk",
        )
    ]


def _of_replication(signs: Signs) -> list[Notice]:
    """Return what is wrong between a master and its slaves. What stops writing or copying has a flag."""
    found = signs.replication
    if found is None:
        return []
    texts = []
    if found.controller is not None and found.controller.error is not None:
        why = found.controller.error.rstrip(".")
        texts.append(f"The controllers give this broker no role now: {why}.")
    if (master := found.master) is not None:
        if master.error is not None and not master.stopped:
            texts.append(f"This slave copies nothing: {master.error.rstrip('.')}.")
        elif master.tables_error is not None:
            texts.append(
                f"Topics, groups and offsets of the master are not taken over: "
                f"{master.tables_error.rstrip('.')}."
            )
    for slave in found.slaves:
        if slave.behind_bytes is not None and not slave.in_step:
            why = (
                "more than haMaxGapNotInSync"
                if found.controller is None
                else "and is not in the sync state set"
            )
            texts.append(
                f"The slave at {slave.address} lacks {bytes_text(slave.behind_bytes)} of the log, {why}."
            )
    if found.left is not None and not found.slaves and found.master is None:
        at = (moment_text(found.left.at_ms) or "")[11:19]
        lacks = bytes_text(max(0, found.wrote - found.left.reported))
        texts.append(
            f"No slave is connected any more: the last one, at {found.left.address}, left at {at} UTC, and "
            f"{lacks} of the log came since."
        )
    return [_notice("warn", "replication", text, None, "replication") for text in texts]


def _of_memory(signs: Signs) -> list[Notice]:
    """Return a notice when what the system cannot take back is near the limit."""
    found = signs.memory
    if found is None:
        return []
    held = found.anonymous_bytes + found.page_table_bytes
    percent = held * 100 // max(1, found.limit_bytes)
    if percent < MEMORY_PERCENT:
        return []
    text = (
        f"The broker holds {held >> 20:,} MiB, {percent} % of the {found.limit_bytes >> 20:,} MiB that it "
        f"may use ({found.limit_source}): beyond that the system ends a process."
    )
    severity: Severity = "bad" if percent >= FULL_MEMORY_PERCENT else "warn"
    return [_notice(severity, "memory", text, percent, "memory")]


def _of_findings(signs: Signs) -> list[Notice]:
    if signs.findings is None and signs.failed_jobs is not None:  # otherwise the notice of jobs states it
        text = "The result of the last check of the store is unknown."
        return [_notice("unknown", "damage", text, None, "doctor")]
    if not signs.findings:
        return []
    one = signs.findings == 1
    return [
        _notice(
            "bad",
            "damage",
            f"The last check of the store found {signs.findings:,} {'place' if one else 'places'} "
            f"that {'is' if one else 'are'} damaged.",
            signs.findings,
            "doctor",
        )
    ]


def _of_lags(signs: Signs) -> list[Notice]:
    if signs.lags is None:
        return [_notice("unknown", "lag", "It is unknown whether the lag of groups grows.", None, "groups")]
    growing = sorted((lag for lag in signs.lags if lag.is_growing), key=lambda lag: (-lag.grown, lag.group))
    return [
        _notice(
            "warn",
            "lag",
            f"The lag of {lag.group} grows: {lag.lag:,} messages, {lag.grown:,} more than "
            f"{duration_text(lag.over_ms)} ago.",
            lag.lag,
            "group",
            lag.group,
        )
        for lag in growing
    ]


def _waiting(signs: Signs) -> str:
    """Return the sentence on lags that follows the good sentence: a lag that does not grow is not an error,
    but the first page shows it."""
    behind = [lag for lag in signs.lags or () if lag.lag >= MIN_GROWTH]
    if not behind:
        return ""
    count = sum(lag.lag for lag in behind)
    return (
        f" {count:,} messages wait for "
        f"{'the group ' + behind[0].group if len(behind) == 1 else f'{len(behind):,} groups'}."
    )


def _of_pause(signs: Signs) -> list[Notice]:
    if signs.pause is None or signs.pause.seconds <= MIN_NOTED_PAUSE_S:
        return []
    lasted_ms = round(signs.pause.seconds * 1000)
    at = (moment_text(signs.pause.at_ms) or "")[11:19]
    text = (
        f"The broker's event loop was blocked for {duration_text(lasted_ms)} at {at} UTC: "
        f"no request was answered."
    )
    return [_notice("warn", "pause", text, lasted_ms, "store_write")]


def _of_jobs(signs: Signs) -> list[Notice]:
    found = []
    if signs.stopped_children:
        names, one = ", ".join(signs.stopped_children), len(signs.stopped_children) == 1
        found.append(
            _notice(
                "warn",
                "children",
                f"{names} {'does' if one else 'do'} not run, so jobs wait. Messages are not touched by that.",
                len(signs.stopped_children),
                "jobs",
            )
        )
    if signs.failed_jobs:
        found.append(
            _notice(
                "warn",
                "jobs",
                f"{signs.failed_jobs:,} {'job' if signs.failed_jobs == 1 else 'jobs'} failed in the "
                f"last 24 h.",
                signs.failed_jobs,
                "jobs",
            )
        )
    elif signs.failed_jobs is None or signs.stopped_children is None:
        found.append(
            _notice(
                "unknown",
                "jobs",
                "It is unknown whether jobs failed and what the last check of the store found: the "
                "queue of jobs does not answer.",
                None,
                "jobs",
            )
        )
    return found


def _of_database(signs: Signs) -> list[Notice]:
    if not signs.database_failed:
        return []
    text = (
        f"The dashboard's database does not answer, so logins, tokens and the audit trail fail or are "
        f"lost: {signs.database_failed}."
    )
    return [_notice("bad", "database", text, None, "")]


def _of_samples(signs: Signs) -> list[Notice]:
    if not signs.samples_failed:
        return []
    return [
        _notice(
            "warn",
            "samples",
            f"Samples over time are missing, so rates and forecasts are out of date: "
            f"{signs.samples_failed.rstrip('.')}.",
            None,
            "disk",
        )
    ]
