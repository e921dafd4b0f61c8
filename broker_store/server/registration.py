"""Registers the topics of this broker at name servers (docs/spec/namesrv.md section 2): every
registerNameServerPeriod, and when a topic changes.

The name server in this process is called directly. Each of the others has one connection, which is opened
again after it was lost, and a task of its own, so that a slow one delays nothing else. A change registers
only the topics that changed; the first registration has all topics.

A table of more than MAX_TOPICS_PER_REGISTRATION topics is sent in several registrations with their own
versions, as Apache's brokers do with enableSplitRegistration: a frame has room for some 100,000 topics, and a
name server handles nothing else while it reads one. The name server in this process takes the whole table in
turns of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker_store.access.signatures import signed
from broker_store.broker.topics import TopicConfig
from broker_store.errors import BrokerStoreError, PeerError
from broker_store.formats.config_json import DataVersion
from broker_store.formats.topics import PERM_READ_WRITE
from broker_store.nameserver.channel import Channel as AcceptedChannel
from broker_store.nameserver.handlers import NameServer
from broker_store.nameserver.own_broker import OwnBroker
from broker_store.nameserver.routes import Registrant
from broker_store.protocol import registration_body, table_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION, Command
from broker_store.protocol.headers import write_header
from broker_store.protocol.host_port import split_address
from broker_store.protocol.registration_body import Registration as Served
from broker_store.server.certificate import context_to_servers
from broker_store.server.channel import Channel, connect
from broker_store.server.parts import BrokerParts, inner_credentials
from broker_store.turns import in_turns, steps_in_turns

log = logging.getLogger(__name__)

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
CONNECT_TIMEOUT_S = 3.0
RETRY_S = 3.0
GOODBYE_S = 1.0
# Of one registration, which then has 0.7 MB. A name server with deleteTopicWithBrokerRegistration removes
# topics that are not in the last one.
MAX_TOPICS_PER_REGISTRATION = 4_000
DEFAULT_PORT = 9876


class Registration:
    """The registrations of a broker at its name servers."""

    def __init__(self, parts: BrokerParts, channels: Mapping[str, Channel] | None = None):
        """`channels` are connections to name servers that a broker before has left open (`leave_open`)."""
        self._parts = parts
        self._credentials = inner_credentials(parts.settings)
        addresses = [address.strip() for address in parts.settings.namesrv_addr.split(";") if address.strip()]
        self.peers = [_Peer(address, self, (channels or {}).get(address)) for address in addresses]
        self.tls = context_to_servers(parts.settings) if parts.settings.tls_enable else None
        self._tasks: list[asyncio.Task] = []
        self._started = False
        self._renewal: asyncio.Task | None = None
        self._renewed_s = 0.0
        parts.replication.on_lost_master = self.renew
        parts.replication.on_new_epoch = self._changed
        parts.topics.on_change = self.topics_changed
        parts.live.watch(("brokerPermission",), self._changed)
        if parts.nameserver is not None:
            parts.nameserver.own = own_broker(parts, self)

    async def start(self) -> None:
        """Register at the name server of this process now, and start the tasks of the others."""
        self._started = True
        if self._parts.replication.membership is not None:
            # The name servers may know the same topics of the master before
            self._parts.topics.renew_version(self._epoch)
        await self._register_all_embedded()
        loop = asyncio.get_running_loop()
        if self._parts.nameserver is not None:
            self._tasks.append(loop.create_task(self._repeat_embedded(self._parts.nameserver)))
        self._tasks += [loop.create_task(peer.run()) for peer in self.peers]

    async def leave_open(self) -> dict[str, Channel]:
        """Stop, and stay registered; return the connections to name servers by address. A name server
        removes a broker whose connection ends, some time later and by its address: then it would remove one
        that has registered again."""
        await self._stop_tasks()
        return {peer.address: channel for peer in self.peers if (channel := peer.open_channel) is not None}

    async def _stop_tasks(self) -> None:
        self._started = False
        tasks = self._tasks if self._renewal is None else [*self._tasks, self._renewal]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def stop(self) -> None:
        """Unregister at all name servers; each has GOODBYE_S to answer."""
        await self._stop_tasks()
        parts = self._parts
        if parts.nameserver is not None:
            await steps_in_turns(
                parts.nameserver.routes.unregister_in_steps(
                    parts.cluster, parts.endpoint.address, parts.broker_name, parts.settings.broker_id
                )
            )
        await asyncio.gather(*(peer.leave() for peer in self.peers), return_exceptions=True)

    def renew(self) -> None:
        """Register everything again soon, at most each RETRY_S: a slave learns who its master is from the
        answers."""
        loop = asyncio.get_running_loop()
        if self._started and loop.time() - self._renewed_s >= RETRY_S:
            self._renewed_s = loop.time()
            if self._parts.nameserver is not None:
                self._register_embedded([])
            for peer in self.peers:
                peer.renew()

    def topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        """Register changed topics. An empty list means that a topic was deleted, which a registration cannot
        express."""
        if not self._started or not changed:
            return
        self._register_embedded(changed)
        for peer in self.peers:
            peer.add_changes(changed)

    @property
    def _epoch(self) -> int | None:
        """The epoch of the master in controller mode, which is the state version of what is registered: a
        name server takes no master of an older one."""
        assignment = self._parts.replication.assignment
        return None if assignment is None else assignment.epoch

    def _changed(self) -> None:
        """Register all topics now: brokerPermission masks their permissions, or there is another epoch."""
        self._parts.topics.renew_version(self._epoch)
        if not self._started:
            return
        if self._renewal is not None:
            self._renewal.cancel()  # the new one has the same topics
        self._renewal = asyncio.get_running_loop().create_task(self._register_all_embedded())
        for peer in self.peers:
            peer.add_changes(self._parts.topics.all())

    def delete_topic(self, topic: str) -> None:
        """Delete a topic from the routes of all name servers, for the dashboard. mqadmin does this itself."""
        command = Command.request(int(RequestCode.DELETE_TOPIC_IN_NAMESRV), {"topic": topic})
        if self._parts.nameserver is not None:
            self._parts.nameserver.handle(command, None)
        for peer in self.peers:
            peer.send(Command.request(command.code, {"topic": topic}))

    # Content of registrations

    def served(self, configs: Sequence[TopicConfig], version: DataVersion | None = None) -> Served:
        """Return the topics with the permissions that clients have: those of the topic and the broker. Any
        thread."""
        version = self._parts.topics.data_version if version is None else version
        permission = self._parts.settings.broker_permission
        topics = {}
        for config in configs:
            perm = (
                config.perm if permission & PERM_READ_WRITE == PERM_READ_WRITE else config.perm & permission
            )
            topics[config.name] = topic_bodies.TopicConfig(
                config.name, config.read_queues, config.write_queues, perm, config.filter_type,
                config.sys_flag, config.order, dict(config.attributes),
            )  # fmt: skip
        found = self._parts.static_topics.get
        mappings = {config.name: mapping.info() for config in configs if (mapping := found(config.name))}
        return Served(version, topics, mappings=mappings)

    def command(self, code: RequestCode, body: bytes = b"") -> Command:
        parts = self._parts
        values: dict[str, object] = {
            "broker_name": parts.broker_name,
            "broker_addr": parts.endpoint.address,
            "cluster_name": parts.cluster,
            "broker_id": parts.settings.broker_id,
        }
        if code == RequestCode.REGISTER_BROKER:
            acts = parts.settings.enable_slave_acting_master
            values |= {"ha_server_addr": parts.ha_address, "enable_acting_master": acts}
            values |= {"heartbeat_timeout_millis": self._timeout_ms}
            values |= {"compressed": False, "body_crc32": registration_body.body_crc(body)}
        return self.signed(Command.request(int(code), write_header(code, **values), body))

    def signed(self, command: Command) -> Command:
        """Return a request with the broker's signature, where it has credentials."""
        if self._credentials is None:
            return command
        fields = signed(command.fields or {}, command.body, self._credentials, VERSION)
        return Command.request(command.code, fields, command.body)

    @property
    def _timeout_ms(self) -> int | None:
        """After what silence a name server counts this broker as gone; None: as it likes."""
        settings = self._parts.settings
        return settings.broker_not_active_timeout_millis if settings.enable_slave_acting_master else None

    def is_connection(self, channel: AcceptedChannel) -> bool:
        """Return True if this broker opened a connection that the name server of this process has
        accepted."""
        ends = (channel.local, channel.remote)
        return any(peer.ends == ends for peer in self.peers)

    def registered(self, answer: Command) -> None:
        """Take over who the master of a slave is and which topics are ordered, from the answer of a name
        server."""
        fields = answer.fields or {}
        self._parts.replication.master_found(fields.get("haServerAddr"), fields.get("masterAddr"))
        if answer.body:
            self._parts.topics.set_order(table_bodies.decode_table(answer.body))

    # The name server in this process

    def _register_embedded(self, configs: Sequence[TopicConfig]) -> None:
        parts = self._parts
        if parts.nameserver is None:
            return
        who = Registrant(
            parts.cluster,
            parts.broker_name,
            parts.settings.broker_id,
            parts.endpoint.address,
            parts.ha_address,
            self._timeout_ms,
            parts.settings.enable_slave_acting_master,
            None,
        )
        answer = parts.nameserver.routes.register(who, self.served(configs), None, parts.clock())
        parts.replication.master_found(answer.ha_address, answer.master_address)

    async def _repeat_embedded(self, nameserver: NameServer) -> None:
        while True:
            order = nameserver.handle(
                Command.request(int(RequestCode.GET_KVLIST_BY_NAMESPACE), {"namespace": ORDER_TOPICS}), None
            )
            if order is not None and order.code == ResponseCode.SUCCESS:
                self.registered(order)
            await asyncio.sleep(self._parts.settings.register_name_server_period / 1000)
            await self._register_all_embedded()

    async def _register_all_embedded(self) -> None:
        """Register the whole table in turns of the loop. Topics that change meanwhile are registered by
        `topics_changed`.

        If the name server has this version already, only the topics that it lacks are registered: an
        administrator may have deleted some there.
        """
        parts, topics = self._parts, self._parts.topics
        if parts.nameserver is None:
            return
        routes, broker = parts.nameserver.routes, parts.broker_name
        is_known = routes.data_version(parts.cluster, parts.endpoint.address) == topics.data_version
        routes.heard(parts.cluster, parts.endpoint.address, parts.clock())
        async for names in in_turns(topics.names.all()):
            if is_known:
                names = [name for name in names if broker not in routes.topics.get(name, ())]
            if names:
                self._register_embedded(
                    [config for name in names if (config := topics.get(name)) is not None]
                )


