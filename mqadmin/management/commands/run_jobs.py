"""manage.py run_jobs QUEUE...: run the jobs of queues, those of each one at a time, and start scheduled runs.
runbroker starts it as a child."""

from __future__ import annotations

from mqadmin.management.plain import PlainCommand
from mqadmin.process.children import QUEUES, SCHEDULES


class Command(PlainCommand):
    help = (
        "Run the jobs of queues, those of each one at a time, and start scheduled runs when they are due "
        f"({SCHEDULES}); runbroker does this by itself."
    )
    requires_system_checks = ()  # they import every page and all of REST

    def add_arguments(self, parser) -> None:
        parser.add_argument("queues", nargs="+", choices=(*QUEUES, SCHEDULES), metavar="QUEUE")

    def handle(self, *arguments: str, **options) -> None:
        from rq.logutils import setup_loghandlers

        from mqadmin.jobs import processes

        setup_loghandlers(processes.LOG_LEVEL)
        processes.run(options["queues"])
