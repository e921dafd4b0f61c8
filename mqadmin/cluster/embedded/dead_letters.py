"""The dead letters of this process's store, and the plan of a job that sends them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from broker_store.engine.store_protocol import Store
from broker_store.formats import properties, record
from broker_store.formats.names import dead_letter_topic, retry_topic
from broker_store.formats.topics import is_of_broker
from broker_store.messages import GetRequest, GetStatus
from broker_store.server.parts import BrokerParts
from mqadmin.cluster.embedded.groups import EmbeddedGroups
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.protocol import DeadLetters
from mqadmin.facts.dead_letters import NO_RETRY_TOPIC, RESENDER, ResendPlan, TopicOfLetters
from mqadmin.facts.offset_ranges import Range, within

MAX_READ = 10_000  # records read for a plan: about a tenth of a second


class EmbeddedDeadLetters(DeadLetters):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host, groups: EmbeddedGroups):
        self._host = host
        self._groups = groups

    def plan(self, group: str, to: str, limit: int, left_out: Mapping[int, Sequence[Range]]) -> ResendPlan:
        parts, places, reads = self._host.call(self._places, group)
        return _plan(parts, places, reads, group, to, limit, left_out)

    def _places(self, group: str) -> tuple[BrokerParts, dict[int, int | None], frozenset[str]]:
        """Return the parts of the broker, by queue the offset up to which its dead letters were taken up, and
        the topics that the group reads."""
        self._groups.check_exists(group)
        parts, topic = self._host.parts, dead_letter_topic(group)
        places = {
            queue_id: parts.offsets.query(RESENDER, topic, queue_id)
            for queue_id in parts.store.queue_ids(topic)
        }
        return parts, places, frozenset(parts.offsets.topics_of(group))


def _plan(
    parts: BrokerParts,
    places: dict[int, int | None],
    reads: frozenset[str],
    group: str,
    to: str,
    limit: int,
    left_out: Mapping[int, Sequence[Range]],
) -> ResendPlan:
    """Return what the job (mqadmin/jobs/dead_letters.py) would do now. For a thread: it reads at most
    MAX_READ records.

    `places` has by queue of the dead letters the offset up to which they were taken up before, `left_out` the
    ranges of these that were left out. `reads` are the topics in which the group has an offset.
    """

    def is_taken(topic: str) -> bool:
        config = parts.topics.get(topic)
        return config is not None and config.writable and not is_of_broker(topic)

    def is_sent_to(topic: str) -> bool:
        return is_taken(topic) and topic in reads

    store = parts.store
    topic = dead_letter_topic(group)
    read = _TopicCounts(store, topic)
    taken_up_before = 0
    again, others = [], []
    for queue_id, place in sorted(places.items()):
        low, end = store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id)
        at = min(max(place or 0, low), end)
        waiting = within(left_out.get(queue_id, ()), low, at)
        again += [(queue_id, *stretch) for stretch in waiting]
        others.append((queue_id, at, end))
        taken_up_before += at - low
    for stretch in again:
        read.add(*stretch)

    def sendable() -> int:
        named = ((name, count) for name, count in read.counts.items() if name)
        return sum(count for name, count in named if to == "group" or is_sent_to(name))

    left_out_before = sum(end - first for _, first, end in again)
    left = max(0, sendable() - limit)
    messages = left_out_before - left
    room, taken_up = max(0, limit - sendable()), list(again)
    of_limit = min(limit, sendable())
    for queue_id, at, end in others:
        count = min(room, end - at)
        room -= count
        of_limit += count
        messages += count
        left += end - at - count
        if count:
            taken_up.append((queue_id, at, at + count))
            read.add(queue_id, at, at + count)
    skipped = read.counts.get("", 0)
    names = [(name, count) for name, count in read.counts.most_common() if name]
    without_topic = sum(count for name, count in names if to == "topic" and not is_sent_to(name))
    cannot = (
        f"The group has {NO_RETRY_TOPIC}."
        if to == "group" and messages and not is_taken(retry_topic(group))
        else ""
    )
    stretches: dict[int, list[int]] = {}  # store times rise with the offsets of a queue
    for queue_id, first, end in taken_up:
        stretches.setdefault(queue_id, []).extend((first, end - 1))
    times = [
        store.reads.times.store_time_at(topic, queue_id, offset)
        for queue_id, offsets in stretches.items()
        for offset in (offsets[0], offsets[-1])
    ]
    known = [time_ms for time_ms in times if time_ms is not None and time_ms > 0]
    is_complete = read.counts.total() >= messages
    return ResendPlan(
        group=group,
        to=to,
        limit=limit,
        goes_to=retry_topic(group) if to == "group" else None,
        messages=messages,
        left=left,
        sent_before=taken_up_before - left_out_before,
        left_out_before=left_out_before,
        topics=[
            TopicOfLetters(
                topic=name,
                messages=count,
                exists=name in parts.topics.names,
                is_taken=is_taken(name),
                is_read=name in reads,
            )
            for name, count in names
        ],
        skipped=skipped,
        without_topic=without_topic,
        to_send=0 if cannot else min(limit, messages - skipped - without_topic),
        cannot=cannot,
        complete=is_complete,
        # Not all topics of those left out before were read
        of_limit=of_limit if is_complete else min(limit, messages),
        oldest_ms=min(known, default=None),
        newest_ms=max(known, default=None),
    )


class _TopicCounts:
    """Counts of dead letters by their original topic ("" where they do not name it), of at most MAX_READ."""

    def __init__(self, store: Store, topic: str):
        self._store, self._topic, self._read = store, topic, 0
        self.counts: Counter[str] = Counter()

    def add(self, queue_id: int, at: int, end: int) -> None:
        while at < end and self._read < MAX_READ:
            result = self._store.reads.get_blocking(
                GetRequest(self._topic, queue_id, at, min(end - at, MAX_READ - self._read, 512), 1 << 20)
            )
            stored = (
                list(record.decode_all(result.body, check_crc=False))
                if result.status is GetStatus.FOUND
                else []
            )
            self._read += max(1, len(stored))
            self.counts.update(one.properties.get(properties.RETRY_TOPIC) or "" for one in stored)
            at = max(at + 1, result.next_offset)
