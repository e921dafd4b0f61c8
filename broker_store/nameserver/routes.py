"""The tables of a name server: brokers, their topics, and when each broker was last heard
(docs/spec/namesrv.md sections 1 to 4).

    topics    topic -> broker name -> QueueData
    mappings  static topic -> broker name -> MappingInfo, where `topics` has this broker
    brokers   broker name -> addresses by id, cluster
    clusters  cluster -> broker names
    live      (cluster, address) -> time of the last request, data version, channel

The tables have only recent registrations. Each broker registers again every 30 s, so nothing is stored on
disk. A broker that is silent for its timeout, or whose connection ends, is removed from all tables.

No socket and no clock: times are milliseconds and are passed in. A channel is compared by identity; None is a
broker in the same process. A registration that is refused changes nothing (in Apache's it leaves an empty
entry).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from broker_store.errors import PeerError
from broker_store.excerpts import excerpt
from broker_store.formats.config_json import DataVersion
from broker_store.formats.static_topics import MappingInfo
from broker_store.formats.topics import PERM_READ_WRITE, PERM_WRITE
from broker_store.protocol.registration_body import Registration
from broker_store.protocol.route_bodies import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRoute
from broker_store.protocol.steps import finish

DEFAULT_TIMEOUT_MS = 120_000
UNIT = 1
UNIT_SUB = 2

# A slave learns from this topic's route who its fellows are, under their own ids.
_MEMBERS_TOPIC = "rmq_sys_SYNC_BROKER_MEMBER_"

# Far above any cluster, and small enough that a peer cannot fill the memory by registering. MAX_TOPICS is
# above the largest `maxTopics` of a broker: one with so many topics must find room in the name server of its
# own process.
MAX_BROKERS = 2_000
MAX_TOPICS = 250_000
# Topics between two steps of what walks over all of them: see `finish`.
STEP = 128

_ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.%a-z]{2,60}\]):\d{1,5}")
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f]")


# Work over many topics that can pause after each step; routes may change in the pauses.
Steps = Generator[None, None, None]


def _in_steps(entries: list) -> Iterator[list]:
    """The entries in pieces of STEP. Keys or values of a table: `items` would make a tuple for each in one
    step."""
    return (entries[begin : begin + STEP] for begin in range(0, len(entries), STEP))


class RegistrationRefused(PeerError):
    """The registration is not allowed; nothing was changed."""

    cause = "registration refused"


class Registrant(NamedTuple):
    """The broker that registers. `enable_acting_master` is None for a broker from before version 5."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    zone_name: str | None = None


class RegistrationAnswer(NamedTuple):
    """The address of a slave's master. None for a master, or if there is no master."""

    ha_address: str | None = None
    master_address: str | None = None


class LowestIdChange(NamedTuple):
    """A broker name whose lowest id is another than before, and the addresses of the brokers to notify."""

    broker_name: str
    lowest_id: int
    lowest_address: str
    offline_address: str | None  # of the broker that had the lowest id and is gone
    ha_address: str | None  # of the broker that has it now and was not there before
    addresses: tuple[str, ...]


@dataclass(slots=True)
class LiveBroker:
    """One broker process, and when it was last heard."""

    registrant: Registrant
    last_update_ms: int
    timeout_ms: int
    data_version: DataVersion
    channel: Any


