"""`manage.py runnamesrv`: the name server alone, for brokers of ours or of Apache's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from django.core.management.base import CommandError

from broker_store.config.live import CHANGED_FILE, read_changes
from broker_store.config.load import load_name_server_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.errors import BrokerStoreError, ConfigError
from broker_store.launch import check_name_server_bind, exit_code_of, pairs_of
from mqadmin.management.plain import PlainCommand

CHANGES_INTERVAL_S = 1.0  # how often records of changes are written to the log


class Command(PlainCommand):
    help = "Start the name server alone."
    requires_system_checks = ()

    def add_arguments(self, parser):
        parser.add_argument("--data", metavar="DIR", default=os.environ.get("BROKER_DATA_DIR", "data"))
        parser.add_argument("--bind", metavar="ADDRESS", default="127.0.0.1")
        parser.add_argument(
            "--insecure",
            action="store_true",
            help="allow another address than loopback without nameServerChangeAddresses",
        )
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
            place = Path(options["data"]).absolute() / "namesrv"
            kept = read_changes(place / CHANGED_FILE, NameServerSettings)
            file = Path(options["config"]) if options["config"] else None
            settings = load_name_server_settings(file, overrides, kept)
            check_name_server_bind(options["bind"], options["insecure"], settings)
            asyncio.run(self._run(settings, options, kept, overrides))
        except (ConfigError, BrokerStoreError, OSError) as error:
            raise CommandError(str(error), returncode=exit_code_of(error)) from error

    async def _run(self, settings, options, kept=None, fixed=()) -> None:
        from broker_store.assembly import build_name_server
        from broker_store.engine.disk.disk import Disk
        from broker_store.engine.store import wall_clock_ms
        from broker_store.server.audited_requests import note_name_server
        from broker_store.server.change_records import ChangeRecords
        from broker_store.server.nameserver_port import NameServerPort
        from broker_store.server.port_shares import shares_of
        from broker_store.server.tls_setup import own_names, what_comes_before

        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        place = Path(options["data"]).absolute() / "namesrv"
        nameserver = build_name_server(settings, place, kept=kept, fixed=fixed)
        before = what_comes_before(settings, place / "tls", own_names((options["bind"],)), Disk())
        if before.tls is not None:
            await before.tls.open()
        changes = ChangeRecords(wall_clock_ms)
        nameserver.answered = lambda *answered: note_name_server(changes, wall_clock_ms(), *answered)
        port = NameServerPort(nameserver, wall_clock_ms, settings.scan_not_active_broker_interval)
        await port.start(options["bind"], settings.listen_port, before=before, shares=shares_of(settings))
        assert port.listener is not None  # it was started
        self.stdout.write(f"READY nameserver={options['bind']}:{port.listener.port}")
        sys.stdout.flush()
        while not stopped.is_set():
            changes.tick(wall_clock_ms())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), CHANGES_INTERVAL_S)
        await port.stop()
        if before.tls is not None:
            before.tls.close()
        await changes.close()
