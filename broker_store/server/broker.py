"""A broker's life: load what it knows, open its ports, do what has to be done again and again, and end in
order.

    parts = build_parts(broker_settings, store_settings, store, clock, nameserver)
    broker = Broker(parts)
    broker.load()             # after store.open(), in any thread: reads config/*.json
    await broker.start(host)  # after store.start(), on the loop
    await broker.stop()       # before store.close()

Everything here runs on the loop; only files are written in a thread (`keeper`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence

from broker_store import gc_policy
from broker_store.broker import delay, groups, offsets, timer_counts, topics, transaction_metrics
from broker_store.broker.config_readers import READERS
from broker_store.broker.pauses import PERIOD_S
from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.errors import StoreError
from broker_store.formats.queue_unit import LIGHT_QUEUE
from broker_store.server.channel import Channel
from broker_store.server.keeper import Keeper
from broker_store.server.listener import Listener, bind, listen
from broker_store.server.parts import BrokerParts
from broker_store.server.registration import Registration
from broker_store.server.router import Router
from broker_store.turns import StepsInTurn

log = logging.getLogger(__name__)

TICK_S = 1.0
SCAN_INTERVAL_MS = 10_000
DELAY_SAVE_INTERVAL_MS = 5_000
TIMER_CLEAN_INTERVAL_MS = 30_000
# A clock that jumps, or what becomes due beyond this, is looked at again at the latest then.
LONGEST_WAIT_S = 60.0
FAST_PORT_BELOW = 2
STOP_LIMIT_S = 1.0
FLAG_LOG_MS = 600_000
# As they were asked for, or counted among the refused sends
QUIET_FLAGS = frozenset({"closed", "inspect", "slave", "page_cache_busy"})
STEP_RETRY_S = 5.0
MOST_LOWERED_NAMED = 20  # positions, in one sentence


class Broker:
    """The broker over its parts."""

    def __init__(self, parts: BrokerParts):
        self.parts = parts
        self.router: Router | None = None
        self.registration: Registration | None = None  # at name servers, from the first `start` on
        self.listeners: list[Listener] = []  # one for each open port
        inspecting = parts.store_settings.inspect
        self.keeper = Keeper(_write_nothing if inspecting else parts.store.write_config)
        # A store that takes no messages takes no delayed ones either; a slave's are its master's to deliver
        # and to ask about.
        self._delivers = not inspecting and parts.store_settings.broker_role != "SLAVE"
        self._steps = (
            [_Steps("delay", parts.delay, parts), _Steps("transactions", parts.transactions, parts)]
            if self._delivers
            else []
        )
        self._timer_steps = (
            _Steps("timer", parts.timer, parts) if self._delivers and parts.timer.enabled else None
        )
        self._turns = StepsInTurn()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        self._scanned_ms = self._offsets_saved_ms = self._delay_saved_ms = parts.clock()
        self._timer_captured_ms = self._timer_cleaned_ms = parts.clock()
        self._flags_logged_ms: dict[tuple[str, str], int] = {}

    def load(self) -> None:
        """Read the config files. DamagedStoreError names one that cannot be read."""
        parts, load = self.parts, self.parts.store.load_config
        tables = {
            topics.FILE_NAME: parts.topics,
            groups.FILE_NAME: parts.groups,
            offsets.FILE_NAME: parts.offsets,
            delay.FILE_NAME: parts.delay,
            transaction_metrics.FILE_NAME: parts.transactions.metrics,
        }
        with_queues = {topic for topic, _ in parts.store.queues()}
        for name, table in tables.items():
            reader = READERS[name]
            if what := load(name, table.load, is_needed=reader.is_needed, when_gone=reader.gone(with_queues)):
                log.warning("%s", what)
        adopted = parts.topics.adopt(parts.store.queues())
        if adopted:
            log.warning(
                "topics with messages but no entry in topics.json: %s",
                ", ".join(config.name for config in adopted),
            )
        if self._delivers:
            self._lower_offsets()
        self._note(delay.FILE_NAME, "; ".join(parts.delay.start()))
        parts.timer.start(config.name for config in parts.topics.all())
        parts.transactions.start()

    def _lower_offsets(self) -> None:
        """Set positions beyond the end of their queue back, and say which. A slave's log may be behind its
        master's, so not there."""
        parts = self.parts

        def end_of(topic: str, queue_id: int) -> int | None:
            is_known = parts.topics.get(topic) is not None and not topic.startswith(LIGHT_QUEUE)
            return max(0, parts.store.reads.max_offset(topic, queue_id)) if is_known else None

        lowered = parts.offsets.lower_to_ends(end_of)
        if lowered:
            named = "; ".join(map(str, lowered[:MOST_LOWERED_NAMED]))
            more = (
                f"; and {len(lowered) - MOST_LOWERED_NAMED:,} more"
                if len(lowered) > MOST_LOWERED_NAMED
                else ""
            )
            what = (
                f"positions beyond the end of their queues were set back to it, so that the next "
                f"messages are not passed over: {named}{more}"
            )
            self._note(offsets.FILE_NAME, what)

    def _note(self, name: str, what: str) -> None:
        """Say what was found in config/<name>, and mended; nothing when it is empty."""
        if what:
            self.parts.store.note_of_config(name, what)
            log.warning("%s", what)

    async def start(self, host: str, *, fast_port: bool = True) -> None:
        """Open the ports, register, begin the repeated work. OSError when a port is taken."""
        parts, self._loop = self.parts, asyncio.get_running_loop()
        sockets = [_bound(host, parts.settings.listen_port, "--broker-port")]
        port = sockets[0].getsockname()[1]
        if fast_port:
            try:
                sockets.append(
                    _bound(
                        host,
                        port - FAST_PORT_BELOW,
                        f"--broker-port: the one {FAST_PORT_BELOW} below it is used too",
                    )
                )
            except OSError:
                sockets[0].close()
                raise
        parts.endpoint.listens_on(port)
        self.router = Router(parts)
        self.registration = Registration(parts)
        registered = parts.topics.on_change
        parts.topics.on_change = lambda changed: (self._save_topics(), registered(changed))
        parts.groups.on_change = self._save_groups
        self.router.consume.start(self._loop)
        parts.delay.on_delivered = parts.timer.on_delivered = self._count_delivered
        self._save_missing()
        self._save_changed()
        self._save_delay()
        for listening in sockets:
            self.listeners.append(
                await listen(
                    self.router.handle,
                    listening,
                    max_connections=parts.settings.max_connections,
                    on_closed=self._channel_closed,
                    late=self.router.waited,
                    refused=parts.statistics.refuse,
                )
            )
        self._tick_timer = self._loop.call_later(TICK_S, self._tick)
        self._watch_pauses()
        for steps in self._all_steps():
            steps.start()
        if self._timer_steps is not None:
            parts.timer.on_arrival = self._timer_steps.shortly
        await self.registration.start()

    async def stop(self) -> None:
        """Take no more, answer who waits, say good-bye, save. Idempotent; the store is closed by its owner
        afterwards."""
        if self.router is None:
            return
        parts, router, self.router = self.parts, self.router, None
        for listener in self.listeners:
            listener.stop_accepting()
        self._tick_timer.cancel()
        self._pause_timer.cancel()
        await self._turns.stop()
        for steps in self._steps:
            steps.stop()
        await self.registration.stop()
        parts.sends.flush()
        router.consume.stop()
        # With SYNC_FLUSH the last sends wait for their sync before they are answered.
        await self._wait_until(lambda: not parts.sends.pending)
        parts.transactions.note()
        await router.stop()
        await asyncio.gather(*(listener.close(STOP_LIMIT_S) for listener in self.listeners))
        self.listeners.clear()
        self._save_missing()
        self._save_changed()
        if self._timer_steps is not None:
            # A slot that was delivered in part would be delivered again as a whole; the rest of it is due
            # within a second.
            await self._wait_until(lambda: not parts.timer.has_begun_a_slot)
            parts.timer.on_arrival = lambda: None
            self._timer_steps.stop()
            parts.timer.capture(ending=True)
        self._save_metrics()
        await self._wait_until(lambda: parts.store.flushed >= parts.delay.unsaved_end())
        self._save_delay()
        await self.keeper.close()
        await parts.changes.close()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Give the store's flusher up to a second."""
        until_s = self._loop.time() + STOP_LIMIT_S
        while not condition() and self._loop.time() < until_s:
            await asyncio.sleep(0.01)

    def reset_pulls(self, group: str, topic: str, queue_ids: list[int]) -> None:
        """Answer the parked pulls of a group whose offsets were reset; no pull is parked while no port is
        open."""
        if self.router is not None:
            self.router.consume.reset(group, topic, queue_ids)

    def _channel_closed(self, channel: Channel) -> None:
        self.parts.clients.channel_closed(channel)
        self.parts.parked.channel_closed(channel)

    # Again and again

    def _tick(self) -> None:
        parts, now_ms = self.parts, self.parts.clock()
        self._tick_timer = self._loop.call_later(TICK_S, self._tick)
        parts.statistics.timed(parts.timer.counts["enqueued"], parts.timer.counts["delivered"])
        self._turns.take(parts.statistics.tick_in_steps(now_ms), _log_failure)
        parts.changes.tick(now_ms)
        self._log_flags(now_ms)
        if now_ms - self._scanned_ms >= SCAN_INTERVAL_MS:
            self._scanned_ms = now_ms
            parts.locks.scan(now_ms)
            for channel in parts.clients.scan(now_ms):
                channel.close()
        if now_ms - self._offsets_saved_ms >= parts.settings.flush_consumer_offset_interval:
            self._offsets_saved_ms = now_ms
            for name in self._save_missing():
                log.warning(
                    "config/%s was removed while the broker runs: it is written again, as the broker "
                    "knows it",
                    name,
                )
            self._save_changed()
            self._save_metrics()
        if now_ms - self._delay_saved_ms >= DELAY_SAVE_INTERVAL_MS:
            self._delay_saved_ms = now_ms
            self._save_delay()
        if self._timer_steps is not None:
            if now_ms - self._timer_captured_ms >= parts.store_settings.timer_flush_interval_ms:
                self._timer_captured_ms = now_ms
                parts.timer.capture()
            if now_ms - self._timer_cleaned_ms >= TIMER_CLEAN_INTERVAL_MS:
                self._timer_cleaned_ms = now_ms
                parts.timer.clean()

    def _log_flags(self, now_ms: int) -> None:
        """Log what the store notes, each cause at most once in FLAG_LOG_MS: without it a broker that refuses
        sends says why to nobody but the dashboard."""
        flags = self.parts.store.flags
        if not flags and not self._flags_logged_ms:
            return
        self._flags_logged_ms = {
            flag: at_ms for flag, at_ms in self._flags_logged_ms.items() if 0 <= now_ms - at_ms < FLAG_LOG_MS
        }
        for flag in flags.items() - self._flags_logged_ms.keys():
            if flag[0] not in QUIET_FLAGS:
                self._flags_logged_ms[flag] = now_ms
                log.error("the store notes %s: %s", flag[0].replace("_", " "), flag[1])

    def _watch_pauses(self) -> None:
        due_s = self._loop.time() + PERIOD_S
        self._pause_timer = self._loop.call_at(due_s, self._note_pause, due_s)

    def _note_pause(self, due_s: float) -> None:
        self.parts.pauses.note(max(0.0, self._loop.time() - due_s))
        self._watch_pauses()

    def _all_steps(self) -> list[_Steps]:
        return self._steps if self._timer_steps is None else [*self._steps, self._timer_steps]

    def step(self) -> None:
        """Take every step that is due: for who sets the clock ahead."""
        for steps in self._all_steps():
            steps.now()

    def _count_delivered(self, stored: Sequence[tuple[str, int, int]]) -> None:
        for topic, messages, size in stored:
            self.parts.statistics.stored(topic, messages, size)

    # Saving

    def _save_missing(self) -> list[str]:
        """Have the tables of config/ written of which neither the file nor its .bak is there; the names of
        those that were there before."""
        tables = {
            topics.FILE_NAME: self.parts.topics,
            groups.FILE_NAME: self.parts.groups,
            offsets.FILE_NAME: self.parts.offsets,
            delay.FILE_NAME: self.parts.delay,
        }
        missing = [name for name in tables if not self.parts.store.has_config(name)]
        for name in missing:
            tables[name].dirty = True
        return [
            name for name in missing if name not in self.keeper.failed and not self.keeper.is_under_way(name)
        ]

    def _save_changed(self) -> None:
        if self.parts.topics.dirty:
            self._save_topics()
        if self.parts.groups.dirty:
            self._save_groups()
        self._save_offsets()

    def _save_topics(self) -> None:
        self.keeper.save(topics.FILE_NAME, self.parts.topics.picture())

    def _save_groups(self) -> None:
        self.keeper.save(groups.FILE_NAME, self.parts.groups.picture())

    def _save_offsets(self) -> None:
        self.parts.transactions.settle(self.parts.store.flushed)
        self.parts.broadcast.step(self.parts.clock())
        if self.parts.offsets.dirty:
            self.keeper.save(offsets.FILE_NAME, self.parts.offsets.picture())

    def _save_metrics(self) -> None:
        files = {
            timer_counts.METRICS_FILE_NAME: self.parts.timer.waiting.metrics_picture(),
            transaction_metrics.FILE_NAME: self.parts.transactions.metrics.picture(),
        }
        for name, make_text in files.items():
            if make_text is not None:
                self.keeper.save(name, make_text)

    def _save_delay(self) -> None:
        make_text = self.parts.delay.picture(self.parts.store.flushed)
        if make_text is not None:
            self.keeper.save(delay.FILE_NAME, make_text)


