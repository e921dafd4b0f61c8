"""The life of a broker: it loads its tables, opens its ports, repeats its periodic work, and stops in order.

    parts = build_parts(broker_settings, store_settings, store, clock, nameserver)
    broker = Broker(parts)
    broker.load()             # after store.open(), in any thread: reads config/*.json
    await broker.start(host)  # after store.start(), on the loop
    await broker.stop()       # before store.close()

Everything here runs on the loop, except that files are written in a thread (`config_writer`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker_store.access import state as access
from broker_store.broker import (
    delay,
    deleted_groups,
    groups,
    offsets,
    property_filters,
    static_topics,
    timer_counts,
    topics,
    transaction_metrics,
)
from broker_store.broker.config_readers import READERS
from broker_store.broker.pauses import PERIOD_S
from broker_store.broker.pop import ordered, request_modes
from broker_store.broker.topics import TopicConfig
from broker_store.formats.queue_unit import LIGHT_QUEUE
from broker_store.server.acting import Role
from broker_store.server.broker_ports import bind_broker_ports
from broker_store.server.channel import Channel
from broker_store.server.config_writer import ConfigWriter
from broker_store.server.listener import NOTHING_BEFORE, Before, Listener, listen
from broker_store.server.master_link import open_ha_port
from broker_store.server.parts import BrokerParts
from broker_store.server.registration import Registration
from broker_store.server.repeated_work import RepeatedWork
from broker_store.server.router import Router
from broker_store.turns import StepsInTurn

log = logging.getLogger(__name__)

TICK_S = 1.0
SCAN_INTERVAL_MS = 10_000
DELAY_SAVE_INTERVAL_MS = 5_000
FILTERS_SAVE_INTERVAL_MS = 10_000
TIMER_CLEAN_INTERVAL_MS = 30_000
STOP_LIMIT_S = 1.0
FLAG_LOG_MS = 600_000
# Not logged: they were requested, or each refused send counts them.
QUIET_FLAGS = frozenset({"closed", "inspect", "slave", "page_cache_busy", "no_buffer"})
MAX_LOWERED_NAMED = 20  # offsets in one log line


class _Table(Protocol):
    """A table with a file in config/."""

    dirty: bool  # the file has to be written


class Broker:
    """A broker over its parts."""

    def __init__(self, parts: BrokerParts, channels: Mapping[str, Channel] | None = None):
        """`channels` are connections to name servers that a broker before has left open (`stop`)."""
        self.parts = parts
        self._channels = dict(channels or {})
        self.router: Router | None = None
        self.registration: Registration | None = None  # from the first `start` on
        self.listeners: list[Listener[Channel]] = []  # one for each open port
        self._role: Role | None = None  # from the first `start` on
        inspecting = parts.store_settings.inspect
        self.config_writer = ConfigWriter(_write_nothing if inspecting else parts.store.write_config)
        # An inspected store accepts no messages, so it delivers no delayed ones. On a slave the master
        # delivers them, and asks about its transactions.
        self._delivers = not inspecting and parts.store_settings.broker_role != "SLAVE"
        self._steps = (
            [
                RepeatedWork("delay", parts.delay, parts),
                RepeatedWork("transactions", parts.transactions, parts),
                RepeatedWork("revive", parts.revive, parts),
                RepeatedWork("earlier_pops", parts.earlier_pops, parts),
                RepeatedWork("order", parts.ordered, parts),
            ]
            if self._delivers
            else []
        )
        self._timer_steps = (
            RepeatedWork("timer", parts.timer, parts) if not inspecting and parts.timer.enabled else None
        )
        self._turns = StepsInTurn()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of the tick and of the measurement of pauses
        self._scanned_ms = self._offsets_saved_ms = self._delay_saved_ms = parts.clock()
        self._timer_captured_ms = self._timer_cleaned_ms = self._filters_saved_ms = parts.clock()
        self._flags_logged_ms: dict[tuple[str, str], int] = {}

    def load(self) -> None:
        """Read the config files. Raises DamagedStoreError for one that cannot be read."""
        parts, load = self.parts, self.parts.store.load_config
        tables = {
            topics.FILE_NAME: parts.topics.load,
            static_topics.FILE_NAME: parts.static_topics.load,
            groups.FILE_NAME: parts.groups.load,
            offsets.FILE_NAME: parts.offsets.load,
            delay.FILE_NAME: parts.delay.load,
            property_filters.FILE_NAME: parts.property_filters.load,
            request_modes.FILE_NAME: parts.request_modes.load,
            ordered.FILE_NAME: parts.ordered.load,
            deleted_groups.FILE_NAME: parts.deleted_groups.load,
            transaction_metrics.FILE_NAME: parts.transactions.metrics.load,
        }
        with_queues = {topic for topic, _ in parts.store.queues()}
        for name, take in tables.items():
            reader = READERS[name]
            gone, backup = reader.gone(with_queues), reader.takes_backup
            if what := load(name, take, is_needed=reader.is_needed, when_gone=gone, takes_backup=backup):
                log.warning("%s", what)
        self._load_access()
        adopted = parts.topics.adopt((*parts.store.queues(), *parts.static_topics.own_queues()))
        if adopted:
            log.warning(
                "topics with messages but no entry in topics.json: %s",
                ", ".join(config.name for config in adopted),
            )
        if self._delivers:
            saved_ms = parts.offsets.data_version.timestamp
            self._forget_deleted()
            self._restore_pops()
            self._lower_offsets()
            if restored := parts.ordered.restore(saved_ms):
                log.info("the states of %d queues popped in order were read from the log", restored)
        self._note(delay.FILE_NAME, "; ".join(parts.delay.start()))
        parts.timer.role.follows = parts.store_settings.broker_role == "SLAVE"
        parts.timer.start(config.name for config in parts.topics.all())
        parts.transactions.start()
        parts.revive.start(parts.offsets.query)
        if self._delivers:
            parts.earlier_pops.start()

    def _load_access(self) -> None:
        """Read users and policies, and write those of the settings that are new. Raises DamagedStoreError for
        a bad file, also if its .bak is sound."""
        control, store = self.parts.access, self.parts.store
        if control is None or self.parts.store_settings.inspect:
            return
        read = [access.AccessState()]
        store.load_config(
            access.FILE_NAME, lambda text: read.append(access.read_file(text)), takes_backup=False
        )
        if control.take(read[-1]):
            store.write_config(access.FILE_NAME, control.state.text())
        for name in control.users_with_another_password():
            log.warning("user %s keeps its password in access.json; that of the settings is another", name)
        if not any(user.is_super and not user.is_disabled for user in control.state.users.values()):
            log.warning("no Super user is enabled, so none can make users; set initAuthenticationUser")

    def _forget_deleted(self) -> None:
        """Forget offsets of topics and groups that were deleted after the offsets were saved."""
        parts = self.parts
        parts.deleted_groups.lower(parts.store.log.wrote)
        for what, deleted in (
            ("topics", parts.offsets.forget_deleted(parts.store.tombstones.before)),
            ("groups", parts.offsets.forget_deleted_groups(parts.deleted_groups)),
        ):
            if deleted:
                log.info("offsets of %d deleted %s were removed", len(deleted), what)

    def _restore_pops(self) -> None:
        """Move offsets to where records of pops in the log leave them, after a crash that came before the
        offsets were saved."""
        parts = self.parts
        moved = parts.pop_positions.restore(
            parts.revive_log.topic,
            parts.revive_log.queues,
            parts.ordered.log.topic,
            lambda topic: parts.topics.get(topic) is not None,
        )
        if moved:
            log.info("%d offsets were moved to where the pops of the last run left them", moved)

    def _lower_offsets(self) -> None:
        """Lower offsets beyond the end of their queue to that end, and log which. Not on a slave: its log may
        lag behind its master's."""
        parts = self.parts

        def end_of(topic: str, queue_id: int) -> int | None:
            is_known = parts.topics.get(topic) is not None and not topic.startswith(LIGHT_QUEUE)
            return max(0, parts.store.reads.max_offset(topic, queue_id)) if is_known else None

        lowered = parts.offsets.lower_to_ends(end_of)
        if lowered:
            named = "; ".join(map(str, lowered[:MAX_LOWERED_NAMED]))
            more = (
                f"; and {len(lowered) - MAX_LOWERED_NAMED:,} more" if len(lowered) > MAX_LOWERED_NAMED else ""
            )
            what = (
                f"offsets beyond the end of their queues were lowered to it, so that no later "
                f"message is skipped: {named}{more}"
            )
            self._note(offsets.FILE_NAME, what)

    def _note(self, name: str, what: str) -> None:
        """Log what was wrong with config/`name` and was repaired, and add it to the report of the start;
        nothing if `what` is empty."""
        if what:
            self.parts.store.note_of_config(name, what)
            log.warning("%s", what)

    async def start(self, host: str, *, fast_port: bool = True, before: Before = NOTHING_BEFORE) -> None:
        """Open the ports, register at name servers, start the periodic work. Raises OSError if a port is
        taken."""
        parts = self.parts
        sockets = bind_broker_ports(host, parts.settings.listen_port, with_fast_port=fast_port)
        port = sockets[0].getsockname()[1]
        parts.endpoint.listens_on(port)
        router = self.router = Router(parts)
        self.registration = Registration(parts, self._channels)
        registered = parts.topics.on_change

        def topics_changed(changed: Sequence[TopicConfig]) -> None:
            self._save_topics()
            registered(changed)
            router.pops.waiting.topics_changed(changed)

        parts.topics.on_change = topics_changed
        parts.groups.on_change = self._save_groups
        parts.static_topics.on_change = self._save_static_topics
        parts.request_modes.on_change = self._save_modes
        self.router.consume.start()
        self.router.pops.waiting.start()
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
                    before=before,
                    shares=parts.shares,
                )
            )
        open_ha_port(parts, host, port, before.tls)
        self._role = Role(parts, self.registration)
        router.logical_queues.brokers = self._role.brokers
        await self._role.prepare()
        self._timers["tick"] = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._watch_pauses()
        for steps in self._all_steps():
            steps.start()
        if self._timer_steps is not None:
            parts.timer.on_arrival = self._timer_steps.shortly
        if parts.replication.registers:
            await self.registration.start()
        self._role.start()

    async def stop(self, *, stays_registered: bool = False) -> dict[str, Channel]:
        """Refuse new connections, answer waiting requests, unregister, save. Idempotent. The caller closes
        the store afterwards.

        With `stays_registered` it does not unregister; the connections to name servers are returned, for the
        broker that follows in this process.
        """
        if self.router is None or self.registration is None or self._role is None:
            return {}
        parts, router, self.router = self.parts, self.router, None
        for listener in self.listeners:
            listener.stop_accepting()
        for timer in self._timers.values():
            timer.cancel()
        await self._turns.stop()
        for steps in self._steps:
            steps.stop()
        left_open = {}
        await self._role.stop()
        if stays_registered:
            left_open = await self.registration.leave_open()
        else:
            await self.registration.stop()
        parts.sends.flush()
        router.consume.stop()
        router.pops.waiting.stop()
        # With SYNC_FLUSH the last sends are answered after their sync.
        await self._wait_until(lambda: not parts.sends.pending)
        parts.transactions.note()
        await router.stop()
        await asyncio.gather(*(listener.close(STOP_LIMIT_S) for listener in self.listeners))
        self.listeners.clear()
        self._save_missing()
        self._save_changed()
        if self._timer_steps is not None:
            # A slot that was delivered only in part would be delivered again as a whole. The rest of it is
            # due within a second.
            await self._wait_until(lambda: not parts.timer.has_begun_a_slot)
            parts.timer.on_arrival = lambda: None
            self._timer_steps.stop()
            parts.timer.capture(ending=True)
        self._save_metrics()
        self._save_filters()
        unsaved_end = max(parts.delay.unsaved_end(), parts.pop_positions.unsettled_end())
        await self._wait_until(lambda: parts.store.flushed >= unsaved_end)
        self._save_delay()
        self._save_offsets()
        await parts.replication.stop()
        await self.config_writer.close()
        await parts.changes.close()
        return left_open

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true, at most STOP_LIMIT_S."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STOP_LIMIT_S
        while not condition() and loop.time() < until_s:
            await asyncio.sleep(0.01)

    def reset_pulls(self, group: str, topic: str, queue_ids: list[int]) -> None:
        """Answer the parked pulls of a group whose offsets were reset. Without an open port no pull is
        parked."""
        if self.router is not None:
            self.router.reset(group, topic, queue_ids)

    def _channel_closed(self, channel: Channel) -> None:
        self.parts.clients.channel_closed(channel)
        self.parts.parked.channel_closed(channel)
        self.parts.parked_pops.channel_closed(channel)

    # Periodic work

    def _tick(self) -> None:
        parts, now_ms = self.parts, self.parts.clock()
        self._timers["tick"] = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        parts.statistics.timed(parts.timer.counts["enqueued"], parts.timer.counts["delivered"])
        self._turns.take(parts.statistics.tick_in_steps(now_ms), _log_failure)
        parts.changes.tick(now_ms)
        self._log_flags(now_ms)
        if _is_over(self._scanned_ms, SCAN_INTERVAL_MS, now_ms):
            self._scanned_ms = now_ms
            parts.locks.scan(now_ms)
            for channel in parts.clients.scan(now_ms):
                channel.close()
        if _is_over(self._offsets_saved_ms, parts.settings.flush_consumer_offset_interval, now_ms):
            self._offsets_saved_ms = now_ms
            for name in self._save_missing():
                log.warning(
                    "config/%s was removed while the broker runs: it is written again, as the broker "
                    "knows it",
                    name,
                )
            self._save_changed()
            self._save_metrics()
        if _is_over(self._delay_saved_ms, DELAY_SAVE_INTERVAL_MS, now_ms):
            self._delay_saved_ms = now_ms
            self._save_delay()
        if _is_over(self._filters_saved_ms, FILTERS_SAVE_INTERVAL_MS, now_ms):
            self._filters_saved_ms = now_ms
            self._save_filters()
        if self._timer_steps is not None:
            if _is_over(self._timer_captured_ms, parts.store_settings.timer_flush_interval_ms, now_ms):
                self._timer_captured_ms = now_ms
                parts.timer.capture()
            if _is_over(self._timer_cleaned_ms, TIMER_CLEAN_INTERVAL_MS, now_ms):
                self._timer_cleaned_ms = now_ms
                parts.timer.clean()

    def _log_flags(self, now_ms: int) -> None:
        """Log each flag of the store, each cause at most once in FLAG_LOG_MS. Otherwise only the dashboard
        would show why sends are refused."""
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
        loop = asyncio.get_running_loop()
        due_s = loop.time() + PERIOD_S
        self._timers["pauses"] = loop.call_at(due_s, self._note_pause, due_s)

    def _note_pause(self, due_s: float) -> None:
        self.parts.pauses.note(max(0.0, asyncio.get_running_loop().time() - due_s))
        self._watch_pauses()

    def _all_steps(self) -> list[RepeatedWork]:
        return self._steps if self._timer_steps is None else [*self._steps, self._timer_steps]

    def step(self) -> None:
        """Do all periodic work that is due; for tests, which set the clock ahead."""
        for steps in self._all_steps():
            steps.now()

    def _count_delivered(self, stored: Sequence[tuple[str, int, int]]) -> None:
        for topic, messages, size in stored:
            self.parts.statistics.stored(topic, messages, size)

    # Saving

    def _save_missing(self) -> list[str]:
        """Mark the tables for saving of which neither the file in config/ nor its .bak exists. Return the
        names of those whose file existed before."""
        parts = self.parts
        tables: dict[str, _Table] = {
            topics.FILE_NAME: parts.topics,
            groups.FILE_NAME: parts.groups,
            offsets.FILE_NAME: parts.offsets,
            delay.FILE_NAME: parts.delay,
        }
        missing = [name for name in tables if not parts.store.has_config(name)]
        for name in missing:
            tables[name].dirty = True
        return [
            name
            for name in missing
            if name not in self.config_writer.failed and not self.config_writer.is_under_way(name)
        ]

    def _save_changed(self) -> None:
        if self.parts.topics.dirty:
            self._save_topics()
        if self.parts.static_topics.dirty:
            self._save_static_topics()
        if self.parts.groups.dirty:
            self._save_groups()
        if self.parts.request_modes.dirty:
            self._save_modes()
        self._save_offsets()

    def _save_topics(self) -> None:
        self.config_writer.save(topics.FILE_NAME, self.parts.topics.picture())

    def _save_static_topics(self) -> None:
        self.config_writer.save(static_topics.FILE_NAME, self.parts.static_topics.picture())

    def _save_groups(self) -> None:
        self.config_writer.save(groups.FILE_NAME, self.parts.groups.picture())

    def _save_modes(self) -> None:
        self.config_writer.save(request_modes.FILE_NAME, self.parts.request_modes.picture())

    def _save_offsets(self) -> None:
        self.parts.transactions.settle(self.parts.store.flushed)
        self.parts.pop_positions.settle(self.parts.store.flushed)
        self.parts.broadcast.step(self.parts.clock())
        if self.parts.ordered.dirty:
            # Before the offsets: without this file a start reads the records since those were saved.
            self.config_writer.save(ordered.FILE_NAME, self.parts.ordered.picture())
        if self.parts.offsets.dirty:
            self.config_writer.save(offsets.FILE_NAME, self.parts.offsets.picture())

    def _save_metrics(self) -> None:
        files = {
            timer_counts.METRICS_FILE_NAME: self.parts.timer.waiting.metrics_picture(),
            transaction_metrics.FILE_NAME: self.parts.transactions.metrics.picture(),
        }
        for name, make_text in files.items():
            if make_text is not None:
                self.config_writer.save(name, make_text)

    def _save_filters(self) -> None:
        self.parts.property_filters.clean()
        if self.parts.property_filters.dirty:
            self.config_writer.save(property_filters.FILE_NAME, self.parts.property_filters.picture())

    def _save_delay(self) -> None:
        make_text = self.parts.delay.picture(self.parts.store.flushed)
        if make_text is not None:
            self.config_writer.save(delay.FILE_NAME, make_text)


def _is_over(since_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Return whether an interval has ended. It has if the clock was set back too: work must not wait until
    the old time comes again."""
    return not 0 <= now_ms - since_ms < interval_ms


def _log_failure(_result: object, error: Exception | None) -> None:
    if error is not None:
        log.error("the meters could not be sampled", exc_info=error)


def _write_nothing(name: str, data: bytes) -> None:
    """Write nothing: the config files of an inspected store stay as they are."""
