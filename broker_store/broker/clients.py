"""Connected clients: producers and consumers by group, from their heartbeats (docs/spec/remoting.md section
3).

This module uses a channel only as a key. The groups of each channel are known, so that its end costs no more
than those. A client is forgotten when its channel closes, or after `expired_after_ms` without a heartbeat.
Whenever the members or topics of a consumer group change,
`on_group_changed(group)` is called, so that the members distribute the queues again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.filters import Subscription, of_heartbeat
from broker_store.broker.names import Names
from broker_store.errors import LimitError
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat

EXPIRED_AFTER_MS = 120_000
MAX_CLIENT_ID_CHARACTERS = 255
# Memberships of all clients together: bounds the memory for a flood of invented names, and is far above the
# number of connections.
MAX_MEMBERSHIPS = 200_000


class TooManyClientsError(LimitError):
    """One more membership would exceed the broker's bound."""

    cause = "limit of clients"


@dataclass(slots=True)
class Client:
    """One client of one group, on one channel. `seen_ms` is its last heartbeat. `user` is the name that its
    sender has proved; None: it has proved none."""

    client_id: str
    channel: ClientChannel
    language: str = "JAVA"
    version: int = 0
    seen_ms: int = 0
    user: str | None = None


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a consumer group and their subscriptions, according to the latest heartbeats."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[ClientChannel, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    fingerprint: int = 0

    @property
    def broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"

    def client_ids(self) -> list[str]:
        return [member.client_id for member in self.members.values()]

    def find(self, client_id: str) -> Client | None:
        return next((member for member in self.members.values() if member.client_id == client_id), None)


@dataclass(slots=True)
class _Memberships:
    """The names of the groups that a channel is a member of."""

    producers: dict[str, None] = field(default_factory=dict)
    consumers: dict[str, None] = field(default_factory=dict)