_WHAT_WAITS = {
    "delay": "messages with a delay level wait",
    "transactions": "transactions without an end are not asked for",
    "timer": "messages with a time wait; the next start makes missing files of timerlog and timerwheel from "
    "the messages",
}


class _Steps:
    """Repeats the `step(now_ms)` of one kind of work: it says when to come again (ms), None when its
    `on_ready` will tell.

    While a file of the store fails it, the store has a flag that says what waits, and the step is tried each
    STEP_RETRY_S, whatever arrives.
    """

    def __init__(self, name: str, kind, parts: BrokerParts):
        self._name, self._kind, self._parts = name, kind, parts
        self._failed_s: float | None = None  # on the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = self._not_before_s = 0.0

    def start(self) -> None:
        self._kind.on_ready = self._soon
        self._soon()

    def stop(self) -> None:
        self._kind.on_ready = lambda: None
        self._timer.cancel()

    def now(self) -> None:
        """Take the step that is due."""
        now_ms = self._parts.clock()
        next_ms = self._kind.step(now_ms)
        wait_s = LONGEST_WAIT_S if next_ms is None else max(0.0, (next_ms - now_ms) / 1000)
        self._in(min(wait_s, LONGEST_WAIT_S))

    def _soon(self) -> None:
        self._in(0.0)

    def shortly(self) -> None:
        """Have a step in a moment: what arrives until then is taken together."""
        self._in(PAUSE_MS / 1000)

    def _in(self, wait_s: float) -> None:
        """Have the next step no later than in `wait_s`, or than STEP_RETRY_S after one that failed."""
        loop = asyncio.get_running_loop()
        at_s = max(loop.time() + wait_s, self._not_before_s)
        if self._timer is not None:
            if self._at_s <= at_s:
                return
            self._timer.cancel()
        self._at_s = at_s
        self._timer = loop.call_at(at_s, self._run)

    def _run(self) -> None:
        self._timer = None
        # A step that fails in a way that was not foreseen is told by the loop, and is not the last one
        self._in(LONGEST_WAIT_S)
        try:
            self.now()
        except StoreError as error:
            self._failed_s = asyncio.get_running_loop().time()
            self._not_before_s = self._failed_s + STEP_RETRY_S
            self._parts.store.trouble(f"{self._name}_failed", f"{_WHAT_WAITS[self._name]}: {error}")
            self._timer.cancel()
            self._timer = None
            self._in(0.0)
        else:
            # A step may have left out what failed before.
            if (
                self._failed_s is not None
                and asyncio.get_running_loop().time() - self._failed_s > 2 * STEP_RETRY_S
            ):
                self._failed_s = None
                self._parts.store.trouble_over(f"{self._name}_failed")


