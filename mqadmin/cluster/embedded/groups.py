"""Groups of the broker in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker_store.broker import filters
from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.retry_policy import ExponentialPolicy, policy_of
from broker_store.errors import NotFoundError
from broker_store.excerpts import text_excerpt
from broker_store.formats import names
from broker_store.protocol.command import version_name
from broker_store.rest.http import MAX_LIMIT
from broker_store.rest.problems import BROKERS_OWN_HINT, Problem
from broker_store.server.admin.groups import forget_group
from broker_store.server.parts import BrokerParts
from broker_store.sql92.oddities import explained
from broker_store.units import fields_of
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.pops import invisible_in_queue, invisible_of, pop_counts
from mqadmin.cluster.embedded.topics import config_of, kept_messages, known_time, rows_in_turns
from mqadmin.cluster.protocol import Groups
from mqadmin.facts.groups import (
    Dead,
    Group,
    GroupDetail,
    GroupQueue,
    Member,
    OffsetMove,
    Retrying,
    RetryPolicy,
    Subscription,
)

MAX_TIMED_QUEUES = 64  # of a group; the lag in time of each queue needs a read of a record
FIELDS = {
    "consume_enable": "consume_enable",
    "broadcast": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
    "retry_queues": "retry_queue_nums",
    "retry_max_times": "retry_max_times",
}


class EmbeddedGroups(Groups):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host
        # By group, topic and queue: the client that waited on the queue last
        self._readers: dict[tuple[str, str, int], ClientChannel] = {}

    def counts(self) -> dict[str, int]:
        return self._host.listings.group_counts()

    def names(self) -> Sequence[str]:
        return self._host.parts.groups.names.all()

    def rows(self, wanted: Iterable[str]) -> list[Group]:
        known = self._host.parts.groups.names
        return [self._row(name) for name in wanted if name in known]

    async def page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Group], int]:
        found, total = await self._host.listings.group_names(kind, search, sort, begin, count)
        return self.rows(found), total

    def after(self, name: str | None, count: int) -> list[Group]:
        return self.rows(self._host.parts.groups.names.after(name, count))

    async def every(self) -> list[Group]:
        return await rows_in_turns(self.rows, self.names())

    async def most_behind(self, limit: int) -> list[Group]:
        return await rows_in_turns(self.rows, await self._host.listings.most_behind(limit))

    def _row(self, name: str) -> Group:
        parts = self._host.parts
        config = parts.groups.get(name) or SubscriptionGroup(name)
        online = parts.clients.consumer_group(name)
        invisible = invisible_of(parts, name)
        return Group(
            name=name,
            kind="system" if parts.groups.is_system(name) else "normal",
            consume_enable=config.consume_enable,
            broadcast=config.consume_broadcast_enable,
            orderly=config.consume_message_orderly,
            retry_queues=config.retry_queue_nums,
            retry_max_times=config.retry_max_times,
            clients=len(online.members) if online else 0,
            model=online.message_model.lower() if online else None,
            topics=sorted({*parts.offsets.topics_of(name), *(online.subscriptions if online else ())}),
            lag=self._host.listings.lag(name),
            out_per_s=parts.statistics.got_rate(name),
            invisible=invisible.messages,
            invisible_doubt=invisible.doubt,
        )

    def detail(self, name: str) -> GroupDetail:
        parts, now_ms = self._host.parts, int(time.time() * 1000)
        self.check_exists(name)
        online = parts.clients.consumer_group(name)
        row = self._row(name)
        queues: list[GroupQueue] = []
        retries = parts.lag_offsets.retry_topics(name, parts.offsets.topics_of(name))
        for topic in dict.fromkeys([*row.topics, *retries]):
            config = parts.topics.get(topic)
            unread = parts.lag_offsets.unread(name, topic) if topic in retries else {}
            for queue_id in range(config.read_queues) if config else []:
                queues.append(
                    self._queue(
                        name,
                        topic,
                        queue_id,
                        now_ms,
                        timed=len(queues) < MAX_TIMED_QUEUES,
                        first_unread=unread.get(queue_id),
                    )
                )
        letters = names.dead_letter_topic(name)
        return GroupDetail(
            **fields_of(row),
            lag_ms=max((queue.lag_ms for queue in queues if queue.lag_ms is not None), default=None),
            largest_lag=max((queue.lag for queue in queues if queue.lag is not None), default=None),
            queues_not_read=sum(queue.lag is None for queue in queues),
            queues=queues,
            retrying=self._retrying(name, retries),
            retry_policy=_retry_policy(parts.groups.get(name) or SubscriptionGroup(name)),
            dead=Dead(
                topic=letters,
                messages=kept_messages(parts.store, letters),
                last_store_ms=self._last_store_ms(letters),
            ),
            pops=pop_counts(parts, name),
            members=[
                Member(
                    client_id=member.client_id,
                    address=member.channel.remote,
                    language=member.language,
                    version=version_name(member.version),
                    heartbeat_ms=member.seen_ms,
                )
                for member in (online.members.values() if online else ())
            ],
            subscriptions=[
                self._subscription(name, wanted, len(online.members))
                for wanted in online.subscriptions.values()
            ]
            if online
            else [],
        )

    def _subscription(self, group: str, wanted: filters.Subscription, clients: int) -> Subscription:
        kind, error, oddities = wanted.expression_type, "", ""
        if kind == filters.SQL92:
            error, oddities = why_no_filter(self._host.parts, group, wanted)
        elif not filters.is_tag_type(kind):
            error = f"There is no filter of the type {text_excerpt(kind, 20)}."
        return Subscription(
            topic=wanted.topic,
            expression=wanted.expression,
            clients=clients,
            expression_type=kind,
            error=error,
            oddities=oddities,
        )

    def check_exists(self, name: str) -> None:
        """Raise NotFoundError if there is no such group."""
        if name not in self._host.parts.groups.names:
            raise NotFoundError(f"group {name} does not exist")

    def _queue(
        self, group: str, topic: str, queue_id: int, now_ms: int, timed: bool, first_unread: int | None
    ) -> GroupQueue:
        """Return the offset and the lag of a group in a queue. The lag is counted from `first_unread` if the
        group has no offset."""
        parts, reads = self._host.parts, self._host.parts.store.reads
        low, high = reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
        at = parts.offsets.query(group, topic, queue_id)
        begin = first_unread if at is None else at
        lag = None if begin is None else max(0, high - begin)
        lag_ms = consumed_ms = None
        if timed and begin is not None:
            consumed_ms = (
                known_time(reads.times.store_time_at(topic, queue_id, begin - 1)) if begin > low else None
            )
            waits_since_ms = (
                known_time(reads.times.store_time_at(topic, queue_id, max(begin, low))) if lag else None
            )
            lag_ms = 0 if lag == 0 else None if waits_since_ms is None else max(0, now_ms - waits_since_ms)
        return GroupQueue(
            topic=topic,
            queue_id=queue_id,
            min_offset=low,
            max_offset=high,
            consumer_offset=at,
            lag=lag,
            lag_ms=lag_ms,
            last_consumed_ms=consumed_ms,
            client_id=self._reader_of(group, topic, queue_id, now_ms),
            invisible=invisible_in_queue(parts, group, topic, queue_id),
        )

    def _reader_of(self, group: str, topic: str, queue_id: int, now_ms: int) -> str | None:
        """Return the id of the client that reads a queue: the client that holds the queue's lock, the only
        one of its group, or the one that last waited on the queue and is still connected. None if that is
        unknown.

        Clients divide the queues among themselves without a request to the broker.
        """
        parts = self._host.parts
        owner = parts.locks.owner(group, (topic, queue_id), now_ms)
        online = parts.clients.consumer_group(group)
        if owner is not None or online is None or online.broadcasting:
            return owner
        if len(online.members) == 1 and topic in online.subscriptions:
            return next(iter(online.members.values())).client_id
        place = (group, topic, queue_id)
        for parked in parts.parked.waiting_on((topic, queue_id)):
            if parked.channel in online.members and parked.pull.header.consumer_group == group:
                self._readers[place] = parked.channel
        reader = self._readers.get(place)
        seen = None if reader is None else online.members.get(reader)
        if seen is None:
            self._readers.pop(place, None)
        return None if seen is None else seen.client_id

    def _retrying(self, group: str, retries: Iterable[str]) -> Retrying:
        parts, listings = self._host.parts, self._host.listings
        kept = {topic: kept_messages(parts.store, topic) for topic in retries}
        return Retrying(
            topic=names.retry_topic(group),
            topics=sorted(topic for topic, count in kept.items() if count),
            messages=sum(kept.values()),
            lag=(listings.unread(group, retries) or 0)
            + sum(listings.lag(group, topic) or 0 for topic in retries),
        )

    def _last_store_ms(self, topic: str) -> int | None:
        store = self._host.parts.store
        times = [
            time_ms
            for queue_id in store.queue_ids(topic)
            if (time_ms := known_time(store.reads.times.last_store_time(topic, queue_id))) is not None
        ]
        return max(times, default=None)

    def create(self, name: str, **settings: Any) -> None:
        self._check_not_system(name)
        self._host.parts.groups.put(SubscriptionGroup(names.check_group(name), **_broker_fields(settings)))

    def update(self, name: str, **changes: Any) -> None:
        self._check_not_system(name)
        groups = self._host.parts.groups
        groups.put(replace(groups.get(name) or SubscriptionGroup(name), **_broker_fields(changes)))

    def delete(self, name: str) -> None:
        self._check_not_system(name)
        forget_group(self._host.parts, name, clean_offset=True)

    def _check_not_system(self, name: str) -> None:
        if self._host.parts.groups.is_system(name):
            raise Problem("forbidden", f"group {name} belongs to the broker itself", BROKERS_OWN_HINT)

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: str,
        value: int | None = None,
        queue_id: int | None = None,
        dry_run: bool = True,
    ) -> list[OffsetMove]:
        parts = self._host.parts
        config, reads = config_of(parts, topic), parts.store.reads
        if queue_id is not None and not 0 <= queue_id < config.read_queues:
            raise NotFoundError(f"topic {topic} has no queue {queue_id}")
        moves = []
        for number in range(config.read_queues) if queue_id is None else [queue_id]:
            low, high = reads.min_offset(topic, number), reads.max_offset(topic, number)
            if to in ("earliest", "latest"):
                after = low if to == "earliest" else high
            else:
                assert value is not None
                if to == "time":
                    after = reads.times.offset_by_time(topic, number, value)
                elif low <= value <= high:
                    after = value
                else:
                    raise Problem(
                        "invalid",
                        f"queue {number} of {topic} holds offsets {low} to {high}, {value} is not among them",
                    )
            moves.append(
                OffsetMove(
                    queue_id=number,
                    before=parts.offsets.query(group, topic, number),
                    after=max(low, min(after, high)),
                )
            )
        if not dry_run:
            for move in moves:
                parts.offsets.reset(group, topic, move.queue_id, move.after)
            if (broker := self._host.process.broker) is not None:
                broker.reset_pulls(group, topic, [move.queue_id for move in moves])
        return moves


def _broker_fields(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings of a group by the names that SubscriptionGroup has for them."""
    return {FIELDS[name]: value for name, value in settings.items()}


def _retry_policy(group: SubscriptionGroup) -> RetryPolicy:
    policy = policy_of(group)
    if isinstance(policy, ExponentialPolicy):
        return RetryPolicy(
            kind="EXPONENTIAL",
            steps_ms=[],
            initial_ms=policy.initial_ms,
            multiplier=policy.multiplier,
            max_ms=policy.max_ms,
        )
    return RetryPolicy(kind="CUSTOMIZED", steps_ms=list(policy.steps_ms))


def why_no_filter(parts: BrokerParts, group: str, wanted: filters.Subscription) -> tuple[str, str]:
    """Return why a SQL92 subscription gets no message, "" if it gets some, and the oddities of its
    expression."""
    error, oddities = explained(wanted.expression)
    if error is not None:
        return f"The expression does not compile: {error}", ""
    found = "\n".join(oddities)
    if not parts.settings.enable_property_filter:
        return "SQL92 filters are off (enablePropertyFilter).", found
    if parts.property_filters.get(wanted.topic, group) is None:
        return (
            "There is no filter (yet): the expressions of all groups, or of one heartbeat, are too long or "
            "too many.",
            found,
        )
    return "", found