class Clients:
    """The groups of producers and consumers that are online."""

    def __init__(
        self,
        *,
        expired_after_ms: int = EXPIRED_AFTER_MS,
        max_memberships: int = MAX_MEMBERSHIPS,
        names: Names | None = None,
    ):
        self._names = names  # of groups; shared with other tables
        self._max_memberships = max_memberships
        self._expired_after_ms = expired_after_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[ClientChannel, Client]] = {}
        # The groups of each channel, in the order in which it joined them. A heartbeat, `unregister`,
        # `channel_closed` and `scan` keep these in step with the members above.
        self._groups_of: dict[ClientChannel, _Memberships] = {}
        self._memberships = 0
        self.on_group_changed: Callable[[ConsumerGroup], None] = lambda group: None
        self.on_group_gone: Callable[[str], None] = lambda group: None  # its last client has left
        # (group, joined, left, number of members). Called also for the last member that leaves.
        self.on_members_changed: Callable[[str, list[str], list[str], int], None] = (
            lambda group, came, went, clients: None
        )

    def heartbeat(
        self,
        channel: ClientChannel,
        heartbeat: Heartbeat,
        language: str,
        version: int,
        now_ms: int,
        user: str | None = None,
    ) -> bool:
        """Take a client's heartbeat; True if the subscriptions of a group differ from those known.

        Raises FilterError for an invalid expression and TooManyClientsError; then nothing is changed.
        """
        self._check_room(channel, heartbeat)
        subscriptions = [
            [of_heartbeat(data) for data in consumer.subscriptions] for consumer in heartbeat.consumers
        ]
        changed = False
        for consumer, wanted in zip(heartbeat.consumers, subscriptions, strict=True):
            client = Client(heartbeat.client_id, channel, language, version, now_ms, user)
            changed |= self._consumer_beat(consumer, wanted, client, heartbeat)
        for group in heartbeat.producers:
            members = self._producers.setdefault(group, {})
            if channel not in members:
                self._note(channel).producers[group] = None
                self._memberships += 1
            members[channel] = Client(heartbeat.client_id, channel, language, version, now_ms, user)
        return changed

    def _note(self, channel: ClientChannel) -> _Memberships:
        groups = self._groups_of.get(channel)
        if groups is None:
            groups = self._groups_of[channel] = _Memberships()
        return groups

    def _forget(self, channel: ClientChannel, *, producer: str | None = None, consumer: str = "") -> None:
        """Note that a channel has left a group of producers, or one of consumers."""
        groups = self._groups_of[channel]
        if producer is not None:
            del groups.producers[producer]
        else:
            del groups.consumers[consumer]
        self._memberships -= 1
        if not groups.producers and not groups.consumers:
            del self._groups_of[channel]

    def _check_room(self, channel: ClientChannel, heartbeat: Heartbeat) -> None:
        new = sum(channel not in self._producers.get(group, ()) for group in heartbeat.producers)
        new += sum(
            consumer.group not in self._consumers or channel not in self._consumers[consumer.group].members
            for consumer in heartbeat.consumers
        )
        if not new:
            return
        taken = self._memberships
        if taken + new > self._max_memberships:
            raise TooManyClientsError(
                f"no room for {new} more memberships: there are {taken}", taken, self._max_memberships
            )

    def _consumer_beat(
        self, data: ConsumerData, wanted: list[Subscription], client: Client, heartbeat: Heartbeat
    ) -> bool:
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = ConsumerGroup(data.group)
            if self._names is not None:
                self._names.add(data.group)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(client.channel)
        joined = known is None or known.client_id != client.client_id
        if known is None:
            self._note(client.channel).consumers[group.name] = None
            self._memberships += 1
        group.members[client.channel] = client
        differs = group.fingerprint != heartbeat.fingerprint or heartbeat.fingerprint == 0
        group.fingerprint = heartbeat.fingerprint
        topics_changed = False if heartbeat.without_sub else _update(group.subscriptions, wanted)
        if joined:
            self.on_members_changed(group.name, [client.client_id], [], len(group.members))
        if joined or topics_changed:
            self.on_group_changed(group)
        return differs

    def unregister(
        self, channel: ClientChannel, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> None:
        """Remove a client from groups, at its request."""
        self._leave_producers(producer_group or "", channel)
        group = self._consumers.get(consumer_group or "")
        if group and channel in group.members and group.members[channel].client_id == client_id:
            self._leave(group, [channel])

    def channel_closed(self, channel: ClientChannel) -> None:
        groups = self._groups_of.get(channel)
        if groups is None:
            return
        for name in list(groups.producers):
            self._leave_producers(name, channel)
        for name in list(groups.consumers):
            self._leave(self._consumers[name], [channel])

    def _leave_producers(self, name: str, channel: ClientChannel) -> None:
        members = self._producers.get(name)
        if members is None or members.pop(channel, None) is None:
            return
        self._forget(channel, producer=name)
        if not members:
            del self._producers[name]

    def scan(self, now_ms: int) -> list[ClientChannel]:
        """Forget clients without a heartbeat for too long; return their channels, which the caller closes."""
        oldest_ms = now_ms - self._expired_after_ms
        gone: dict[ClientChannel, None] = {}
        for name, members in list(self._producers.items()):
            for channel in _silent(members, oldest_ms):
                self._leave_producers(name, channel)
                gone[channel] = None
        for group in list(self._consumers.values()):
            silent = _silent(group.members, oldest_ms)
            gone.update(dict.fromkeys(silent))
            if silent:
                self._leave(group, silent)
        return list(gone)

    def _leave(self, group: ConsumerGroup, channels: Iterable[ClientChannel]) -> None:
        gone = []
        for channel in channels:
            gone.append(group.members.pop(channel).client_id)
            self._forget(channel, consumer=group.name)
        self.on_members_changed(group.name, [], gone, len(group.members))
        if not group.members:
            del self._consumers[group.name]
            if self._names is not None:
                self._names.discard(group.name)
            self.on_group_gone(group.name)
        else:
            self.on_group_changed(group)

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        return self._consumers.get(name)

    def consumers(self, group: str) -> list[Client]:
        found = self._consumers.get(group)
        return list(found.members.values()) if found else []

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def find_producer(self, client_id: str) -> Client | None:
        """Return a producer by its client id, of any group."""
        return next(
            (
                client
                for members in self._producers.values()
                for client in members.values()
                if client.client_id == client_id
            ),
            None,
        )

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def producer_groups(self) -> dict[str, list[Client]]:
        return {name: list(members.values()) for name, members in self._producers.items()}

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the connected consumer groups that subscribe to a topic."""
        return [group.name for group in self._consumers.values() if topic in group.subscriptions]

    def subscription(self, group: str, topic: str) -> Subscription | None:
        found = self._consumers.get(group)
        return found.subscriptions.get(topic) if found else None

    def id_on(self, channel: ClientChannel) -> str | None:
        """Return the id of the client on a channel if it has sent a heartbeat."""
        groups = self._groups_of.get(channel)
        if groups is None:
            return None
        if groups.producers:
            return self._producers[next(iter(groups.producers))][channel].client_id
        return self._consumers[next(iter(groups.consumers))].members[channel].client_id

    def name_of(self, channel: ClientChannel, group: str) -> str:
        """Return the id of the client of a consumer group on a channel; its address if it sent no
        heartbeat."""
        found = self._consumers.get(group)
        client = None if found is None else found.members.get(channel)
        return channel.remote if client is None else client.client_id

    def all(self) -> list[Client]:
        """Return every client once for each channel, whatever its groups."""
        seen: dict[ClientChannel, Client] = {}
        for group in self._consumers.values():
            seen.update(group.members)
        for members in self._producers.values():
            seen.update(members)
        return list(seen.values())


def _update(known: dict[str, Subscription], wanted: list[Subscription]) -> bool:
    """Add new and newer subscriptions, remove topics no longer listed; True if the set of topics changed."""
    changed = False
    for subscription in wanted:
        old = known.get(subscription.topic)
        if old is None:
            changed = True
        if old is None or subscription.version > old.version:
            known[subscription.topic] = subscription
    listed = {subscription.topic for subscription in wanted}
    for topic in [topic for topic in known if topic not in listed]:
        del known[topic]
        changed = True
    return changed


def _silent(members: dict[ClientChannel, Client], oldest_ms: int) -> list[ClientChannel]:
    return [channel for channel, client in members.items() if client.seen_ms < oldest_ms]
