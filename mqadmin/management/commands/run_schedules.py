"""manage.py run_schedules: start the pipeline's scheduled runs when they are due. runbroker starts it as a
child."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Start the pipeline's scheduled runs when they are due; runbroker does this by itself."
    requires_system_checks = ()

    def handle(self, *arguments: str, **options) -> None:
        from mqadmin.jobs.cron import Scheduler

        Scheduler().start()
