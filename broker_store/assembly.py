"""Builds and orders the parts of a broker process: store, broker, name server. Used by runbroker, runnamesrv
and tests.

    start:  load and recover (a thread) ─► store.start ─► name server port ─► broker ports, registration
            ─► gRPC port
    stop:   the reverse; the store's last sync and the removal of `abort` come last

Web, Redis and job workers belong to the dashboard, which starts them around this.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from broker_store.broker.history import SAMPLE_MS, History
from broker_store.config.load import Settings, properties_of
from broker_store.config.name_server import NameServerSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.status import samples
from broker_store.engine.status.samples import SampleFiles
from broker_store.engine.store import MessageStore, wall_clock_ms
from broker_store.engine.worker import Worker
from broker_store.errors import StoreError
from broker_store.facts.threads import ThreadTimes
from broker_store.nameserver.handlers import NameServer
from broker_store.nameserver.kv_file import KeyValueFile
from broker_store.rest.change_record import ChangeRecord
from broker_store.server.audited_requests import note_name_server
from broker_store.server.broker import Broker
from broker_store.server.certificate import Certificate
from broker_store.server.grpc.port import GrpcListener, open_grpc_port
from broker_store.server.nameserver_port import NameServerPort
from broker_store.server.parts import BrokerParts, build_parts
from broker_store.server.registration import own_broker

log = logging.getLogger(__name__)

_TICK_S = 0.1


def build_name_server(settings: NameServerSettings, directory: Path) -> NameServer:
    """Build a name server that keeps its key-value table in `directory`. Raises DamagedStoreError when the
    file and its .bak are bad."""
    disk = Disk()
    disk.make_directory(directory)
    kept = KeyValueFile(disk, directory)
    kv_config = kept.load()
    if kept.note:
        log.warning("%s", kept.note)
    return NameServer(
        wall_clock_ms,
        kv_config=kv_config,
        persist=kept.write,
        config=properties_of(settings),
        return_order_topic_config=settings.return_order_topic_config_to_broker,
        delete_topics_with_registration=settings.delete_topic_with_broker_registration,
        order_topics_in_routes=settings.order_message_enable,
        acting_masters=settings.support_acting_master,
    )


def _sampler_failed(name: str, error: BaseException) -> None:
    """Log that charts end here; messages do not depend on it."""
    log.error("%s has ended: no more samples are taken", name, exc_info=error)


def _thread_watch_failed(name: str, error: BaseException) -> None:
    """Log that threads are no longer measured; messages do not depend on it."""
    log.error("%s has ended: threads and the loop are no longer measured", name, exc_info=error)


class BrokerProcess:
    """The engine and what serves it, on the running loop.

    `store` exists from the beginning, so that the dashboard can show its recovery; `parts` when the broker
    runs.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        bind: str = "127.0.0.1",
        data: Path | None = None,
        with_name_server: bool = True,
        lock: StoreLock | None = None,
    ):
        self.settings = settings
        self.bind = bind
        self._data = data
        self._with_name_server = with_name_server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self.name_server_port: NameServerPort | None = None
        self.grpc_port: GrpcListener | None = None
        self.broker: Broker | None = None
        self.parts: BrokerParts | None = None
        self._sampler: Worker | None = None
        self.threads = ThreadTimes(self._wake, wall_clock_ms)
        self._thread_watch: Worker | None = None  # from `start` to the end of `stop`
        # Writes records of changes, in a thread; without it they are written to the log.
        self.write_changes: Callable[[Sequence[ChangeRecord]], None] | None = None
        self._records = (
            None
            if data is None
            else StartRecords(data / "recoveries", Path(settings.store.store_path_root_dir))
        )
        self.store = MessageStore(
            settings.store,
            wake=self._wake,
            live_page_path=data / "run" / "live" if data is not None else None,
            lock=lock,
            records=self._records,
        )

    def _wake(self, function: Callable[[], None]) -> None:
        """Call a function on the loop, from a worker's thread. If the loop is closed nothing waits for it any
        more."""
        loop = self._loop
        assert loop is not None  # workers run after `start` began
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not loop.is_closed():
                raise

    async def start(self) -> None:
        """Recover and open every port. Raises StoreError, OSError; what was started is then stopped."""
        loop = self._loop = asyncio.get_running_loop()
        try:
            self._watch_threads()
            await self._in_thread(self._open_store)
            looks_only = self.settings.store.inspect
            nameserver = None
            if self._with_name_server and not looks_only:
                place = (self._data or self.store.root) / "namesrv"
                nameserver = build_name_server(self.settings.name_server, place)
            parts = build_parts(
                self.settings.broker,
                self.settings.store,
                self.store,
                wall_clock_ms,
                nameserver,
                samples=None if looks_only else self._sample_files(),
            )
            self.store.appender.store_host = parts.endpoint.store_host
            if self.write_changes is not None:
                parts.changes.write = self.write_changes
            broker = Broker(parts)
            await self._in_thread(broker.load)
            self.store.start()
            self._tick_timer = loop.call_later(_TICK_S, self._tick)
            if looks_only:
                # No port: a process that only reads the store serves no clients, and another broker may be
                # running.
                self.parts, self.broker = parts, broker
                return
            if nameserver is not None:
                # Before the port opens, so that no other broker can register first
                nameserver.own = own_broker(parts)
                nameserver.refuse = lambda cause, **case: parts.statistics.refuse(
                    f"name server: {cause}", **case
                )
                nameserver.answered = lambda *answered: note_name_server(
                    parts.changes, parts.clock(), *answered
                )
                self.name_server_port = NameServerPort(
                    nameserver, wall_clock_ms, self.settings.name_server.scan_not_active_broker_interval
                )
                await self.name_server_port.start(self.bind, self.settings.name_server.listen_port)
            self.broker = broker
            await broker.start(self.bind)
            self.store.appender.store_host = parts.endpoint.store_host
            if self.settings.broker.grpc_server_port:
                assert broker.router is not None  # it has started
                self.grpc_port = await open_grpc_port(
                    parts,
                    broker.router,
                    self.bind,
                    self.settings.broker.grpc_server_port,
                    self._certificate(),
                )
            if parts.history is not None:
                self._remember(parts.history)
            self.parts = parts
        except BaseException:
            await self.stop()
            raise

    def _open_store(self) -> None:
        """Recover. If the record of it cannot be kept, log a warning, also when the start is refused: else
        the report ends with the process."""
        try:
            self.store.open()
        finally:
            if self._records is not None and self._records.failure:
                log.warning("the record of this start is not kept: %s", self._records.failure)

    def _watch_threads(self) -> None:
        self.threads.start(threading.get_ident())
        self._thread_watch = Worker("thread-watch", self.threads.step, 1.0, _thread_watch_failed)
        self._thread_watch.start()

    def _certificate(self) -> Certificate:
        """Return the certificate of the gRPC port: that of the settings, or one of its own."""
        settings = self.settings.broker
        given = (
            (Path(settings.tls_cert_path), Path(settings.tls_key_path)) if settings.tls_cert_path else None
        )
        names = {"localhost", "127.0.0.1", "::1", socket.gethostname(), settings.broker_ip1, self.bind}
        place = (self._data or self.store.root) / "tls"
        return Certificate(given, place, names - {"0.0.0.0", "::"}, wall_clock_ms, self.store.disk)

    def _sample_files(self) -> SampleFiles:
        return SampleFiles(self.store.disk, self.store.root.parent / samples.DIRECTORY)

    def _remember(self, history: History) -> None:
        """Start to take samples, now that clients can connect."""
        self._sampler = Worker("sampler", history.step, SAMPLE_MS / 1000, _sampler_failed, niceness=5)
        self._sampler.start()

    def _forget(self, sampler: Worker, history: History) -> None:
        """Write the last notes before connections close: that all clients leave with the broker is no event
        of a group."""
        sampler.stop()
        try:
            history.write_events()
        except StoreError as error:
            log.warning("what happened to groups last is not kept: %s", error)

    async def _in_thread(self, function: Callable[[], object]) -> None:
        """Run a blocking step in a thread of its own; a stop that comes meanwhile waits for it."""
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def finish(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error = None
            try:
                function()
            except BaseException as found:
                error = found
            self._wake(lambda: finish(error))

        threading.Thread(target=work, name="start", daemon=True).start()
        error = await done
        if error is not None:
            raise error

    def _tick(self) -> None:
        self._tick_timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        self.store.tick()

    async def stop(self) -> None:
        """Close ports and answer waiting pulls, then close the store. Idempotent.

        Raises StoreError when the store cannot be closed. Threads are no longer measured then either.
        """
        try:
            await self._stop_parts()
        finally:
            if self._thread_watch is not None:
                self.threads.stop()
                await self._in_thread(self._thread_watch.stop)
                self._thread_watch = None

    async def _stop_parts(self) -> None:
        history = None if self.parts is None else self.parts.history
        if self._sampler is not None and history is not None:
            sampler = self._sampler
            self._sampler = None
            await self._in_thread(lambda: self._forget(sampler, history))
        if self.grpc_port is not None:
            # Sends of its connections are in the group; `broker.stop` stores and answers them.
            self.grpc_port.stop_accepting()
        if self.broker is not None:
            await self.broker.stop()
        if self.grpc_port is not None:
            await self.grpc_port.close()
        if self.name_server_port is not None:
            await self.name_server_port.stop()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        if self._loop is None:  # it was not started, so nothing waits for this thread
            self.store.close()
        else:
            await self._in_thread(self.store.close)

    @property
    def ports(self) -> dict[str, str]:
        """Return what listens where, for the run file and READY."""
        listening = {}
        if self.broker is not None and self.broker.listeners:
            listening["broker"] = self.broker.parts.endpoint.address.rpartition(":")[2]
        if self.grpc_port is not None:
            listening["grpc"] = str(self.grpc_port.port)
        if self.name_server_port is not None and self.name_server_port.listener is not None:
            listening["nameserver"] = str(self.name_server_port.listener.port)
        return {name: f"{self.bind}:{port}" for name, port in listening.items()}
