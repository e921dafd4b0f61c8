"""The parts of a running broker in one value, built by `build_parts` and passed to the handlers and the
dashboard."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker_store.access.control import AccessControl, super_user
from broker_store.access.signatures import Credentials, read_credentials
from broker_store.broker import flow
from broker_store.broker.broadcast import BroadcastOffsets
from broker_store.broker.clients import Clients
from broker_store.broker.delay import Delay
from broker_store.broker.deleted_groups import DeletedGroups
from broker_store.broker.groups import Groups, group_names
from broker_store.broker.history import History
from broker_store.broker.locks import QueueLocks
from broker_store.broker.offsets import Offsets
from broker_store.broker.parked_pulls import ParkedPulls
from broker_store.broker.pauses import Pauses
from broker_store.broker.pop.earlier_pops import EarlierPops
from broker_store.broker.pop.in_flight import InFlight
from broker_store.broker.pop.order_log import OrderLog
from broker_store.broker.pop.ordered import OrderedQueues
from broker_store.broker.pop.others import PopsOfOthers
from broker_store.broker.pop.parked_pops import ParkedPops
from broker_store.broker.pop.positions import PopPositions
from broker_store.broker.pop.request_modes import RequestMode, RequestModes
from broker_store.broker.pop.revive import Revive
from broker_store.broker.pop.revive_log import ReviveLog
from broker_store.broker.property_filters import PropertyFilters
from broker_store.broker.shares import Shares
from broker_store.broker.static_topics import StaticTopics
from broker_store.broker.statistics import Statistics
from broker_store.broker.timer import Timer
from broker_store.broker.topics import Topics
from broker_store.broker.transactions import Transactions
from broker_store.config.broker import BrokerSettings
from broker_store.config.checks import names_in
from broker_store.config.live import LiveSettings
from broker_store.config.load import properties_of
from broker_store.config.store import StoreSettings
from broker_store.engine.status.lag_offsets import Entry, LagOffsets
from broker_store.engine.status.samples import SampleFiles
from broker_store.engine.store_protocol import Store
from broker_store.formats import pop_records
from broker_store.nameserver.handlers import NameServer
from broker_store.replication.membership import Membership
from broker_store.replication.replication import Replication
from broker_store.server.access_changes import AccessChanges
from broker_store.server.ack_group import AckGroup
from broker_store.server.change_records import ChangeRecords
from broker_store.server.pop_request import Pop
from broker_store.server.port_shares import shares_of
from broker_store.server.pull import Pull
from broker_store.server.send_group import SendGroup
from broker_store.server.static_topic_changes import StaticTopicChanges


class Endpoint:
    """The broker's address for clients, which is also in records and message ids: brokerIP1 and the port.

    The port is `listenPort` until `listens_on` sets the opened one, which is before the first answer to a
    client.
    """

    def __init__(self, ip: str, port: int):
        self._ip = ip
        self.listens_on(port)

    def listens_on(self, port: int) -> None:
        self.address = f"{self._ip}:{port}"
        self.store_host = (_packed_host(self._ip), port)


@dataclass(frozen=True)
class BrokerParts:
    """The parts of one broker, each built once. They are for the loop's thread unless their docstrings say
    otherwise.

    These parts exist before the ports are open. The handlers and the registration at name servers exist only
    while the ports are open; they belong to `server.broker.Broker`.
    """

    settings: BrokerSettings
    store_settings: StoreSettings
    live: LiveSettings  # which of them may be changed, and how
    store: Store
    clock: Callable[[], int]  # milliseconds since 1970
    access: AccessControl | None  # None if nothing is authenticated
    access_changes: AccessChanges | None  # None if there is no access control
    topics: Topics
    static_topics: StaticTopics
    static_topic_changes: StaticTopicChanges
    groups: Groups
    offsets: Offsets
    lag_offsets: LagOffsets
    broadcast: BroadcastOffsets
    clients: Clients
    property_filters: PropertyFilters
    locks: QueueLocks
    parked: ParkedPulls[Pull]
    deleted_groups: DeletedGroups
    pop_positions: PopPositions
    ordered: OrderedQueues
    parked_pops: ParkedPops[Pop]
    request_modes: RequestModes
    revive_log: ReviveLog
    revive: Revive
    acks: AckGroup
    earlier_pops: EarlierPops
    pops_of_others: PopsOfOthers
    statistics: Statistics
    delay: Delay
    timer: Timer
    transactions: Transactions
    sends: SendGroup
    shares: Shares  # of one address and one user
    changes: ChangeRecords  # of changes through the ports
    pauses: Pauses  # pauses of the loop
    history: History | None  # None if no samples are kept
    replication: Replication
    nameserver: NameServer | None  # of this process, if there is one
    endpoint: Endpoint
    started_ms: int
    memory_bytes: int  # memory of the machine

    def properties(self) -> dict[str, object]:
        """Return the effective settings by Apache's names."""
        return properties_of(self.store_settings, self.settings)

    def near_log_end(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return True if a message of a queue is so near the log's end that Apache would treat it as in
        memory."""
        units = self.store.reads.read_units(topic, queue_id, offset, 1)
        distance = self.store.log.wrote - units[0][0] if units else 0
        return distance <= self.memory_bytes * self.store_settings.access_message_in_memory_max_ratio // 100

    def first_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a consumer that has none: 0 if the first message is near the log's end, else
        the end of the queue."""
        if self.store.reads.min_offset(topic, queue_id) <= 0 and self.near_log_end(topic, queue_id, 0):
            return 0
        return self.store.reads.max_offset(topic, queue_id)

    def all_lag_offsets(self) -> Iterator[Entry]:
        """Yield (group, topic, queue → offset) of all offsets from which lags are counted. Any thread."""
        groups = [group.name for group in self.groups.all()]
        return self.lag_offsets.of_all(self.offsets.everything(), groups)

    @property
    def ha_address(self) -> str:
        """The address of the HA port, by which slaves find it. Apache's name servers require one, so without
        an open port it is that of Apache's default."""
        host, _, port = self.endpoint.address.rpartition(":")
        return f"{host}:{self.replication.port or int(port) + 1}"

    @property
    def in_flight(self) -> InFlight:
        """The popped messages that are invisible."""
        return self.revive_log.in_flight

    @property
    def broker_name(self) -> str:
        return self.settings.broker_name

    @property
    def cluster(self) -> str:
        return self.settings.broker_cluster_name


def _watch(live: LiveSettings, settings: BrokerSettings, topics: Topics, groups: Groups) -> None:
    """Have changed settings act on the parts that keep their values."""

    def take() -> None:
        topics.creates_itself = settings.auto_create_topic_enable
        groups.creates_itself = settings.auto_create_subscription_group

    live.watch(("autoCreateTopicEnable", "autoCreateSubscriptionGroup"), take)


def build_parts(
    settings: BrokerSettings,
    store_settings: StoreSettings,
    store: Store,
    clock: Callable[[], int],
    nameserver: NameServer | None = None,
    *,
    samples: SampleFiles | None = None,
    seconds: Callable[[], float] = time.monotonic,
    memory_bytes: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    wake: Callable[[Callable[[], None]], None] = lambda function: function(),
    live: LiveSettings | None = None,
    membership: Membership | None = None,
) -> BrokerParts:
    """Return the parts over a store, without content: `server.broker.Broker.load` reads the config files.

    Without `live` the settings that may be changed while the broker runs are kept for this run alone.
    `samples` are the files of the history, None for no history. `seconds` is the clock for the waits of
    sends. `wake` calls a function on the loop, from any thread. `membership` is of controller mode.
    """
    topics = Topics(
        cluster=settings.broker_cluster_name,
        broker=settings.broker_name,
        clock=clock,
        auto_create=settings.auto_create_topic_enable,
        default_queues=settings.default_topic_queue_nums,
        cluster_topic=settings.cluster_topic_enable,
        broker_topic=settings.broker_topic_enable,
        trace_topic=settings.trace_topic_enable,
        trace_topic_name=settings.msg_trace_topic_name,
        max_auto_created=settings.max_auto_created_topics,
        max_topics=settings.max_topics,
        revive_queues=settings.revive_queue_num,
    )
    static_topics = StaticTopics(broker=settings.broker_name, clock=clock)
    shares = shares_of(settings, settings.max_percent_of_user)
    names = group_names()
    offsets = Offsets(
        clock=clock, max_pairs=settings.max_offsets, names=names, log_end=lambda: store.log.wrote
    )
    clients = Clients(expired_after_ms=settings.channel_expired_timeout, names=names)
    statistics = Statistics(clock=clock)
    groups = Groups(
        clock=clock,
        auto_create=settings.auto_create_subscription_group,
        max_auto_created=settings.max_auto_created_groups,
        max_groups=settings.max_groups,
        names=names,
    )
    timer = Timer(
        store,
        clock=clock,
        enabled=store_settings.timer_wheel_enable,
        max_delay_ms=settings.timer_max_delay_sec * 1000,
        window_ms=settings.timer_roll_window_slot * 1000,
        max_per_slot=settings.timer_congest_num_each_slot,
    )
    endpoint = Endpoint(settings.broker_ip1, settings.listen_port)
    deleted_groups = DeletedGroups(store)
    others = PopsOfOthers(settings.broker_name)
    positions = PopPositions(store, offsets, deleted_groups)
    access = access_control(settings, clock)
    revive_log = ReviveLog(
        store,
        timer.admission,
        topic=pop_records.revive_topic(settings.broker_cluster_name),
        queues=settings.revive_queue_num,
        clock=clock,
        host=lambda: endpoint.store_host,
    )
    ordered = OrderedQueues(
        store,
        positions,
        OrderLog(
            store,
            topics,
            cluster=settings.broker_cluster_name,
            clock=clock,
            host=lambda: endpoint.store_host,
        ),
        clock=clock,
        exists=lambda place: (
            groups.get(place[0]) is not None
            and (config := topics.get(place[1])) is not None
            and place[2] < config.read_queues
        ),
        max_invisible_ms=settings.timer_max_delay_sec * 1000,
        in_flight=revive_log.in_flight,
    )
    if live is None:
        live = LiveSettings((settings, store_settings))
    _watch(live, settings, topics, groups)
    parts = BrokerParts(
        settings=settings,
        store_settings=store_settings,
        live=live,
        store=store,
        clock=clock,
        access=access,
        access_changes=None if access is None else AccessChanges(access, store),
        topics=topics,
        static_topics=static_topics,
        static_topic_changes=StaticTopicChanges(static_topics, store),
        groups=groups,
        offsets=offsets,
        lag_offsets=LagOffsets(
            queue_ids=lambda topic: [] if topics.get(topic) is None else store.queue_ids(topic),
            ends=lambda topic, queue_id: (
                store.reads.min_offset(topic, queue_id),
                store.reads.max_offset(topic, queue_id),
            ),
            is_group=names.__contains__,
            committed=offsets.of,
        ),
        broadcast=BroadcastOffsets(
            offsets,
            online=lambda group: {client.client_id for client in clients.consumers(group)},
            begin=lambda topic, queue_id: parts.first_offset(topic, queue_id),
            expire_ms=settings.broadcast_offset_expire_second * 1000,
            expire_online_ms=settings.broadcast_offset_expire_max_second * 1000,
        ),
        clients=clients,
        property_filters=PropertyFilters(clock=clock, kept_ms=settings.filter_data_clean_time_span),
        locks=QueueLocks(),
        parked=ParkedPulls(
            watch=store.confirmation.watch,
            unwatch=store.confirmation.unwatch,
            max_parked=settings.max_parked_pulls,
            shares=shares,
        ),
        deleted_groups=deleted_groups,
        pop_positions=positions,
        ordered=ordered,
        parked_pops=ParkedPops(
            watch=store.confirmation.watch,
            unwatch=store.confirmation.unwatch,
            max_parked=settings.max_pop_polling_size,
            max_in_line=settings.pop_polling_size,
            shares=shares,
        ),
        request_modes=RequestModes(
            RequestMode(settings.default_message_request_mode, settings.default_pop_share_queue_num)
        ),
        revive_log=revive_log,
        acks=AckGroup(store, revive_log, ordered),
        revive=Revive(
            store,
            timer,
            positions,
            revive_log,
            topics,
            groups,
            clock=clock,
            others=others,
            version=2 if settings.enable_retry_topic_v2 else 1,
        ),
        earlier_pops=EarlierPops(
            store, timer, positions, revive_log.in_flight, others, topic=revive_log.topic
        ),
        pops_of_others=others,
        statistics=statistics,
        delay=Delay(store, levels_ms=store_settings.delay_levels_ms, clock=clock),
        timer=timer,
        transactions=Transactions(
            store,
            offsets,
            clock=clock,
            timeout_ms=settings.transaction_time_out,
            interval_ms=settings.transaction_check_interval,
            max_checks=settings.transaction_check_max,
            reserved_ms=store_settings.file_reserved_time * 3_600_000,
        ),
        sends=SendGroup(store, statistics, settings, store_settings, seconds=seconds, shares=shares),
        shares=shares,
        changes=ChangeRecords(
            clock, dropped=lambda count: statistics.refuse("record of a change dropped", count)
        ),
        pauses=Pauses(clock),
        history=None
        if samples is None
        else History(store, offsets, clients, samples, entries=lambda: parts.all_lag_offsets(), clock=clock),
        replication=Replication(store_settings, store, wake, membership),
        nameserver=nameserver,
        endpoint=endpoint,
        started_ms=clock(),
        memory_bytes=memory_bytes,
    )
    live.watch(flow.KEYS, parts.sends.take_limit)
    return parts


def access_control(settings: BrokerSettings, clock: Callable[[], int]) -> AccessControl | None:
    """Return access control with the users of the settings, None if it is off."""
    if not settings.authentication_enabled:
        return None
    inner = inner_credentials(settings)
    given = (read_credentials(settings.init_authentication_user, "username", "password"), inner)
    return AccessControl(
        authorizes=settings.authorization_enabled,
        cluster=settings.broker_cluster_name,
        open_to_all=names_in(settings.authentication_whitelist),
        open_to_users=names_in(settings.authorization_whitelist),
        first_users=[super_user(credentials) for credentials in given if credentials is not None],
        signs_as=inner,
        clock=clock,
    )


def inner_credentials(settings: BrokerSettings) -> Credentials | None:
    """Return the credentials with which the broker signs its own requests, None without any."""
    return read_credentials(settings.inner_client_authentication_credentials)


def _packed_host(host: str) -> bytes:
    """Return the packed address in records and message ids for `host`, a name or an address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host)
        except OSError:
            continue
    return socket.inet_aton(socket.gethostbyname(host))
