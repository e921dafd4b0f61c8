"""`manage.py runnamesrv`: the name server alone, for brokers of ours or of Apache's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from django.core.management.base import CommandError

from broker_store.config.load import load_name_server_settings
from broker_store.errors import BrokerStoreError, ConfigError
from broker_store.launch import check_bind, pairs_of
from mqadmin.management.plain import PlainCommand

CHANGES_INTERVAL_S = 1.0  # how often records of changes are written to the log


class Command(PlainCommand):
    help = "Start the name server alone."
    requires_system_checks = ()

    def add_arguments(self, parser):
        parser.add_argument("--data", metavar="DIR", default=os.environ.get("BROKER_DATA_DIR", "data"))
        parser.add_argument("--bind", metavar="ADDRESS", default="127.0.0.1")
        parser.add_argument("--insecure", action="store_true", help="allow another address than loopback")
        parser.add_argument("--port", type=int, metavar="N", help="default: 9876")
        parser.add_argument(
            "-c", "--config", metavar="FILE", help="a namesrv.conf in Apache's properties format"
        )
        parser.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="one of Apache's properties; see docs/SETTINGS.md",
        )

    def handle(self, *args, **options):
        try:
            overrides = pairs_of(options["set"])
            if options["port"] is not None:
                overrides["listenPort"] = str(options["port"])
            check_bind(options["bind"], options["insecure"])
            settings = load_name_server_settings(
                Path(options["config"]) if options["config"] else None, overrides
            )
            asyncio.run(self._run(settings, options))
        except (ConfigError, BrokerStoreError, OSError) as error:
            raise CommandError(str(error)) from error

    async def _run(self, settings, options) -> None:
        from broker_store.assembly import build_name_server
        from broker_store.engine.store import wall_clock_ms
        from broker_store.server.audited_requests import note_name_server
        from broker_store.server.change_records import ChangeRecords
        from broker_store.server.nameserver_port import NameServerPort

        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        nameserver = build_name_server(settings, Path(options["data"]).absolute() / "namesrv")
        changes = ChangeRecords(wall_clock_ms)
        nameserver.answered = lambda *answered: note_name_server(changes, wall_clock_ms(), *answered)
        port = NameServerPort(nameserver, wall_clock_ms, settings.scan_not_active_broker_interval)
        await port.start(options["bind"], settings.listen_port)
        assert port.listener is not None  # it was started
        self.stdout.write(f"READY nameserver={options['bind']}:{port.listener.port}")
        sys.stdout.flush()
        while not stopped.is_set():
            changes.tick(wall_clock_ms())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), CHANGES_INTERVAL_S)
        await port.stop()
        await changes.close()
