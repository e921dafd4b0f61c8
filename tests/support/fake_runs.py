"""Invented runs of the pipeline, one of each job and in each state, for a dashboard without Redis and without
Spark."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_store.check.doctor import findings_of
from broker_store.check.report import ERROR, NOTE, WARNING, CheckReport, Finding
from broker_store.check.results import GRADES
from broker_store.pipeline import results
from broker_store.rest.problems import Problem
from broker_store.units import document_of, fact_of
from mqadmin.jobs import pipeline, queue
from mqadmin.jobs.facts import OVER, Job, JobProgress, Step
from mqadmin.jobs.kinds import json_of

HOUR_MS = 3_600_000
BEGAN_MS = int(time.time() * 1000)

AUDIT_BAD = {
    "ok": False,
    "errors": 5,
    "kinds": {"unit-missing": 118, "bad-record": 1, "index-chain": 3, "torn-tail": 1, "index-behind": 42},
    "counts": {"queues": 25, "records": 1_804_221, "log_end": 357_564_416, "units": 1_804_103, "index_files": 2, "entries": 3_608_318},
    "findings": [
        {"severity": "error", "kind": "bad-record", "file": "commitlog/00000000000067108864", "offset": 41_220, "what": "CRC of the body is 2914410053, the " "record says 1180023341"},
        {"severity": "error", "kind": "unit-missing", "file": "consumequeue/orders/3/00000000000000000000", "offset": 98_400, "what": "118 units from 4920 to 5037: missing, " "the log has the records"},
        *({"severity": "error", "kind": "index-chain", "file": "index/20261121081502113", "offset": 20_000_440 + 20 * n, "what": f"entry {4_021 + n} names {4_019 + n} as " f"the one before it in its slot, that is " f"3977"} for n in range(3)),
        {"severity": "warning", "kind": "torn-tail", "file": "commitlog/00000000000335544320", "offset": 22_020_096, "what": "torn end: 312 bytes that are no record"},
        {"severity": "warning", "kind": "index-behind", "file": "index/20261121101137201", "offset": None, "what": "42 keys of the records from 357101220 " "on are not in the index"},
    ],
}  # fmt: skip
AUDIT_GOOD = {
    "ok": True,
    "errors": 0,
    "kinds": {},
    "findings": [],
    "counts": {
        "queues": 25,
        "records": 1_804_221,
        "log_end": 357_564_416,
        "units": 1_804_221,
        "index_files": 2,
        "entries": 3_608_442,
    },
}


def _cell(messages: int, size: int, **names: object) -> dict:
    told = {
        "messages": messages,
        "bytes": messages * size,
        "distinct_keys": messages // 3,
        "size_p50": size,
        "size_p95": size * 3,
        "size_p99": size * 9,
    }
    return names | told | {"delay_ms_p50": 2, "delay_ms_p95": 9, "delay_ms_p99": 41 + messages % 7}


def _topic(name: str, messages: int, size: int, keys: int) -> dict:
    sizes = {
        "smallest": size // 3,
        "largest": size * 40,
        "size_p50": size,
        "size_p95": size * 3,
        "size_p99": size * 9,
    }
    times = {
        "first_ms": BEGAN_MS - 60 * HOUR_MS,
        "last_ms": BEGAN_MS - 40_000,
        "delay_ms_p50": 2,
        "delay_ms_p95": 9,
        "delay_ms_p99": 41,
    }
    return {
        "topic": name,
        "messages": messages,
        "bytes": messages * size,
        "queues": 8,
        "distinct_keys": keys,
        **sizes,
        **times,
    }


STATISTICS = {
    "topics": [
        _topic("page-views", 5_220_947, 412, 0), _topic("orders", 1_804_221, 1_180, 1_790_112), _topic("payments", 402_118, 2_044, 402_118),
        _topic("%RETRY%billing", 1_207, 1_310, 611), _topic("%DLQ%billing", 31, 1_290, 31),
    ],
    "tags": [_cell(count, 1_180, topic="orders", tags=tag) for tag, count in (("created", 1_210_004), ("paid", 590_001), (None, 4_216))],
    "groups": [_cell(1_238, 1_310, group="billing")],
    "hours": [_cell(40_000 + (n % 24) * (24 - n % 24) * 900 + n * 300, 412, hour_ms=(BEGAN_MS // HOUR_MS - 60 + n) * HOUR_MS) for n in range(60) if n not in (17, 18)],
    "hot_keys": [{"topic": "orders", "key": f"order-{41_000 + n}", "messages": 19 - n} for n in range(12)],
    "index": [
        {"file": "20261121081502113", "slots": 5_000_000, "room": 20_000_000, "entries": 2_400_118, "slots_used": 1_906_212, "longest_chain": 9, "mean_chain": 1.26, "chain_p99": 4, "skew": 7.14},
        {"file": "20261121101137201", "slots": 5_000_000, "room": 20_000_000, "entries": 1_208_324, "slots_used": 1_072_040, "longest_chain": 8, "mean_chain": 1.13, "chain_p99": 3, "skew": 7.08},
    ],
    "messages": 7_428_524,
    "bytes": 5_103_441_912,
    "complete": True,
}  # fmt: skip


def _step(step: str, topic: str, after_ms: int, place: int) -> dict:
    where = {
        "topic": topic,
        "queue_id": 3,
        "queue_offset": 51_022 + place,
        "log_offset": 40_000 + 1_404 * place,
        "record_bytes": 1_404,
        "reconsume_times": place,
    }
    return {
        "step": step,
        **where,
        "keys": ["order-41040"],
        "unique_key": "0A00030E1F9018B4AAC2",
        "tags": "created",
        "store_ms": BEGAN_MS - 9 * HOUR_MS + after_ms,
        "born_ms": None,
    }


LINEAGE = {
    "key": "order-41040",
    "complete": True,
    "records": [
        _step("stored", "orders", 0, 0),
        _step("stored", "payments", 84, 1),
        _step("waits for delivery to %RETRY%billing (level 3)", "SCHEDULE_TOPIC_XXXX", 10_200, 2),
        _step("delivered to group billing again, attempt 1", "%RETRY%billing", 20_240, 3),
        _step("given up by group billing after 16 attempts", "%DLQ%billing", 4 * HOUR_MS + 1_700_000, 4),
    ],
}
ARCHIVE = {
    "records": 1_402_118, "bytes": 210_884_120, "files": 14, "from": 201_326_592, "to": 357_564_416, "missing": [[67_108_864, 134_217_728]],
    "doubt": "store times go back once, first at 301,989,888 of the log by 3,600,000 ms: each message is " "in " "the day that its own store time says",
    "days": [{"topic": topic, "day": f"2026-11-{day}", "records": 70_000 + day * 900 + len(topic) * 4_000, "bytes": 9_400_000 + day * 81_000, "files": 1 + (topic == "orders")}
             for topic in ("orders", "page-views", "payments") for day in range(17, 22)],
}  # fmt: skip
RESULTS = {
    "audit": AUDIT_GOOD,
    "audit-bad": AUDIT_BAD,
    "statistics": STATISTICS,
    "lineage": LINEAGE,
    "archive": ARCHIVE,
}
LOG = (
    "18:02:11 starting Spark\n18:02:17 records\nWARN TaskSetManager: Lost task 4.0 in stage 0.0: "
    + "a long line " * 30
    + "\n18:02:31 queues\n18:02:36 index\n"
)

# run -> (job, state, parameters, seconds since it was asked for)
RUNS = {
    "waiting": ("archive", "waiting", {}, 3),
    "running": ("audit", "running", {}, 64),
    "starting": ("statistics", "running", {"topic": "orders"}, 66),
    "canceling": ("lineage", "canceling", {"key": "order-41040"}, 90),
    "lineage": ("lineage", "done", {"key": "order-41040"}, 400),
    "statistics": ("statistics", "done", {"topic": "orders", "begin_ms": BEGAN_MS - 24 * HOUR_MS}, 900),
    "audit": ("audit", "done", {}, 3_000),
    "audit-bad": ("audit", "done", {}, 8_000),
    "archive": ("archive", "done", {}, 40_000),
    "failed": ("statistics", "failed", {"topic": "invoices"}, 50_000),
    "canceled": ("audit", "canceled", {}, 60_000),
    "interrupted": ("archive", "interrupted", {}, 90_000),
}


def _summary(job: str, result: dict) -> dict:
    """What the job keeps of a whole result."""
    return json_of(pipeline.summary(fact_of(results.RESULTS[job], result)))


def run(name: str) -> Job:
    job, state, parameters, ago = RUNS[name]
    asked = BEGAN_MS - ago * 1000
    over, waits = state in OVER, state == "waiting"
    steps = [
        Step(text=text, began_ms=asked + 200 + 14_000 * n)
        for n, text in enumerate(
            ("starting Spark", "records", "queues") if name != "starting" else ("starting Spark",)
        )
    ]
    done, total, running = (None, None, None) if name == "starting" else (31, 86, 2)
    progress = JobProgress(
        text=steps[-1].text,
        steps=steps,
        unit="partitions",
        at_ms=BEGAN_MS,
        done=done,
        total=total,
        running=running,
    )
    return job_of(
        id=name,
        kind=f"pipeline_{job}",
        title=pipeline.JOBS[job].title,
        queue="spark",
        state=state,
        parameters=parameters,
        canceled_by="user:admin" if state in ("canceled", "canceling") else None,
        created_ms=asked,
        started_ms=None if waits else asked + 200,
        ended_ms=asked + 44_600 if over else None,
        progress=None if waits else progress,
        result=_summary(job, RESULTS[name]) if state == "done" else None,
        error="there is no topic invoices in STORE; it has orders, page-views, payments"
        if state == "failed"
        else None,
        pipeline=job,
        retry_of="canceled" if name == "audit" else None,
        schedule=1 if name == "archive" else None,
    )


def job_of(**facts: Any) -> Job:
    """A job that waits, with these facts in place of its own."""
    waiting = Job(
        id="some-job",
        kind="check_store",
        title="Check the store",
        queue="default",
        state="waiting",
        parameters={},
        by="user:olivia",
        canceled_by=None,
        created_ms=1,
        started_ms=None,
        ended_ms=None,
        progress=None,
        result=None,
        error=None,
        has_file=False,
        pipeline=None,
        retry_of=None,
        schedule=None,
    )
    return replace(waiting, **facts)


LOG_FILE = "/store/commitlog/00000000000067108864"
CHECK_FINDINGS = (
    Finding(ERROR, "bad-record", LOG_FILE, 41_220, "the body has another CRC; good records go on at 41512"),
    Finding(ERROR, "unit-wrong", "/store/consumequeue/orders/3/00000000000000000000", 98_400, "unit 4920 is (offset, size, tags code) " "(9, 5, 0), the record makes it " "(67150084, 292, 0)"),
    *(Finding(ERROR, "index-chain", "/store/index/20261121081502113", 20_000_440 + 20 * n, f"entry {n + 21} names {n + 21} as the " f"one before it in its slot, that is {n}") for n in range(3)),
    Finding(WARNING, "offset-ahead", "/store/config/consumerOffset.json", None, "group billing is at 91 of orders/3, " "which ends at 77: a start sets it back"),
    Finding(WARNING, "torn-tail", "/store/commitlog/00000000000335544320", 22_020_096, "no record begins here, the magic is " "wrong; nothing good follows, the log " "ends here"),
    Finding(NOTE, "log-start", LOG_FILE, None, "the log begins at 67108864; queues hold 12 units of older " "records, which became too old or are " "lost"),
)  # fmt: skip
CHECK_COUNTS = {
    "records": 1_804_221,
    "units": 1_804_103,
    "entries": 3_608_318,
    "queues": 25,
    "log_files": 9,
    "index_files": 2,
}
CHECKS = {
    "check-running": ("running", 9),
    "check-bad": ("done", 700),
    "check-good": ("done", 90_000),
    "check-failed": ("failed", 99_000),
}


def check_result(findings: tuple[Finding, ...]) -> dict:
    """What the command check_store --plan prints of such findings."""
    report = CheckReport(list(findings), CHECK_COUNTS, {finding.kind: 1 for finding in findings})
    graded = findings_of(report, Path("/store"), unclean=True)
    actions = [
        {"number": 1, "action": "checkpoint", "file": "checkpoint", "offset": 0, "bytes": 4096, "what": "Let the checkpoint say that no queue " "and no index file is sure, so that the " "whole log is " "read."},
        {"number": 2, "action": "bridge", "file": "commitlog/00000000000067108864", "offset": 41_220, "bytes": 292, "what": "Bridge 292 damaged bytes: a placeholder " "takes the place of orders/3 at 4,920; " "what follows " "stays readable."},
        {"number": 3, "action": "move", "file": "index/20261121081502113", "offset": None, "bytes": 420_000_040, "what": "Take the file away; the index is made " "again from the log."},
        {"number": 4, "action": "rebuild", "file": ".", "offset": None, "bytes": 0, "what": "Read the whole log as a start does, and " "make from it every unit and every index " "entry that " "is missing."},
    ] if findings else []  # fmt: skip
    lost = (
        [{"topic": "orders", "queue_id": 3, "first": 4920, "last": 4920, "messages": 1, "is_stale": False}]
        if findings
        else []
    )
    losses = {
        "messages": len(lost),
        "ranges": lost,
        "ranges_left_out": 0,
        "unnamed_bytes": 1_572_864 if findings else 0,
        "perhaps_expired": 12 if findings else 0,
        "log_begin": 67_108_864,
        "ends_unknown": ["orders/3"] if findings else [],
    }
    plan = {
        "lost": losses,
        "actions": actions,
        "left": [],
        "bytes": 420_004_428 if actions else 0,
        "kept_in": "lost+found" if actions else None,
    }
    grades = {grade: sum(finding.grade == grade for finding in graded) for grade in GRADES}
    return {
        "ok": not findings,
        "log_end": 357_564_416,
        "counts": CHECK_COUNTS,
        "kinds": report.kinds,
        "grades": grades,
        "findings": document_of(graded),
        "plan": plan,
    }


def check(name: str) -> Job:
    """A run of the store doctor."""
    state, ago = CHECKS[name]
    asked = BEGAN_MS - ago * 1000
    result = check_result(CHECK_FINDINGS if name == "check-bad" else ()) if state == "done" else None
    progress = JobProgress(
        text="log, 3 found",
        done=120 << 20,
        total=341 << 20,
        running=None,
        unit="bytes",
        at_ms=BEGAN_MS,
        steps=[],
    )
    return job_of(
        id=name,
        state=state,
        created_ms=asked,
        started_ms=asked + 200,
        ended_ms=asked + 9_200 if state in OVER else None,
        result=result,
        error="STORE is no store directory" if state == "failed" else None,
        progress=progress,
    )


def _find(job_id: str, name: str | None = None) -> Job:
    if job_id not in RUNS and job_id not in CHECKS:
        raise Problem("not_found", f"there is no job {job_id} (any more)")
    return run(job_id) if job_id in RUNS else check(job_id)


def install(set_attribute=setattr) -> None:
    set_attribute(queue, "listing", lambda: [*map(run, RUNS), *map(check, CHECKS)])
    set_attribute(queue, "find", _find)
    set_attribute(queue, "find_run", _find)
    set_attribute(pipeline, "read_document", lambda data, run_id: RESULTS[run_id])
    set_attribute(pipeline, "read_log", lambda data, store, run_id: LOG)
