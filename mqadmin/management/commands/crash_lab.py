"""manage.py crash_lab POINT: kill a writer at a point of its work, start its store again, and report which
messages survived. The lab makes a store of its own."""

import json
import time
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError

from broker_store.errors import BrokerStoreError
from broker_store.lab.experiment import FLUSHES, MAX_MESSAGES, POINTS, POWER_CUTS, Experiment, Outcome
from broker_store.units import document_of
from mqadmin.management.plain import PlainCommand
from mqadmin.process.program_name import program

PAUSE_S = 0.25  # between the steps of recovery, so that they can be watched


class Command(PlainCommand):
    help = (
        "Kills a writer at a point of its work, starts its store again and reports which messages are lost "
        "and which are there. The lab makes its own store, below lab/ in the data directory."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        parser.add_argument(
            "point", choices=tuple(POINTS), help="; ".join(f"{name}: {text}" for name, text in POINTS.items())
        )
        parser.add_argument("--flush", choices=FLUSHES, default=FLUSHES[0], help="the flush setting")
        parser.add_argument(
            "--power-cut",
            choices=POWER_CUTS,
            default=POWER_CUTS[0],
            help="what a simulated power cut loses: nothing, all that was not synced, or random parts of it",
        )
        parser.add_argument(
            "--messages",
            type=int,
            default=200,
            help=f"messages written before the writer is killed at the point, at most {MAX_MESSAGES}",
        )
        parser.add_argument("--seed", type=int, default=1, help="seed of the random choices")
        parser.add_argument(
            "--slowly",
            action="store_true",
            help="pause between the steps of recovery, so that they can be watched",
        )
        parser.add_argument("--run", help="a name for this run")
        parser.add_argument(
            "--data", metavar="DIR", type=Path, help=f"the data directory (now {settings.DATA_DIRECTORY})"
        )
        parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
        parser.add_argument("--progress", action="store_true", help="print the progress, on lines of its own")

    def handle(self, *arguments, **options) -> None:
        # It loads NumPy and the kernels.
        from broker_store.lab.run import run

        data = Path(options["data"] or settings.DATA_DIRECTORY)
        try:
            experiment = Experiment(
                *(options[name] for name in ("point", "flush", "power_cut", "messages", "seed"))
            )
            found = run(
                data,
                options["run"] or str(time.time_ns()),
                experiment,
                self._progress if options["progress"] else lambda text: None,
                PAUSE_S if options["slowly"] else 0.0,
            )
        except (BrokerStoreError, FileExistsError) as error:
            raise CommandError(str(error)) from None
        if options["progress"]:
            self.stdout.write(json.dumps({"result": document_of(found)}))
        elif options["json"]:
            self.stdout.write(json.dumps(document_of(found), indent=2))
        else:
            self._print(found, data)

    def _progress(self, text: str) -> None:
        self.stdout.write(json.dumps({"progress": {"text": text}}))
        self.stdout.flush()

    def _print(self, found: Outcome, data: Path) -> None:
        write = self.stdout.write
        killed_in = f" in {found.killed_in}" if found.killed_in else ""
        write(f"Killed {found.killed}{killed_in} ({found.flush}, power cut: {found.power_cut}).")
        write(
            f"{found.sent:,} sent, {found.acknowledged:,} acknowledged, {found.there:,} there, "
            f"{found.lost:,} lost, {found.there_unacknowledged:,} there unacknowledged."
        )
        write(found.sentence)
        for lost in found.lost_messages:
            write(
                f"  lost: message {lost.message}, queue {lost.queue_id} offset {lost.offset}, "
                f"log {lost.log_offset:,}"
            )
        write(f"check_store: {'sound' if found.check_ok else 'not sound'}, {found.check_findings} findings.")
        write(f"Details:    {program()} store recovery {found.recovery} --data {data}")
        write(f"            {program()} store files --store {data / found.store}")
