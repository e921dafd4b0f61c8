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
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_store.broker.history import SAMPLE_MS, History
from broker_store.config.checks import networks
from broker_store.config.live import CHANGED_FILE, LiveSettings
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
from broker_store.facts.memory import MemoryWatch, bounds_warning
from broker_store.facts.threads import ThreadTimes
from broker_store.memory_limit import memory_limit
from broker_store.memory_parts import growing_parts
from broker_store.nameserver.handlers import NameServer
from broker_store.nameserver.kv_file import KeyValueFile
from broker_store.rest.change_record import ChangeRecord
from broker_store.server.audited_requests import note_name_server
from broker_store.server.broker import Broker
from broker_store.server.certificate import context_to_servers
from broker_store.server.channel import Channel
from broker_store.server.controller_role import ControllerRole
from broker_store.server.grpc.port import GrpcListener, open_grpc_port
from broker_store.server.listener import Before, Listener
from broker_store.server.nameserver_port import NameServerPort
from broker_store.server.parts import BrokerParts, build_parts, inner_credentials
from broker_store.server.port_shares import shares_of
from broker_store.server.registration import own_broker
from broker_store.server.tls_server import TlsServer
from broker_store.server.tls_setup import own_names, what_comes_before

log = logging.getLogger(__name__)

_TICK_S = 0.1