class _Peer:
    """One name server of another process. `error` is why the last registration failed, None if it
    succeeded."""

    def __init__(self, address: str, registration: Registration, channel: Channel | None):
        self.address = address
        self.error: str | None = "not registered yet"
        self._registration = registration
        self._parts = registration._parts
        self._channel = channel
        self._changed: dict[str, TopicConfig] = {}
        self._wants_everything = False
        self._wake = asyncio.Event()
        self._connecting = asyncio.Lock()  # several tasks request something

    @property
    def ends(self) -> tuple[str, str]:
        """Return the name server's end of the connection and this end, both `ip:port`; empty texts without a
        connection."""
        return ("", "") if self._channel is None else (self._channel.remote, self._channel.local)

    @property
    def open_channel(self) -> Channel | None:
        """The connection, None if there is none that is open."""
        return None if self._channel is None or self._channel.closed else self._channel

    def add_changes(self, changed: Sequence[TopicConfig]) -> None:
        self._changed.update({config.name: config for config in changed})
        self._wake.set()

    def renew(self) -> None:
        """Register everything now, and not when it is due."""
        self._wants_everything = True
        self._wake.set()

    def send(self, command: Command) -> None:
        """Send a command if there is a connection; no answer is expected."""
        if self._channel is not None and not self._channel.closed:
            command.flag |= 2
            self._channel.write(command)

    async def ask(self, command: Command, timeout_s: float) -> Command:
        """Return the answer to a request. Raises OSError, TimeoutError, PeerError."""
        return await (await self._connected()).request(command, timeout_s)

    async def run(self) -> None:
        settings = self._parts.settings
        everything = True
        while True:
            configs = self._parts.topics.all() if everything else list(self._changed.values())
            self._changed.clear()
            try:
                await self._register(configs, settings.register_broker_timeout_mills / 1000)
                pause_s, everything = settings.register_name_server_period / 1000, False
                if self.error is not None:
                    log.info("registered at name server %s", self.address)
                self.error = None
            except (OSError, TimeoutError, BrokerStoreError) as error:
                if self.error != str(error):
                    log.warning("not registered at name server %s: %s", self.address, error)
                self.error = str(error) or (
                    "it did not answer in time"
                    if isinstance(error, TimeoutError)
                    else "the connection failed"
                )
                pause_s, everything = RETRY_S, True
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                everything = True
            everything, self._wants_everything = everything or self._wants_everything, False
            self._wake.clear()

    async def _register(self, configs: list[TopicConfig], timeout_s: float) -> None:
        version = self._parts.topics.data_version
        for begin in range(0, max(1, len(configs)), MAX_TOPICS_PER_REGISTRATION):
            piece = configs[begin : begin + MAX_TOPICS_PER_REGISTRATION]
            if len(piece) == 1 < len(configs):
                piece = configs[begin - 1 : begin + 1]  # the first registration of a single topic is refused
            # A name server accepts changes of a topic only with a version that it does not know.
            numbered = replace(version, counter=version.counter + begin // MAX_TOPICS_PER_REGISTRATION)
            channel = await self._connected()
            body = await asyncio.to_thread(self._body, piece, numbered)
            answer = await channel.request(
                self._registration.command(RequestCode.REGISTER_BROKER, body), timeout_s
            )
            if answer.code != ResponseCode.SUCCESS:
                raise PeerError(f"it answered {answer.code} {answer.remark or '':.120}")
            self._registration.registered(answer)

    def _body(self, configs: list[TopicConfig], version: DataVersion) -> bytes:
        return registration_body.encode_registration(self._registration.served(configs, version))

    async def _connected(self) -> Channel:
        async with self._connecting:
            if self._channel is None or self._channel.closed:
                host, port = split_address(self.address, DEFAULT_PORT)
                self._channel = await connect(host, port, CONNECT_TIMEOUT_S, tls=self._registration.tls)
            return self._channel

    async def leave(self) -> None:
        if self._channel is not None and not self._channel.closed:
            try:
                await self._channel.request(
                    self._registration.command(RequestCode.UNREGISTER_BROKER), GOODBYE_S
                )
            finally:
                self._channel.close()


def own_broker(parts: BrokerParts, registration: Registration | None = None) -> OwnBroker:
    """Return this broker's identity for the name server in its process. Without `registration` it has no
    address and no connections yet."""
    if registration is None:
        return OwnBroker(parts.cluster, parts.broker_name, parts.settings.broker_id)
    return OwnBroker(
        parts.cluster,
        parts.broker_name,
        parts.settings.broker_id,
        parts.endpoint.address,
        registration.is_connection,
        lambda channel: parts.replication.takes_slave(channel.remote),
    )
