"""Sending a group's dead letters again, with the public Python client.

The letters stay in their queue. The committed offset of RESENDER there is the end of those that were taken
up, so a second run continues where the first ended. It moves after the broker has stored the messages: a run
that is killed before, or whose database fails, may send up to LETTERS_PER_PULL again. A message keeps its id,
keys, tag and body. It is sent to the group alone, through its retry topic, or to its original topic, where
every group reads it. What is sent to the retry topic of a group that consumes in order comes back as a dead
letter: while such a group holds its queues, the broker treats a send to that topic as a message that was
given up, as Apache's does.

A letter is left out when its topic does not exist, has no valid name, takes no messages, or is none that the
group reads, by its offsets. A send would create the topic; sending dead letters again needs a lower role than
that, and a producer may write any name. With access control the send has the rights of a super user: without
the last rule a producer could have messages sent to a topic that it may not send to. The letters after it are
sent all the same, and the next run tries it again.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from asgiref.sync import sync_to_async

from broker_store.client import (
    Admin,
    Credentials,
    MessageQueue,
    NoRouteError,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TopicRoute,
)
from broker_store.client.send_back import COMPRESSION_BITS
from broker_store.errors import MisuseError, NameError_
from broker_store.formats import properties
from broker_store.formats.names import check_topic, dead_letter_topic, retry_topic
from broker_store.formats.topics import PERM_WRITE, is_of_broker
from mqadmin.facts.dead_letters import NO_RETRY_TOPIC, RESENDER
from mqadmin.facts.offset_ranges import Range, ranges_of
from mqadmin.jobs.facts import Resent

SENT: Final = "sent"
SKIPPED: Final = "skipped"  # the letter does not name its topic
WITHOUT_TOPIC: Final = "without_topic"  # its topic does not exist, takes no messages, or is not the group's
Fate = Literal["sent", "skipped", "without_topic"]
TO = ("group", "topic")
MAX_MESSAGES = 100_000  # of one run
LETTERS_PER_PULL = 32
# Properties that made the broker delay the message, or that it wrote at the first delivery.
DROPPED = (
    properties.DELAY,
    properties.REAL_TOPIC,
    properties.REAL_QUEUE_ID,
    properties.TRANSACTION_PREPARED,
    *properties.TIMER_ASKING,
)


async def resend(
    nameserver: str,
    group: str,
    to: str,
    limit: int,
    report: Callable[[int, int], None],
    left_out: LeftOutStore,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> Resent:
    """Send at most `limit` dead letters that were not sent again yet: first those that earlier runs left out,
    then the others, oldest first.

    Calls `report(sent, of)` after each pull; `left_out` stores which letters are left out. Each letter is
    sent once, also where a later one is refused. Raises MisuseError when the group has no dead letters, or no
    writable retry topic; ClientError when the broker refuses a letter, or all: letters that were sent before
    it count as sent.
    """
    letters = dead_letter_topic(group)
    async with (
        PullConsumer(RESENDER, nameserver, credentials=credentials, tls=tls) as reader,
        Producer(nameserver, RESENDER, credentials=credentials, tls=tls) as producer,
        Admin(nameserver, credentials=credentials, tls=tls) as admin,
    ):
        taken = _Taken(admin, letters, group)
        try:
            queues = await reader.queues(letters)
        except NoRouteError:
            raise MisuseError(f"group {group} has no dead letters") from None
        if to == "group" and not await taken.is_taken(retry_topic(group)):
            raise MisuseError(f"group {group} has {NO_RETRY_TOPIC}")
        stretches, again = [], []
        for queue in queues:
            low = await reader.min_offset(queue)
            at = max(await reader.committed(queue) or 0, low)
            stretches.append((queue, at, await reader.max_offset(queue)))
            again += [
                (queue, first, end)
                for first, end in await sync_to_async(left_out.begin)(queue.queue_id, low, at)
            ]
        of = min(limit, sum(end - at for _, at, end in (*again, *stretches)))
        run = _Run(reader, producer, taken, left_out, group, to, limit, lambda sent: report(sent, of))
        for queue, at, end in again:
            run.left += end - await run.take(queue, at, end, is_again=True)
        for queue, at, end in stretches:
            run.left += end - await run.take(queue, at, end)
            run.came_back += await reader.max_offset(queue) - end
    return run.result()


class LeftOutStore(Protocol):
    """A store of the letters that were left out (mqadmin/jobs/left_out.py). Its methods wait for a
    database."""

    def begin(self, queue_id: int, low: int, place: int) -> list[Range]: ...

    def replace(self, queue_id: int, first: int, end: int, kept: Sequence[Range]) -> None: ...


class _Run:
    """One run of `resend`, with the counts of letters so far."""

    def __init__(
        self,
        reader: PullConsumer,
        producer: Producer,
        taken: _Taken,
        left_out: LeftOutStore,
        group: str,
        to: str,
        limit: int,
        report: Callable[[int], None],
    ):
        self._reader, self._producer, self._taken, self._left_out, self._report = (
            reader,
            producer,
            taken,
            left_out,
            report,
        )
        self._group, self._to, self._room = group, to, limit
        self._counts: Counter[Fate] = Counter()
        self.left = self.came_back = 0

    def result(self) -> Resent:
        return Resent(
            sent=self._counts[SENT],
            left=self.left,
            came_back=self.came_back,
            skipped=self._counts[SKIPPED],
            without_topic=self._counts[WITHOUT_TOPIC],
        )

    async def take(self, queue: MessageQueue, at: int, end: int, *, is_again: bool = False) -> int:
        """Send the letters [at, end) of a queue, as far as the limit allows, and return the offset after the
        last. `is_again`: earlier runs left them out."""
        while at < end and self._room > 0:
            begin, kept = at, []
            # Letters that are left out again do not count for the limit, so the limit does not bound the
            # reads.
            result = await self._reader.pull(
                queue,
                at,
                max_count=min(LETTERS_PER_PULL if is_again else self._room, LETTERS_PER_PULL, end - at),
            )
            try:
                for message in result.messages:
                    if not self._room:
                        break
                    became = await _send(self._producer, self._taken, self._group, self._to, message)
                    self._counts[became] += 1
                    if became != SENT:
                        kept.append(message.queue_offset)
                    # Letters that were left out before do not count for the limit, so that others are sent
                    if became == SENT or not is_again:
                        self._room -= 1
                    at = message.queue_offset + 1
                else:
                    at = min(max(at if result.messages else at + 1, result.next_offset), end)
            finally:
                if at > begin and (kept or is_again):
                    # Before the commit: a run that ends between the two reads these letters again.
                    await sync_to_async(self._left_out.replace)(queue.queue_id, begin, at, ranges_of(kept))
                if not is_again:
                    await self._reader.commit(queue, at)
                self._report(self._counts[SENT])
        return at


async def _send(producer: Producer, taken: _Taken, group: str, to: str, message: ReceivedMessage) -> Fate:
    """Send a dead letter, unless its topic is unknown or not writable; return its fate."""
    stored = message.record
    origin = stored.properties.get(properties.RETRY_TOPIC)
    if not origin:
        return SKIPPED
    if to == "topic" and not (await taken.is_read(origin) and await taken.is_taken(origin)):
        return WITHOUT_TOPIC
    pairs = {name: value for name, value in stored.properties.items() if name not in DROPPED and value}
    if to == "topic":
        del pairs[properties.RETRY_TOPIC]
    topic = retry_topic(group) if to == "group" else origin
    await producer.send_counted(
        topic, stored.body, properties.encode(pairs).decode(), stored.sys_flag & COMPRESSION_BITS, 0, None
    )
    return SENT


class _Taken:
    """The topics that are writable, by their routes, and those that the group reads; each is asked for
    once."""

    def __init__(self, admin: Admin, letters: str, group: str):
        self._admin, self._letters, self._group = admin, letters, group
        self._known: dict[str, bool] = {}
        self._reads: frozenset[str] | None = None

    async def is_read(self, topic: str) -> bool:
        """Return whether the group has an offset in a topic, so that its dead letter may come from it."""
        if self._reads is None:
            self._reads = frozenset(queue.topic for queue in await self._admin.consume_stats(self._group))
        return topic in self._reads

    async def is_taken(self, topic: str) -> bool:
        """Return whether a topic is writable. Raises ClientError if the broker accepts messages for no topic,
        such as a broker whose write permission is withheld."""
        if topic not in self._known:
            # A producer may write any name, and what is sent here is signed as a super user's
            self._known[topic] = not is_of_broker(topic) and await self._is_writable(topic)
        return self._known[topic]

    async def _is_writable(self, topic: str) -> bool:
        try:
            route = await self._admin.route(check_topic(topic))
        except (NameError_, NoRouteError):
            return False
        if _is_writable(route):
            return True
        if not _is_writable(await self._admin.route(self._letters)):
            raise NoRouteError(f"no broker accepts messages for topic {topic}, and none for {self._letters}")
        return False


def _is_writable(route: TopicRoute) -> bool:
    return any(queue.perm & PERM_WRITE and queue.write_queue_nums for queue in route.queues)