def build_name_server(
    settings: NameServerSettings,
    directory: Path,
    live: LiveSettings | None = None,
    *,
    kept: Mapping[str, str] | None = None,
    fixed: Iterable[str] = (),
) -> NameServer:
    """Build a name server that keeps its key-value table in `directory`. `live` changes its settings while it
    runs; without it changes are kept in `directory` too, beside the `kept` ones of earlier runs, but for the
    `fixed` keys. Raises DamagedStoreError when the file of the table and its .bak are bad."""
    disk = Disk()
    disk.make_directory(directory)
    changes = live or LiveSettings(
        (settings,),
        kept=kept,
        fixed=fixed,
        write=lambda data: disk.replace_file(directory / CHANGED_FILE, data),
    )
    table = KeyValueFile(disk, directory)
    kv_config = table.load()
    if table.note:
        log.warning("%s", table.note)
    built = NameServer(
        wall_clock_ms,
        kv_config=kv_config,
        persist=table.write,
        config=lambda: properties_of(settings),
        change_config=lambda given: changes.change(given, NameServerSettings),
        return_order_topic_config=settings.return_order_topic_config_to_broker,
        delete_topics_with_registration=settings.delete_topic_with_broker_registration,
        order_topics_in_routes=settings.order_message_enable,
        acting_masters=settings.support_acting_master,
        notifies_lowest_id=settings.notify_min_broker_id_changed,
    )

    def take() -> None:
        built.returns_order_topic_config = settings.return_order_topic_config_to_broker
        built.has_order_topics_in_routes = settings.order_message_enable

    changes.watch(("orderMessageEnable", "returnOrderTopicConfigToBroker"), take)
    built.changers = networks(settings.name_server_change_addresses) or None
    return built


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
        before: Before | None = None,
        has_open_name_server: bool = True,
    ):
        """The name server takes changes from every address if `has_open_name_server`, else from this machine
        and those of the settings. `before` is what all ports of the process read before a request, opened;
        without it the broker makes its own."""
        self.settings = settings
        self._given_before = before
        self._has_open_name_server = has_open_name_server
        self.bind = bind
        self._data = data
        self._with_name_server = with_name_server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self.name_server_port: NameServerPort | None = None
        self.grpc_port: GrpcListener | None = None
        self._tls: TlsServer | None = None  # that it has made
        self.broker: Broker | None = None
        self.parts: BrokerParts | None = None
        self._sampler: Worker | None = None
        self.threads = ThreadTimes(self._wake, wall_clock_ms)
        self.memory: MemoryWatch | None = None  # from the opening of the ports on
        self._thread_watch: Worker | None = None  # from `start` to the end of `stop`
        # Writes records of changes, in a thread; without it they are written to the log.
        self.write_changes: Callable[[Sequence[ChangeRecord]], None] | None = None
        self._records = (
            None
            if data is None
            else StartRecords(data / "recoveries", Path(settings.store.store_path_root_dir))
        )
        # In controller mode; an inspected store has no role
        self.role = (
            ControllerRole(settings.store, settings.broker, wall_clock_ms, self._serve_again)
            if settings.store.enable_controller_mode and not settings.store.inspect
            else None
        )
        self._live: LiveSettings | None = None  # from `start` on
        self._nameserver: NameServer | None = None
        self._before_requests: Before | None = None
        self._left_open: Mapping[str, Channel] = {}
        self._lasting_watchers = 0  # of `_live`, which do not end with a run of the broker
        self.store = self._make_store(lock)

    def _make_store(self, lock: StoreLock | None = None) -> MessageStore:
        return MessageStore(
            self.settings.store,
            wake=self._wake,
            live_page_path=self._data / "run" / "live" if self._data is not None else None,
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
        self._loop = asyncio.get_running_loop()
        try:
            self._watch_threads()
            await self._in_thread(self._open_store)
            if self.role is not None:
                await self.role.begin(self.store)
            self._live = live = LiveSettings(
                (self.settings.broker, self.settings.store, self.settings.name_server),
                kept=self.settings.changed,
                fixed=self.settings.fixed,
                write=lambda data: self.store.write_config(CHANGED_FILE, data),
            )
            if self._with_name_server and not self.settings.store.inspect:
                place = (self._data or self.store.root) / "namesrv"
                self._nameserver = build_name_server(self.settings.name_server, place, live)
                if not self._has_open_name_server and self._nameserver.changers is None:
                    self._nameserver.changers = ()
            self._lasting_watchers = live.watchers()
            await self._serve()
        except BaseException:
            await self.stop()
            raise

    async def _serve(self) -> None:
        """Open the ports over the opened store. Raises StoreError, OSError."""
        live, nameserver, looks_only = self._live, self._nameserver, self.settings.store.inspect
        assert live is not None and self._loop is not None  # it is starting
        live.forget_after(self._lasting_watchers)
        membership = None if self.role is None else self.role.give(self.store)
        parts = build_parts(
            self.settings.broker,
            self.settings.store,
            self.store,
            wall_clock_ms,
            nameserver,
            samples=None if looks_only else self._sample_files(),
            live=live,
            wake=self._wake,
            membership=membership,
        )
        self.store.appender.store_host = parts.endpoint.store_host
        if self.write_changes is not None:
            parts.changes.write = self.write_changes
        broker = Broker(parts, self._left_open)
        await self._in_thread(broker.load)
        self.store.start()
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)
        if looks_only:
            # No port: a process that only reads the store serves no clients, and another broker may be
            # running.
            self.parts, self.broker = parts, broker
            return
        before = await self._what_comes_before()
        if nameserver is not None:
            await self._open_name_server(nameserver, parts, before)
        self.broker = broker
        await broker.start(self.bind, before=before)
        self._left_open = {}
        self.store.appender.store_host = parts.endpoint.store_host
        if self.settings.broker.grpc_server_port:
            assert broker.router is not None  # it has started
            self.grpc_port = await open_grpc_port(
                parts,
                broker.router,
                self.bind,
                self.settings.broker.grpc_server_port,
                before,
            )
        if parts.history is not None:
            self._remember(parts.history)
        self.parts = parts
        self._watch_memory(parts)
        if self.role is not None:
            self.role.serves(parts.replication)

    async def _open_name_server(self, nameserver: NameServer, parts: BrokerParts, before: Before) -> None:
        """Let the name server know its own broker, and open its port if it is not open."""
        # Before the port opens, so that no other broker can register first
        nameserver.own = own_broker(parts)
        nameserver.refuse = lambda cause, **case: parts.statistics.refuse(f"name server: {cause}", **case)
        nameserver.answered = lambda *answered: note_name_server(parts.changes, parts.clock(), *answered)
        if self.name_server_port is not None:
            return
        self.name_server_port = NameServerPort(
            nameserver,
            wall_clock_ms,
            self.settings.name_server.scan_not_active_broker_interval,
            inner_credentials(self.settings.broker),
            context_to_servers(self.settings.broker) if self.settings.broker.tls_enable else None,
        )
        await self.name_server_port.start(
            self.bind,
            self.settings.name_server.listen_port,
            before=before,
            shares=shares_of(self.settings.name_server),
        )

    async def _serve_again(self, prepare: Callable[[], None]) -> None:
        """Close the ports of the broker and the store, and serve over the store again, after `prepare` in a
        thread. The name server stays. Raises StoreError, OSError."""
        await self._stop_serving(stays_registered=True)
        await self._in_thread(self.store.close)
        await self._in_thread(prepare)
        self.store = self._make_store()
        await self._in_thread(self._open_store)
        await self._serve()

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

    def _watch_memory(self, parts: BrokerParts) -> None:
        """Count what the process takes now as that of the program, and what comes later by part."""
        assert self.broker is not None  # it has started
        listeners: dict[str, Listener[Any]] = {
            f"port {listener.port}": listener for listener in self.broker.listeners
        }
        if self.name_server_port is not None and self.name_server_port.listener is not None:
            listeners["name server"] = self.name_server_port.listener
        growing = growing_parts(parts, self.store.queue_table, listeners, self.grpc_port)
        self.memory = MemoryWatch(self.store.root, growing)
        self.memory.start()
        if (warning := bounds_warning(self.memory.bounds_bytes, memory_limit(), growing)) is not None:
            log.warning("memory: %s", warning)

    async def _what_comes_before(self) -> Before:
        """Return what the ports read before a request, the same for the whole run."""
        if self._before_requests is None:
            before = self._given_before
            if before is None:
                before = self._before()
                if before.tls is not None:
                    await before.tls.open()
                self._tls = before.tls
            self._before_requests = before
        return self._before_requests

    def _before(self) -> Before:
        settings = self.settings.broker
        place = (self._data or self.store.root) / "tls"
        return what_comes_before(
            settings, place, own_names((settings.broker_ip1, self.bind)), self.store.disk
        )

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
                if self.memory is not None:
                    self.memory.stop()
                await self._in_thread(self._thread_watch.stop)
                self._thread_watch = None

    async def _stop_parts(self) -> None:
        if self.role is not None:
            await self.role.stop()
        await self._stop_serving()
        if self.name_server_port is not None:
            await self.name_server_port.stop()
        if self._tls is not None:
            self._tls.close()
        if self._loop is None:  # it was not started, so nothing waits for this thread
            self.store.close()
        else:
            await self._in_thread(self.store.close)

    async def _stop_serving(self, *, stays_registered: bool = False) -> None:
        """Close the ports of the broker, and end what works beside them."""
        history = None if self.parts is None else self.parts.history
        if self._sampler is not None and history is not None:
            sampler = self._sampler
            self._sampler = None
            await self._in_thread(lambda: self._forget(sampler, history))
        if stays_registered:
            self.parts = None  # a closed store is not read
        if self.grpc_port is not None:
            # Sends of its connections are in the group; `broker.stop` stores and answers them.
            self.grpc_port.stop_accepting()
        if self.broker is not None:
            left_open = await self.broker.stop(stays_registered=stays_registered)
            self._left_open = self._left_open or left_open
        if self.grpc_port is not None:
            await self.grpc_port.close()
            self.grpc_port = None
        if stays_registered and self.memory is not None:
            self.memory.stop()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None

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
