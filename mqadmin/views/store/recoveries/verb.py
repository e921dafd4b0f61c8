"""manage.py store recoveries, recovery, dry-run: what starts did, and what one would do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from django.core.management.base import CommandError

from broker_store.config.store import StoreSettings
from broker_store.errors import NotFoundError
from broker_store.facts import recoveries as kept
from broker_store.facts.starts import StartBrief, StartCut, StartReport
from broker_store.units import document_of, fact_of
from mqadmin.management.base import cell
from mqadmin.process import run_file
from mqadmin.process.program_name import with_program

COLUMNS = {
    "id": "ID",
    "purpose": "FOR",
    "kind": "STORE WAS",
    "state": "STATE",
    "took_ms": "TOOK MS",
    "scanned_bytes": "READ",
    "messages": "MESSAGES",
    "cut_bytes": "CUT",
    "redispatched": "DISPATCHED AGAIN",
    "findings": "FINDINGS",
}
IN_USE = (
    "the store is in use: what came during this scan shows as dispatched again and as taken out of the "
    "index, and no start would take it out"
)
BAR = 30
PROGRESS_SECONDS = 0.25


def add(verb) -> None:
    verb("recoveries", "every start that has a record, newest first")
    verb("recovery", "what one start did, step by step; the last when none is named").add_argument(
        "id", nargs="?"
    )
    dry = verb("dry-run", "what a start would do now; changes nothing, on a store in use too")
    dry.add_argument("--accept-damage", action="store_true", help="as a start with --accept-damage")
    dry.add_argument(
        "--keep", action="store_true", help="keep the record in the data directory, as a start's"
    )
    dry.add_argument("--progress", action="store_true", help="show how far it is, on lines of their own")


def recoveries(command, options) -> None:
    # Of a directory of another broker there are none: records lie in the data directory of the broker that
    # started.
    found = command.ask(
        options,
        lambda broker: list(broker.pages("/store/recoveries")),
        lambda store: _of(store.root, command.data),
    )
    command.show_table(found, COLUMNS, empty="No start has a record.")


def recovery(command, options) -> None:
    id = options["id"]

    def online(broker):
        return broker.get(f"/store/recoveries/{id}") if id else broker.get("/recovery")

    def offline(store):
        if id:
            return kept.one(command.data / "recoveries", id)
        newest = next(
            (record.id for record in _of(store.root, command.data) if record.purpose == "start"), None
        )
        if newest is None:
            raise NotFoundError(
                "no start of this store has a record; `manage.py store dry-run` shows what one would do"
            )
        return kept.one(command.data / "recoveries", newest)

    _show(command, command.ask(options, online, offline))


def dry_run(command, options) -> None:
    if options["progress"]:  # a process of a job's own, beside a broker
        os.nice(19)
    directory = command.directory(options)
    settings = kept.settings_for(directory, _settings(directory.root, command.data, options["accept_damage"]))
    report = kept.dry_run(
        settings,
        on_change=_ProgressLines(command) if options["progress"] else None,
        record_in=command.data / "recoveries",
        record_every_s=PROGRESS_SECONDS,
        keeps_record=options["keep"],
    )
    if options["progress"]:
        command.stdout.write(json.dumps({"result": document_of(report)}))
    else:
        _show(command, document_of(report))
        if report.error:
            raise CommandError("a start would not open this store; the report says why")


def _of(root, data) -> list[StartBrief]:
    return [
        record
        for record in kept.listing(data / "recoveries")
        if (data / (record.store or "")).resolve() == root.resolve()
    ]


def _settings(root, data, accept_damage: bool) -> StoreSettings:
    """Those of the broker whose data directory this is, when the store is its; file sizes are taken from the
    files."""
    return replace(run_file.store_settings(root, data), accept_damage=accept_damage)


class _ProgressLines:
    def __init__(self, command):
        self._command, self._written = command, 0.0

    def __call__(self, report: StartReport) -> None:
        now = time.monotonic()
        if now - self._written >= PROGRESS_SECONDS:
            self._written = now
            progress = {
                "text": report.step,
                "done": report.scanned_bytes,
                "total": report.total_bytes,
                "unit": "bytes",
            }
            self._command.stdout.write(json.dumps({"progress": progress}))
            self._command.stdout.flush()


def _show(command, document: dict) -> None:
    text = None if command.as_json else "\n".join(_lines(fact_of(StartReport, document)))
    command.show(document, text and with_program(text))


def _messages(count: int) -> str:
    return f"{count:,} message{'s' * (count != 1)}"


def _lines(report: StartReport) -> Iterator[str]:
    """The text of a report: facts, the steps with bars of their durations, findings."""
    took = report.took_ms or 0.0
    yield (f"{report.purpose} {report.id}: {report.state}, the store was {report.kind}; took {took:,.1f} ms")
    if report.error:
        yield f"  {report.error}"
    if report.abort_found is not None:
        yield "abort       " + (
            "found: the last run did not close the store"
            if report.abort_found
            else "none: it was closed in order"
        )
    if report.start:
        yield f"began with  {report.start.file}: {report.start.why}"
        for tried in report.tried:
            if not tried.taken:
                yield f"  not {tried.file}: {tried.why}"
    yield (
        f"read        {cell(report.scanned_bytes)} bytes, {cell(report.messages)} messages, "
        f"{cell(report.scan_bytes_per_s)} bytes/s, {cell(report.crc_failures)} failed CRC"
    )
    if report.stopped:
        stopped = report.stopped
        yield f"stopped     in {stopped.file} at {stopped.at:,}: {stopped.reason} ({stopped.verdict})"
    if report.cut:
        yield from _cut_lines(report.cut, report.purpose == "start")
    yield f"dispatched  {cell(report.redispatched)} messages again"
    if report.in_use:
        yield (f"meanwhile   {IN_USE}, {cell(report.came_meanwhile)} bytes were found after the log's end")
    yield ""
    for step in report.steps:
        lasted = step.duration_ms
        begin = round(BAR * step.at_ms / took) if took else 0
        length = max(1, round(BAR * (lasted or 0) / took)) if took else 1
        bar = (" " * min(begin, BAR - 1) + "█" * length)[:BAR]
        yield (
            f"{bar:<{BAR}} {'–' if lasted is None else f'{lasted:,.1f}':>10} ms  "
            f"{step.name}{' ' + step.file if step.file else ''}"
            f"{': ' + step.detail if step.detail else ''}"
        )
    for finding in report.findings:
        place = "" if finding.offset is None else f" at {finding.offset:,}"
        yield f"{finding.severity}: {finding.file or ''}{place}: {finding.what}"


def _cut_lines(cut: StartCut, is_kept: bool) -> Iterator[str]:
    yield (
        f"cut         log {cut.commitlog.bytes:,} bytes and {cut.commitlog.files:,} files, queues "
        f"{cut.consumequeue.units:,} units,"
        f" index {cut.index.entries:,} entries and {cut.index.files:,} files"
    )
    whole = cut.messages
    if whole is None or not (whole.whole or whole.searched_to is not None):
        return
    more = (
        ""
        if whole.searched_to is None
        else f", and perhaps more from log offset {whole.searched_to:,} on, which was not scanned"
    )
    kept = ", kept in lost+found" if is_kept else ""
    yield f"cut whole   {_messages(whole.whole)}{kept}{more}{':' * bool(whole.queues)}"
    for queue in whole.queues:
        to = "" if queue.last == queue.first else f" to {queue.last:,}"
        yield f"  {queue.topic}/{queue.queue_id}, offset {queue.first:,}{to}: {_messages(queue.messages)}"
    if whole.queues_left_out:
        yield f"  and of {whole.queues_left_out:,} more queues"


VERBS = {"recoveries": recoveries, "recovery": recovery, "dry-run": dry_run}
