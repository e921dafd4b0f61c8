"""Storing of messages that come by REST."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Sequence

from broker_store.broker.topics import TopicConfig
from broker_store.formats import message_id, properties
from broker_store.formats.topics import FORBIDDEN_TO_SEND, PERM_WRITE
from broker_store.messages import LOOPBACK_HOST, Message
from broker_store.rest.answers import Receipt
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem, problem_of_put
from broker_store.server.send_group import SENT
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.topics import config_of
from mqadmin.cluster.protocol import Sends

ID_PERIOD_MS = 31 * 86_400_000  # after this period the time in a message id begins at 0 again
# Properties that a REST message may not have: transactions and timers have requests of their own, the broker
# writes the rest.
NOT_BY_REST = frozenset(
    {
        "TRAN_MSG",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "REAL_TOPIC",
        "REAL_QID",
        "POP_CK",
        "INNER_NUM",
    }
)


class EmbeddedSends(Sends):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host
        self._queue_turn = itertools.count()
        self._ids = itertools.count(random.getrandbits(15))
        self._loader = random.getrandbits(32)

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[Receipt | Problem]:
        parts = self._host.parts
        config = config_of(parts, topic)
        if parts.topics.is_system(topic) or topic in FORBIDDEN_TO_SEND:
            raise Problem(
                "not_writable",
                f"topic {topic} belongs to the broker: no message can be sent to it by REST or from a page",
                "send to a topic of your own",
            )
        if (
            not config.writable
            or not parts.settings.broker_permission & PERM_WRITE
            or config.write_queues < 1
        ):
            raise Problem("not_writable", f"topic {topic} is not writable")
        now_ms = parts.clock()
        answers: list[Problem | asyncio.Task[Receipt | Problem]] = []
        for new in messages:
            try:
                message, unique_key = self._message(config, new, now_ms)
            except Problem as problem:
                answers.append(problem)
                continue
            answers.append(asyncio.ensure_future(self._store_one(message, unique_key)))
        await asyncio.gather(*(answer for answer in answers if isinstance(answer, asyncio.Task)))
        return [answer.result() if isinstance(answer, asyncio.Task) else answer for answer in answers]

    async def _store_one(self, message: Message, unique_key: str) -> Receipt | Problem:
        parts = self._host.parts
        topic, queue_id = message.topic, message.queue_id
        result = await parts.sends.put(message)
        if result.status not in SENT:
            return problem_of_put(result.status, message, parts.store_settings.max_message_size)
        store_host = parts.endpoint.store_host
        return Receipt(
            status=result.status.name,
            topic=topic,
            queue_id=queue_id,
            queue_offset=result.queue_offset,
            log_offset=result.log_offset,
            message_id=unique_key,
            offset_message_id=message_id.encode_offset_id(store_host, result.log_offset),
            store_time_ms=result.store_timestamp,
        )

    def _message(self, config: TopicConfig, new: NewMessage, now_ms: int) -> tuple[Message, str]:
        parts = self._host.parts
        if not new.body:
            raise Problem("invalid", "the body is empty")
        queues: Sequence[int] = range(config.write_queues)
        if (mapping := parts.static_topics.get(config.name)) is not None:
            queues = sorted(mapping.leads.values())
            if not queues or new.queue_id not in (None, *queues):
                raise Problem(
                    "not_writable",
                    f"of static topic {config.name} this broker leads the queues {queues}, by the numbers of "
                    "its store; a message in another queue would reach no consumer",
                    "send by a client of RocketMQ in Java",
                )
        if new.queue_id is not None and new.queue_id >= config.write_queues:
            raise Problem(
                "queue_not_found",
                f"topic {config.name} has {config.write_queues} queues to write to, numbered from 0; "
                f"there is no queue {new.queue_id}",
            )
        for name in NOT_BY_REST & new.properties.keys():
            raise Problem("invalid", f"property {name} is not allowed in messages sent by REST")
        unique_key = new.properties.get(properties.UNIQUE_KEY) or self._unique_id(now_ms)
        pairs = {
            **new.properties,
            properties.UNIQUE_KEY: unique_key,
            properties.TAGS: new.tag or None,
            properties.KEYS: properties.join_keys(new.keys) or None,
            properties.WAIT: "true",
            properties.MESSAGE_REGION: parts.settings.region_id,
            properties.CLUSTER: parts.cluster,
        }
        queue_id = queues[next(self._queue_turn) % len(queues)] if new.queue_id is None else new.queue_id
        message = Message(
            config.name,
            queue_id,
            new.body,
            properties.encode(pairs),
            new.flag,
            0,
            now_ms,
            LOOPBACK_HOST,
            parts.endpoint.store_host,
        )
        level = new.properties.get(properties.DELAY, "")
        if level.isascii() and level.isdigit() and 0 < int(level[:9]):
            parts.delay.schedule(message, int(level[:9]))
        return message, unique_key

    def _unique_id(self, now_ms: int) -> str:
        address = self._host.parts.endpoint.store_host[0]
        return message_id.encode_unique_id(
            message_id.UniqueId(address, os.getpid(), self._loader, now_ms % ID_PERIOD_MS, next(self._ids))
        )
