"""The host of the embedded cluster, which all its parts share: the broker's process, its loop and the threads
that read files."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from broker_store.assembly import BrokerProcess
from broker_store.engine.store import MessageStore
from broker_store.errors import StoreClosedError
from broker_store.facts.directory import StoreDirectory
from broker_store.formats.index_file import IndexGeometry
from broker_store.server.parts import BrokerParts
from broker_store.server.runtime_info import RUNNING_VERSION
from broker_store.units import with_texts
from mqadmin.cluster.embedded.listings import Listings
from mqadmin.facts.overview import Broker, State
from mqadmin.process.program_name import with_program

CALL_SECONDS = 3.0  # the longest wait for a call on the loop
RUN_SECONDS = 30.0  # the longest wait for a coroutine that scans all topics in turns
READ_THREADS = 2  # for pages and REST; the broker has readers of its own
STARTING = "The broker is starting."
ABSENT = "No broker runs in this process: it was started with --no-broker."
SENTENCES = {
    "opening": STARTING,
    "starting": STARTING,
    "recovering": "The store is being recovered.",
    "running": "Serving.",
    "closed": "The broker is stopping.",
}

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class Host:
    """The broker's process, for the parts of the cluster.

    The store exists from the beginning, the broker's parts while the broker runs. Without a process (the
    dashboard alone) there is neither.
    """

    def __init__(self, process: BrokerProcess | None, loop: asyncio.AbstractEventLoop | None):
        self._process = process
        self._loop = loop
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="browse")
        self._listings: Listings | None = None

    @property
    def process(self) -> BrokerProcess:
        """The broker's process. Raises StoreClosedError without one."""
        if self._process is None:
            raise StoreClosedError(self.state().sentence)
        return self._process

    @property
    def process_or_none(self) -> BrokerProcess | None:
        """The broker's process; None without one."""
        return self._process

    @property
    def store(self) -> MessageStore | None:
        """The store, also while it opens; None without one."""
        return None if self._process is None else self._process.store

    @property
    def parts(self) -> BrokerParts:
        """The parts of a running broker. Raises StoreClosedError while no broker runs."""
        parts, store = self.parts_or_none, self.store
        if parts is None or store is None or store.state in ("closed", "failed"):
            raise StoreClosedError(self.state().sentence)
        return parts

    @property
    def open_store(self) -> MessageStore:
        """The store of a running broker. Raises StoreClosedError while no broker runs."""
        process = self.process
        _ = self.parts
        return process.store

    @property
    def parts_or_none(self) -> BrokerParts | None:
        """The broker's parts, also of one that is stopping; None before they were built."""
        return None if self._process is None else self._process.parts

    @property
    def listings(self) -> Listings:
        """The listings of topics and groups. Raises StoreClosedError while no broker runs."""
        if self._listings is None or self._listings.parts is not self.parts:
            self._listings = Listings(self.parts)
        return self._listings

    @property
    def is_open(self) -> bool:
        """True while messages can be read."""
        return self._state().state in ("running", "read_only")

    def state(self) -> State:
        """Return whether the broker serves, and why not. Callers without a login get it, so the sentence
        names no directory."""
        found = self._state()
        return State(state=found.state, sentence=self.for_users(found.sentence))

    def _state(self) -> State:
        store = self.store
        if store is None:
            alone = self._loop is not None
            return (
                State(state="closed", sentence=ABSENT)
                if alone
                else State(state="starting", sentence=STARTING)
            )
        state = store.state
        if state in ("running", "read_only") and self.parts_or_none is None:
            state = "starting"  # the ports are about to open
        sentence = SENTENCES.get(state, state)
        if state == "failed":
            reason = (store.report.error or "the broker's log has the reason").rstrip(".")
            sentence = f"The broker did not start: {reason}."
        elif state in ("running", "read_only"):
            causes = "; ".join(store.flags.values())
            if state == "read_only":
                sentence = f"Messages can be read, but sends are refused: {causes}."
            elif causes:
                sentence = f"{sentence} Note: {causes}."
        return State(state=state, sentence=sentence)

    def for_users(self, value: Any) -> Any:
        """Return a fact of the store without the path of the store's directory, which only the log may show,
        and with the commands in it as this program was called."""
        store = self.store
        if store is None:
            return value
        settings = store.settings
        assert settings.store_path_commit_log is not None  # StoreSettings fills it in
        directories = (settings.store_path_commit_log.parent, settings.store_path_root_dir)

        def changed(text: str) -> str:
            for directory in directories:
                text = text.replace(f"{directory}/", "")
            return with_program(text)

        return with_texts(value, changed)

    def directory(self) -> StoreDirectory:
        """Return the store's files, which are read by position as another process would; also while the store
        starts. For a thread: each read may wait for the disk. Raises StoreClosedError without a store."""
        if self.store is None:
            raise StoreClosedError(self.state().sentence)
        settings = self.store.settings
        geometry = IndexGeometry(settings.max_hash_slot_num, settings.max_index_num)
        return StoreDirectory(
            settings.store_path_root_dir, log_directory=settings.store_path_commit_log, geometry=geometry
        )

    def call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        """Return `function(*arguments)`, run on the loop's thread; any thread may call this. Raises
        TimeoutError after CALL_SECONDS, StoreClosedError when the loop has ended."""
        if self._loop is None or asyncio._get_running_loop() is self._loop:
            return function(*arguments, **named)
        answer: Future[Value] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # the caller does not wait any more
            try:
                answer.set_result(function(*arguments, **named))
            except BaseException as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            raise StoreClosedError("the broker has stopped") from None
        try:
            return answer.result(CALL_SECONDS)
        except TimeoutError:
            answer.cancel()
            raise

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Return the result of a coroutine that the loop runs, for another thread. Raises TimeoutError after
        RUN_SECONDS, StoreClosedError when the loop has ended."""
        if self._loop is None:
            return asyncio.run(coroutine)
        try:
            running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise StoreClosedError("the broker has stopped") from None
        try:
            return running.result(RUN_SECONDS)
        except TimeoutError:
            running.cancel()
            raise

    async def in_thread(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        """Return `function(*arguments)`, run in one of the READ_THREADS."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(function, *arguments, **named))


def identity_of(parts: BrokerParts) -> Broker:
    """Return who the broker is."""
    return Broker(
        name=parts.broker_name,
        cluster=parts.cluster,
        id=parts.settings.broker_id,
        address=parts.endpoint.address,
        started_ms=parts.started_ms,
        version=RUNNING_VERSION,
    )