class Routes:
    """The tables and their changes."""

    def __init__(self, delete_missing_topics: bool = False, acting_masters: bool = False) -> None:
        """With `delete_missing_topics` a changed registration is the whole of what its broker serves; with
        `acting_masters` the lowest slave of a group that lost its master is shown as master, for those who
        only read."""
        self._delete_missing_topics = delete_missing_topics
        self._acting_masters = acting_masters
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.mappings: dict[str, dict[str, MappingInfo]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.live: dict[tuple[str, str], LiveBroker] = {}
        # Called when routes show the change
        self.on_lowest_id_changed: Callable[[LowestIdChange], None] = lambda change: None

    # Brokers come and go

    def register(
        self, who: Registrant, registration: Registration, channel: object | None, now_ms: int
    ) -> RegistrationAnswer:
        """Add the topics of a broker. Raises RegistrationRefused."""
        return finish(self.register_in_steps(who, registration, channel, now_ms))

    def register_in_steps(
        self, who: Registrant, registration: Registration, channel: object | None, now_ms: int
    ) -> Generator[None, None, RegistrationAnswer]:
        """Do as `register`, with a step after each STEP topics."""
        _check_registrant(who)
        known = self.brokers.get(who.broker_name)
        addresses = dict(known.addresses) if known else {}
        holder = addresses.get(who.broker_id)
        if holder is not None and holder != who.address and self._is_newer(who.cluster, holder, registration):
            self.live.pop((who.cluster, who.address), None)
            return RegistrationAnswer()
        # A process that changed its id (a slave became master) is listed once.
        addresses = {number: address for number, address in addresses.items() if address != who.address}
        # A registration of what changed carries one topic; it may not be the first, or the others would be
        # missed.
        if who.broker_id not in (known.addresses if known else ()) and len(registration.topics) == 1:
            raise RegistrationRefused(
                "register broker failed: a broker that is not registered yet registers all its "
                "topics, this has one alone"
            )
        yield from self._check_room(who, registration)

        addresses[who.broker_id] = who.address
        acting = bool(who.enable_acting_master)
        self.brokers[who.broker_name] = BrokerData(
            who.cluster, who.broker_name, addresses, acting, who.zone_name
        )
        if known is not None and known.cluster != who.cluster:
            self._leave_cluster(known)
        self.clusters.setdefault(who.cluster, {})[who.broker_name] = None
        yield from self._adopt_topics(who, registration, new_broker=known is None or not known.addresses)
        timeout_ms = DEFAULT_TIMEOUT_MS if who.timeout_ms is None else who.timeout_ms
        live = LiveBroker(who, now_ms, timeout_ms, registration.data_version, channel)
        self.live[who.cluster, who.address] = live
        if known is not None and known.addresses and who.broker_id < min(known.addresses):
            self._lowest_registered(who)
        return self._answer_for(who)

    def _lowest_registered(self, who: Registrant) -> None:
        """Notify the others of a name; the broker itself if it was there with another id, alone."""
        addresses = self.brokers[who.broker_name].addresses
        others = tuple(address for address in addresses.values() if address != who.address)
        self.on_lowest_id_changed(
            LowestIdChange(
                who.broker_name,
                who.broker_id,
                who.address,
                None,
                who.ha_address or None,
                others or (who.address,),
            )
        )

    def _is_newer(self, cluster: str, holder: str, registration: Registration) -> bool:
        live = self.live.get((cluster, holder))
        return live is not None and live.data_version.state_version > registration.data_version.state_version

    def _check_room(self, who: Registrant, registration: Registration) -> Steps:
        if (who.cluster, who.address) not in self.live and len(self.live) >= MAX_BROKERS:
            raise RegistrationRefused(f"{MAX_BROKERS} brokers are registered, no more are taken")
        # Counted one by one: the difference of two sets of keys walks over all topics that are registered
        more = 0
        for topics in _in_steps(list(registration.topics)):
            for topic in topics:
                _check_name("topic", topic)
            more += sum(topic not in self.topics for topic in topics)
            yield
        if len(self.topics) + more > MAX_TOPICS:
            raise RegistrationRefused(
                f"{len(self.topics)} topics are registered, at most {MAX_TOPICS} are taken"
            )

    def _adopt_topics(self, who: Registrant, registration: Registration, new_broker: bool) -> Steps:
        broker = self.brokers[who.broker_name]
        is_master = who.broker_id == MASTER_ID
        # Without a master the smallest id of a 5.x group stands in for reading.
        stands_in = (
            not is_master and who.enable_acting_master is not None and who.broker_id == min(broker.addresses)
        )
        if not is_master and not stands_in:
            return
        live = self.live.get((who.cluster, who.address))
        changed = new_broker or live is None or live.data_version != registration.data_version
        if changed and self._delete_missing_topics:
            yield from self._drop_queues(self.topics.keys() - registration.topics.keys(), {who.broker_name})
        for topics in _in_steps(list(registration.topics.values())):
            for topic in topics:
                queues = self.topics.setdefault(topic.name, {})
                if changed or who.broker_name not in queues:
                    perm = (
                        topic.perm & ~PERM_WRITE if stands_in and broker.enable_acting_master else topic.perm
                    )
                    queues[who.broker_name] = QueueData(
                        who.broker_name,
                        topic.read_queue_nums,
                        topic.write_queue_nums,
                        perm,
                        topic.topic_sys_flag,
                    )
                    self._adopt_mapping(who.broker_name, topic.name, registration.mappings.get(topic.name))
            yield

    def _adopt_mapping(self, broker_name: str, topic: str, info: MappingInfo | None) -> None:
        """Take the mapping that a broker registers with a topic. None, or one that names another broker, ends
        what it had registered."""
        if info is not None and info.broker == broker_name:
            self.mappings.setdefault(topic, {})[broker_name] = info
        elif topic in self.mappings:
            self._drop_mapping(topic, broker_name)

    def _drop_mapping(self, topic: str, broker_name: str) -> None:
        mappings = self.mappings.get(topic, {})
        mappings.pop(broker_name, None)
        if not mappings:
            self.mappings.pop(topic, None)

    def _answer_for(self, who: Registrant) -> RegistrationAnswer:
        if who.broker_id == MASTER_ID:
            return RegistrationAnswer()
        master = self.brokers[who.broker_name].addresses.get(MASTER_ID)
        live = self.live.get((who.cluster, master)) if master else None
        return RegistrationAnswer(live.registrant.ha_address, master) if live else RegistrationAnswer()

    def unregister(self, cluster: str, address: str, broker_name: str, broker_id: int) -> None:
        """Remove a broker and the topics that only it serves."""
        finish(self.unregister_in_steps(cluster, address, broker_name, broker_id))

    def unregister_in_steps(self, cluster: str, address: str, broker_name: str, broker_id: int) -> Steps:
        """Do as `unregister`, with a step after each STEP topics. From the first step on no route has the
        broker."""
        self.live.pop((cluster, address), None)
        broker = self.brokers.get(broker_name)
        if broker is None:
            return
        addresses = {
            number: at for number, at in broker.addresses.items() if (number, at) != (broker_id, address)
        }
        if addresses:
            self.brokers[broker_name] = replace(broker, addresses=addresses)
            if broker.enable_acting_master and MASTER_ID not in addresses:
                yield from self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)
            if broker.enable_acting_master and min(addresses) != min(broker.addresses):
                self._lowest_gone(broker_name, address)
            return
        del self.brokers[broker_name]
        self._leave_cluster(broker)
        yield from self._drop_queues(self.topics, {broker_name})

    def _lowest_gone(self, broker_name: str, address: str) -> None:
        """Notify the brokers that remain of a name, if any does after the steps of the removal."""
        broker = self.brokers.get(broker_name)
        if broker is None or address in broker.addresses.values():
            return  # the name is gone, or the broker is back
        lowest = min(broker.addresses)
        self.on_lowest_id_changed(
            LowestIdChange(
                broker_name,
                lowest,
                broker.addresses[lowest],
                address,
                None,
                tuple(broker.addresses.values()),
            )
        )

    def _leave_cluster(self, broker: BrokerData) -> None:
        names = self.clusters.get(broker.cluster, {})
        names.pop(broker.broker_name, None)
        if not names:
            self.clusters.pop(broker.cluster, None)

    def _drop_queues(self, topics: Iterable[str], broker_names: Iterable[str]) -> Steps:
        for piece in _in_steps(list(topics)):
            for topic in piece:
                queues = self.topics.get(topic, {})
                for broker_name in broker_names:
                    queues.pop(broker_name, None)
                    if topic in self.mappings:
                        self._drop_mapping(topic, broker_name)
                if not queues:
                    self.topics.pop(topic, None)
            yield

    def heard(self, cluster: str, address: str, now_ms: int) -> None:
        """Note that a broker was heard; nothing for an unknown broker."""
        live = self.live.get((cluster, address))
        if live is not None:
            live.last_update_ms = now_ms

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version that the broker registered last."""
        live = self.live.get((cluster, address))
        return live.data_version if live else None

    def silent(self, now_ms: int) -> list[LiveBroker]:
        """Return the brokers that were silent for their timeout."""
        return [live for live in self.live.values() if live.last_update_ms + live.timeout_ms < now_ms]

    def of_channel(self, channel: object) -> list[LiveBroker]:
        """Return the brokers whose last registration came over this channel."""
        return [live for live in self.live.values() if live.channel is channel]

    def remove_in_steps(self, gone: list[LiveBroker]) -> Steps:
        """Unregister brokers that are gone. One that registered again meanwhile stays."""
        for live in gone:
            who = live.registrant
            if self.live.get((who.cluster, who.address)) is live:
                yield from self.unregister_in_steps(who.cluster, who.address, who.broker_name, who.broker_id)

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Unregister the brokers that were silent for their timeout, and return them."""
        gone = self.silent(now_ms)
        finish(self.remove_in_steps(gone))
        return gone

    def channel_closed(self, channel: object) -> list[LiveBroker]:
        """Unregister the brokers whose last registration came over this channel, and return them."""
        gone = self.of_channel(channel)
        finish(self.remove_in_steps(gone))
        return gone

    # What clients ask

    def route(self, topic: str, zone_name: str | None = None) -> TopicRoute | None:
        """Return the route of a topic; None when no broker that is alive has it. With a zone, only that
        zone's brokers."""
        queues = self.topics.get(topic, {})
        brokers = [self.brokers[name] for name in queues if name in self.brokers]
        if zone_name is not None:
            zone = zone_name.lower()
            brokers = [
                b for b in brokers if MASTER_ID not in b.addresses or (b.zone_name or "").lower() == zone
            ]
        names = {broker.broker_name for broker in brokers}
        kept = tuple(queue for name, queue in queues.items() if name in names)
        if not brokers and zone_name is None:
            return None
        if self._acting_masters and not topic.startswith(_MEMBERS_TOPIC):
            brokers = [_with_acting_master(broker, queues[broker.broker_name]) for broker in brokers]
        if topic not in self.mappings:
            return TopicRoute(kept, tuple(brokers))
        mappings = {name: info for name, info in self.mappings[topic].items() if name in names}
        return TopicRoute(kept, tuple(brokers), mappings=mappings)

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(dict(self.brokers), {name: list(names) for name, names in self.clusters.items()})

    def topics_of_cluster(self, cluster: str) -> Generator[None, None, list[str]]:
        """Return the topics that any broker of the cluster has, in steps."""
        names, chosen = self.clusters.get(cluster, {}), []
        for piece in _in_steps(list(self.topics)):
            chosen += [topic for topic in piece if not names.keys().isdisjoint(self.topics.get(topic, ()))]
            yield
        return chosen

    def topics_by_flag(self, wanted: int, unwanted: int = 0) -> Generator[None, None, list[str]]:
        """Return the topics whose flag has all bits of `wanted` and none of `unwanted`, in steps."""
        chosen = []
        for piece in _in_steps(list(self.topics)):
            for topic in piece:
                flag = next((queue.topic_sys_flag for queue in self.topics.get(topic, {}).values()), 0)
                if flag & wanted == wanted and not flag & unwanted:
                    chosen.append(topic)
            yield
        return chosen

    def system_names(self) -> tuple[list[str], str | None]:
        """Return the topics that have the names of clusters and brokers, and the address of one broker."""
        names = list(self.clusters) + [name for names in self.clusters.values() for name in names]
        addresses = [address for broker in self.brokers.values() for address in broker.addresses.values()]
        return names, addresses[0] if addresses else None

    # What administrators change; a registration with a changed data version sets it back

    def wipe_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Forbid sends to a broker, in steps. Return the number of its topics."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Allow sends to a broker again, in steps. Return the number of its topics."""
        return self._change_perm(broker_name, lambda perm: PERM_READ_WRITE)

    def _change_perm(self, broker_name: str, changed: Callable[[int], int]) -> Generator[None, None, int]:
        count = 0
        for piece in _in_steps(list(self.topics.values())):
            for queues in piece:
                queue = queues.get(broker_name)
                if queue is not None:
                    queues[broker_name] = queue._replace(perm=changed(queue.perm))
                    count += 1
            yield
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic from the routes of all brokers, or of those of one cluster."""
        if cluster is None:
            self.topics.pop(topic, None)
            self.mappings.pop(topic, None)
        else:
            finish(self._drop_queues([topic], self.clusters.get(cluster, {})))

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic to known brokers. Raises RegistrationRefused."""
        _check_name("topic", topic)
        if topic not in self.topics and len(self.topics) >= MAX_TOPICS:
            raise RegistrationRefused(f"{MAX_TOPICS} topics are registered, no more are taken")
        known = [queue for queue in queues if queue.broker_name in self.brokers]
        for queue in known:
            self.topics.setdefault(topic, {})[queue.broker_name] = queue


