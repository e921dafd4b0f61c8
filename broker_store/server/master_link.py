"""A slave's connection to the broker port of its master: tables, and the comparison before a copy.

Every 3 s the slave takes over the master's topics, groups, request modes, offsets of groups, offsets of delay
levels and how far timer messages were delivered (codes 21, 201, 402, 43, 45, 60). Topics and groups that the
master has deleted are deleted here.

Source: Apache's `SlaveSynchronize`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from broker_store.access.signatures import signed
from broker_store.broker import groups, topics
from broker_store.engine.log.record_ends import RecordEnds
from broker_store.errors import BrokerStoreError, MisuseError, PeerError
from broker_store.formats import timer_check
from broker_store.formats.static_topics import read_answer
from broker_store.protocol import table_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION, Command
from broker_store.replication.follower import DifferentLogError, MasterAddress
from broker_store.replication.links import HaTls
from broker_store.server.admin.topics import forget_topic
from broker_store.server.certificate import context_to_servers
from broker_store.server.channel import Channel, connect_to
from broker_store.server.listener import bind_for
from broker_store.server.parts import BrokerParts, inner_credentials

log = logging.getLogger(__name__)

INTERVAL_S = 3.0
TIMEOUT_S = 3.0
_EXTENT = ("commitLogMinOffset", "commitLogMaxOffset")  # of the runtime info of both kinds of brokers
_CANNOT_FIND = "can not find message"
# A master that starts answers before it has taken them over.
ACTS = "this slave acts for its master, and its own tables are newer"


def open_ha_port(parts: BrokerParts, host: str, broker_port: int, tls: HaTls | None = None) -> None:
    """Open the HA port of a master that feeds slaves, with `tls` also by TLS. Raises OSError."""
    wanted = parts.replication.wanted_port
    if wanted is not None:
        parts.replication.feed(bind_for(host, wanted or broker_port + 1, "haListenPort"), tls)


def open_ha_port_for_this_machine(parts: BrokerParts) -> None:
    """Open an HA port at loopback, unless the broker has one. Raises MisuseError for a broker that feeds no
    slaves, OSError."""
    replication = parts.replication
    if replication.port:
        return
    if replication.is_slave or parts.store_settings.inspect:
        raise MisuseError("a slave, or a broker that only reads its store, feeds no slaves")
    if not ip_address(parts.endpoint.address.rpartition(":")[0].strip("[]")).is_loopback:
        raise MisuseError(
            "slaves would be sent to the address of this broker: set haListenPort and haSlaveAddresses "
            "(docs/REPLICATION.md), and start it again"
        )
    replication.feed(bind_for("127.0.0.1", 0, "haListenPort"))


def follow_master(parts: BrokerParts) -> MasterLink | None:
    """Begin to copy if this broker is a slave."""
    if not parts.replication.is_slave:
        return None
    link = MasterLink(parts)
    link.start()
    parts.replication.tables = link
    parts.replication.follow(link, link.tls if parts.store_settings.ha_tls_enable else None)
    return link


class MasterLink:
    """Loop's thread."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._ends = RecordEnds(parts.store.log, parts.store_settings.max_message_size)
        self._credentials = inner_credentials(parts.settings)
        settings = parts.settings
        self.tls = context_to_servers(settings) if settings.tls_enable else None
        self._channel: Channel | None = None
        self._address = ""
        self._connecting = asyncio.Lock()  # tables and comparisons are requested by two tasks
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[RequestCode, bytes] = {}  # the last body that was taken over
        self.error: str | None = "not asked yet"  # why tables are not taken over
        self.taken_ms: int | None = None  # when all tables were last taken over

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._channel is not None:
            self._channel.close()

    async def log_of_master(self, master: MasterAddress) -> tuple[int, int]:
        """Return the log offsets at which the master's log begins and ends. Raises PeerError, OSError and
        TimeoutError if that cannot be said."""
        answer = await self._of_log(master, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        if answer.code == ResponseCode.SUCCESS:
            table = table_bodies.decode_table(answer.body)
            stated = [table.get(name, "") for name in _EXTENT]
            if all(text.isascii() and text.isdigit() for text in stated):
                return int(stated[0]), int(stated[1])
        raise PeerError(
            f"the master does not state where its log begins: {answer.code} {answer.remark or '':.120}"
        )

    async def compare(self, master: MasterAddress) -> None:
        """Compare the last record of this log with the master's. Raises DifferentLogError if it is another
        there, PeerError, OSError and TimeoutError if that cannot be said."""
        last = self._last_record()
        if last is None:
            return
        offset, size = last
        answer = await self._of_log(master, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        if answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(_CANNOT_FIND):
            raise DifferentLogError(
                f"the record at {offset:,}, with which this log ends, is not in the log of the master at "
                f"{master.broker}: {answer.remark:.200}. To copy that log, start with an empty store"
            )
        if answer.code != ResponseCode.SUCCESS:
            raise PeerError(f"the master answered {answer.code} {answer.remark or '':.120}")
        if answer.body != self._parts.store.reads.records.log_bytes(offset, size):
            raise DifferentLogError(
                f"the record at {offset:,}, with which this log ends, is another in the log of the master at "
                f"{master.broker}. To copy that log, start with an empty store"
            )

    async def _of_log(self, master: MasterAddress, code: RequestCode, fields: dict[str, str]) -> Command:
        if master.broker is None:
            raise PeerError("the logs cannot be compared: no name server states the master's broker port")
        return await self._request(master.broker, code, fields)

    def _last_record(self) -> tuple[int, int] | None:
        """Return log offset and size of the last record of the log; None without one. Those of deleted topics
        count: it is found from the last one on that a queue has."""
        store = self._parts.store
        known = 0
        for topic, queue_id in store.queues():
            end = store.reads.max_offset(topic, queue_id)
            for unit in store.reads.read_units(topic, queue_id, end - 1, 1):
                known = max(known, unit[0])
        return self._ends.last_record(known)

    # Tables

    async def _run(self) -> None:
        while True:
            master = self._parts.replication.master
            try:
                if self._parts.replication.is_acting:
                    raise PeerError(ACTS)
                if master is None or master.broker is None:
                    raise PeerError("no name server states the master's broker port")
                await self._take_all(master.broker)
                if self.error is not None:
                    log.info("tables are taken over from the master at %s", master.broker)
                self.error, self.taken_ms = None, self._parts.clock()
            except (OSError, TimeoutError, BrokerStoreError) as error:
                why = str(error) or type(error).__name__
                if self.error != why:
                    log.warning("tables of the master are not taken over: %s", why)
                self.error = why
            await asyncio.sleep(INTERVAL_S)

    async def _take_all(self, address: str) -> None:
        takes: dict[RequestCode, Callable[[str], Awaitable[None]]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._take_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._take_groups,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._take_modes,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._take_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._take_delay,
        }
        for code, take in takes.items():
            answer = await self._request(address, code, {})
            if answer.code != ResponseCode.SUCCESS:
                raise PeerError(
                    f"the master answered {code.name} with {answer.code} {answer.remark or '':.120}"
                )
            if self._seen.get(code) != answer.body:
                await take(answer.body.decode())
                self._seen[code] = answer.body
        await self._take_timer(address)

    async def _take_topics(self, text: str) -> None:
        parts = self._parts
        known, version = await asyncio.to_thread(topics.read_file, text)
        mappings = await asyncio.to_thread(read_answer, text)
        names = {config.name for config in known}
        for config in parts.topics.all():
            if config.name not in names and not parts.topics.is_system(config.name):
                log.info("topic %s was deleted at the master", config.name)
                forget_topic(parts, config.name)
        if parts.static_topics.table != mappings[0]:
            parts.static_topics.take(*mappings)
            parts.static_topics.dirty = True
        changed = [config for config in known if parts.topics.get(config.name) != config]
        parts.topics.take(known, version)
        parts.topics.dirty = True
        parts.topics.on_change(changed)

    async def _take_groups(self, text: str) -> None:
        table = self._parts.groups
        known, forbidden, version = await asyncio.to_thread(groups.read_file, text)
        names = {group.name for group in known}
        for group in table.all():
            if group.name not in names:
                table.delete(group.name)
        table.take(known, forbidden, version)
        table.dirty = True
        table.on_change()

    async def _take_modes(self, text: str) -> None:
        self._parts.request_modes.load(text)
        self._parts.request_modes.dirty = True

    async def _take_offsets(self, text: str) -> None:
        self._parts.offsets.load(text)
        self._parts.offsets.dirty = True

    async def _take_delay(self, text: str) -> None:
        self._parts.delay.load(text)
        self._parts.delay.dirty = True

    async def _take_timer(self, address: str) -> None:
        """Take how far the master has put timer messages on its wheel and delivered them (60)."""
        code = RequestCode.GET_TIMER_CHECK_POINT
        answer = await self._request(address, code, {})
        if answer.code != ResponseCode.SUCCESS or self._seen.get(code) == answer.body:
            return  # without a timer it answers an error
        self._parts.timer.role.follow(timer_check.decode(answer.body))
        self._seen[code] = answer.body

    # The connection

    async def _request(self, address: str, code: RequestCode, fields: dict[str, str]) -> Command:
        channel = await self._connected(address)
        if self._credentials is not None:
            fields = signed(fields, b"", self._credentials, VERSION)
        try:
            return await channel.request(Command.request(int(code), fields), TIMEOUT_S)
        except TimeoutError:
            channel.abort()  # a new connection may pass where this one was forgotten
            raise

    async def _connected(self, address: str) -> Channel:
        async with self._connecting:
            if self._channel is None or self._channel.closed or self._address != address:
                if self._channel is not None:
                    self._channel.close()
                self._channel = await connect_to(address, TIMEOUT_S, tls=self.tls)
                self._address = address
                self._seen.clear()  # meanwhile this slave may have acted for its master
            return self._channel
