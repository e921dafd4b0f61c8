"""Sends a group's dead letters once more, with the client that everybody uses.

They stay where they are; how far they were sent is the place of RESENDER in their queue, so that a second run goes on where
the first ended. It moves behind messages that the broker has: one that is killed between may send up to a pull's again.
A message keeps its id, keys, tag and body. It goes to the group alone, by way of its retry topic, or to its topic, where
every group sees it. What a group that consumes in order is sent by its retry topic comes back as a dead letter: while such
a group holds its queues the broker takes a send to that topic for a message given up, as Apache's does.

A letter of a topic that is not there, cannot be, or takes no messages is passed over: a send makes a topic, which not everybody may
who may send dead letters again, and a producer may write any name. One such letter would keep back all behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

from broker_store.broker.topics import FORBIDDEN_TO_SEND, PERM_WRITE
from broker_store.client import Admin, MessageQueue, NoRouteError, Producer, PullConsumer, ReceivedMessage
from broker_store.client.giving_back import COMPRESSION_BITS
from broker_store.errors import MisuseError, NameError_
from broker_store.formats import properties, record
from broker_store.formats.names import check_topic, dead_letter_topic, retry_topic
from broker_store.messages import GetRequest, GetStatus
from broker_store.protocol.bodies import TopicRoute

RESENDER = "CID_RMQ_SYS_DEAD_LETTERS"
TO = ("group", "topic")
MAX_MESSAGES = 100_000  # of one run
MAX_LOOKED = 10_000  # records read for a plan: about a tenth of a second
NO_RETRY_TOPIC = "no retry topic that takes messages: it comes when a consumer of the group connects. Send them to their topics meanwhile"
# What told the broker to keep it back, or was the broker's note of a try that is over.
OVER = (properties.DELAY, properties.REAL_TOPIC, properties.REAL_QUEUE_ID, properties.TRANSACTION_PREPARED, *properties.TIMER_ASKING)


async def resend(nameserver: str, group: str, to: str, limit: int, tell: Callable[[int, int], None]) -> dict:
    """Send at most `limit` of the dead letters that were not sent again yet, oldest first; `tell(sent, of)` follows it.

    {"sent", "left", "came_back": dead letters that came meanwhile, "skipped": those that do not say which topic they are of,
    "without_topic": those of topics that do not exist or take no messages}. Each is sent once, also where a later one is refused.
    MisuseError when the group has none, or no retry topic to send them to; ClientError when the broker does not take one, or none
    at all: what was sent before it counts.
    """
    found = {"sent": 0, "left": 0, "came_back": 0, "skipped": 0, "without_topic": 0}
    letters = dead_letter_topic(group)
    async with PullConsumer(RESENDER, nameserver) as reader, Producer(nameserver, RESENDER) as producer, Admin(nameserver) as admin:
        taken = _Taken(admin, letters)
        try:
            queues = await reader.queues(letters)
        except NoRouteError:
            raise MisuseError(f"group {group} has no dead letters") from None
        if to == "group" and not await taken.is_taken(retry_topic(group)):
            raise MisuseError(f"group {group} has {NO_RETRY_TOPIC}")
        ends = [(queue, await _place(reader, queue), await reader.max_offset(queue)) for queue in queues]
        of = min(limit, sum(end - at for _, at, end in ends))
        for queue, at, end in ends:
            while at < end and (room := limit - found["sent"] - found["skipped"] - found["without_topic"]) > 0:
                result = await reader.pull(queue, at, max_count=min(room, 32, end - at))
                try:
                    for message in result.messages:
                        found[await _send(producer, taken, group, to, message)] += 1
                        at = message.queue_offset + 1
                    at = min(max(at if result.messages else at + 1, result.next_offset), end)
                finally:
                    await reader.commit(queue, at)
                    tell(found["sent"], of)
            found["left"] += end - at
            found["came_back"] += await reader.max_offset(queue) - end
    return found


def plan(store: Any, places: dict[int, int | None], group: str, to: str, limit: int, topics: Container[str], is_taken: Callable[[str], bool]) -> dict:
    """What `resend` would do now: it is said before anything is sent. For a thread: records are read, at most MAX_LOOKED.

    `places` has for each queue of the dead letters how far they were sent before, `topics` the names of those that exist; `is_taken(topic)` is whether messages of it are taken. {"messages"
    that are taken up, "to_send": of these those that are not left out (as far as was looked), "left": beyond the limit, "sent_before", "topics": [{"topic", "messages", "exists", "is_taken"}] of those that were looked at, "skipped": of these
    without a topic, "without_topic": of these whose topic does not exist or takes no messages, where they go to it, "complete", "oldest_ms", "newest_ms",
    "goes_to": the one topic they go to, None for their own, "cannot": why nothing can be sent, "" where it can}.
    """
    topic, counts = dead_letter_topic(group), Counter()
    found = {"group": group, "to": to, "limit": limit, "goes_to": retry_topic(group) if to == "group" else None, "messages": 0, "left": 0, "sent_before": 0, "skipped": 0}
    times, looked = [], 0
    for queue_id, place in sorted(places.items()):
        low, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        at = min(max(place or 0, low), end)
        count = min(limit - found["messages"], end - at)
        found["sent_before"] += at - low
        found["messages"] += count
        found["left"] += end - at - count
        if count:
            times += [store.store_time_at(topic, queue_id, at), store.store_time_at(topic, queue_id, at + count - 1)]
        behind = at + count
        while at < behind and looked < MAX_LOOKED:
            result = store.get_blocking(GetRequest(topic, queue_id, at, min(behind - at, MAX_LOOKED - looked, 512), 1 << 20))
            stored = list(record.decode_all(result.body, check_crc=False)) if result.status is GetStatus.FOUND else []
            looked += max(1, len(stored))
            counts.update(one.properties.get(properties.RETRY_TOPIC) or "" for one in stored)
            at = max(at + 1, result.next_offset)
    found["skipped"] = counts.pop("", 0)
    without_topic = sum(count for name, count in counts.items() if to == "topic" and not is_taken(name))
    cannot = f"The group has {NO_RETRY_TOPIC}." if to == "group" and found["messages"] and not is_taken(retry_topic(group)) else ""
    known = [time_ms for time_ms in times if time_ms is not None and time_ms > 0]
    return found | {
        "topics": [{"topic": name, "messages": count, "exists": name in topics, "is_taken": is_taken(name)} for name, count in counts.most_common()],
        "without_topic": without_topic,
        "to_send": 0 if cannot else found["messages"] - found["skipped"] - without_topic,
        "cannot": cannot,
        "complete": counts.total() + found["skipped"] >= found["messages"],
        "oldest_ms": min(known, default=None),
        "newest_ms": max(known, default=None),
    }


async def _place(reader: PullConsumer, queue: MessageQueue) -> int:
    return max(await reader.committed(queue) or 0, await reader.min_offset(queue))


async def _send(producer: Producer, taken: _Taken, group: str, to: str, message: ReceivedMessage) -> str:
    """What became of a dead letter, as `resend` counts it."""
    stored = message.record
    origin = stored.properties.get(properties.RETRY_TOPIC)
    if not origin:
        return "skipped"
    if to == "topic" and not await taken.is_taken(origin):
        return "without_topic"
    pairs = {name: value for name, value in stored.properties.items() if name not in OVER and value}
    if to == "topic":
        del pairs[properties.RETRY_TOPIC]
    topic = retry_topic(group) if to == "group" else origin
    await producer.send_counted(topic, stored.body, properties.encode(pairs).decode(), stored.sys_flag & COMPRESSION_BITS, 0, None)
    return "sent"


class _Taken:
    """Which topics take messages, by their routes, each asked for once."""

    def __init__(self, admin: Admin, letters: str):
        self._admin, self._letters = admin, letters
        self._known: dict[str, bool] = {}

    async def is_taken(self, topic: str) -> bool:
        """Raises ClientError where the broker takes no messages of any topic, as one whose permission is withheld."""
        if topic not in self._known:
            self._known[topic] = topic not in FORBIDDEN_TO_SEND and await self._is_writable(topic)
        return self._known[topic]

    async def _is_writable(self, topic: str) -> bool:
        try:
            route = await self._admin.route(check_topic(topic))
        except (NameError_, NoRouteError):
            return False
        if _is_writable(route):
            return True
        if not _is_writable(await self._admin.route(self._letters)):
            raise NoRouteError(f"no broker takes messages for topic {topic}, and none for {self._letters}")
        return False


def _is_writable(route: TopicRoute) -> bool:
    return any(queue.perm & PERM_WRITE and queue.write_queue_nums for queue in route.queues)
