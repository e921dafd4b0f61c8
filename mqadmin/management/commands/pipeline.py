"""manage.py pipeline statistics: counts per topic, by Spark."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from broker_store.errors import BrokerStoreError
from mqadmin import run_file
from mqadmin.management.base import cell, table


class Command(BaseCommand):
    help = "Spark jobs over the stored messages, whether the broker runs or not. SPARK_MASTER moves them to a cluster."
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        statistics = verbs.add_parser("statistics", help="messages, bytes and times of each topic")
        statistics.add_argument("--store", type=Path, metavar="DIR", help="the store directory; the data directory's when absent")
        statistics.add_argument("--data", metavar="DIR", help="the broker's data directory")
        statistics.add_argument("--cores", type=int, default=2, help="how many partitions are read at once (2)")
        statistics.add_argument("--json", action="store_true", help="print JSON")
        statistics.add_argument("--progress", action="store_true", help="tell how far it is, on lines of their own")

    def handle(self, *arguments: str, **options) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise CommandError("Spark is not installed; install it with: make pipeline")
        from broker_store.pipeline import jobs
        from broker_store.pipeline.session import open_session

        data = Path(options["data"] or settings.DATA_DIRECTORY)
        store = options["store"] or run_file.store_directory(data)
        live = data / "run" / "live" if run_file.live_position(store, data) is not None else None

        def tell(text: str, done: int | None = None, total: int | None = None) -> None:
            if options["progress"]:
                event = {"progress": {"text": text, "done": done, "total": total, "unit": "partitions"}}
                self.stdout.write(json.dumps(event) if options["json"] else f"{text} {done or ''}")
                self.stdout.flush()

        tell("starting Spark")
        try:
            session = open_session(data / "cache", cores=max(1, options["cores"]))
            try:
                tell("reading the log")
                result = jobs.statistics(session, store.absolute(), live and live.absolute(), tell)
            finally:
                session.stop()
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        self._show(result, options)

    def _show(self, result: dict, options: dict) -> None:
        if options["json"]:
            self.stdout.write(json.dumps({"result": result} if options["progress"] else result))
            return
        columns = {"topic": "TOPIC", "messages": "MESSAGES", "bytes": "BYTES", "queues": "QUEUES", "first_ms": "FIRST", "last_ms": "LAST"}
        self.stdout.write(table(list(columns.values()), ([cell(topic[name], name) for name in columns] for topic in result["topics"])))
        self.stdout.write(f"{result['messages']:,} messages, {result['bytes']:,} bytes in {len(result['topics'])} topics.")