def _with_acting_master(broker: BrokerData, queue: QueueData) -> BrokerData:
    """Clients read from id 0 and send to it where the topic may be written, so this is only for what may not
    be."""
    if (
        not broker.addresses
        or MASTER_ID in broker.addresses
        or not broker.enable_acting_master
        or queue.perm & PERM_WRITE
    ):
        return broker
    lowest = min(broker.addresses)
    addresses = {
        MASTER_ID if number == lowest else number: address for number, address in broker.addresses.items()
    }
    return replace(broker, addresses=addresses)


def _check_registrant(who: Registrant) -> None:
    for what, name in (("broker", who.broker_name), ("cluster", who.cluster)):
        _check_name(what, name)
    if not _ADDRESS.fullmatch(who.address):
        raise RegistrationRefused(f"the broker's address {excerpt(who.address)} is not host:port")
    if who.broker_id < 0:
        raise RegistrationRefused(f"the broker id {who.broker_id} is negative")


def _check_name(what: str, name: str) -> None:
    """Cluster and broker names may hold dots, and Apache makes topics of them; a path they must not be."""
    if not 0 < len(name) <= 255 or _NOT_IN_NAMES.search(name) or name in (".", ".."):
        raise RegistrationRefused(f"the {what} name {excerpt(name)} is not allowed")
