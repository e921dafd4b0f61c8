"""manage.py check_store DIR: walk everything, verify it, say what is wrong. Exit code 1 when something is."""

import json
import time
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from broker_store.config import delay_levels_ms
from broker_store.errors import BrokerStoreError
from mqadmin import run_file

PROGRESS_SECONDS = 0.25


class Command(BaseCommand):
    help = (
        "Checks a store: each record's lengths, CRC and place, each unit of the queues and each entry of the index against the log. "
        "Changes nothing. A store in use is checked up to where it is dispatched."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        parser.add_argument("store", nargs="?", type=Path, help="the store directory; the data directory's when absent")
        parser.add_argument("--delay-levels", metavar="LEVELS", help="messageDelayLevel of the broker that wrote the store, when it is not Apache's default")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument("--progress", action="store_true", help="tell how far it is, on lines of their own")

    def handle(self, *arguments, **options) -> None:
        # It brings NumPy and the kernels along, which no other command of this program needs.
        from broker_store.engine.check import check_store
        from broker_store.formats.queue_unit import DEFAULT_DELAY_LEVELS_MS

        root = options["store"] or run_file.store_directory(settings.DATA_DIRECTORY)
        live = run_file.live_position(root, settings.DATA_DIRECTORY)
        tell = _Teller(self, options) if options["progress"] else None
        levels = options["delay_levels"] or run_file.delay_levels(root, settings.DATA_DIRECTORY)
        try:
            delays = delay_levels_ms(levels) if levels else DEFAULT_DELAY_LEVELS_MS
            report = check_store(root, on_progress=tell, log_end=None if live is None else live.dispatched, delay_levels_ms=delays)
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        result = {
            "store": str(root),
            "ok": report.ok,
            "log_end": report.log_end,
            "counts": report.counts,
            "kinds": report.kinds,
            "findings": [
                {"severity": finding.severity, "kind": finding.kind, "file": _inside(finding.file, root), "offset": finding.offset, "what": finding.what}
                for finding in report.findings
            ],
        }
        if options["json"]:
            self.stdout.write(json.dumps({"result": result} if options["progress"] else result))
        else:
            self._print(result)
        if not report.ok:
            raise SystemExit(1)

    def _print(self, result: dict) -> None:
        for finding in result["findings"]:
            place = finding["file"] if finding["offset"] is None else f"{finding['file']} at {finding['offset']}"
            self.stdout.write(f"{finding['severity']}: {place}: {finding['what']}")
        untold = sum(result["kinds"].values()) - len(result["findings"])
        if untold:
            self.stdout.write(f"and {untold} more of these kinds")
        looked_at = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in result["counts"].items())
        self.stdout.write(f"{'Sound' if result['ok'] else 'Not sound'}: {looked_at or 'an empty store'}.")


class _Teller:
    def __init__(self, command: BaseCommand, options: dict):
        self._command, self._json, self._told = command, options["json"], 0.0

    def __call__(self, done: int, total: int, step: str) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS:
            return
        self._told = now
        text = json.dumps({"progress": {"text": step, "done": done, "total": total, "unit": "bytes"}}) if self._json else f"{step}: {done:,} of {total:,} bytes"
        self._command.stdout.write(text)
        self._command.stdout.flush()


def _inside(file: str, root: Path) -> str:
    """A file's name below the store."""
    try:
        return str(Path(file).relative_to(root))
    except ValueError:
        return file