def _log_failure(_result: object, error: Exception | None) -> None:
    if error is not None:
        log.error("the meters could not be sampled", exc_info=error)


def _write_nothing(name: str, data: bytes) -> None:
    """A store that is only looked at keeps its config files as they are."""


class NameServerPort:
    """The port of a name server (`nameserver.handlers.NameServer`), in a broker's process or alone."""

    def __init__(self, nameserver, clock, scan_ms: int = 10_000):
        self.nameserver = nameserver
        self._clock = clock
        self._scan_s = scan_ms / 1000
        self.listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._long: StepsInTurn | None = None

    async def start(self, host: str, port: int, *, max_connections: int = 10_000) -> None:
        """Open the port. OSError when it is taken."""
        # A registration makes a table of up to MAX_TOPICS topics, which stays.
        self._long = StepsInTurn(after_turn=gc_policy.set_apart)
        self.nameserver.take_steps = self._long.take
        self.listener = await listen(
            self.nameserver.handle,
            _bound(host, port, "--nameserver-port (runnamesrv: --port)"),
            max_connections=max_connections,
            on_closed=self.nameserver.channel_closed,
            refused=self.nameserver.refuse,
        )
        self.nameserver.listens_on(self.listener.port)
        self._timer = asyncio.get_running_loop().call_later(self._scan_s, self._scan)

    def _scan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._scan_s, self._scan)
        self.nameserver.scan(self._clock())

    async def stop(self) -> None:
        if self.listener is not None:
            self._timer.cancel()
            listener, self.listener = self.listener, None
            await listener.close(STOP_LIMIT_S)
            self.nameserver.take_steps = None
            await self._long.stop()


def _bound(host: str, port: int, option: str) -> socket.socket:
    """`bind`, and where that cannot be, a sentence with the port and what to do."""
    try:
        return bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is taken: another program listens there; choose another with {option}"
            ) from None
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
