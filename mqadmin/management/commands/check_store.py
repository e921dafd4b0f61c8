"""manage.py check_store DIR: verify the whole store, report what is wrong, plan the repair and execute it.

Exit code 0 when the store is sound (with --apply: after the repair), 1 when damage is left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import BaseCommand, CommandError

from broker_store.check.results import GRADES, LOST, WORDS_OF_COUNTS, CheckResult, GradedFinding
from broker_store.config.store import delay_levels_ms
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.errors import BrokerStoreError
from broker_store.units import document_of
from mqadmin.management.plain import PlainCommand, add_data_option
from mqadmin.process import run_file

if TYPE_CHECKING:
    from broker_store.check.losses import Losses
    from broker_store.check.repair.actions import Action, Plan
    from broker_store.engine.start.start_records import LastStart

PROGRESS_SECONDS = 0.25
MAX_QUEUES_SHOWN = 20  # in one sentence


class Command(PlainCommand):
    help = (
        "Checks a store: each record's lengths, CRC and place, each unit of the queues and each "
        "entry of the index against the log. "
        "Without --apply nothing is changed. A store in use is checked up to where it is dispatched."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        parser.add_argument(
            "store",
            nargs="?",
            type=Path,
            help="the store directory (default: the store of the data directory)",
        )
        add_data_option(parser)
        parser.add_argument(
            "--delay-levels",
            metavar="LEVELS",
            help="messageDelayLevel of the broker that wrote the store, if its last start did not record it",
        )
        parser.add_argument(
            "--plan", action="store_true", help="show what a repair would do, file by file (a dry run)"
        )
        parser.add_argument(
            "--apply",
            action="store_true",
            help="repair a store on which no broker runs; copies of what is changed are kept in lost+found",
        )
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument("--progress", action="store_true", help="print the progress, on lines of its own")

    def handle(self, *arguments, **options) -> None:
        # These imports load NumPy and the kernels, which most commands do not need.
        from broker_store.backup.manifest import require_no_backup
        from broker_store.check.repair.apply import Repair
        from broker_store.engine.disk.disk import Disk
        from broker_store.formats.queue_unit import DEFAULT_DELAY_LEVELS_MS

        data = options["data"].absolute()
        root = options["store"] or run_file.store_directory(data)
        live = run_file.live_position(root, data)
        if live is not None and options["apply"]:
            raise CommandError(f"a broker runs on {root}: stop it, then repair the store")
        progress = _ProgressLines(self, options["json"]) if options["progress"] else None
        try:
            if options["apply"]:
                require_no_backup(Disk(), root)
            levels = options["delay_levels"] or run_file.delay_levels(root, data)
            delays = delay_levels_ms(levels) if levels else DEFAULT_DELAY_LEVELS_MS
            examined = partial(
                examine,
                root,
                noted=run_file.noted_sizes(root, data),
                last_start=run_file.last_start_of(root, data),
                log_end=None if live is None else live.dispatched,
                delay_levels_ms=delays,
                on_progress=progress,
            )
            result, plan = examined(with_plan=options["plan"] or options["apply"])
            repaired: list[GradedFinding] | None = None
            if options["apply"] and plan is not None and plan.actions:
                if not options["json"]:
                    self._print_findings(result)
                    self._print_plan(plan, "What the repair does:")
                    self.stdout.flush()
                steps = len(plan.actions)

                def on_step(number: int, action: Action) -> None:
                    if progress is not None:
                        progress(number, steps, action.what, "steps")

                repair = Repair(plan, on_step=on_step)
                repair.run()
                after, _ = examined(with_plan=False)
                done = replace(plan.facts(), kept_in=str(repair.kept_in))
                result, repaired = replace(after, plan=done), result.findings
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            document = {"store": str(root), **document_of(replace(result, plan=None))}
            del document["plan"]
            if result.plan is not None:
                document["plan"] = {"store": str(root), **document_of(result.plan)}
            if repaired is not None:
                document["repaired"] = document_of(repaired)
            self.stdout.write(json.dumps({"result": document} if options["progress"] else document))
        else:
            self._print(result, plan, is_repaired=repaired is not None)
        if not result.ok:
            raise SystemExit(1)

    def _print(self, result: CheckResult, plan: Plan | None, *, is_repaired: bool) -> None:
        if is_repaired and result.plan is not None:  # the findings and the plan are printed above
            self.stdout.write(f"The repair is done. What was changed is kept in {result.plan.kept_in}.")
        self._print_findings(result)
        if plan is not None and not is_repaired:
            if plan.actions:
                self._print_plan(plan, "What a repair does:")
                self.stdout.write(
                    "To repair, use --apply; lost+found beside the store gets copies of what is changed."
                )
            else:
                self.stdout.write(
                    "\n".join(f"A repair can do nothing: {sentence}" for sentence in plan.left)
                    or "There is nothing to repair."
                )
        counted = ", ".join(
            f"{count:,} {WORDS_OF_COUNTS.get(name) or name.replace('_', ' ')}"
            for name, count in result.counts.items()
        )
        if not result.ok:
            verdict = "Not sound"
        else:
            verdict = "Sound, except for what is lost" if result.grades[LOST] else "Sound"
        self.stdout.write(f"{verdict}: {counted or 'an empty store'}.")

    def _print_findings(self, result: CheckResult) -> None:
        for finding in result.findings:
            place = _place(finding.file, finding.offset)
            self.stdout.write(f"{finding.severity} ({finding.grade}): {place}: {finding.what}")
        not_listed = sum(result.kinds.values()) - len(result.findings)
        if not_listed:
            self.stdout.write(f"and {not_listed} more of these kinds")

    def _print_plan(self, plan: Plan, heading: str) -> None:
        """Print the losses that no repair can undo, and the steps of a repair."""
        self._print_losses(plan.losses)
        self.stdout.write(heading)
        for action in plan.facts().actions:
            place = _place(action.file, action.offset)
            self.stdout.write(f"  {action.number}. {place} ({action.bytes:,} bytes): {action.what}")
        for sentence in plan.left:
            self.stdout.write(f"  not repaired: {sentence}")

    def _print_losses(self, lost: Losses) -> None:
        if lost.perhaps_expired:
            self.stdout.write(
                f"{lost.perhaps_expired:,} messages that queues name lie before {lost.log_begin:,}, "
                f"where the log begins. Retention deleted them, or they are lost: no file shows which."
            )
        if not lost.messages and not lost.unnamed_bytes:
            self.stdout.write("No other message is lost." if lost.perhaps_expired else "No message is lost.")
            return
        self.stdout.write(f"Lost, and no repair brings them back: {lost.messages:,} messages.")
        for one in lost.ranges:
            where = ", after the end of the log and in no queue" if one.is_stale else ""
            self.stdout.write(
                f"  {one.topic}/{one.queue_id}: {one.messages:,}, offsets {one.first:,} to "
                f"{one.last:,}{where}"
            )
        if lost.unnamed_bytes:
            self.stdout.write(
                f"  {lost.unnamed_bytes:,} missing or damaged bytes held records that no queue names"
            )
        if lost.ends_unknown:
            shown = lost.ends_unknown[:MAX_QUEUES_SHOWN]
            more = len(lost.ends_unknown) - len(shown)
            which = ", ".join(shown) + (f" and {more:,} other queues" if more else "")
            self.stdout.write(
                f"  It is unknown whether the lost end of the log held more messages of {which}: their units "
                f"end before it."
            )


def examine(
    root: Path,
    with_plan: bool,
    noted: FileSizes,
    last_start: LastStart | None,
    log_end: int | None,
    delay_levels_ms: tuple[int, ...],
    on_progress: Callable[[int, int, str], object] | None,
) -> tuple[CheckResult, Plan | None]:
    """Return (the report of a check, the plan of a repair or None). `noted` are the file sizes that the last
    broker used; the rest is as for `StoreCheck`."""
    from broker_store.broker.config_readers import READERS
    from broker_store.check.doctor import findings_of
    from broker_store.check.repair.plan import make_plan
    from broker_store.check.walk import StoreCheck

    def with_findings(done: int, total: int, step: str) -> None:
        found = sum(check.report.kinds.values())
        if on_progress is not None:
            on_progress(done, total, f"{step}, {found:,} found" if found else step)

    check = StoreCheck(
        root,
        on_progress=None if on_progress is None else with_findings,
        noted=noted,
        last_start=last_start,
        log_end=log_end,
        delay_levels_ms=delay_levels_ms,
        config_readers=READERS,
    )
    report = check.run()
    findings = findings_of(report, root, check.store.is_unclean)
    plan = make_plan(check, noted) if with_plan else None
    result = CheckResult(
        ok=report.ok,
        log_end=report.log_end,
        counts=report.counts,
        kinds=report.kinds,
        grades={grade: sum(finding.grade == grade for finding in findings) for grade in GRADES},
        findings=findings,
        plan=None if plan is None else plan.facts(),
    )
    return result, plan


def _place(file: str, offset: int | None) -> str:
    return file if offset is None else f"{file} at {offset}"


class _ProgressLines:
    """Prints the progress, at most one line each PROGRESS_SECONDS."""

    def __init__(self, command: BaseCommand, as_json: bool):
        self._command, self._json, self._printed = command, as_json, 0.0

    def __call__(self, done: int, total: int, step: str, unit: str = "bytes") -> None:
        now = time.monotonic()
        if now - self._printed < PROGRESS_SECONDS:
            return
        self._printed = now
        text = (
            json.dumps({"progress": {"text": step, "done": done, "total": total, "unit": unit}})
            if self._json
            else f"{step}: {done:,} of {total:,} {unit}"
        )
        self._command.stdout.write(text)
        self._command.stdout.flush()
