"""Removes from the mappings of static topics what is not needed any more, in the hours of `deleteWhen`.

    first item   of a queue that this broker leads, whose messages are all deleted: no offset lies in it. Then
                 its broker may be taken away
    whole row    of a queue that this broker led before the last move but one: the leader does not name this
                 broker as the one before, so no request comes for it

Source: Apache's `TopicQueueMappingCleanService`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from broker_store.errors import BrokerStoreError, FormatError, PeerError
from broker_store.formats.static_topics import MappingInfo, Row, TopicMapping
from broker_store.protocol import offset_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.members import loads_object
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import QueueOffsets
from broker_store.repeated_log import RepeatedLog
from broker_store.server.other_brokers import OtherBrokers
from broker_store.server.parts import BrokerParts

INTERVAL_S = 300.0

log = logging.getLogger(__name__)


class StaticTopicCleaning:
    """Loop's thread."""

    def __init__(self, parts: BrokerParts, brokers: OtherBrokers):
        self._parts, self._brokers = parts, brokers
        self._log = RepeatedLog(log)

    async def run(self) -> None:
        """Clean each INTERVAL_S, in the hours for it, until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.in_its_hours()

    async def in_its_hours(self) -> None:
        """Clean if this is an hour for it."""
        hour = time.localtime(self._parts.clock() / 1000).tm_hour
        if hour in self._parts.store_settings.delete_hours:
            await self.clean()

    async def clean(self) -> None:
        """Clean all mappings of this broker. Of a topic for which another broker does not answer, the rest is
        left for the next time."""
        for topic in list(self._parts.static_topics.table):
            for clean in (self._remove_first_items, self._remove_rows):
                mapping = self._parts.static_topics.get(topic)
                if mapping is None or mapping.broker != self._parts.broker_name:
                    continue
                try:
                    await clean(mapping)
                except (OSError, TimeoutError, BrokerStoreError) as error:
                    self._log.write(
                        logging.WARNING,
                        "cleaning of static topics",
                        time.monotonic(),
                        "the mapping of static topic %s is cleaned later: %s",
                        topic,
                        str(error) or type(error).__name__,
                    )

    async def _remove_first_items(self, mapping: TopicMapping) -> None:
        firsts = {
            number: row[0]
            for number, row in mapping.rows.items()
            if len(row) > 1 and mapping.is_leader_of(row)
        }
        ranges: dict[MessageQueue, QueueOffsets] = {}
        for broker in {item.broker for item in firsts.values()}:
            ranges |= await self._ranges(mapping, broker)
        rows = dict(mapping.rows)
        for number, item in firsts.items():
            found = ranges.get(MessageQueue(mapping.topic, item.broker, item.queue_id))
            if found is not None and found.min_offset == found.max_offset:
                rows[number] = rows[number][1:]
        await self._replace(mapping, rows)

    async def _ranges(self, mapping: TopicMapping, broker: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the ranges of the physical queues that a broker has of the topic."""
        if broker == mapping.broker:
            reads, topic = self._parts.store.reads, mapping.topic
            return {
                MessageQueue(topic, broker, number): QueueOffsets(
                    max(0, reads.min_offset(topic, number)), max(0, reads.max_offset(topic, number))
                )
                for number in mapping.queues_at(broker)
            }
        answer = await self._ask(mapping, broker, R.GET_TOPIC_STATS_INFO, lo="false")
        return offset_bodies.decode_topic_stats(answer.body)

    async def _remove_rows(self, mapping: TopicMapping) -> None:
        known = {number: row[-1].broker for number, row in mapping.rows.items() if row}
        moved = {number: broker for number, broker in known.items() if broker != mapping.broker}
        if not moved:
            return
        newest: dict[int, MappingInfo] = {}
        for route in await self._brokers.routes(mapping.topic):
            for info in route.mappings.values():
                for number in info.leads:
                    if number not in newest or newest[number].epoch < info.epoch:
                        newest[number] = info
        leaders = {number: newest[number].broker for number in moved if number in newest}
        details = {
            broker: await self._detail(mapping, broker)
            for broker in {leaders[number] for number in leaders if leaders[number] != moved[number]}
        }
        rows = dict(mapping.rows)
        for number, leader in leaders.items():
            of_leader = details.get(leader)
            if of_leader is None or (of_leader.total_queues, of_leader.epoch) != (
                mapping.total_queues,
                mapping.epoch,
            ):
                continue
            row = of_leader.rows.get(number, ())
            if row and row[-1].broker == leader != moved[number]:
                del rows[number]
        await self._replace(mapping, rows)

    async def _detail(self, mapping: TopicMapping, broker: str) -> TopicMapping:
        """Return the mapping of the topic that another broker has."""
        answer = await self._ask(mapping, broker, R.GET_TOPIC_CONFIG, lo="true")
        try:
            return TopicMapping.from_json(loads_object(answer.body).get("mappingDetail"))
        except FormatError as error:
            raise PeerError(f"broker {broker:.60} has no mapping of it: {error}") from None

    async def _ask(self, mapping: TopicMapping, broker: str, code: R, **fields: str) -> Command:
        address = await self._brokers.address_of(broker, mapping.topic)
        sent = {"topic": mapping.topic, "bname": broker} | fields
        answer = await self._brokers.request(address, code, sent)
        if answer.code != ResponseCode.SUCCESS:
            raise PeerError(f"broker {broker:.60} answered {answer.code} {answer.remark or '':.120}")
        return answer

    async def _replace(self, mapping: TopicMapping, rows: dict[int, Row]) -> None:
        """Replace the rows of a mapping, unless it has changed since it was read."""
        if rows == mapping.rows:
            return
        change = replace(mapping, rows=rows)
        if await self._parts.static_topic_changes.make(
            mapping.topic, lambda now: change if now is mapping else None
        ):
            log.info("items of static topic %s that are not needed any more were removed", mapping.topic)
