"""The report of a start: what it found and did. Any thread may read it while it is written; it is kept as a
start record.

Everything in it is bounded: of steps, findings and tried files the first are kept, and the others counted.
Facts have fields of their own; `detail` and `what` are sentences for people.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from broker_store.engine.status.store_state import LostAndFound
from broker_store.units import fields_of

MAX_STEPS = 200  # beyond that, steps of one name in a row, such as scanned files, are joined to one
MAX_FINDINGS = 200
MAX_TRIED = 100  # log files tried as the start of the scan
MAX_QUEUES_CUT = 100
MAX_QUEUES_IN_WORDS = 5
MAX_RECORDS_NAMED = 100_000  # whole records after the log's end that are read to name messages
MAX_TEXT = 600
SCAN = "scan the log"
_MIN_RATE_MS = 20.0  # the rate of a shorter scan is not meaningful


@dataclass
class Step:
    """One step. `detail` states in words what was decided and why; `of_bytes` how many bytes there are to do,
    None when that is not known."""

    name: str
    file: str | None
    started_ms: int
    at_ms: float  # since the start began
    duration_ms: float | None = None
    bytes: int = 0
    messages: int = 0
    of_bytes: int | None = None
    times: int = 1
    detail: str = ""

    def as_dict(self) -> dict:
        return {**vars(self), "detail": self.detail[:MAX_TEXT]}


@dataclass
class CutMessages:
    """Whole messages that are cut with the log's end: by queue their number, their first and last offset.

    `searched_to` is the log offset from which on no record was read, None when all were.
    """

    whole: int = 0
    queues: list[dict] = field(default_factory=list)
    queues_left_out: int = 0
    searched_to: int | None = None
    # rows, also of a queue that is left out of `queues`
    _of_queue: dict[tuple[str, int], dict] = field(default_factory=dict)

    def add(self, topic: str, queue_id: int, queue_offset: int) -> None:
        self.whole += 1
        row = self._of_queue.get((topic, queue_id))
        if row is None:
            row = self._of_queue[topic, queue_id] = {
                "topic": topic,
                "queue_id": queue_id,
                "first": queue_offset,
                "last": queue_offset,
                "messages": 0,
            }
            if len(self.queues) < MAX_QUEUES_CUT:
                self.queues.append(row)
            else:
                self.queues_left_out += 1
        row["first"], row["last"] = min(row["first"], queue_offset), max(row["last"], queue_offset)
        row["messages"] += 1

    def words(self, are_cut: bool) -> str:
        """Return a sentence about them, before they are cut or after."""
        beyond = (
            "" if self.searched_to is None else f"; what begins at {self.searched_to:,} or later was not read"
        )
        if not self.whole:
            return f"no whole message that can be read was found after the log's end{beyond}"
        named = [
            f"{row['topic']}/{row['queue_id']} {row['first']:,}"
            + (f" to {row['last']:,}" if row["last"] > row["first"] else "")
            for row in self.queues[:MAX_QUEUES_IN_WORDS]
        ]
        more = len(self.queues) + self.queues_left_out - len(named)
        queues = ", ".join(named) + (f", and of {more:,} more queue{'s' * (more > 1)}" if more else "")
        is_one = self.whole == 1
        what = f"{self.whole:,} whole message{'s' * (not is_one)}"
        return (
            f"{what} after the log's end {'is' if is_one else 'are'} cut: {queues}{beyond}"
            if are_cut
            else f"{what} {'lies' if is_one else 'lie'} after the log's end: {queues}{beyond}"
        )

    def as_dict(self) -> dict:
        return {
            "whole": self.whole,
            "queues": self.queues,
            "queues_left_out": self.queues_left_out,
            "searched_to": self.searched_to,
        }


@dataclass
class RecoveryReport:
    """The shape that pages and REST show (`as_dict`). `on_change` is called after every change, in recovery's
    thread.

    `timer` returns monotonic seconds. Time between the steps counts as `between_ms`; no work is done then.
    """

    started_ms: int
    on_change: Callable[[RecoveryReport], None] | None = None
    timer: Callable[[], float] = time.perf_counter
    id: str = ""
    purpose: str = "start"  # or inspect, dry run, lab
    # The file sizes of the settings, by which later starts judge files of other lengths
    sizes: dict[str, int] | None = None
    # ASYNC_FLUSH or SYNC_FLUSH: with the latter a unit of this run proves that its record was synced
    flush_disk_type: str = ""
    delay_levels: str = ""  # messageDelayLevel, by which the units of waiting messages are judged
    kind: str = "unknown"
    state: str = "running"
    finished_ms: int | None = None
    # From the request for the store to its opening: the dashboard starts first
    before_ms: int | None = None
    in_use: bool = False  # an inspection of a store that another process writes
    came_meanwhile: int = 0  # bytes after the log's end that were written since the scan
    abort_found: bool | None = None
    checkpoint: dict | None = None
    tried: list[dict] = field(default_factory=list)
    tried_left_out: int = 0
    start: dict | None = None
    scanned_bytes: int = 0
    total_bytes: int = 0
    messages: int = 0
    crc_failures: int = 0
    stopped: dict | None = None
    log_end: int | None = None
    cut_bytes: int = 0
    cut: dict = field(default_factory=lambda: {
        "commitlog": {"bytes": 0, "files": 0, "from": None},
        "consumequeue": {"units": 0, "files": 0, "queues": [], "queues_left_out": 0},
        "index": {"entries": 0, "files": 0, "linked": 0},
        "messages": CutMessages().as_dict(),  # of a start that fails before it cuts the log there are none
    })  # fmt: skip
    dispatched: dict | None = None
    redispatched: int = 0
    # Files and bytes that this start and all earlier ones took away; None before they were counted
    lost_and_found: LostAndFound | None = None
    steps: list[Step] = field(default_factory=list)
    findings: list[dict] = field(default_factory=list)
    findings_left_out: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        self._began = self._took = self.timer()
        self._made_ms = self.started_ms
        self._ended = False

    def begin(self, now_ms: int) -> None:
        """Set the begin of the start to `now_ms`: this object was made earlier."""
        self.before_ms = max(0, now_ms - self._made_ms)
        self.started_ms = now_ms
        self.id = self.id or str(now_ms)
        self._began = self.timer()
        self.changed()

    @contextmanager
    def step(self, name: str, file: str | None = None):
        """Time a step; it is in the report from its begin."""
        began = self.timer()
        entry = Step(name, file, int(time.time() * 1000), round((began - self._began) * 1000, 3))
        self.steps.append(entry)
        self.changed()
        began = self.timer()
        try:
            yield entry
        finally:
            entry.duration_ms = round((self.timer() - began) * 1000, 3)
            self._join_steps()
            self.changed()

    def _join_steps(self) -> None:
        """Join the last two steps if there are too many and both have one name, such as scanned files."""
        if len(self.steps) <= MAX_STEPS:
            return
        *_, joined, entry = self.steps
        if joined.name == entry.name:
            joined.duration_ms = (joined.duration_ms or 0.0) + (entry.duration_ms or 0.0)
            joined.bytes, joined.messages, joined.times = (
                joined.bytes + entry.bytes,
                joined.messages + entry.messages,
                joined.times + 1,
            )
            joined.file, joined.detail = entry.file, entry.detail
            self.steps.pop()

    def finding(self, severity: str, what: str, file: str | None = None, offset: int | None = None) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(
                {"severity": severity, "file": file, "offset": offset, "what": what[:MAX_TEXT]}
            )
        else:
            self.findings_left_out += 1
        self.changed()

    def judge_stop(self, verdict: str) -> None:
        """Set the verdict on where the scan stopped, which `stopped` describes by then."""
        assert self.stopped is not None
        self.stopped["verdict"] = verdict

    def try_file(self, file: str, base: int, first_ms: int | None, taken: bool, why: str) -> None:
        """Report a log file that was tried as the start of the scan, newest first."""
        if len(self.tried) < MAX_TRIED or taken:
            self.tried.append({"file": file, "base": base, "first_ms": first_ms, "taken": taken, "why": why})
        else:
            self.tried_left_out += 1

    def cut_queue(self, topic: str, queue_id: int, first: int, units: int) -> None:
        """Report units from number `first` on that were taken out of a queue."""
        cut = self.cut["consumequeue"]
        cut["units"] += units
        if len(cut["queues"]) < MAX_QUEUES_CUT:
            cut["queues"].append({"topic": topic, "queue_id": queue_id, "first": first, "units": units})
        else:
            cut["queues_left_out"] += 1

    def changed(self) -> None:
        if self.on_change is not None:
            self.on_change(self)

    def finish(self, state: str, error: str | None = None) -> None:
        self._took, self._ended = self.timer(), True
        self.state, self.error = state, None if error is None else error[: 4 * MAX_TEXT]
        self.finished_ms = int(time.time() * 1000)
        self.changed()

    def as_dict(self) -> dict:
        steps = list(self.steps)
        took_ms = ((self._took if self._ended else self.timer()) - self._began) * 1000
        scan_ms = sum(self._lasted(step, took_ms) for step in steps if step.name == SCAN)
        rate = (
            self.scanned_bytes * 1000 / scan_ms
            if scan_ms >= _MIN_RATE_MS or (self._ended and scan_ms > 0)
            else None
        )
        running = self.state == "running"
        return {
            "id": self.id or str(self.started_ms),
            "purpose": self.purpose,
            "sizes": self.sizes,
            "delay_levels": self.delay_levels,
            "flush_disk_type": self.flush_disk_type,
            "started_ms": self.started_ms,
            "finished_ms": self.finished_ms,
            "before_ms": self.before_ms,
            "took_ms": round(took_ms, 3),
            "between_ms": round(max(0.0, took_ms - sum(self._lasted(step, took_ms) for step in steps)), 3),
            "left_ms": self._left_ms(steps, rate, took_ms) if running else None,
            "kind": self.kind,
            "state": self.state,
            "step": steps[-1].name if steps else "",
            "in_use": self.in_use,
            "came_meanwhile": self.came_meanwhile,
            "abort_found": self.abort_found,
            "checkpoint": self.checkpoint,
            "start": self.start,
            "tried": list(self.tried),
            "tried_left_out": self.tried_left_out,
            "scanned_bytes": self.scanned_bytes,
            "total_bytes": self.total_bytes,
            "scan_bytes_per_s": None if rate is None else round(rate),
            "messages": self.messages,
            "crc_failures": self.crc_failures,
            "stopped": self.stopped,
            "log_end": self.log_end,
            "cut_bytes": self.cut_bytes,
            "cut": self.cut,
            "dispatched": self.dispatched,
            "redispatched": self.redispatched,
            "lost_and_found": None if self.lost_and_found is None else fields_of(self.lost_and_found),
            "steps": [step.as_dict() for step in steps],
            "findings": list(self.findings),
            "findings_left_out": self.findings_left_out,
            "error": self.error,
        }

    def _lasted(self, step: Step, took_ms: float) -> float:
        return max(0.0, took_ms - step.at_ms) if step.duration_ms is None else step.duration_ms

    def _left_ms(self, steps: list[Step], scan_rate: float | None, took_ms: float) -> int | None:
        """Return the remaining time of the running step in ms, at its measured rate; None when it cannot be
        estimated."""
        if not steps or steps[-1].duration_ms is not None:
            return None
        step = steps[-1]
        if step.name == SCAN:
            return (
                None
                if not scan_rate
                else round(max(0, self.total_bytes - self.scanned_bytes) * 1000 / scan_rate)
            )
        lasted = self._lasted(step, took_ms)
        if step.of_bytes is None or not step.bytes or lasted < _MIN_RATE_MS:
            return None
        return round(max(0, step.of_bytes - step.bytes) * lasted / step.bytes)


def counted(number: int, noun: str) -> str:
    """Return "1 queue" or "2 queues"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def time_text(ms: int) -> str:
    """Return a time of a record or of the checkpoint as text. A time that no calendar has (the bytes may be
    damaged) is given as its number of ms."""
    if not 0 < ms < 253_402_300_800_000:
        return f"{ms:,} ms" if ms else "none"
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC"
