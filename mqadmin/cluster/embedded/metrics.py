"""What scrapers get under Apache's names, of the broker in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import islice

from broker_store.broker.buckets import OTHER_CODE, Buckets
from broker_store.broker.clients import Client
from broker_store.broker.statistics import MINUTE_MS, Meter
from broker_store.engine.log.write_path import WHOLE
from broker_store.formats import record
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION, version_name
from broker_store.server.grpc.clients import GrpcClient
from broker_store.server.parts import BrokerParts
from broker_store.server.runtime_info import TEN_MINUTES_MS, TEN_SECONDS_MS
from broker_store.turns import in_turns
from mqadmin.cluster.embedded.host import Host, identity_of
from mqadmin.cluster.embedded.pops import invisible_of
from mqadmin.cluster.embedded.scrape_reads import Starts, Wanted, due_within, read_waits
from mqadmin.cluster.embedded.topics import known_time
from mqadmin.cluster.metrics_protocol import Metrics
from mqadmin.facts.scrape import (
    BrokerFlow,
    ClientKind,
    Distribution,
    Flow,
    Mornings,
    OfTopic,
    OfTopicSpread,
    PairFlow,
    ProducerGroup,
    Puts,
    RequestTimes,
    ReviveRecords,
    Scrape,
    SlaveLag,
    Spreads,
    ThreeRates,
    TopicFlow,
)

PER_PIECE = 16  # topics, pairs or groups between two readings of the clock
MAX_KINDS = 64  # of clients, by language, version and protocol: a client may state any version
MAX_REQUESTS = 100  # pairs of codes of requests and answers
OTHER = "other"
MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}

Kind = tuple[str, int, bool]  # language, version as a number, whether by gRPC


class EmbeddedMetrics(Metrics):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    def families(self) -> frozenset[str]:
        parts, process = self._host.parts_or_none, self._host.process_or_none
        settings = parts.settings if parts is not None else process.settings.broker if process else None
        names = "ours" if settings is None else settings.metrics_names
        return frozenset(name.strip() for name in names.split(","))

    async def measure(
        self, topics: Sequence[str], groups: Sequence[str], most_pairs: int, most_names: int
    ) -> Scrape:
        parts = self._host.parts
        pairs, left_out = await self._pairs(parts, groups, most_pairs)
        timer, revive = parts.timer.facts(), parts.revive.facts()
        now_ms = parts.clock()
        waits = await asyncio.to_thread(
            read_waits,
            parts.store,
            now_ms,
            pairs,
            (timer.not_enqueued, timer.queue_offset),
            parts.revive_log.topic,
            [(queue.queue_id, max(0, queue.end - queue.read), queue.read) for queue in revive.queues],
        )
        consumers: list[ClientKind] = []
        async for (group,) in in_turns(groups, 1):
            consumers += _consumers(parts, group)
        producers, kinds = parts.clients.producer_groups(), Counter[Kind]()
        async for (clients,) in in_turns(list(producers.values()), 1):  # a group may have thousands
            kinds.update(map(_kind, clients))
        return Scrape(
            at_ms=now_ms,
            broker=identity_of(parts),
            protocol_version=VERSION,
            permission=parts.settings.broker_permission,
            serves_grpc=bool(parts.settings.grpc_server_port),
            topics_of_all_kinds=len(parts.topics),
            groups_of_all_kinds=len(parts.groups),
            earliest_ms=await asyncio.to_thread(_earliest_ms, parts),
            flow=_flow_of_broker(parts),
            topics=[flow async for flow in _topics(parts, topics)],
            pairs=waits.pairs,
            pairs_left_out=left_out,
            producers=_kinds(kinds),
            consumers=consumers[:most_pairs],
            producer_groups=[
                ProducerGroup(group=name, clients=len(clients))
                for name, clients in sorted(producers.items(), key=lambda item: (-len(item[1]), item[0]))
            ][:most_names],
            halves=_largest(parts.transactions.metrics.counts(), most_names),
            timed=_largest(timer.topics.items(), most_names),
            timer_enqueued=timer.enqueued,
            timer_delivered=timer.delivered,
            timer_wait_ms=waits.timer_ms,
            due_within=await due_within(parts.store, now_ms) if timer.enabled else [],
            revive_waits=waits.revive,
            revive_stored=[one async for one in _revive_records(groups, _stored_of(parts), most_pairs)],
            revive_read=[one async for one in _revive_records(groups, _read_of(parts), most_pairs)],
            not_measured=waits.not_measured,
            slaves=_slaves(parts),
            spreads=_spreads(parts, topics),
        )

    async def _pairs(self, parts: BrokerParts, groups: Sequence[str], most: int) -> tuple[list[Wanted], int]:
        wanted: list[tuple[str, str]] = []
        total = 0
        async for (group,) in in_turns(groups, 1):  # a group may read thousands of topics
            topics = _topics_of(parts, group)
            total += len(topics)
            wanted += [(group, topic) for topic in sorted(topics)[: most - len(wanted)]]
        found = []
        async for some_pairs in in_turns(wanted, PER_PIECE):
            found += [_pair(parts, group, topic) for group, topic in some_pairs]
        return found, total - len(found)


def _topics_of(parts: BrokerParts, group: str) -> set[str]:
    """Return the topics of which a group has offsets, that its clients subscribe to, or that it was given
    messages of."""
    online = parts.clients.consumer_group(group)
    return {
        *parts.offsets.topics_of(group),
        *parts.offsets.topics_of(parts.offsets.broadcasting(group)),
        *(online.subscriptions if online else ()),
        *parts.statistics.group(group),
    }


async def _topics(parts: BrokerParts, names: Sequence[str]):
    async for some in in_turns(names, PER_PIECE):
        for name in some:
            yield TopicFlow(
                topic=name,
                kind=parts.topics.kind(name),
                into=_flow(parts, parts.statistics.topic(name)),
                end_offset=sum(
                    parts.store.reads.max_offset(name, queue_id) for queue_id in parts.store.queue_ids(name)
                ),
            )


def _flow(parts: BrokerParts, meter: Meter | None) -> Flow | None:
    if meter is None:
        return None
    messages, size, seconds = meter.lately(parts.clock(), MINUTE_MS)
    return Flow(
        messages=meter.messages,
        bytes=meter.bytes,
        in_minute=messages,
        per_s=messages / seconds if seconds > 0 else 0.0,
        bytes_per_s=size / seconds if seconds > 0 else 0.0,
    )


def _pair(parts: BrokerParts, group: str, topic: str) -> Wanted:
    offsets, reads = parts.offsets, parts.store.reads
    queues = offsets.of(group, topic) or offsets.of(offsets.broadcasting(group), topic)
    lag, in_flight, ready = 0, 0, 0
    lags: Starts = []
    unread: Starts = []
    is_pull_known = bool(queues)
    for queue_id, at in queues.items():
        end = reads.max_offset(topic, queue_id)
        lag += max(0, end - at)
        if at < end:
            lags.append((queue_id, at))
        pulled = end if at >= end else offsets.pulled_offset(group, topic, queue_id)
        if pulled is None:
            is_pull_known = False
        else:
            in_flight += max(0, min(pulled, end) - at)
            ready += max(0, end - max(pulled, at))
            if max(pulled, at) < end:
                unread.append((queue_id, max(pulled, at)))
    pops = invisible_of(parts, group, topic)
    if parts.in_flight.counts(group).popped or pops.messages:
        # The offset of a group that pops is after what it was given: in flight is what is invisible.
        in_flight, ready, is_pull_known = pops.messages, lag, bool(queues) and not pops.doubt
        unread = lags
    online = parts.clients.consumer_group(group)
    back = parts.statistics.sent_back_of(group, topic)
    pair = PairFlow(
        group=group,
        topic=topic,
        kind=parts.topics.kind(topic),
        is_system=parts.topics.is_system(topic) or parts.groups.is_system(group),
        clients=len(online.members) if online else 0,
        model=online.message_model.lower() if online else None,
        out=_flow(parts, parts.statistics.group_topic(group, topic)),
        sent_back_in_minute=None if back is None else back.lately(parts.clock(), MINUTE_MS)[0],
        offset=sum(queues.values()) if queues else None,
        lag=lag if queues else None,
        in_flight=in_flight if is_pull_known else None,
        ready=ready if is_pull_known else None,
    )
    return Wanted(pair, lags, unread if is_pull_known else None)


def _stored_of(parts: BrokerParts) -> Callable[[str], Iterable[ReviveRecords]]:
    counts = parts.revive_log.counts.stored
    return lambda group: (
        ReviveRecords(group=group, topic=topic, kind=kind, records=records, status=status.name)
        for (topic, kind, status), records in counts.get(group, {}).items()
    )


def _read_of(parts: BrokerParts) -> Callable[[str], Iterable[ReviveRecords]]:
    counts = parts.revive_log.counts.read
    return lambda group: (
        ReviveRecords(group=group, topic=topic, kind=kind, records=records, queue_id=queue_id)
        for (topic, kind, queue_id), records in counts.get(group, {}).items()
    )


async def _revive_records(
    groups: Sequence[str], records_of: Callable[[str], Iterable[ReviveRecords]], most: int
) -> AsyncIterator[ReviveRecords]:
    """Yield the records of the groups, at most `most` series."""
    async for (group,) in in_turns(groups, 1):
        for one in islice(records_of(group), most):
            yield one
            most -= 1


def _kind(client: Client) -> Kind:
    return client.language, client.version, isinstance(client.channel, GrpcClient)


def _kinds(
    counted: Counter[Kind], group: str = "", mode: str = "", is_system: bool = False
) -> list[ClientKind]:
    """Return the numbers of clients by kind; those after the MAX_KINDS largest are one kind."""
    found = [
        ClientKind(
            language=language.lower(),
            version=version_name(version).lower(),
            protocol="grpc" if is_grpc else "remoting",
            group=group,
            mode=mode,
            is_system=is_system,
            clients=number,
        )
        for (language, version, is_grpc), number in counted.most_common(MAX_KINDS)
    ]
    if rest := counted.total() - sum(kind.clients for kind in found):
        found.append(
            ClientKind(
                language=OTHER,
                version=OTHER,
                protocol=OTHER,
                group=group,
                mode=mode,
                is_system=is_system,
                clients=rest,
            )
        )
    return found


def _consumers(parts: BrokerParts, group: str) -> list[ClientKind]:
    online = parts.clients.consumer_group(group)
    if online is None:
        return []
    mode = MODES.get(online.consume_type, OTHER)
    return _kinds(Counter(map(_kind, online.members.values())), group, mode, parts.groups.is_system(group))


def _slaves(parts: BrokerParts) -> list[SlaveLag]:
    lacks: dict[str, int] = {}
    for slave in parts.replication.positions():
        if slave.behind is not None:
            host = slave.address.rpartition(":")[0].strip("[]")
            lacks[host] = max(slave.behind, lacks.get(host, 0))
    return [SlaveLag(host=host, bytes=size) for host, size in sorted(lacks.items())]


def _spreads(parts: BrokerParts, topics: Sequence[str]) -> Spreads:
    histograms = parts.statistics.histograms
    requests = sorted(histograms.requests.items(), key=lambda item: -item[1].count)[:MAX_REQUESTS]
    return Spreads(
        requests=[
            RequestTimes(
                request=_code_name(RequestCode, request),
                answer=_code_name(ResponseCode, answer),
                waited=waited,
                oneway=oneway,
                times=_distribution(times),
            )
            for (request, answer, waited, oneway), times in requests
        ],
        message_sizes=_of_topics(parts, topics, histograms.message_sizes),
        delays=_of_topics(parts, topics, histograms.delays),
        finished=_of_topics(parts, topics, histograms.finished),
        topics_put=[
            Puts(done=done, is_system=is_system, times=_distribution(times))
            for (done, is_system), times in histograms.topics_put.items()
        ],
        groups_put=[
            Puts(done=done, is_system=False, times=_distribution(times))
            for done, times in histograms.groups_put.items()
        ],
    )


def _code_name(codes: type[IntEnum], code: int) -> str:
    """Return the name that Apache has for a code."""
    return OTHER if code == OTHER_CODE else codes(code).name.lower()


def _of_topics(
    parts: BrokerParts, topics: Sequence[str], table: Mapping[str, Buckets]
) -> list[OfTopicSpread]:
    return [
        OfTopicSpread(
            topic=topic, is_system=parts.topics.is_system(topic), values=_distribution(table[topic])
        )
        for topic in topics
        if topic in table
    ]


def _distribution(buckets: Buckets) -> Distribution:
    return Distribution(bounds=buckets.bounds, counts=list(buckets.counts), total=buckets.total)


def _largest(counts: Iterable[tuple[str, int]], most: int) -> list[OfTopic]:
    ordered = sorted(counts, key=lambda item: (-item[1], item[0]))
    return [OfTopic(topic=topic, messages=messages) for topic, messages in ordered[:most]]


def _earliest_ms(parts: BrokerParts) -> int | None:
    """Return the store time of the oldest message. In a thread: it reads a record."""
    at = parts.store.status.positions().min
    first = None if at is None else parts.store.reads.records.record_at(at)
    return None if first is None else known_time(record.decode(first, check_crc=False).store_timestamp)


def _rates(meter: Meter) -> ThreeRates:
    s10, s60, s600 = (meter.per_second(over_ms) for over_ms in (TEN_SECONDS_MS, MINUTE_MS, TEN_MINUTES_MS))
    return ThreeRates(s10=s10, s60=s60, s600=s600)


def _flow_of_broker(parts: BrokerParts) -> BrokerFlow:
    statistics, settings = parts.statistics, parts.settings
    put, got = _flow(parts, statistics.put), _flow(parts, statistics.got)
    assert put is not None and got is not None
    (yesterday, today), times = statistics.midnights(), statistics.put_times
    in_99, in_999 = parts.store.write_path.histograms.lately(WHOLE).percentiles(0.99, 0.999)
    return BrokerFlow(
        put=put,
        got=got,
        put_rates=_rates(statistics.put),
        got_rates=_rates(statistics.got),
        found_rates=_rates(statistics.reads_found),
        missed_rates=_rates(statistics.reads_missed),
        put_days=Mornings(yesterday=yesterday[0], today=today[0], now=statistics.put.messages),
        got_days=Mornings(yesterday=yesterday[1], today=today[1], now=statistics.got.messages),
        put_times=times.counts(),
        longest_put_ms=int(times.longest_s * 1000),
        longest_read_ms=int(statistics.longest_read_s * 1000),
        put_ms_99=None if in_99 is None else in_99 / 1e6,
        put_ms_999=None if in_999 is None else in_999 / 1e6,
        sends_waiting=parts.sends.pending,
        most_sends_waiting=settings.send_thread_pool_queue_capacity,
        pulls_waiting=parts.parked.count,
        most_pulls_waiting=settings.max_parked_pulls,
    )
