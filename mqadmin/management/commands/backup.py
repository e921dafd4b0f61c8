"""manage.py backup DIR: a consistent picture of a broker's data, while it runs; and backup verify DIR."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import BaseCommand, CommandError

from broker_store.errors import BrokerStoreError, StoreError
from broker_store.units import document_of
from mqadmin.management.plain import PlainCommand, add_data_option

if TYPE_CHECKING:
    from broker_store.backup.copying import Copier
    from broker_store.engine.disk.disk import Disk

PROGRESS_SECONDS = 1.0
VERIFY = "verify"


class Command(PlainCommand):
    help = (
        "Saves a broker's data in a directory of its own, while the broker runs or is stopped: commit log, "
        "queues, index, timer files, config, the dashboard's database. `backup verify DIR` reads a backup "
        "again and compares it with its sums. See docs/BACKUP.md."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        parser.add_argument(
            "words",
            nargs="+",
            metavar="[verify] DIR",
            help="the directory of the new backup, which must be empty or absent; after `verify` a backup",
        )
        add_data_option(parser)
        parser.add_argument(
            "--store", type=Path, metavar="DIR", help="the store, where it is not that of the data directory"
        )
        parser.add_argument(
            "--log", type=Path, metavar="DIR", help="the commit log, where it is not below the store"
        )
        parser.add_argument(
            "--since",
            metavar="EARLIER",
            type=Path,
            help="an earlier backup whose files are shared where they are the same (default: the newest one "
            "beside DIR)",
        )
        parser.add_argument("--full", action="store_true", help="share no file with an earlier backup")
        parser.add_argument(
            "--copy",
            action="store_true",
            help="copy closed log files too, instead of giving the store's files a second name",
        )
        parser.add_argument(
            "--keep",
            type=number_kept,
            metavar="N",
            help="then remove whole backups of this store beside DIR, but for the newest N with this one",
        )
        add_output_options(parser)

    def handle(self, *arguments, **options) -> None:
        words = options["words"]
        if len(words) == 2 and words[0] == VERIFY:
            self._verify(Path(words[1]).absolute(), options)
        elif len(words) == 1 and words[0] != VERIFY:
            self._take(Path(words[0]).absolute(), options)
        else:
            raise CommandError("give one directory: manage.py backup DIR, or manage.py backup verify DIR")

    def _take(self, target: Path, options) -> None:
        # These imports load NumPy and the kernels
        from broker_store.backup.beside import newest_beside, remove_older
        from broker_store.backup.picture import Picture
        from broker_store.engine.disk.disk import Disk
        from mqadmin.process.saved_source import source_of

        data = options["data"].absolute()
        disk = Disk()
        try:
            require_apart(target, data, "the data directory")
            source = source_of(data, options["store"], options["log"])
            require_apart(target, source.root, "the store")
            require_apart(target, source.log_directory, "the commit log")
            earlier = options["since"] and options["since"].absolute()
            if earlier is None and not options["full"]:
                earlier, notes = newest_beside(disk, target, str(source.root))
                source = replace(source, notes=[*source.notes, *notes])
            made = Picture(
                source,
                target,
                disk,
                copier_of(self, disk, options),
                earlier=earlier,
                may_link=not options["copy"],
            ).take()
            removed = [] if options["keep"] is None else remove_older(disk, target, made, options["keep"])
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            raise CommandError(f"stopped: {target} is no whole backup, remove it", returncode=130) from None
        facts = document_of(made)
        of_kinds = {
            how: sum(file.data_bytes for file in made.files if file.how == how)
            for how in sorted({file.how for file in made.files})
        }
        del facts["files"]
        facts |= {"backup": str(target), "file_count": len(made.files), "bytes_by_kind": of_kinds}
        facts["removed"] = removed
        if options["json"]:
            self.stdout.write(json.dumps({"result": facts}))
            return
        for note in made.notes:
            self.stdout.write(f"Note: {note.rstrip('.')}.")
        kinds = ", ".join(f"{count:,} bytes {how}" for how, count in of_kinds.items())
        self.stdout.write(
            f"{target} is a whole backup: the log from {made.log_begin:,} to {made.log_end:,}, "
            f"{len(made.files):,} files ({kinds})"
            + (f", shared with {made.earlier}" if made.earlier else "")
            + f", in {(made.finished_ms - made.started_ms) / 1000:.1f} s."
        )
        if removed:
            self.stdout.write(f"Removed: {', '.join(removed)}.")

    def _verify(self, directory: Path, options) -> None:
        from broker_store.backup.verify import verify
        from broker_store.engine.disk.disk import Disk

        disk = Disk()
        try:
            found = verify(disk, directory, copier_of(self, disk, options))
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self.stdout.write(json.dumps({"result": document_of(found)}))
        else:
            for fault in found.faults:
                self.stdout.write(fault)
            verdict = "is as it was made" if found.ok else "is not as it was made: choose another one"
            self.stdout.write(f"{directory} {verdict} ({found.files:,} files, {found.data_bytes:,} bytes).")
        if not found.ok:
            raise SystemExit(1)


def add_output_options(parser) -> None:
    parser.add_argument(
        "--max-mb-s",
        type=positive,
        metavar="N",
        help="copy and read at most N MB (1,000,000 bytes) a second",
    )
    parser.add_argument("--json", action="store_true", help="print progress and result as lines of JSON")
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def number_kept(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100_000:
        raise ValueError
    return value


def positive(text: str) -> float:
    value = float(text)
    if not 0.001 <= value <= 1e6:
        raise ValueError
    return value


def copier_of(command: BaseCommand, disk: Disk, options) -> Copier:
    """Return what copies for a command, with its throttle and its lines of progress."""
    from broker_store.backup.copying import Copier, Pace

    limit = options["max_mb_s"]
    progress = None if options["quiet"] else Progress(command, options["json"])
    return Copier(disk, Pace(None if limit is None else limit * 1e6), progress)


def require_apart(target: Path, place: Path, what: str) -> None:
    """Check that a new directory is not in a place and does not hold it, also by a link. Raises
    StoreError."""
    own, other = target.resolve(), place.resolve()
    if own == other or other in own.parents or own in other.parents:
        raise StoreError(f"{target} is in {what} {place}, or holds it: choose another place")


class Progress:
    """Prints what is done now: a line at each step, and at most one each PROGRESS_SECONDS."""

    def __init__(self, command: BaseCommand, as_json: bool):
        self._command, self._as_json = command, as_json
        self._step, self._printed = "", 0.0

    def __call__(self, step: str, done: int, total: int) -> None:
        now = time.monotonic()
        if step == self._step and now - self._printed < PROGRESS_SECONDS:
            return
        self._step, self._printed = step, now
        text = (
            json.dumps({"progress": {"text": step, "done": done, "total": total, "unit": "bytes"}})
            if self._as_json
            else f"{step}: {done:,} of about {total:,} bytes"
        )
        self._command.stdout.write(text)
        self._command.stdout.flush()
