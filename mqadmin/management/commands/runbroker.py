"""`manage.py runbroker`: starts broker, name server, dashboard, Redis and job workers.

Order: lock (before Django was imported, see `broker_store.launch`) ─► dashboard, which shows recovery ─►
store ─► ports ─► Redis and workers ─► READY. SIGTERM and Ctrl-C undo it in reverse, within 5 s.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import CommandError

from broker_store import launch
from broker_store.errors import BrokerStoreError, StoreError
from broker_store.gc_policy import LongLived
from broker_store.scheduler import ask_for_long_slices, ask_for_short_slices
from broker_store.units import fact_of
from mqadmin.command_line import default_data_directory
from mqadmin.management.plain import PlainCommand
from mqadmin.process.program_name import PROGRAM, program, with_program

if TYPE_CHECKING:  # what is loaded when it starts
    from broker_store.assembly import BrokerProcess
    from broker_store.engine.worker import Worker
    from broker_store.server.listener import Before
    from broker_store.server.tls_server import TlsServer
    from mqadmin.cluster.embedded.cluster import EmbeddedCluster
    from mqadmin.metrics.otlp import Exporter
    from mqadmin.process.children import Children
    from mqadmin.process.run_file import Ports
    from mqadmin.web.server import Web

# A busy Python thread (a page) then holds up the loop for half a millisecond, not for five
SWITCH_INTERVAL_S = 0.0005
PART_STOP_SECONDS = 2.0
NEW_DATABASE = (
    "The dashboard's database was not there, though a broker has run on this data directory: an "
    "empty one is made."
    " Accounts, tokens, schedules, the audit trail and the list of dead letters that were left out "
    "are not in it."
)


class Command(PlainCommand):
    help = "Start the broker, the name server and the dashboard."
    requires_system_checks = ()

    def add_arguments(self, parser):
        launch.add_arguments(parser)

    def handle(self, *args, **options):
        start = launch.prepared or launch.prepare(sys.argv[2:])
        start.restore_host_zone()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ask_for_short_slices()
        for note in start.settings.notes:
            self.stderr.write(note)
        if start.arguments.inspect:
            _take_sizes_of_files(start)
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(Run(start, self.stdout.write, self._complain).main())
        if code:
            sys.exit(code)

    def _complain(self, text: str) -> None:
        self.stderr.write(with_program(text))


def _take_sizes_of_files(start: launch.Launch) -> None:
    """Set the sizes of files in the settings, for a store that is inspected, to those of its files."""
    from broker_store.facts.directory import StoreDirectory
    from broker_store.facts.recoveries import settings_for

    store = start.settings.store
    try:
        directory = StoreDirectory(store.store_path_root_dir, log_directory=store.store_path_commit_log)
        start.settings = dataclasses.replace(start.settings, store=settings_for(directory, store))
    except BrokerStoreError as error:
        raise CommandError(f"runbroker: {error}", returncode=launch.exit_code_of(error)) from None


def _has_run(data: Path) -> bool:
    """Return whether a broker has started on this data directory. False where its records cannot be read: the
    start of the store reports that."""
    from broker_store.engine.disk.disk import Disk
    from broker_store.engine.start import start_records

    try:
        return bool(start_records.names(Disk(), (data / "recoveries").absolute()))
    except StoreError:
        return False


class Run:
    """One run of all parts. `say` and `complain` write a line to the terminal."""

    def __init__(self, start: launch.Launch, say, complain):
        self._start, self._say, self._complain = start, say, complain
        self._arguments = start.arguments
        self._stopped = asyncio.Event()
        self._process: BrokerProcess | None = None
        self._web: Web | None = None
        self._children: Children | None = None
        self._cluster: EmbeddedCluster | None = None
        self._watches: list[asyncio.Task] = []
        self._tls: TlsServer | None = None
        self._sent: tuple[Exporter, Worker] | None = None  # the export of metrics

    async def main(self) -> int:
        """Run until a signal, and return the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="aside", initializer=ask_for_long_slices)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        starting = loop.create_task(self._begin(), name="start")
        stopping = loop.create_task(self._stopped.wait(), name="stop")
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                # A signal while starting: recovery may be under way in its thread; `stop` waits for it.
                starting.cancel()
            try:
                await starting
            except asyncio.CancelledError:
                return 0
            except (BrokerStoreError, OSError) as error:
                self._complain(f"runbroker: {error}")
                return launch.exit_code_of(error)
            await stopping
            return 0
        finally:
            stopping.cancel()
            await self._end()

    async def _begin(self) -> None:
        arguments, loop = self._arguments, asyncio.get_running_loop()
        before = await self._what_comes_before()
        if not arguments.no_broker:
            from broker_store.assembly import BrokerProcess

            self._process = BrokerProcess(
                self._start.settings,
                bind=arguments.bind,
                data=self._start.data,
                with_name_server=self._start.has_name_server,
                lock=self._start.lock,
                before=before,
                has_open_name_server=self._start.has_open_name_server,
            )
        admin = None
        if not arguments.no_web:
            await loop.run_in_executor(None, self._prepare_database)
            # To hash a password takes long and does not hold the interpreter: the start goes on beside it.
            admin = loop.run_in_executor(None, self._prepare_admin)
            from mqadmin import audit
            from mqadmin.cluster.current import install_cluster
            from mqadmin.cluster.embedded.cluster import EmbeddedCluster
            from mqadmin.cluster.embedded.signs import JobCounts
            from mqadmin.jobs import queue
            from mqadmin.views.store.doctor import facts as checks
            from mqadmin.web import server, tokens

            if self._process is not None:
                self._process.write_changes = audit.write_changes
            self._cluster = EmbeddedCluster(self._process, loop)
            self._cluster.jobs = JobCounts(queue.failed_since, checks.last_findings)
            install_cluster(self._cluster)
            socket_path = self._start.data / "run" / "web.sock"
            self._watches.append(loop.create_task(tokens.watch(), name="tokens"))
            self._web = await server.serve(
                loop, self._start.web_bind, arguments.web_port, socket_path, before=before
            )
        if self._process is not None:
            await self._start_broker(self._process)
        ports: dict[str, object] = dict(self._process.ports) if self._process is not None else {}
        if self._web is not None:
            scheme = "https" if before.tls is not None and before.tls.is_required else "http"
            ports["web"] = f"{scheme}://{self._start.web_bind}:{self._web.port}"
        self._start.write_run_file(ports)
        if not arguments.no_web:
            await self._start_children()
        self._send_metrics()
        from mqadmin.process.run_file import Ports

        self._introduce(fact_of(Ports, ports), None if admin is None else await admin)
        self._say("READY " + " ".join(f"{name}={place}" for name, place in ports.items()))
        sys.stdout.flush()
        LongLived().start()

    async def _what_comes_before(self) -> Before:
        """Return what all ports read before a request. Raises ConfigError for a certificate that cannot be
        used, before the store is opened."""
        from django.conf import settings as of_dashboard

        from broker_store.engine.disk.disk import Disk
        from broker_store.server.tls_setup import own_names, what_comes_before

        settings, bind = self._start.settings.broker, self._arguments.bind
        names = own_names((settings.broker_ip1, bind, self._start.web_bind, *of_dashboard.WEB_HOSTS))
        before = what_comes_before(settings, self._start.data / "tls", names, Disk())
        if before.tls is not None:
            await before.tls.open()
            self._tls = before.tls
        return before

    async def _start_broker(self, process: BrokerProcess) -> None:
        try:
            await process.start()
        except BrokerStoreError as error:
            if not self._arguments.inspect or self._web is None:
                raise
            # A store that cannot be opened can be inspected: pages that read its files work, and the others
            # show why not.
            self._complain(f"A start would be refused: {error}")

    def _prepare_database(self) -> None:
        """Bring the tables to this version."""
        from django.core.management import call_command
        from django.db import connection
        from django.db.migrations.executor import MigrationExecutor

        from mqadmin.web.failures import wrong_database_file

        if wrong := wrong_database_file():
            raise OSError(wrong)
        try:
            executor = MigrationExecutor(connection)
            if executor.migration_plan(executor.loader.graph.leaf_nodes()):
                if not executor.loader.applied_migrations and _has_run(self._start.data):
                    self._complain(NEW_DATABASE)
                call_command("migrate", verbosity=0, interactive=False)
        finally:
            connection.close()

    def _prepare_admin(self) -> str | None:
        """Create the first user, and return the one-time password to print."""
        from django.db import connection

        from mqadmin.process import first_start

        try:
            return first_start.ensure_admin()
        finally:
            connection.close()

    async def _start_children(self) -> None:
        import os

        from django.conf import settings

        from mqadmin.jobs import queue
        from mqadmin.process.children import Children

        children = self._children = Children(
            self._start.data,
            redis_url=os.environ.get("REDIS_URL") or None,
            redis_password=settings.REDIS_PASSWORD,
            manage=settings.BASE_DIRECTORY / "manage.py",
        )
        if self._cluster is not None:
            self._cluster.children = children.state
        for failure in await children.start(queue.mark_interrupted):
            self._complain(failure)
        self._watches.append(asyncio.get_running_loop().create_task(children.watch(), name="children"))

    def _send_metrics(self) -> None:
        """Start the thread that sends metrics, if the settings name an address for them."""
        settings = self._start.settings.broker
        if not settings.metrics_otlp_endpoint or self._process is None:
            return
        if self._cluster is None:
            self._complain("metricsOtlpEndpoint: no metrics are sent with --no-web")
            return
        from broker_store.engine.worker import Worker
        from mqadmin.metrics.otlp import Exporter

        exporter = Exporter(self._cluster, settings.metrics_otlp_endpoint)
        worker = Worker(
            "otlp",
            exporter.step,
            settings.metrics_otlp_interval / 1000,
            lambda name, error: self._complain(f"runbroker: metrics are sent no more: {error!r}"),
        )
        self._sent = exporter, worker
        worker.start()

    def _introduce(self, ports: Ports, password: str | None) -> None:
        """Print the addresses, and which commands to try."""
        say = self._say
        if ports.web is not None:
            say(f"Dashboard    {ports.web}")
        if password is not None:
            say(
                f"             first login: user admin, password {password} (for one login, which "
                f"sets another)"
            )
        if self._process is None:
            return
        if ports.nameserver is not None:
            say(f"Name server  {ports.nameserver}   give this to clients")
        if ports.broker is not None and self._process.parts is not None:
            say(
                f"Broker       {ports.broker}   clients get {self._process.parts.endpoint.address} "
                f"(--advertise HOST changes it)"
            )
        if ports.grpc is not None:
            say(f"gRPC         {ports.grpc}   for clients of RocketMQ 5")
        if not launch.is_loopback(self._arguments.bind):
            say(f"             others reach these ports; what is open to whom: {program()} check_deploy")
        say(f"Store        {self._process.store.root}" + (" (read-only)" if self._arguments.inspect else ""))
        if self._web is not None and ports.broker is not None:
            say("Try next, in another terminal:")
            is_installed = program() == PROGRAM
            usual = default_data_directory() if is_installed else Path("data").absolute()
            data = "" if self._start.data == usual else f" --data {self._start.data}"
            python = Path(sys.executable)
            shown = ".venv/bin/python" if python.parent.parent.name == ".venv" else str(python.name)
            call = PROGRAM if is_installed else f"{shown} manage.py"
            say(f"  {call} message{data} send Hello 'first message' --tag greeting --create")
            say(f"  {call} message{data} tail Hello --from-start")
            say(f"  {call} demo{data}")

    async def _end(self) -> None:
        """Stop all parts in reverse order, each with a limit. A failure is reported and does not stop the
        others."""
        for watch in self._watches:
            watch.cancel()
        if self._sent is not None:
            exporter, worker = self._sent
            exporter.close()
            # It may be waiting for the loop, which therefore runs on.
            await asyncio.get_running_loop().run_in_executor(None, worker.stop, 1.0)
        if self._children is not None:
            from mqadmin.jobs import queue

            loop = asyncio.get_running_loop()
            await self._limited(
                "jobs", loop.run_in_executor(None, self._children.stop, queue.mark_interrupted), 3.0
            )
        if self._process is not None:
            await self._limited("broker", self._process.stop(), None)
        if self._web is not None:
            await self._limited("dashboard", self._web.stop(), PART_STOP_SECONDS)
        if self._tls is not None:
            self._tls.close()
        self._start.remove_run_file()

    async def _limited(self, name: str, work, limit_s: float | None) -> None:
        try:
            await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            self._complain(f"runbroker: {name} did not stop within {limit_s:g} s")
        except (BrokerStoreError, OSError) as error:
            self._complain(f"runbroker: stopping {name}: {error}")
