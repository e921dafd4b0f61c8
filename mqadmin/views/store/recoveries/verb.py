"""manage.py store recoveries, recovery, dry-run: what starts did, and what one would do."""

import json
import os
import time

from broker_store.config.store import StoreSettings
from broker_store.engine.start.start_records import StartRecords
from broker_store.errors import NotFoundError
from broker_store.facts import recoveries as kept
from mqadmin.management.base import cell
from mqadmin.process import run_file

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
    "the store is in use: what came while this looked shows as dispatched again and as taken out of the "
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
    dry.add_argument("--progress", action="store_true", help="tell how far it is, on lines of their own")


def recoveries(command, options) -> None:
    # Of a directory of another broker there are none: records lie in the data directory of the broker that
    # started.
    found = command.ask(
        options,
        lambda broker: broker.get("/store/recoveries")["items"],
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
            (record["id"] for record in _of(store.root, command.data) if record["purpose"] == "start"), None
        )
        if newest is None:
            raise NotFoundError(
                "no start of this store has a record; `manage.py store dry-run` tells what one would do"
            )
        return kept.one(command.data / "recoveries", newest)

    _show(command, command.ask(options, online, offline))


def dry_run(command, options) -> None:
    if options["progress"]:  # a process of a job's own, beside a broker
        os.nice(19)
    directory = command.directory(options)
    settings = kept.settings_for(directory, _settings(directory.root, command.data, options["accept_damage"]))
    records = StartRecords(
        command.data / "recoveries",
        directory.root.absolute(),
        every_s=PROGRESS_SECONDS,
        keeps=options["keep"],
    )
    report = kept.dry_run(
        settings, on_change=_Teller(command) if options["progress"] else None, records=records
    )
    if options["progress"]:
        command.stdout.write(json.dumps({"result": report}))
    else:
        _show(command, report)


def _of(root, data) -> list[dict]:
    return [
        record
        for record in kept.listing(data / "recoveries")
        if (data / (record["store"] or "")).resolve() == root.resolve()
    ]


def _settings(root, data, accept_damage: bool) -> StoreSettings:
    """Those of the broker whose data directory this is, when the store is its; file sizes are taken from the
    files."""
    return StoreSettings(**run_file.store_settings(root, data), accept_damage=accept_damage)


class _Teller:
    def __init__(self, command):
        self._command, self._told = command, 0.0

    def __call__(self, report: dict) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            progress = {
                "text": report["step"],
                "done": report["scanned_bytes"],
                "total": report["total_bytes"],
                "unit": "bytes",
            }
            self._command.stdout.write(json.dumps({"progress": progress}))
            self._command.stdout.flush()


def _show(command, report: dict) -> None:
    command.show(report, None if command.as_json else "\n".join(_lines(report)))


def _messages(count: int | str) -> str:
    return f"{cell(count, 'bytes')} message{'s' * (int(count) != 1)}"


def _lines(report: dict):
    """A report for people: what was found, the steps as a picture of the time, findings."""

    def number(name: str) -> str:
        return cell(report[name], "bytes")

    took = float(report["took_ms"] or 0)
    yield (
        f"{report['purpose']} {report['id']}: {report['state']}, the store was {report['kind']}; took "
        f"{took:,.1f} ms"
    )
    if report["error"]:
        yield f"  {report['error']}"
    if report["abort_found"] is not None:
        yield "abort       " + (
            "found: the last run did not close the store"
            if report["abort_found"]
            else "none: it was closed in order"
        )
    if report["start"]:
        yield f"began with  {report['start']['file']}: {report['start']['why']}"
        for tried in report["tried"]:
            if not tried["taken"]:
                yield f"  not {tried['file']}: {tried['why']}"
    yield (
        f"read        {number('scanned_bytes')} bytes, {number('messages')} messages, "
        f"{cell(report['scan_bytes_per_s'], 'bytes')} bytes/s, {number('crc_failures')} failed CRC"
    )
    if report["stopped"]:
        stopped = report["stopped"]
        yield (
            f"stopped     in {stopped['file']} at {cell(stopped['at'], 'bytes')}: {stopped['reason']} "
            f"({stopped['verdict']})"
        )
    cut = report["cut"]
    yield (
        f"cut         log {cell(cut['commitlog']['bytes'], 'bytes')} bytes and "
        f"{cell(cut['commitlog']['files'], 'bytes')} files, queues "
        f"{cell(cut['consumequeue']['units'], 'bytes')} units,"
        f" index {cell(cut['index']['entries'], 'bytes')} entries and "
        f"{cell(cut['index']['files'], 'bytes')} files"
    )
    # REST gives the count as text
    if (whole := cut.get("messages")) and (int(whole["whole"]) or whole["looked_to"] is not None):
        more = (
            ""
            if whole["looked_to"] is None
            else f", and perhaps more from log offset {cell(whole['looked_to'], 'bytes')} on, which was "
            f"not looked at"
        )
        kept = ", kept in lost+found" if report["purpose"] == "start" else ""
        yield f"cut whole   {_messages(whole['whole'])}{kept}{more}{':' * bool(whole['queues'])}"
        for queue in whole["queues"]:
            to = "" if int(queue["last"]) == int(queue["first"]) else f" to {cell(queue['last'], 'bytes')}"
            yield (
                f"  {queue['topic']}/{queue['queue_id']}, offset {cell(queue['first'], 'bytes')}{to}: "
                f"{_messages(queue['messages'])}"
            )
        if int(whole["queues_left_out"]):
            yield f"  and of {cell(whole['queues_left_out'], 'bytes')} more queues"
    yield f"dispatched  {number('redispatched')} messages again"
    if report.get("in_use"):
        yield f"meanwhile   {IN_USE}, {number('came_meanwhile')} bytes were found behind the log's end"
    yield ""
    for step in report["steps"]:
        lasted = step["duration_ms"]
        begin = round(BAR * float(step["at_ms"]) / took) if took else 0
        length = max(1, round(BAR * float(lasted or 0) / took)) if took else 1
        bar = (" " * min(begin, BAR - 1) + "█" * length)[:BAR]
        yield (
            f"{bar:<{BAR}} {'–' if lasted is None else f'{float(lasted):,.1f}':>10} ms  "
            f"{step['name']}{' ' + step['file'] if step['file'] else ''}"
            f"{': ' + step['detail'] if step['detail'] else ''}"
        )
    for finding in report["findings"]:
        yield (
            f"{finding['severity']}: "
            f"{finding['file'] or ''}"
            f"{'' if finding['offset'] is None else ' at ' + cell(finding['offset'], 'bytes')}: "
            f"{finding['what']}"
        )


VERBS = {"recoveries": recoveries, "recovery": recovery, "dry-run": dry_run}
