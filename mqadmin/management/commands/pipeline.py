"""manage.py pipeline audit|statistics|lineage|archive: Spark jobs over the stored messages.

With --json --progress the standard output is lines of JSON, {"progress": ...} and at last {"result": ...}: so
a process that must not import pyspark can start it as a child, follow it and end it. On SIGTERM it ends with
its JVM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from broker_store.errors import BrokerStoreError
from broker_store.pipeline.results import Archive, Audit, Lineage, Result, Statistics
from broker_store.units import document_of, fact_of
from mqadmin.management.base import cell, table
from mqadmin.process import run_file
from mqadmin.process.program_name import program


class Command(BaseCommand):
    help = (
        "Spark jobs over the stored messages, whether the broker runs or not. SPARK_MASTER moves them to "
        "a cluster."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        shared = argparse.ArgumentParser(add_help=False)
        shared.add_argument(
            "--store", type=Path, metavar="DIR", help="the store directory; the data directory's when absent"
        )
        shared.add_argument("--data", metavar="DIR", help="the broker's data directory")
        shared.add_argument(
            "--cores",
            type=int,
            help="number of partitions that are read at once (default: the number of the machine's cores)",
        )
        shared.add_argument("--heap", default="1g", help="memory of the JVM (default: 1g)")
        shared.add_argument("--json", action="store_true", help="print JSON")
        shared.add_argument("--progress", action="store_true", help="print the progress, on lines of its own")
        chosen = argparse.ArgumentParser(add_help=False)
        chosen.add_argument("--topic", help="only this topic, or several separated by commas")
        chosen.add_argument(
            "--from-time",
            metavar="TIME",
            help="stored from then on: milliseconds since 1970, or 2026-11-21T10:00:00Z",
        )
        chosen.add_argument("--to-time", metavar="TIME", help="stored before then")
        audit = verbs.add_parser(
            "audit",
            parents=[shared],
            help="check every record, queue unit and index entry against one another; ends with 1 on errors",
        )
        audit.add_argument(
            "--delay-levels",
            metavar="LEVELS",
            help="messageDelayLevel of the broker that wrote the store, if its last start did not record it",
        )
        verbs.add_parser(
            "statistics",
            parents=[shared, chosen],
            help="counts, sizes, keys and delays of each topic, tag, group and hour; how the index is filled",
        )
        lineage = verbs.add_parser(
            "lineage", parents=[shared, chosen], help="the records of a key, across topics"
        )
        lineage.add_argument("--key", required=True, help="a key, a unique key or the id of a message")
        archive = verbs.add_parser(
            "archive", parents=[shared], help="add new records to Parquet files by topic and day"
        )
        archive.add_argument(
            "--out", type=Path, metavar="DIR", help="the archive; `archive` in the data directory when absent"
        )

    def handle(self, *arguments: str, **options) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise CommandError("Spark is not installed; install it with: make pipeline")
        from broker_store.pipeline.session import open_session, words_of

        data = Path(options["data"] or settings.DATA_DIRECTORY)
        store = (options["store"] or run_file.store_directory(data)).absolute()
        live = (data / "run" / "live").absolute() if run_file.live_position(store, data) is not None else None

        def progress(text: str, done: int = 0, total: int = 0, running: int = 0) -> None:
            if options["progress"]:
                # The total is unknown until Spark has split the step into partitions.
                known = (
                    {"done": done, "total": total, "running": running, "unit": "partitions"} if total else {}
                )
                self.stdout.write(
                    json.dumps({"progress": {"text": text, **known}})
                    if options["json"]
                    else f"{text} {f'{done} of {total}' if total else ''}"
                )
                self.stdout.flush()

        def end(*_: object) -> None:
            raise SystemExit(143)

        signal.signal(signal.SIGTERM, end)  # so that `stop` below ends the JVM
        try:
            # Errors of the store are reported before a JVM is started.
            self._check_store(store, options)
            progress("starting Spark")
            session = open_session(
                data / "cache", cores=options["cores"] and max(1, options["cores"]), heap=options["heap"]
            )
            try:
                result = self._run(session, store, live, data, progress, options)
            finally:
                session.stop()
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        except Exception as error:
            words = words_of(error)
            if words is None:
                raise
            raise CommandError(words) from None
        if options["json"]:
            document = document_of(result)
            self.stdout.write(json.dumps({"result": document} if options["progress"] else document))
        else:
            self._show(result)
        if isinstance(result, Audit) and not result.ok:
            raise SystemExit(1)

    @staticmethod
    def _check_store(store: Path, options: dict[str, Any]) -> None:
        """Raise BrokerStoreError where the store or a topic is not there, or its log cannot be read."""
        from broker_store.engine.disk.disk import Disk
        from broker_store.pipeline.options import read_options
        from broker_store.pipeline.splits import check_topics, log_files

        disk = Disk()
        log_files(store, disk)
        check_topics(store, read_options({"path": str(store), **_only(options)}).topics, disk)

    @staticmethod
    def _run(
        session: Any,
        store: Path,
        live: Path | None,
        data: Path,
        progress: Callable[..., None],
        options: dict[str, Any],
    ) -> Result:
        from broker_store.pipeline import jobs

        if options["verb"] == "lineage":
            found = jobs.lineage(session, store, options["key"], live, progress, **_only(options))
            return fact_of(Lineage, found)
        if options["verb"] == "archive":
            out = (options["out"] or data / "archive").absolute()
            return fact_of(Archive, jobs.archive(session, store, out, live, progress))
        if options["verb"] == "statistics":
            return fact_of(Statistics, jobs.statistics(session, store, live, progress, **_only(options)))
        levels = options["delay_levels"] or run_file.delay_levels(store, data)
        noted, last_start = run_file.noted_sizes(store, data), run_file.last_start_of(store, data)
        found = jobs.audit(
            session,
            store,
            live,
            progress,
            noted=noted,
            last_start=last_start,
            **({"delay_levels": levels} if levels else {}),
        )
        return fact_of(Audit, found)

    def _show(self, result: Result) -> None:
        match result:
            case Audit():
                self._show_audit(result)
            case Statistics():
                self._show_statistics(result)
            case Lineage():
                self._show_lineage(result)
            case Archive():
                self._show_archive(result)

    def _show_audit(self, result: Audit) -> None:
        rows = (
            [one.severity, one.kind, one.file, "" if one.offset is None else str(one.offset), one.what]
            for one in result.findings
        )
        if result.findings:
            self.stdout.write(table(["SEVERITY", "KIND", "FILE", "OFFSET", "WHAT"], rows))
        verdict = "in order" if result.ok else f"{result.errors} errors"
        counted = ", ".join(
            f"{count:,} {name.replace('_', ' ')}"
            for name, count in result.counts.items()
            if name != "log_end"
        )
        self.stdout.write(
            f"{counted}: {verdict}. Not compared: {', '.join(result.not_compared)}; "
            f"`{program()} check_store` compares them."
        )

    def _show_statistics(self, result: Statistics) -> None:
        columns = {
            "topic": "TOPIC",
            "messages": "MESSAGES",
            "bytes": "BYTES",
            "queues": "QUEUES",
            "size_p50": "SIZE P50",
            "size_p99": "SIZE P99",
            "distinct_keys": "KEYS",
            "delay_ms_p50": "DELAY MS P50",
            "first_ms": "FIRST",
            "last_ms": "LAST",
        }
        self.stdout.write(_table(columns, result.topics))
        for file in result.index:
            chain = f"longest chain {file.longest_chain}, mean {file.mean_chain:.2f}"
            self.stdout.write(
                f"index {file.file}: {file.entries:,} entries in {file.slots_used:,} of "
                f"{file.slots:,} slots, {chain}"
            )
        self.stdout.write(
            f"{result.messages:,} messages, {result.bytes:,} bytes in {len(result.topics)} topics."
        )

    def _show_lineage(self, result: Lineage) -> None:
        columns = {
            "store_ms": "STORED",
            "topic": "TOPIC",
            "queue_id": "QUEUE",
            "queue_offset": "OFFSET",
            "log_offset": "IN THE LOG",
            "step": "WHAT",
        }
        self.stdout.write(_table(columns, result.records))
        more = "" if result.complete else ", the first of more"
        self.stdout.write(f"{len(result.records)} records of {result.key}{more}.")

    def _show_archive(self, result: Archive) -> None:
        for begin, end in result.missing:
            self.stdout.write(f"missing: [{begin}, {end}) of the log was deleted before it was archived")
        if result.doubt:
            self.stdout.write(f"note: {result.doubt}")
        self.stdout.write(
            f"{result.records:,} records in {result.files} files, {result.bytes:,} bytes; "
            f"the archive holds the log up to {result.to}."
        )


def _table(columns: dict[str, str], facts: Sequence[Any]) -> str:
    """Return facts as a table; `columns` is {field: heading}."""
    rows = ([cell(getattr(fact, name), name) for name in columns] for fact in facts)
    return table(list(columns.values()), rows)


def _only(options: dict[str, Any]) -> dict[str, str]:
    """Return the options that choose records, as far as they were given to the verb."""
    return {name: options[name] for name in ("topic", "from_time", "to_time") if options.get(name)}
