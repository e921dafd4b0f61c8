"""Topics that were deleted: by this broker, which keeps tombstones, or by Apache's, which does not.

    log    --- a ------- b ----| before |------- c ------>
           records of topic T           T, created again
           (deleted)                    (numbers from 0 on)

A tombstone has, by topic, the log offset `before`: records of the topic below it count as gone.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.start.proof import KnownTopics
from broker_store.engine.start.queue_units import NEVER
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.formats import queue_unit
from broker_store.kernels import context as c


def open_recorded(parts: RecoveryParts, topics: KnownTopics) -> None:
    """Open queues that are in the record of ends and not in the directory; those of deleted topics are
    dropped from the record instead.

    A queue that was begun after lost messages has 0 as the end of its record. The tombstone may be older than
    that queue, so the queue stays: at worst a new topic of that name continues with the numbers of the
    deleted one.
    """
    deleted = set()
    for topic, queue_id in list(parts.ends.queues):
        log_end = max(end.log_end for end in parts.ends.queues[topic, queue_id].values())
        before = parts.context.topics[topic].row[c.T_DELETED_BEFORE] if topic in parts.context.topics else 0
        if 0 < log_end <= before:
            parts.ends.drop(topic, queue_id)
        elif topics.is_deleted(topic) and not any(one.files for one in parts.queues.of_topic(topic)):
            parts.ends.drop(topic, queue_id)
            deleted.add(topic)
        elif parts.queues.find(topic, queue_id) is None:
            parts.queues.open(topic, queue_id).start_at(0)
    for topic in sorted(deleted):
        note_deleted_topic(parts, topic, parts.ends.position)


def drop_if_deleted(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue) -> None:
    """Drop the files of a queue of a deleted topic that a crash left or restored: nothing in them may be
    served."""
    before = parts.context.topic(queue.topic).row[c.T_DELETED_BEFORE]
    if not queue.files or not before:
        return
    units = queue_unit.decode_all(queue.files[0].map().read(0, queue.file_size))
    first = next((unit for unit in units if not unit.is_pre_blank), None)
    if first is not None and first.is_data and first.log_offset < before:
        for file in queue.files:
            file.unmap()
        state.removed += [file.path for file in queue.files]
        queue.files = []


def judge_record(
    parts: RecoveryParts, topics: KnownTopics
) -> Callable[[int, str, ConsumeQueue | None, int], bool]:
    """Return the function that the comparison calls for a record without a unit. It returns whether the
    record
    is of a topic that was deleted since, and maybe created again."""

    def is_of_deleted(offset: int, topic: str, queue: ConsumeQueue | None, unit: int) -> bool:
        if queue is None:
            if topics.is_deleted(topic):
                note_deleted_topic(parts, topic, NEVER)
                return True
            return False
        if not parts.units.states_unit(queue, unit):
            return False
        queues = parts.queues.of_topic(topic)
        if any(parts.units.leads_to(one, offset) for one in queues):
            return False  # the topic's own unit leads to it: the number that it states is damaged
        begins = [parts.units.log_offset_of_first(one) for one in queues]
        if any(0 <= begin <= offset for begin in begins):
            # A topic is deleted with all its queues, and this queue existed before and after the record
            return False
        before = min([begin for begin in begins if begin > offset], default=offset + 1)
        note_deleted_topic(parts, topic, before)
        return True

    return is_of_deleted


def note_deleted_topic(parts: RecoveryParts, topic: str, before: int) -> None:
    """Count records of `topic` below log offset `before` as deleted. The file of tombstones is written once
    the start is sure to go on."""
    parts.tombstones.note(topic, before)
    parts.report.finding(
        "info",
        f"topic {topic} was deleted by another broker: its records below log offset {before:,} are ignored",
    )
