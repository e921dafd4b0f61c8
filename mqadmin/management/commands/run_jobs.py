"""manage.py run_jobs QUEUE: run the jobs of a queue, one at a time. runbroker starts it as a child, one for
each queue.

It is rq's worker without its scheduler: no job of this program waits in Redis for a time (schedules are in
the database), and the scheduler would be one more process for each worker.
"""

from __future__ import annotations

import django_rq
from django.core.management.base import CommandError
from redis.exceptions import ConnectionError
from rq.logutils import setup_loghandlers

from mqadmin.management.plain import PlainCommand
from mqadmin.process.children import QUEUES

LOG_LEVEL = "INFO"


class Command(PlainCommand):
    help = "Run the jobs of a queue, one at a time; runbroker does this by itself."
    requires_system_checks = ()  # they import every page and all of REST

    def add_arguments(self, parser) -> None:
        parser.add_argument("queue", choices=QUEUES)
        parser.add_argument("--name", help="name of the worker in Redis (default: a random name)")

    def handle(self, *arguments: str, **options) -> None:
        setup_loghandlers(LOG_LEVEL)
        try:
            django_rq.get_worker(options["queue"], name=options["name"]).work(logging_level=LOG_LEVEL)
        except ConnectionError as error:
            raise CommandError(f"Redis does not answer: {error}") from None
