"""A cluster without a broker: a `Cluster` of mqadmin/cluster/protocol.py with facts of its own.

The numbers follow from `clock` alone (seconds since 1970), so a test that holds the clock gets the same page
twice, and `run_fake_dashboard` gets a store in which something moves. Messages are real records, encoded by
`formats`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from asgiref.sync import async_to_sync

from broker_store.access.control import AccessControl
from broker_store.access.denied import Denied, NotAuthenticated
from broker_store.access.policies import read_policies
from broker_store.access.users import User
from broker_store.access.users import UserStatus as Status
from broker_store.access.users import UserType as KindOfUser
from broker_store.broker.names import by_letters
from broker_store.engine.log.write_path import LOG_ROLL, MeasuredGroup, WritePath
from broker_store.engine.start.report import CutMessages, RecoveryReport, Step
from broker_store.engine.status.store_state import (
    DiskSpace,
    Flag,
    Flush,
    IndexFileFacts,
    Lag,
    LogPositions,
    LostAndFound,
    RebuildProgress,
    Sizes,
    Snapshot,
    Stamps,
    StoreFile,
    Totals,
)
from broker_store.errors import NotFoundError, StoreClosedError
from broker_store.facts import dispatch, exposure, write_path
from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import MAX_BYTES
from broker_store.facts.bytes.viewer import Viewer
from broker_store.facts.cache import CachedFile, CachedTotal, LogEnds, Memory
from broker_store.facts.chains import ChainKey, ChainLengths, Chains, LongChain
from broker_store.facts.deletion import DeletedFile, ForcedDeletion, GroupLoss, QueueLoss
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import (
    DiskFacts,
    DiskForecast,
    FileSystemUse,
    KindUse,
    LogContent,
    RetentionSettings,
)
from broker_store.facts.explain import (
    ChainEndStep,
    EntryStep,
    FileStep,
    HashStep,
    LookupStep,
    SlotStep,
    StopStep,
    UnindexedStep,
)
from broker_store.facts.growth import GrowthRate, RateWindow
from broker_store.facts.journey.stop import Journey, JourneyMessage, stop
from broker_store.facts.layout import (
    Jumps,
    LayoutOfEach,
    LayoutOfTopics,
    LogSpan,
    Pages,
    ReadAhead,
    StartFacts,
    TopicLayout,
)
from broker_store.facts.marks import Mark, UsePaths, UsePoint
from broker_store.facts.pointers import to_log
from broker_store.facts.slots import Cell, CellShares, HeatMap
from broker_store.facts.starts import StartReport, report_of
from broker_store.facts.timeline import (
    Cliff,
    GroupTimeline,
    LagHistory,
    LagPoint,
    MembersChange,
    NextFile,
    OffsetReset,
    QueueCliff,
    QueueTimeline,
)
from broker_store.formats import message_id, properties, record
from broker_store.formats.traces import TraceEvent
from broker_store.messages import DamagedRecord, Message, damage_doubt
from broker_store.rest.answers import Receipt
from broker_store.rest.problems import Problem
from broker_store.server.access_changes import AccessChanges
from broker_store.units import fields_of
from mqadmin.cluster.access_protocol import Access
from mqadmin.cluster.embedded import access as embedded_access
from mqadmin.cluster.embedded.access import Changing
from mqadmin.cluster.embedded.condition import Refusal, Signs, judge, judge_state
from mqadmin.cluster.embedded.host import STARTING
from mqadmin.facts.access import (
    AccessAnswer,
    AccessRule,
    AccessState,
    AccessUser,
    AccessUserDetail,
    ImportedUsers,
    PolicyType,
    UserStatus,
    UserToImport,
    UserType,
)
from mqadmin.facts.cache import CachePicture, ReadingGroup, ReadTotals
from mqadmin.facts.condition import Condition
from mqadmin.facts.dead_letters import ResendPlan, TopicOfLetters
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
from mqadmin.facts.layout import Both
from mqadmin.facts.messages import Found, Traces
from mqadmin.facts.overview import Broker, Counts, Overview, Rates, State, Traffic, WorstLag
from mqadmin.facts.pops import (
    SHOWN_MESSAGES,
    InvisibleMessage,
    InvisibleMessages,
    PopCounts,
    Popped,
    ReviveQueue,
)
from mqadmin.facts.replication import ReplicationFacts, SlaveFacts
from mqadmin.facts.scrape import (
    BrokerFlow,
    ClientKind,
    Distribution,
    DueWithin,
    Flow,
    Mornings,
    NotMeasured,
    OfTopic,
    OfTopicSpread,
    PairFlow,
    ProducerGroup,
    Puts,
    RequestTimes,
    ReviveRecords,
    ReviveWait,
    Scrape,
    SlaveLag,
    Spreads,
    ThreeRates,
    TopicFlow,
)
from mqadmin.facts.sends import LoopPauses, PathOfSends, Refused
from mqadmin.facts.store import QueueFile, WatchedSlots
from mqadmin.facts.topics import Queue, Reader, Topic, TopicDetail
from mqadmin.facts.waiting import (
    Delayed,
    DelayLevel,
    DueHour,
    DueTopic,
    Half,
    Halves,
    MessageFate,
    Prepared,
    Retries,
    RetryLevel,
    Timed,
    Waiting,
)
from tests.support import left_behind, stores
from tests.support.memory_store import MemoryStore

MIB = 1 << 20
FILE_BYTES = 64 * MIB
BORN_HOST = (b"\x0a\x00\x03\x0e", 51422)
STORE_HOST = (b"\x7f\x00\x00\x01", 10911)
BYTES_PER_SECOND = 413_000
START_BYTES = 5 * FILE_BYTES + 21 * MIB

TOPICS = {
    "orders": ("normal", 8, 412.0, 395.0, 1_804_221),
    "payments": ("normal", 4, 96.5, 96.0, 402_118),
    "page-views": ("normal", 8, 1204.0, 803.0, 5_220_947),
    "%RETRY%billing": ("retry", 1, 0.4, 0.4, 1_207),
    "%DLQ%billing": ("dlq", 1, 0.0, 0.0, 31),
    "TBW102": ("system", 8, 0.0, 0.0, 0),
    "empty-topic": ("normal", 4, 0.0, 0.0, 0),
}
GROUPS = {
    "billing": ("normal", ["orders", "payments"], 2, 12, 395.0),
    "search-index": ("normal", ["page-views"], 1, 48_210, 803.0),
    "nightly-report": ("normal", ["orders"], 0, None, 0.0),
    "CID_RMQ_SYS_TRANS": ("system", [], 0, None, None),
}


@functools.cache
def golden_directory() -> StoreDirectory:
    """The files of a small store, unpacked once a process."""
    directory = left_behind.AT_END.enter_context(tempfile.TemporaryDirectory())
    return StoreDirectory(stores.unpack("golden-clean", Path(directory)))


class _Part:
    def __init__(self, cluster: FakeCluster):
        self._cluster = cluster


class FakeTopics(_Part):
    def counts(self) -> dict[str, int]:
        self._cluster.check_running()
        return {
            kind: sum(value[0] == kind for value in TOPICS.values())
            for kind in ("normal", "retry", "dlq", "system")
        }

    def names(self) -> list[str]:
        self._cluster.check_running()
        return sorted(TOPICS, key=by_letters)

    def offered(self) -> list[str]:
        return [name for name in self.names() if TOPICS[name][0] != "system"]

    def rows(self, wanted) -> list[Topic]:
        self._cluster.check_running()
        return [self._topic(name) for name in wanted if name in TOPICS]

    async def page(self, kind="all", search="", sort="name", begin=0, count=100):
        found = [
            row for row in self.rows(self.names()) if kind in ("all", row.kind) and search in row.name.lower()
        ]
        if sort != "name":
            number = {"messages": "messages", "in": "in_per_s", "out": "out_per_s"}[sort]
            found.sort(key=lambda row: -getattr(row, number))
        return found[begin : begin + count], len(found)

    def after(self, name, count, kind=None):
        found = [
            one
            for one in self.names()
            if (name is None or by_letters(one) > by_letters(name)) and kind in (None, TOPICS[one][0])
        ]
        return self.rows(found[:count])

    async def every(self):
        return self.rows(self.names())

    async def busiest(self, limit):
        return sorted(self.rows(TOPICS), key=lambda row: -row.in_per_s)[:limit]

    def detail(self, name: str) -> TopicDetail:
        self._cluster.check_running()
        if name not in TOPICS:
            raise NotFoundError(f"topic {name} does not exist")
        topic, now_ms = self._topic(name), self._cluster.now_ms()
        each = topic.messages // topic.write_queues
        return TopicDetail(
            **fields_of(topic),
            attributes={},
            is_writable=True,
            withheld=None,
            last_store_ms=now_ms - 90 if each else None,
            queues=[
                Queue(
                    queue_id=queue_id,
                    min_offset=0,
                    max_offset=each,
                    messages=each,
                    earliest_store_ms=now_ms - 50 * 3_600_000 if each else None,
                    last_store_ms=now_ms - 90 * (queue_id + 1) if each else None,
                )
                for queue_id in range(topic.write_queues)
            ],
            readers=[
                Reader(group=group, lag=value[3], clients=value[2], invisible=INVISIBLE.get(group, 0))
                for group, value in GROUPS.items()
                if name in value[1]
            ],
        )

    def create(self, name, read_queues, write_queues, perm, order, message_type="NORMAL"):
        self._cluster.asked.append(
            ("create_topic", name, read_queues, write_queues, perm, order, message_type)
        )

    def update(self, name, **changes):
        self._cluster.asked.append(("update_topic", name, changes))

    def delete(self, name):
        self._cluster.asked.append(("delete_topic", name))

    def _topic(self, name) -> Topic:
        kind, queues, into, out, messages = TOPICS[name]
        return Topic(
            name=name,
            kind=kind,
            read_queues=queues,
            write_queues=queues,
            perm=6,
            order=False,
            message_type="NORMAL",
            messages=messages,
            in_per_s=into,
            out_per_s=out,
            groups=sum(name in value[1] for value in GROUPS.values()),
        )

    def queue(self, topic, queue_id) -> Queue:
        for queue in self.detail(topic).queues:
            if queue.queue_id == queue_id:
                return queue
        raise NotFoundError(f"topic {topic} has no queue {queue_id}")


class FakeGroups(_Part):
    def counts(self) -> dict[str, int]:
        self._cluster.check_running()
        return {kind: sum(value[0] == kind for value in GROUPS.values()) for kind in ("normal", "system")}

    def names(self) -> list[str]:
        self._cluster.check_running()
        return sorted(GROUPS, key=by_letters)

    def rows(self, wanted) -> list[Group]:
        self._cluster.check_running()
        return [self._group(name) for name in wanted if name in GROUPS]

    async def page(self, kind="all", search="", sort="name", begin=0, count=100):
        found = [
            row for row in self.rows(self.names()) if kind in ("all", row.kind) and search in row.name.lower()
        ]
        if sort != "name":
            found.sort(key=lambda row: -(-1 if getattr(row, sort) is None else getattr(row, sort)))
        return found[begin : begin + count], len(found)

    def after(self, name, count):
        return self.rows(
            [one for one in self.names() if name is None or by_letters(one) > by_letters(name)][:count]
        )

    async def every(self):
        return self.rows(self.names())

    async def most_behind(self, limit):
        return sorted(self.rows(GROUPS), key=lambda row: -(row.lag or 0))[:limit]

    def detail(self, name: str) -> GroupDetail:
        self._cluster.check_running()
        if name not in GROUPS:
            raise NotFoundError(f"group {name} does not exist")
        group, now_ms = self._group(name), self._cluster.now_ms()
        clients = [f"10.0.3.{14 + n}@{7100 + n}#{name}" for n in range(group.clients)]
        queues = []
        for topic in group.topics:
            _, count, _, _, messages = TOPICS[topic]
            for q in range(count):
                end = messages // count
                lag = None if group.lag is None else group.lag // (count * len(group.topics)) + (q == 2) * 5
                queues.append(
                    GroupQueue(
                        topic=topic,
                        queue_id=q,
                        min_offset=0,
                        max_offset=end,
                        consumer_offset=None if lag is None else end - lag,
                        lag=lag,
                        lag_ms=None if lag is None else lag * 13,
                        last_consumed_ms=None if lag is None else now_ms - lag * 13 - 80,
                        client_id=clients[q * len(clients) // count] if clients else None,
                        invisible=INVISIBLE.get(name, 0) // count,
                    )
                )
        is_known = group.lag is not None
        retries, letters = f"%RETRY%{name}", f"%DLQ%{name}"
        return GroupDetail(
            **fields_of(group),
            lag_ms=max((queue.lag_ms for queue in queues), default=None) if is_known else None,
            largest_lag=max((queue.lag for queue in queues), default=None) if is_known else None,
            queues=queues,
            retrying=Retrying(
                topic=retries,
                topics=[retries] if TOPICS.get(retries, (0,) * 5)[4] else [],
                messages=TOPICS.get(retries, (0,) * 5)[4],
                lag={"billing": 3, "search-index": 0}.get(name),
            ),
            retry_policy=(
                RetryPolicy(kind="EXPONENTIAL", steps_ms=[], initial_ms=10_000, multiplier=3, max_ms=600_000)
                if name == "billing"
                else RetryPolicy(kind="CUSTOMIZED", steps_ms=[1_000, 5_000, 7_200_000])
            ),
            dead=Dead(
                topic=letters,
                messages=TOPICS.get(letters, (0,) * 5)[4],
                last_store_ms=now_ms - 5_400_000 if name == "billing" else None,
            ),
            pops=pop_counts(name),
            members=[
                Member(
                    client_id=client,
                    address=f"10.0.3.{14 + n}:51{n}22",
                    language="JAVA",
                    version="V5_3_3",
                    heartbeat_ms=now_ms - 4_000 - n * 900,
                )
                for n, client in enumerate(clients)
            ],
            subscriptions=[
                Subscription(topic=topic, expression="*", clients=group.clients) for topic in group.topics
            ],
        )

    def create(self, name, **settings):
        self._cluster.asked.append(("create_group", name, settings))

    def update(self, name, **changes):
        self._cluster.asked.append(("update_group", name, changes))

    def delete(self, name):
        self._cluster.asked.append(("delete_group", name))

    def reset_offsets(self, group, topic, to, value=None, queue_id=None, dry_run=True) -> list[OffsetMove]:
        if not dry_run:
            self._cluster.asked.append(("reset_offset", group, topic, to, value, queue_id))
        rows = [
            queue
            for queue in self.detail(group).queues
            if queue.topic == topic and queue_id in (None, queue.queue_id)
        ]
        target = {"earliest": "min_offset", "latest": "max_offset"}.get(to)
        return [
            OffsetMove(
                queue_id=row.queue_id,
                before=row.consumer_offset,
                after=getattr(row, target) if target else value,
            )
            for row in rows
        ]

    def _group(self, name) -> Group:
        kind, topics, clients, lag, out = GROUPS[name]
        return Group(
            name=name,
            kind=kind,
            consume_enable=True,
            broadcast=True,
            orderly=False,
            retry_queues=1,
            retry_max_times=16,
            clients=clients,
            model="clustering" if clients else None,
            topics=topics,
            lag=lag,
            out_per_s=out,
            invisible=INVISIBLE.get(name, 0),
        )


class FakeDeadLetters(_Part):
    def plan(self, group, to, limit, left_out) -> ResendPlan:
        dead, now_ms = self._cluster.groups.detail(group).dead, self._cluster.now_ms()
        count = min(limit, max(0, dead.messages - 4))
        return ResendPlan(
            group=group,
            to=to,
            limit=limit,
            goes_to=f"%RETRY%{group}" if to == "group" else None,
            messages=count,
            left=max(0, dead.messages - 4) - count,
            sent_before=min(4, dead.messages),
            left_out_before=0,
            topics=[TopicOfLetters(topic="orders", messages=count, exists=True, is_taken=True, is_read=True)]
            if count
            else [],
            skipped=0,
            without_topic=0,
            to_send=count,
            cannot="",
            complete=True,
            of_limit=count,
            oldest_ms=now_ms - 7_200_000 if count else None,
            newest_ms=now_ms - 5_400_000 if count else None,
        )


def _passed(messages, passing):
    return [stored for stored in messages if passing is None or passing.passes(stored.raw_properties)]


class FakeSearch(_Part):
    async def in_queue(self, topic, queue_id, offset, limit, passing=None) -> Found:
        queue = self._cluster.topics.queue(topic, queue_id)
        messages = [
            self._cluster.stored(topic, queue_id, at)
            for at in range(max(offset, 0), min(offset + limit, queue.max_offset))
        ]
        end = offset + len(messages)
        return Found(_passed(messages, passing), True, "", end, queue.min_offset, queue.max_offset)

    async def by_key(self, topic, key, begin_ms, end_ms, limit, passing=None) -> Found:
        self._cluster.topics.detail(topic)
        if key == "nobody":
            return Found()
        if key == "damaged":
            damaged = (DamagedRecord(40_000, "the body of a record has another CRC"),)
            return Found([], False, damage_doubt(damaged), damaged=damaged)
        return Found(_passed([self._cluster.stored(topic, 0, at) for at in (40, 41)], passing)[:limit])

    async def traces_of(self, message_id) -> Traces:
        self._cluster.check_running()
        return Traces(
            "RMQ_SYS_TRACE_TOPIC", self._cluster.events(message_id) if len(message_id) == 32 else []
        )

    async def by_id(self, id, topic=None) -> Found:
        self._cluster.check_running()
        if len(id) != 32:
            return Found()
        return Found([self._cluster.stored(topic or "orders", 0, 40)])

    async def by_time(self, topic, begin_ms, end_ms, limit, budget=None, passing=None) -> Found:
        self._cluster.topics.detail(topic)
        messages = [self._cluster.stored(topic, at % 4, at) for at in range(40, 40 + min(limit, 20))]
        return Found(_passed(messages, passing), False, "limit of messages reached")

    async def damage_at(self, log_offset) -> str | None:
        return None

    async def message_at(self, log_offset) -> tuple:
        """(StoredMessage, raw bytes)"""
        self._cluster.check_running()
        if log_offset < len(self._cluster.extra_messages):
            raw = self._cluster.extra_messages[log_offset]
        elif log_offset % 1_000 or log_offset > self._cluster.wrote():
            raise NotFoundError(f"no message begins at position {log_offset} of the log")
        else:
            raw = self._cluster.raw("orders", 0, log_offset // 1_000, log_offset)
        return record.decode(raw), raw

    async def offset_by_time(self, topic, queue_id, time_ms) -> int:
        return self._cluster.topics.queue(topic, queue_id).max_offset // 2

    async def time_doubt(self, topic, time_ms, queue_id=None) -> str | None:
        return None


class FakeSends(_Part):
    async def send_batch(self, topic, messages) -> list[Receipt | Problem]:
        self._cluster.asked.append(("send_batch", topic, messages))
        self._cluster.topics.detail(topic)
        return [self._receipt(topic, message.queue_id or 0) for message in messages]

    def _receipt(self, topic, queue_id) -> Receipt:
        log_offset = self._cluster.wrote()
        return Receipt(
            status="PUT_OK",
            message_id="0A00030E1BC863947C6B000000000001",
            offset_message_id=message_id.encode_offset_id(STORE_HOST, log_offset),
            topic=topic,
            queue_id=queue_id,
            queue_offset=17,
            log_offset=log_offset,
            store_time_ms=self._cluster.now_ms(),
        )


class FakePulls(_Part):
    async def pull(self, topic, queue_id, offset, limit, wait_ms) -> Found:
        return await self._cluster.search.in_queue(topic, queue_id, 0 if offset is None else offset, limit)


INVISIBLE = {"billing": 52}  # messages that a group popped, by its name
REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"


def pop_counts(group) -> PopCounts:
    invisible = INVISIBLE.get(group, 0)
    return PopCounts(
        invisible=invisible,
        popped=invisible * 100,
        acknowledged=invisible * 96,
        changed=invisible // 2,
        came_again=invisible * 3,
        dropped=0,
        without_effect=invisible // 10,
        waiting_pops=2 if invisible else 0,
        complete=True,
        reason="",
        refused="",
    )


class FakePops(_Part):
    def invisible(self, group, after=None, limit=SHOWN_MESSAGES) -> InvisibleMessages:
        self._cluster.groups.detail(group)
        now_ms, total = self._cluster.now_ms(), INVISIBLE.get(group, 0)
        begin = 0 if after is None else int(after)
        return InvisibleMessages(
            at_ms=now_ms,
            counts=pop_counts(group),
            messages=[
                InvisibleMessage(
                    topic="orders" if number % 5 else f"%RETRY%{group}_orders",
                    of_topic="orders",
                    queue_id=number % 4,
                    offset=40 + number,
                    log_offset=(40 + number) * 1_000 if number % 7 else None,
                    message_id=f"0A00030E1BC863947C6B{number:012X}" if number % 7 else None,
                    popped_ms=now_ms - 30_000 + number * 500,
                    visible_ms=now_ms + number * 500,
                    given_out=1 + (not number % 5) if number % 7 else None,
                    client=f"10.0.3.14@7100#{group}" if number % 3 else None,
                    revive_queue=number % 8 if number % 11 else None,
                )
                for number in range(begin, min(begin + limit, total))
            ],
            next=str(begin + limit) if begin + limit < total else None,
        )


class FakeWaiting(_Part):
    def facts(self) -> Waiting:
        self._cluster.check_running()
        now_ms = self._cluster.now_ms()
        levels = [
            (1, 1_000, 3, 400),
            (3, 10_000, 412, 2_100),
            (5, 60_000, 0, None),
            (16, 1_800_000, 20_771, 41_000),
        ]
        hour_ms = now_ms // 3_600_000 * 3_600_000
        return Waiting(
            at_ms=now_ms,
            delayed=Delayed(
                waiting=sum(waiting for _, _, waiting, _ in levels),
                due_ms=now_ms + 400,
                levels=[
                    DelayLevel(
                        level=level,
                        queue_id=level - 1,
                        delay_ms=delay_ms,
                        offset=40_000 * level,
                        max_offset=40_000 * level + waiting,
                        waiting=waiting,
                        due_ms=None if due is None else now_ms + due,
                    )
                    for level, delay_ms, waiting, due in levels
                ],
                delivered=81_204,
                dropped=0,
                failures=0,
            ),
            prepared=Prepared(
                waiting=3,
                half_offset=40_118,
                op_offset=2_214,
                committed=39_001,
                rolled_back=1_114,
                asked=12,
                given_up=0,
                failures=0,
                most_checks=15,
            ),
            timed=Timed(
                enabled=True,
                waiting=5_118,
                not_enqueued=2,
                due=0,
                overdue_ms=0,
                late_ms=12,
                delivered=10_004,
                rolled=31,
                deleted=4,
                dropped=0,
                failures=0,
                hours=[DueHour(hour_ms=hour_ms + n * 3_600_000, messages=900 - 37 * n) for n in range(20)],
                topics=[
                    DueTopic(topic="orders", messages=4_002),
                    DueTopic(topic="payments", messages=1_116),
                ],
            ),
            popped=Popped(
                refused="",
                invisible=sum(INVISIBLE.values()),
                queues_in_order=0,
                waiting_pops=2,
                most_waiting_pops=100_000,
                topic=REVIVE_LOG,
                on_wheel=104,
                queues=[
                    ReviveQueue(
                        queue_id=queue_id,
                        finished_offset=4_000 + queue_id if queue_id != 3 else None,
                        read_offset=4_010 + queue_id,
                        max_offset=4_010 + queue_id + (queue_id == 2) * 5,
                        lag=(queue_id == 2) * 5,
                        checkpoints=queue_id % 4,
                        due_ms=now_ms + 700 if queue_id % 4 else None,
                    )
                    for queue_id in range(8)
                ],
                acknowledged=5_001,
                came_again=160,
                dropped=0,
                invalid=1,
                failures=0,
            ),
        )

    async def halves(self, limit=50) -> Halves:
        self._cluster.check_running()
        now_ms = self._cluster.now_ms()
        items = [
            Half(
                message_id=f"0A00030E1BC863947C6B{n:012X}",
                log_offset=52_000 + n * 1_000,
                queue_offset=40_118 + n,
                born_ms=now_ms - age,
                store_ms=now_ms - age + 3,
                checks=checks,
                group="payments-service",
                topic="payments",
                queue_id=n,
            )
            for n, (age, checks) in enumerate(((184_000, 3), (31_000, 1), (900, 0)))
        ]
        return Halves(items=items[:limit], complete=len(items) <= limit)

    def retries(self, group) -> Retries:
        self._cluster.check_running()
        levels = [] if group != "billing" else [(3, 10_000, 7, 4_000), (6, 120_000, 22, 38_000)]
        found = [
            RetryLevel(level=level, delay_ms=delay_ms, count=count, due_ms=self._cluster.now_ms() + due)
            for level, delay_ms, count, due in levels
        ]
        return Retries(levels=found, delayed=sum(level.count for level in found), complete=True)

    def fate(self, stored) -> MessageFate | None:
        """That of a few messages of the topic orders, one of each kind."""
        kind = {44: "delayed", 45: "prepared", 46: "timed", 47: "retry", 48: "dead"}.get(stored.queue_offset)
        if kind is None:
            return None
        return MessageFate(
            kind=kind,
            waits=kind != "dead",
            due_ms=self._cluster.now_ms() + 41_000 if kind in ("delayed", "timed") else None,
            topic="payments",
            queue_id=3 if kind in ("delayed", "prepared") else None,
            level=16 if kind == "delayed" else None,
            checks=2 if kind == "prepared" else None,
            group={"prepared": "payments-service", "retry": "billing", "dead": "billing"}.get(kind),
        )


class FakeStore(_Part):
    inspects = False

    async def take_slaves(self) -> ReplicationFacts:
        return self.replication()

    def replication(self) -> ReplicationFacts:
        wrote = self._cluster.wrote()
        slave = {
            "address": "10.0.0.2:41022",
            "sent": wrote,
            "in_step": True,
            "sent_bytes": 3 * MIB,
            "connected_ms": 4_200_000,
            "silent_ms": 120,
        }
        return ReplicationFacts(
            role="SYNC_MASTER",
            ha_port=10_912,
            log_begin=0,
            wrote=wrote,
            flushed=wrote - 180_000,
            confirmed=wrote - 4_096,
            needed=1,
            in_step=1,
            slaves=[
                SlaveFacts(
                    reported=wrote - 4_096,
                    behind_bytes=4_096,
                    behind_ms=12,
                    bytes_per_s=8_300_000.0,
                    **slave,
                ),
                SlaveFacts(
                    reported=None,
                    behind_bytes=None,
                    behind_ms=None,
                    bytes_per_s=None,
                    **slave | {"in_step": False},
                ),
            ],
            left=None,
            master=None,
            failover_loses_bytes=4_096,
            refused={"its address is none of haSlaveAddresses": 2},
        )

    def snapshot(self) -> Snapshot:
        now_ms, wrote = self._cluster.now_ms(), self._cluster.wrote()
        known = self._cluster.state_name != "starting"
        flushed = wrote - wrote % 180_000
        dispatched = wrote if self._cluster.state_name == "running" else wrote - 40 * MIB
        positions = LogPositions(
            min=0,
            wrote=wrote,
            confirmed=wrote,
            flushed=flushed,
            dispatched=dispatched,
            checkpoint_position=wrote - 9 * MIB,
            checkpoint=Stamps(physic_ms=now_ms - 22_000, logics_ms=now_ms - 22_000, index_ms=now_ms - 22_000),
        )
        lag = Lag(
            dispatch_bytes=wrote - dispatched,
            unflushed_bytes=wrote - flushed,
            oldest_unflushed_ms=310,
            unflushed_messages=(wrote - flushed) // 431,
        )
        return Snapshot(
            at_ms=now_ms,
            state=self._cluster.state_name,
            positions=positions if known else LogPositions(),
            lag=lag if known else Lag(),
            flags=self._cluster.flags,
            flush=Flush(
                type="ASYNC_FLUSH", count=8_114, last_duration_ms=2.4, max_duration_ms=41.0, errors=0
            ),
            totals=Totals(
                puts=7_427_288,
                put_bytes=wrote,
                gets=1_100_203,
                get_messages=6_990_117,
                get_bytes=wrote - 8 * MIB,
                cold_gets=1_204,
                key_lookups=87,
                cold_lookups=5,
                cold_bytes=68 * MIB,
                cold_ms=1_310.5,
                refused={"OS_PAGE_CACHE_BUSY": 3},
            ),
            disk=DiskSpace(total_bytes=250 << 30, free_bytes=171 << 30, used_ratio=0.316),
            lost_and_found=LostAndFound(files=1, bytes=412) if known else LostAndFound(),
            queues=34,
            commit_log_files=len(self._cluster.log_files()),
            index=self._cluster.index.facts()[-1]
            if self._cluster.state_name in ("running", "read_only")
            else None,
            sizes=Sizes(
                commit_log_file=FILE_BYTES,
                queue_file=6_000_000,
                index_slots=5_000_000,
                index_entries=20_000_000,
            ),
        )

    def recovery(self) -> StartReport:
        running = self._cluster.state_name == "recovering"
        began = int(self._cluster.started * 1000)
        report = RecoveryReport(began, timer=lambda: 0.0)
        report.kind, report.abort_found = "abnormal", True
        report.checkpoint = {
            "found": True,
            "physic_ms": began - 22_000,
            "logics_ms": began - 22_000,
            "index_ms": began - 22_001,
            "limit_ms": began - 25_000,
        }
        report.try_file(
            "00000000000335544320",
            5 * FILE_BYTES,
            began - 9_000,
            False,
            "its first record is younger than the checkpoint less 3 s",
        )
        report.try_file("00000000000268435456", 4 * FILE_BYTES, began - 190_000, True, "taken")
        report.start = {
            "file": "00000000000268435456",
            "base": 4 * FILE_BYTES,
            "why": "its first record must not be younger than the checkpoint less 3 s",
        }
        report.scanned_bytes, report.total_bytes, report.messages = (
            (52 if running else 86) * MIB,
            86 * MIB,
            210_000 if running else 401_228,
        )
        steps = [
            ("load the commit log", None, 0, 41, 0, 0, "6 files"),
            ("load the checkpoint", "checkpoint", 41, 1, 4096, 0, "log 22 s, queues 22 s before the stop"),
            (
                "find the end of each queue",
                "orders/0/00000000000000000000",
                42,
                18,
                6_000_000,
                48_211,
                "34 queues",
            ),
            (
                "scan the log",
                "00000000000268435456",
                60,
                None if running else 112,
                report.scanned_bytes,
                401_228,
                "",
            ),
        ]
        if not running:
            steps.append(("dispatch again", None, 172, 9, 9 * MIB, 38_000, ""))
            report.cut_bytes, report.redispatched, report.log_end, report.lost_and_found = (
                412,
                38_000,
                START_BYTES,
                LostAndFound(files=1, bytes=412),
            )
            report.cut["commitlog"] = {"bytes": 412, "files": 0, "from": START_BYTES}
            report.cut_queue("orders", 0, 48_209, 2)
            whole = CutMessages()
            whole.add("orders", 0, 48_210)
            report.cut["messages"] = whole.as_dict()
            report.stopped = {
                "file": "00000000000335544320",
                "at": 357_912,
                "log_offset": START_BYTES,
                "reason": "no record begins here",
                "crc_failed": False,
                "data_follows": True,
                "verdict": "cut: not known to be on the disk",
            }
        report.steps = [
            Step(name, file, began + at, at, took, size, count, None, 1, detail)
            for name, file, at, took, size, count, detail in steps
        ]
        report.finding("warning", "a torn record of 412 bytes was cut", "00000000000335544320", 357_912_001)
        return replace(
            report_of(report.as_dict()),
            state="running" if running else "done",
            finished_ms=None if running else began + 181,
            took_ms=181.0,
            scan_bytes_per_s=805_306_368,
            left_ms=42 if running else None,
        )

    def cache(self) -> CachePicture:
        self._cluster.check_running()
        wrote = self._cluster.wrote()
        files = [self._cached(file, wrote) for file in self._cluster.files.listed()]
        reads = {
            "reads": 31_204,
            "messages": 998_528,
            "bytes": 190 * MIB,
            "per_s": 803.0,
            "bytes_per_s": 201_000.0,
        }
        return CachePicture(
            at_ms=self._cluster.now_ms(),
            took_ms=12.5,
            source="mincore of a private map of each file; /proc/meminfo",
            files=files,
            totals={
                kind: self._cached_total([file for file in files if kind in (file.kind, "all")])
                for kind in ("commitlog", "index", "consumequeue", "all")
            },
            memory=Memory(
                total_bytes=16 << 30,
                available_bytes=9 << 30,
                cached_bytes=7 << 30,
                dirty_bytes=12 * MIB,
                writeback_bytes=0,
            ),
            log=LogEnds(begin=0, end=len(self._cluster.log_files()) * FILE_BYTES, wrote=wrote),
            complete=True,
            reason=None,
            groups=[
                ReadingGroup(
                    group="search-index",
                    topics=["page-views"],
                    **reads,
                    cold_reads=1_204,
                    cold_messages=38_528,
                    cold_bytes=68 * MIB,
                    cold_per_s=96.0,
                    cold_bytes_per_s=24_000.0,
                    log_offset=70 * MIB,
                    lag_bytes=wrote - 70 * MIB,
                    lag_messages=48_210,
                    topic="page-views",
                    queue_id=3,
                ),
                ReadingGroup(
                    group="billing",
                    topics=["orders", "payments"],
                    **reads,
                    log_offset=wrote,
                    lag_bytes=0,
                    lag_messages=0,
                    topic="orders",
                    queue_id=0,
                ),
            ],
            reads=ReadTotals(gets=1_100_203, cold_gets=1_204, cold_bytes=68 * MIB, cold_ms=1_310.5),
        )

    def _cached(self, file: StoreFile, wrote: int) -> CachedFile:
        """The end of the log and every third cell before it are in memory."""
        count = 32 if file.kind == "consumequeue" else 128
        is_old = file.kind == "commitlog" and wrote - file.base > 2 * FILE_BYTES
        cells = [0.0 if is_old and cell % 3 else 1.0 for cell in range(count)]
        return CachedFile(
            kind=file.kind,
            name=file.name,
            topic=file.topic,
            queue_id=file.queue_id,
            base=file.base,
            size=file.size,
            resident_bytes=int(file.size * sum(cells) / count),
            share=sum(cells) / count,
            cells=cells,
        )

    def _cached_total(self, files: list[CachedFile]) -> CachedTotal:
        return CachedTotal(
            files=len(files),
            bytes=sum(file.size for file in files),
            resident_bytes=sum(file.resident_bytes for file in files),
        )

    async def layout(self, topic, group, from_ms=None, from_offset=None) -> LayoutOfTopics | LayoutOfEach:
        self._cluster.check_running()
        wrote = self._cluster.wrote()
        known = {name: facts for name, facts in TOPICS.items() if facts[4]}
        scan = {
            "at_ms": self._cluster.now_ms(),
            "took_ms": 41.0,
            "source": "units of the consume queues; mincore of the log",
            "model": "each page of 4 KiB is read once",
            "log": LogSpan(begin=0, end=wrote, file_bytes=FILE_BYTES, cut=False),
            "start": StartFacts(from_ms=from_ms, from_offset=from_offset, group=group),
            "cold_rate": 54_000_000.0,
        }
        if not topic and not group:
            rows = [TopicLayout(topic=name, **self._laid(name, wrote, 96)) for name in known]
            return LayoutOfEach(**scan, items=rows, complete=True, reason=None)
        topics = [topic] if topic else GROUPS[group][1] if group in GROUPS else []
        if not topics or topics[0] not in known:
            raise NotFoundError(f"there is no queue of {topic or group} in the store")
        return LayoutOfTopics(**scan, topics=topics, **self._laid(topics[0], wrote, 240))

    async def layout_of_both(self, topic, group, from_ms, from_offset) -> Both:
        one = await self.layout(topic, group, from_ms, from_offset) if topic or group else None
        return Both(one=one, each=await self.layout(None, None, from_ms, from_offset))

    def watched_layout(self, topic, group) -> Both:
        return async_to_sync(self.layout_of_both)(topic, group, None, None)

    def _laid(self, name: str, wrote: int, count: int) -> dict:
        """The fields of Placement."""
        messages = TOPICS[name][4]
        size = messages * 200
        return {
            "queues": TOPICS[name][1],
            "messages": messages,
            "bytes": size,
            "gone": 0,
            "share": size / wrote,
            "cell_bytes": [size // count * (1 + cell % 5) // 3 for cell in range(count)],
            "jumps": Jumps(
                count=messages - 1, mean=1_804.5, p50=1_200, p99=9_012, max=2 * MIB, neighbours=17
            ),
            "pages": Pages(touched=size // 2_048, bytes=size * 2, per_byte=2.0, cold_bytes=size // 2),
            "ahead": ReadAhead(bytes=size * 3, per_byte=3.0, cold_bytes=size),
            "resident_share": 0.75,
            "cold_messages": messages // 4,
            "cold_bytes": size // 4,
            "estimate_ms": 2_100.0,
            "complete": True,
            "reason": None,
        }

    def race(self) -> dispatch.Race:
        positions = self.snapshot().positions
        return dispatch.race(
            positions,
            {}
            if positions.wrote is None
            else {"confirmed": 0, "dispatched": 0, "flushed": 310, "checkpoint_position": 22_100},
        )

    def flush(self) -> dispatch.Flushing:
        self._cluster.check_running()
        store = self.snapshot()
        return dispatch.flushing(
            store,
            interval_ms=500,
            sync_us=write_path.sync_facts(self._path()),
            round=dispatch.Round(
                longest_interval_ms=28_000,
                last_duration_ms=38.2,
                position=store.positions.checkpoint_position,
            ),
        )

    def write_path(self) -> PathOfSends:
        facts = write_path.facts(self._path(), "ASYNC_FLUSH", self._cluster.now_ms())
        loop = LoopPauses(longest_us=4_200, at_ms=self._cluster.now_ms() - 9_000, longest_of_run_us=11_800)
        return PathOfSends(
            **fields_of(facts) | {"lately_ms": 60_000},
            loop=loop,
            refusals=sorted(self._cluster.refusals(), key=lambda case: case.cause),
        )

    def _path(self) -> WritePath:
        """So many groups more each second, for a minute, that every number on the page moves."""
        path, numbers = WritePath(lambda: self._cluster.now_ms() - 40_000), random.Random(5)
        for _ in range(400 + self._cluster.now_ms() // 1_000 % 60 * 20):
            path.groups += 1
            came, began, appended, dispatch_s, answer = (
                numbers.lognormvariate(-10 + place, 0.6) for place in (0.5, 0, 0.3, -0.4, 0.4)
            )
            times = (0.0, came, came + began + appended)
            path.end(
                MeasuredGroup(1, times[0], times[1], times[2], dispatch_s, int(numbers.lognormvariate(7, 1))),
                int(numbers.lognormvariate(1, 0.9)) + 1,
                times[2] + dispatch_s,
                times[2] + dispatch_s + answer,
            )
            if path.groups % 9 == 0:
                path.synced(numbers.lognormvariate(-6, 0.5), int(numbers.lognormvariate(11, 1)))
        path.waited(LOG_ROLL, 0.0042)
        return path

    def exposure(self) -> exposure.RunningExposure:
        self._cluster.check_running()
        base = self._cluster.log_files()[-2]
        rate = exposure.ScanRate(bytes_per_s=1.9e9, other_ms=69.0, measured_by=3, why_unknown=None)
        start = exposure.Start(
            file=f"{base:020d}",
            position=base,
            first_ms=self._cluster.now_ms() - 90_000,
            limit_ms=self._cluster.now_ms() - 25_000,
            why="the newest file whose first record is not younger than the checkpoint less 3 s",
        )
        return exposure.with_start(self.snapshot(), start, rate)

    def disk(self) -> DiskFacts:
        self._cluster.check_running()
        now_ms, wrote, total, hour = self._cluster.now_ms(), self._cluster.wrote(), 250 << 30, 3_600_000
        own = {
            "commitlog": wrote,
            "preallocated": 64 * MIB,
            "consumequeue": 31 * MIB,
            "index": 420 * MIB,
            "timer": 5 * MIB,
            "config": 40_960,
            "lost+found": 4_096,
            "samples": 300_000,
        }
        own["others"] = (159 << 30) - sum(own.values())
        reached = [(75, "expired", 61), (85, "forced", 75), (90, "refused", 81), (100, "full", 95)]
        usual, low, high = (
            [
                UsePoint(at_ms=now_ms, used_ratio=0.636),
                UsePoint(at_ms=now_ms + 90 * hour, used_ratio=end),
            ]
            for end in (0.97, 0.8, 1.0)
        )
        return DiskFacts(
            at_ms=now_ms,
            is_running=True,
            file_system=FileSystemUse(
                total_bytes=total, free_bytes=91 << 30, used_bytes=159 << 30, used_ratio=159 / 250
            ),
            use=[KindUse(kind=kind, bytes=size) for kind, size in own.items()],
            log=LogContent(
                files=len(self._cluster.log_files()),
                begin=0,
                end=wrote,
                written_bytes=wrote,
                messages=7_427_288,
                first_ms=now_ms - 50 * hour,
                last_ms=now_ms - 90,
            ),
            settings=RetentionSettings(
                retention_hours=72,
                delete_hours=[4],
                time_zone="UTC",
                tight_percent=75,
                forced_percent=85,
                full_percent=90,
                is_forced=True,
                files_a_look=10,
            ),
            rate=GrowthRate(
                until_ms=now_ms,
                windows=[
                    RateWindow(
                        window_ms=n * hour,
                        from_ms=now_ms - n * hour,
                        bytes=n * hour * 400,
                        bytes_per_s=400_000.0 + n,
                    )
                    for n in (1, 6, 24)
                ],
                doubt=None,
                bytes_per_s=400_024.0,
                basis_ms=24 * hour,
                low_bytes_per_s=400_001.0,
                high_bytes_per_s=400_024.0,
                overhead=0.11,
                others_bytes_per_s=None,
            ),
            marks=[
                Mark(
                    percent=percent,
                    what=what,
                    is_reached=False,
                    bytes_left=(percent << 30) * 5 // 2 - (159 << 30),
                    at_ms=now_ms + at * hour,
                    earliest_ms=now_ms + (at - 9) * hour,
                    latest_ms=None if percent == 100 else now_ms + (at + 20) * hour,
                )
                for percent, what, at in reached
            ],
            highest_ratio=1.0,
            horizon_ms=60 * 24 * hour,
            paths=UsePaths(until_ms=now_ms + 100 * hour, usual=usual, low=low, high=high),
        )

    def disk_forecast(self, retention_hours=None) -> DiskForecast:
        facts, now_ms, hour = self.disk(), self._cluster.now_ms(), 3_600_000
        kept = retention_hours or 72
        of_queue = QueueLoss(
            topic="orders",
            queue_id=2,
            from_offset=7,
            to_offset=41_211,
            messages=41_204,
            bytes=9 * MIB,
            is_read_in_time=False,
        )
        lost = GroupLoss(
            group="nightly-report",
            is_broadcast=False,
            messages=41_204,
            bytes=9 * MIB,
            is_read_in_time=False,
            queues=[of_queue],
            queues_left_out=0,
        )
        unknown = replace(
            lost, group="search-index", messages=1, bytes=None, is_read_in_time=None, is_broadcast=True
        )
        files = []
        for number, base in enumerate(self._cluster.log_files()[:4]):
            written = now_ms - (45 - number * 9) * hour
            files.append(
                DeletedFile(
                    name=f"{base:020d}",
                    base=base,
                    size=FILE_BYTES,
                    wrote=FILE_BYTES,
                    is_full=True,
                    first_ms=written - 9 * hour,
                    modified_ms=written,
                    expires_ms=written + kept * hour,
                    goes_ms=None if number == 3 else max(now_ms, written + kept * hour),
                    losses=[[lost, unknown], [replace(lost, is_read_in_time=True)], [], []][number],
                    losses_left_out=[12, 0, 0, 0][number],
                )
            )
        return DiskForecast(
            **fields_of(replace(facts, settings=replace(facts.settings, retention_hours=kept))),
            files=files,
            files_left_out=3,
            knows_groups=True,
            forced=ForcedDeletion(
                files=[file.name for file in files[:2]],
                bytes=2 * FILE_BYTES,
                losses=[lost],
                losses_left_out=0,
            ),
            is_what_if=retention_hours is not None,
        )

    def timeline(self, group, hours=6) -> GroupTimeline:
        facts, now_ms, hour = self._cluster.groups.detail(group), self._cluster.now_ms(), 3_600_000
        verdicts = ("falls", "keeps_ahead", "unknown", "nothing_unread", "lost")
        queues = []
        for number, queue in enumerate(queue for queue in facts.queues if queue.consumer_offset is not None):
            verdict = verdicts[number % 5]
            lag = 0 if verdict == "nothing_unread" else queue.lag + 5_000
            queues.append(
                QueueTimeline(
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    min_offset=40,
                    max_offset=queue.max_offset,
                    consumer_offset=queue.max_offset - lag,
                    lag=lag,
                    lag_ms=lag * 900,
                    lost=12 if verdict == "lost" else 0,
                    earliest_ms=now_ms - 50 * hour,
                    latest_ms=now_ms - 900,
                    position_ms=now_ms - lag * 900 if lag else None,
                    read_per_s=None if verdict == "unknown" else 11.5,
                    arrives_per_s=12.0,
                    goes_next_ms=now_ms - 41 * hour,
                    cliff=QueueCliff(
                        verdict=verdict,
                        at_ms=now_ms + 30 * hour if verdict == "falls" else None,
                        if_it_stops_ms=now_ms + 28 * hour if verdict != "nothing_unread" else None,
                        file="0" * 20,
                    ),
                )
            )
        points = [
            LagPoint(
                at_ms=now_ms - n * 60_000,
                lag=None if n == 100 else 500 + n * 3 + int(self._cluster.clock()) % 60,
            )
            for n in range(300, -1, -1)
        ]
        events = [
            OffsetReset(
                at_ms=now_ms - 2 * hour, group=group, topic="orders", queue_id=1, before=None, after=40
            ),
            MembersChange(
                at_ms=now_ms - hour,
                group=group,
                clients=2,
                came=1,
                went=0,
                joined=["10.0.3.14@7100"],
                left=[],
            ),
        ]
        return GroupTimeline(
            at_ms=now_ms,
            group=group,
            is_running=True,
            from_ms=now_ms - 50 * hour if queues else None,
            to_ms=now_ms if queues else None,
            retention_hours=72,
            next_file=NextFile(name="0" * 20, expires_ms=now_ms + 27 * hour, goes_ms=now_ms + 28 * hour),
            cliff=Cliff(
                verdict="falls" if queues else "unknown",
                at_ms=now_ms + 30 * hour if queues else None,
                if_it_stops_ms=now_ms + 28 * hour if queues else None,
            ),
            queues=queues,
            queues_left_out=0,
            queues_not_sampled=0,
            history=LagHistory(from_ms=now_ms - hours * hour, points=points if queues else []),
            events=events if queues else [],
        )

    def watched_journey(self, log_offset) -> Journey:
        """One that goes on: a group comes on by a message a second, and another waits."""
        self._cluster.check_running()
        stored, at = (
            self._cluster.stored("orders", 0, log_offset // 1_000),
            log_offset // 1_000 + 1 + int(self._cluster.clock() - self._cluster.started),
        )
        done = [
            ("born", "Born", stored.born_timestamp, None),
            ("stored", "Stored", stored.store_timestamp, log_offset),
            ("disk", "On disk", None, None),
            ("queue", "In its queue", None, stored.queue_offset),
        ]
        stops = [
            stop(kind, title, "done", f"{title}.", at_ms=at_ms, offset=offset, pointer=to_log(log_offset))
            for kind, title, at_ms, offset in done
        ]
        stops += [
            stop("index", f"Indexed by {of}", "done", f"{text}: entry 7 of 20251123050000000.", offset=7)
            for of, text in [
                ("message id", stored.unique_key),
                *(("key", key) for key in stored.keys),
                ("tag", stored.tags),
            ]
        ]
        stops += [
            stop("group", "Read by billing", "done", f"Done with: its position is {at:,}.", offset=at),
            stop("group", "Read by nightly-report", "waiting", "It is the next of the queue.", offset=at - 1),
        ]
        stops += [
            stop(
                "retry",
                "Sent back",
                "done",
                "By billing, for the 1st time.",
                at_ms=stored.store_timestamp + 10_000,
                offset=log_offset + 1_000,
                log_offset=log_offset + 1_000,
            )
        ]
        stops += [
            stop("trace", "Its client says", "done", f"{event.group} {event.words}.", at_ms=event.at_ms)
            for event in self._cluster.events(stored.unique_key)
        ]
        message = JourneyMessage(
            message_id=stored.message_id,
            offset_message_id=stored.offset_id,
            topic=stored.topic,
            queue_id=0,
            queue_offset=stored.queue_offset,
            log_offset=log_offset,
            tag=stored.tags,
            keys=list(stored.keys),
            keys_left_out=0,
        )
        return Journey(
            at_ms=self._cluster.now_ms(),
            source="invented",
            message=message,
            stops=stops,
            complete=True,
            reason="",
        )

    async def journey_of(self, log_offset) -> Journey:
        return self.watched_journey(log_offset)

    async def bytes_at(self, place, most=MAX_BYTES) -> FileBytes:
        """Of a store that the real broker wrote: bytes are not invented."""
        self._cluster.check_running()
        return Viewer(golden_directory(), max_usual=most).read(place)


class FakeFiles(_Part):
    async def all(self, *kinds, topic=None) -> list[StoreFile]:
        return [file for file in self.known(*kinds) if topic in (None, file.topic)]

    async def hung(self) -> list[StoreFile]:
        return [file for file in self.listed() if file.state == "hung"]

    async def with_times(self, files) -> list[StoreFile]:
        now_ms = self._cluster.now_ms()
        return [
            replace(file, first_ms=now_ms - 7_200_000, last_ms=now_ms - 100) if file.wrote else file
            for file in files
        ]

    def known(self, *kinds) -> list[StoreFile]:
        return [file for file in self.listed() if not kinds or file.kind in kinds]

    async def of_queues(self, search, begin, count) -> tuple[list[QueueFile], int]:
        files = [
            QueueFile(**fields_of(file), min_offset=0, max_offset=file.wrote // 20)
            for file in self.known("consumequeue")
            if search in file.topic
        ]
        return files[begin : begin + count], len(files)

    def listed(self) -> list[StoreFile]:
        self._cluster.check_running()
        files, wrote = [], self._cluster.wrote()
        flushed = self._cluster.store.snapshot().positions.flushed
        for base in self._cluster.log_files():
            inside = min(max(wrote - base, 0), FILE_BYTES)
            state = "full" if inside == FILE_BYTES else "writing" if inside else "preallocated"
            files.append(
                self._cluster.file(
                    "commitlog", base, FILE_BYTES, inside, min(max(flushed - base, 0), inside), state
                )
            )
        for name, (_, queues, _, _, messages) in TOPICS.items():
            if messages:
                for queue_id in range(queues):
                    units = messages // queues * 20
                    base = units // 6_000_000 * 6_000_000
                    files.append(
                        self._cluster.file(
                            "consumequeue",
                            base,
                            6_000_000,
                            units - base,
                            units - base - 400,
                            "writing",
                            name,
                            queue_id,
                        )
                    )
        for index in self._cluster.index.facts():
            size = 40 + 5_000_000 * 4 + 20_000_000 * 20
            used = 40 + 5_000_000 * 4 + index.entries * 20
            files.append(
                self._cluster.file("index", int(index.name), size, used, used, index.state, name=index.name)
            )
        return files


class FakeIndex(_Part):
    def facts(self) -> list[IndexFileFacts]:
        self._cluster.check_running()
        now_ms = self._cluster.now_ms()
        current = 7_204_110 + int(self._cluster.clock() - self._cluster.started) * 1_700
        return [
            IndexFileFacts(
                name="20251122090000000",
                slots=5_000_000,
                slots_used=4_908_122,
                entries=19_999_999,
                max_entries=20_000_000,
                begin_ms=now_ms - 50 * 3_600_000,
                end_ms=now_ms - 11 * 3_600_000,
                begin_offset=0,
                end_offset=3 * FILE_BYTES,
                state="full",
            ),
            IndexFileFacts(
                name="20251123050000000",
                slots=5_000_000,
                slots_used=3_811_002,
                entries=current,
                max_entries=20_000_000,
                begin_ms=now_ms - 11 * 3_600_000,
                end_ms=now_ms - 200,
                begin_offset=3 * FILE_BYTES,
                end_offset=self._cluster.wrote(),
                state="writing",
            ),
        ]

    async def explain(self, topic, key, begin_ms=0, end_ms=None, limit=64) -> list[LookupStep]:
        self._cluster.check_running()
        now_ms, file, hashed, us = self._cluster.now_ms(), "20251123050000000", 1_182_734_551, 11.5

        def entry(number: int, at: int, log_offset: int, previous: int, why: str, **more) -> EntryStep:
            said = {"hash": hashed, "counts": True, "kept": False, "message_id": None} | more
            return EntryStep(
                us=us,
                file=file,
                entry=number,
                at=at,
                log_offset=log_offset,
                at_ms=now_ms - 4_000,
                previous=previous,
                why=why,
                **said,
            )

        return [
            HashStep(us=us, key=f"{topic}#{key}", hash=hashed),
            FileStep(
                us=us,
                file=file,
                begin_ms=now_ms - 39_600_000,
                end_ms=now_ms,
                entries=7_204_110,
                used=True,
                why="its time range overlaps the one asked for",
            ),
            SlotStep(
                us=us,
                file=file,
                slot=2_734_551,
                of=5_000_000,
                entry=7_204_110,
                at=10_938_244,
                why="entry 7,204,110 is its newest",
            ),
            entry(
                7_204_110,
                164_082_240,
                40_000,
                401_223,
                "the message has this key",
                kept=True,
                message_id="0A00030E1BC863947C6B000000000028",
            ),
            entry(
                401_223,
                28_024_500,
                12_000,
                300,
                "another hash that shares the slot",
                hash=99_120,
                counts=False,
            ),
            entry(
                300,
                20_006_040,
                10_000,
                0,
                "another key of the same hash: the message is of topic orders and has order-7",
            ),
            ChainEndStep(us=us, file=file, why="no older entry is in this slot"),
            UnindexedStep(
                us=us,
                log_offset=52_000,
                bytes=4_000,
                why="the index is filled up to position 52,000 of 56,000: messages after it are not found yet",
            ),
            StopStep(
                us=us,
                why="there is no older file",
                messages=1,
                counted=2,
                entries=3,
                files=1,
                total_us=212.0,
            ),
        ]

    async def slots(self, name) -> HeatMap:
        return HeatMap(**self._heat_map(name))

    def watched_slots(self, name) -> WatchedSlots:
        """A few cells move each second in the file that is written."""
        cells = self._cells(name)
        return WatchedSlots(
            **self._heat_map(name) | {"cells": None},
            changed=[number for cell in range(40) for number in (cell, cells[cell])],
            since_ms=self._cluster.now_ms() - 6_000,
        )

    def _heat_map(self, name) -> dict:
        """The fields of a HeatMap."""
        facts = next((file for file in self.facts() if file.name == name), None)
        if facts is None:
            raise NotFoundError(f"there is no index file {name}")
        cells = self._cells(name)
        used = cells[17]
        cell = Cell(cell=17, first_slot=8_500, last_slot=8_999, used=used, share=used / 500)
        return {
            "name": name,
            "at_ms": self._cluster.now_ms(),
            "took_ms": 5.5,
            "slots": 5_000_000,
            "entries": facts.entries,
            "max_entries": facts.max_entries,
            "slots_used": facts.slots_used,
            "counted": sum(cells),
            "moving": facts.state == "writing",
            "expected_share": 0.763,
            "spread": 0.0191,
            "expected_spread": 0.019,
            "cell_slots": 500,
            "columns": 100,
            "rows": 100,
            "cells": cells,
            "shares": [
                CellShares(from_=n / 10, to=(n + 1) / 10, cells=5_000 if n in (7, 8) else 0)
                for n in range(10)
            ],
            "emptiest": [cell] * 5,
            "fullest": [cell] * 5,
            "findings": [f"The header says that {facts.slots_used:,} slots are used, {sum(cells):,} are."],
        }

    def _cells(self, name) -> list[int]:
        ticks = int(self._cluster.clock() - self._cluster.started)
        low = 480 if name == "20251122090000000" else 370
        return [
            min(500, low + (cell * 7919 % 23) + (ticks + cell if cell < 40 else 0) % 13)
            for cell in range(10_000)
        ]

    async def chains(self, name) -> Chains:
        facts = await self.slots(name)
        lengths = [(n, n, 1_183_000 // (n + 1), 1_180_000.4 / (n + 1)) for n in range(16)] + [
            (16, 31, 40, 12.5),
            (32, 63, 2, 0.0),
        ]
        keys = [
            ChainKey(hash=1_182_734_551, entries=31, log_offset=40_000, topic="orders", key="customer-9"),
            ChainKey(hash=77, entries=8, log_offset=12_000, topic=None, key=None),
        ]
        return Chains(
            name=name,
            at_ms=facts.at_ms,
            took_ms=290.0,
            slots=5_000_000,
            entries=facts.entries,
            max_entries=facts.max_entries,
            moving=facts.moving,
            used=facts.counted,
            expected_used=3_814_000.2,
            mean=1.44,
            mean_used=1.89,
            touched_by_hit=2.61,
            even_touched_by_hit=2.44,
            touched_by_miss=1.44,
            lengths=[
                ChainLengths(from_=low, to=high, slots=slots, expected=even)
                for low, high, slots, even in lengths
            ],
            longest=[
                LongChain(
                    slot=2_734_551 + n,
                    entries=41 - n,
                    looked_at=41 - n,
                    foreign=10,
                    foreign_share=10 / (41 - n),
                    hashes=4,
                    keys=keys,
                )
                for n in range(10)
            ],
            broken=1,
            unreachable=2,
            unreachable_is_exact=True,
            findings=[
                "1 chain is not whole: 2 of the entries are not reached from the slot, so no lookup finds them."
            ],
        )

    def watched_chains(self, name) -> Chains:
        return async_to_sync(self.chains)(name)

    def rebuild(self) -> RebuildProgress:
        self._cluster.asked.append(("rebuild_index",))
        return self.rebuild_state()

    def rebuild_state(self) -> RebuildProgress:
        return RebuildProgress(state="idle", done_bytes=0, total_bytes=0, error=None)

    def cancel_rebuild(self) -> RebuildProgress:
        self._cluster.asked.append(("cancel_rebuild",))
        return self.rebuild_state()


class FakeAccess(Access):
    """Real access control over invented users, without a broker and a file."""

    def __init__(self, cluster: FakeCluster):
        self._cluster = cluster
        self.control: AccessControl | None = AccessControl(
            authorizes=True,
            cluster="DefaultCluster",
            open_to_all=["34"],
            first_users=[User("root", "the-secret-of-root", KindOfUser.SUPER)],
            clock=cluster.now_ms,
        )
        control = self.control
        entries = [
            {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"},
            {
                "resource": "Topic:pay*",
                "actions": ["All"],
                "decision": "Deny",
                "sourceIps": ["10.0.0.0/8", "192.168.4.17"],
            },
        ]
        state = control.state
        for user in (
            User("billing", "the-secret-of-billing"),
            User("old-importer", "the-secret-of-old", status=Status.DISABLE),
            User("shop", "the-secret-of-shop"),
        ):
            state = state.created(user, None)
        state = state.with_policies(
            "billing",
            read_policies(
                [
                    {"policyType": "Custom", "entries": entries},
                    {
                        "policyType": "Default",
                        "entries": [{"resource": "Group:*", "actions": ["Sub"], "decision": "Allow"}],
                    },
                ]
            ),
        )
        control.replace(state)
        control.note(
            Denied("User:billing has no permission to access Topic:payments", "billing"), "10.0.0.7:4011"
        )
        for _ in range(3):
            control.note(NotAuthenticated("User:missing is not found.", "missing"), "10.0.0.9:4012")
        self._changes = Changing(AccessChanges(control, MemoryStore(cluster.now_ms)))

    def state(self) -> AccessState:
        self._cluster.check_running()
        return embedded_access.state_of(self.control, "DefaultCluster", False)

    def _known(self) -> AccessControl:
        self._cluster.check_running()
        if self.control is None:
            raise embedded_access.off()
        return self.control

    def page(self, search: str, begin: int, count: int) -> tuple[list[AccessUser], int]:
        return embedded_access.page_of(self._known(), search, begin, count)

    def after(self, name: str | None, count: int) -> list[AccessUser]:
        return embedded_access.users_after(self._known(), name, count)

    def detail(self, name: str) -> AccessUserDetail:
        return embedded_access.detail_of(self._known(), name)

    def decide(self, name: str, resource: str, action: str, address: str | None) -> AccessAnswer:
        return embedded_access.answer_of(self._known(), name, resource, action, address)

    async def create_user(self, name: str, password: str, kind: UserType, status: UserStatus) -> None:
        self._known()
        await self._changes.create_user(name, password, kind, status)
        self._cluster.asked.append(("create user", name, kind, status))

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        self._known()
        await self._changes.update_user(name, password=password, kind=kind, status=status)
        self._cluster.asked.append(("update user", name, kind, status))

    async def delete_user(self, name: str) -> None:
        self._known()
        await self._changes.delete_user(name)
        self._cluster.asked.append(("delete user", name))

    async def put_rule(self, name: str, rule: AccessRule) -> None:
        self._known()
        await self._changes.put_rule(name, rule)
        self._cluster.asked.append(("put rule", name, rule.resource))

    async def import_users(self, users: Sequence[UserToImport], dry_run: bool) -> ImportedUsers:
        self._known()
        self._cluster.asked.append(("import users", [user.name for user in users], dry_run))
        return await self._changes.import_users(users, dry_run)

    async def delete_rule(self, name: str, policy: PolicyType, resource: str) -> None:
        self._known()
        await self._changes.delete_rule(name, policy, resource)
        self._cluster.asked.append(("delete rule", name, policy, resource))


class FakeMetrics:
    """What scrapers get: two topics and the groups that read them; one of these has no offset."""

    def __init__(self, fake: FakeCluster):
        self._fake = fake
        self.wanted = "ours,apache,exporter"

    def families(self) -> frozenset[str]:
        return frozenset(self.wanted.split(","))

    async def measure(
        self, topics: Sequence[str], groups: Sequence[str], most_pairs: int, most_names: int
    ) -> Scrape:
        self._fake.check_running()
        flow = Flow(messages=1_000, bytes=100_000, in_minute=600, per_s=10.0, bytes_per_s=1_000.0)
        rates = ThreeRates(s10=12.0, s60=10.0, s600=2.5)
        days = Mornings(yesterday=0, today=400, now=1_000)
        known = {"clients": 1, "model": "clustering", "is_system": False, "kind": "normal"}
        pairs = [
            PairFlow(group="billing", topic="orders", out=flow, sent_back_in_minute=3, offset=988, lag=8,
                     in_flight=4, ready=8, lag_ms=1_500, ready_ms=1_200, **known),
            PairFlow(group="nightly-report", topic="orders", out=None, sent_back_in_minute=None, offset=None,
                     lag=None, in_flight=None, ready=None, **known),
            PairFlow(group="billing", topic="%RETRY%billing", out=None, sent_back_in_minute=None, offset=5, lag=2,
                     in_flight=None, ready=None, **known | {"kind": "retry"}),
        ]  # fmt: skip
        return Scrape(
            at_ms=self._fake.now_ms(),
            broker=self._fake.overview().broker,
            protocol_version=473,
            permission=6,
            serves_grpc=True,
            topics_of_all_kinds=23,
            groups_of_all_kinds=11,
            earliest_ms=self._fake.now_ms() - 60_000,
            flow=BrokerFlow(
                put=flow, got=flow, put_rates=rates, got_rates=rates, found_rates=rates, missed_rates=rates,
                put_days=days, got_days=days, put_times=[1_000, 5, *[0] * 11], longest_put_ms=18,
                longest_read_ms=5, put_ms_99=1.2, put_ms_999=None, sends_waiting=1, most_sends_waiting=10_000,
                pulls_waiting=2, most_pulls_waiting=100_000,
            ),
            topics=[
                TopicFlow(topic="orders", kind="normal", into=flow, end_offset=1_000),
                TopicFlow(topic="%RETRY%billing", kind="retry", into=None, end_offset=7),
                TopicFlow(topic="%DLQ%billing", kind="dlq", into=flow, end_offset=3),
            ],
            pairs=pairs[:most_pairs],
            pairs_left_out=len(pairs) - len(pairs[:most_pairs]),
            producers=[ClientKind(language="java", version="v5_5_0", protocol="remoting", clients=5)],
            consumers=[
                ClientKind(language="go", version="v4_9_8", protocol="remoting", group="billing", mode="push", clients=1)
            ],
            producer_groups=[ProducerGroup(group="shop", clients=5)],
            halves=[OfTopic(topic="orders", messages=2)],
            timed=[OfTopic(topic="reminders", messages=7)],
            timer_enqueued=9,
            timer_delivered=2,
            timer_wait_ms=30,
            due_within=[DueWithin(bound_s=5, messages=1), DueWithin(bound_s=60, messages=6)],
            revive_waits=[ReviveWait(queue_id=0, wait_ms=40), ReviveWait(queue_id=1, wait_ms=None)],
            revive_stored=[
                ReviveRecords(group="billing", topic="orders", kind="CK", records=5, status="PUT_OK"),
            ],
            revive_read=[ReviveRecords(group="billing", topic="orders", kind="ACK", records=4, queue_id=3)],
            not_measured=NotMeasured(lags=0, ready=0, timer=0, revive=1),
            slaves=[SlaveLag(host="10.0.0.9", bytes=4_096)],
            spreads=_spreads(),
        )  # fmt: skip


def _spreads() -> Spreads:
    """1,000 sends that took 1 to 3 ms, and one value of each other kind."""
    one = Distribution(bounds=(5, 60), counts=[0, 1, 0], total=7)
    times = Distribution(bounds=(1, 3), counts=[900, 90, 10], total=1_300)
    of_topic = [OfTopicSpread(topic="orders", is_system=False, values=one)]
    return Spreads(
        requests=[
            RequestTimes(request="send_message_v2", answer="success", waited=False, oneway=False, times=times)
        ],
        message_sizes=of_topic,
        delays=of_topic,
        finished=of_topic,
        topics_put=[Puts(done=True, is_system=False, times=one)],
        groups_put=[Puts(done=True, is_system=False, times=one)],
    )


class FakeCluster:
    """See the module. `state_name` may be set to starting, recovering, running, read_only or failed."""

    def __init__(self, clock: Callable[[], float] = lambda: 1_764_000_000.0, state_name: str = "running"):
        self.clock = clock
        self.state_name = state_name
        self.started = clock()
        self.asked: list[tuple] = []  # every call that would change something
        self.flags: list[Flag] = []
        self.signs: dict = {}  # of mqadmin/cluster/embedded/condition.py, where they are not quiet
        self.extra_messages: list[bytes] = []
        self.refused: list[tuple[str, dict]] = []
        self.topics = FakeTopics(self)
        self.groups = FakeGroups(self)
        self.dead_letters = FakeDeadLetters(self)
        self.search = FakeSearch(self)
        self.sends = FakeSends(self)
        self.pulls = FakePulls(self)
        self.waiting = FakeWaiting(self)
        self.pops = FakePops(self)
        self.store = FakeStore(self)
        self.files = FakeFiles(self)
        self.index = FakeIndex(self)
        self.access = FakeAccess(self)
        self.metrics = FakeMetrics(self)

    def run(self, coroutine):
        return asyncio.run(coroutine)

    def call(self, function, *arguments, **named):
        return function(*arguments, **named)

    def refuse(self, cause, **case) -> None:
        self.refused.append((cause, case))

    def state(self) -> State:
        sentences = {
            "starting": STARTING,
            "recovering": "The store is being recovered after an unclean stop.",
            "running": "Serving.",
            "read_only": "The store takes no messages: a sync failed.",
            "failed": "The broker did not start: commitlog/00000000000000000000 at 4096: a record states "
            "another place in the log.",
        }
        return State(state=self.state_name, sentence=sentences[self.state_name])

    def refusals(self) -> list[Refused]:
        self.check_running()
        now_ms = self.now_ms()
        return [
            Refused(
                cause="WAITED_TOO_LONG",
                count=3,
                at_ms=now_ms - 4_000,
                value=231,
                limit=200,
                who="10.0.0.7:51022",
                answer="",
            ),
            Refused(
                cause="no topic",
                count=1,
                at_ms=now_ms - 90_000,
                value=None,
                limit=None,
                who="10.0.0.9:40112",
                answer="topic[orders2] not exist",
            ),
        ]

    def longest_pause_s(self) -> float:
        return 0.0042

    def overview(self) -> Overview:
        self.check_running()
        store = self.store.snapshot()
        wobble = 1 + 0.06 * ((self.now_ms() // 250 * 7919) % 97 / 48.5 - 1)
        return Overview(
            at_ms=store.at_ms,
            **fields_of(self.state()),
            broker=Broker(
                name="broker-a",
                cluster="DefaultCluster",
                id=0,
                address="127.0.0.1:10911",
                started_ms=int(self.started * 1000) - 8_040_000,
                version="V5_3_3",
            ),
            positions=store.positions,
            lag=store.lag,
            flags=store.flags,
            flush=store.flush,
            totals=store.totals,
            disk=store.disk,
            rates=Rates(
                in_per_s=round(1712.9 * wobble, 1),
                out_per_s=round(1294.4 * wobble, 1),
                in_bytes_per_s=BYTES_PER_SECOND * wobble,
                out_bytes_per_s=302_000.0 * wobble,
            ),
            counts=Counts(topics=5, groups=3, producers=4, consumers=3),
            worst_lag=WorstLag(group="search-index", lag=48_210),
            top_topics=[
                Traffic(name=name, in_per_s=TOPICS[name][2], out_per_s=TOPICS[name][3])
                for name in ("page-views", "orders", "payments")
            ],
        )

    def condition(self) -> Condition:
        """As `signs` say, which a test may set."""
        state = self.state()
        if self.state_name in ("starting", "recovering", "failed"):
            return judge_state(self.now_ms(), state.state, state.sentence)
        quiet = Signs(
            self.now_ms(),
            state.state,
            state.sentence,
            tuple((flag.name, flag.cause) for flag in self.flags),
            {},
            (),
            Refusal(90, False, None),
            0,
            (),
        )
        return judge(replace(quiet, **self.signs))

    def events(self, message_id) -> list[TraceEvent]:
        said = [
            ("sent", 1_000, "shop", 3, True, "", "sent it to orders"),
            ("handed", 1_400, "billing", None, None, "R1", "was given it"),
        ]
        return [TraceEvent(kind, message_id, *rest) for kind, *rest in said]

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def wrote(self) -> int:
        return START_BYTES + int((self.clock() - self.started) * BYTES_PER_SECOND)

    def log_files(self) -> list[int]:
        last = self.wrote() // FILE_BYTES + 1
        return [n * FILE_BYTES for n in range(last + 1)]

    def check_running(self) -> None:
        if self.state_name in ("starting", "recovering", "failed"):
            raise StoreClosedError(self.state().sentence)

    def file(self, kind, base, size, wrote, flushed, state, topic="", queue_id=None, name=None) -> StoreFile:
        return StoreFile(
            kind=kind,
            name=name or f"{base:020d}",
            topic=topic,
            queue_id=queue_id,
            base=base,
            size=size,
            allocated=size if state == "full" else min(size, wrote + 16 * MIB),
            wrote=wrote,
            confirmed=wrote if kind == "commitlog" else None,
            flushed=flushed,
            state=state,
            mapped=state != "full",
            readers=0,
        )

    def raw(self, topic, queue_id, queue_offset, log_offset) -> bytes:
        body = json.dumps(
            {
                "order": 41_000 + queue_offset,
                "customer": f"c-{queue_offset % 97}",
                "amount": 17.5 + queue_offset % 40,
                "currency": "EUR",
                "note": "Größe 42 ✓",
            },
            ensure_ascii=False,
        )
        pairs = {
            "TAGS": "created" if queue_offset % 3 else "paid",
            "KEYS": f"order-{41_000 + queue_offset} c-{queue_offset % 97}",
            # fmt: skip
            "UNIQ_KEY": f"0A00030E1BC863947C6B{queue_offset:012X}",
            "CLUSTER": "DefaultCluster",
            "shop": "berlin",
        }
        stored_ms = self.now_ms() - 600_000 + queue_offset * 1_300
        message = Message(
            topic,
            queue_id,
            body.encode(),
            properties.encode(pairs),
            born_timestamp=stored_ms - 4,
            born_host=BORN_HOST,
            store_host=STORE_HOST,
        )
        return record.encode(message, queue_offset, log_offset, stored_ms)

    def stored(self, topic, queue_id, queue_offset):
        return record.decode(self.raw(topic, queue_id, queue_offset, queue_offset * 1_000))


def moving(state_name: str = "running") -> FakeCluster:
    """A cluster on the real clock."""
    return FakeCluster(time.time, state_name)
