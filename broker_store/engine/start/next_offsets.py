"""Step 8: no queue is shorter than the record of ends says. An offset that was given is not given again."""

from __future__ import annotations

from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue, queue_name
from broker_store.engine.start.ends import BOUND
from broker_store.engine.start.log_extent import report_lost_begin
from broker_store.engine.start.report import counted
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.kernels import context as c


def compare_next_offsets(parts: RecoveryParts, state: RecoveryState) -> str:
    """Check that each queue is as long as the record says; return the outcome as a sentence.

    A queue of which the log holds no record begins at its recorded end.
    """
    begun, numbered = 0, {}
    for topic, queue_id in list(parts.ends.queues):
        queue, following = parts.queues.find(topic, queue_id), parts.ends.next_offset(topic, queue_id)
        if queue is None or queue.maximum >= following:
            continue
        log_end = max(end.log_end for end in parts.ends.queues[topic, queue_id].values())
        log_end = max(log_end, state.recorded_to.get((topic, queue_id), 0))
        # Retention removed the records of all its messages: the queue is empty, and goes on with its numbers.
        if log_end <= parts.log.minimum and not parts.units.reaches_log(queue):
            begin_queue_at(parts, queue, following)
            begun += 1
            if parts.ends.queues[topic, queue_id].keys() != {BOUND}:
                numbered[topic, queue_id] = following
            continue
        what = (
            f"units {queue.maximum:,} to {following - 1:,} are missing and the log does not hold "
            f"their records"
        )
        parts.report.finding(
            "error", f"{what}; placeholders are put there", queue_name(queue), queue.maximum * UNIT
        )
        state.missing.append((queue, following))
    short = dict(state.missing)
    for queue, contradicted in state.contradicted.items():
        is_short = queue.maximum < contradicted.following
        done = "placeholders are put there" if is_short else "accepted"
        parts.report.finding(
            "error", f"{contradicted.what(queue)}; {done}", queue_name(queue), contradicted.first * UNIT
        )
        if is_short:
            short[queue] = max(contradicted.following, short.get(queue, 0))
    state.missing = list(short.items())
    # Their files are not as recorded any more: the next round records them again.
    for queue in state.suspects.keys() | state.bridged:
        if queue not in short:
            parts.ends.drop(queue.topic, queue.queue_id)
    parts.ends.drop_before(parts.log.minimum)
    if numbered:  # the file of its next message begins with blank units, and would not be as recorded
        parts.ends.bound(numbered, parts.ends.position, remade=numbered)
    return (
        f"{counted(begun, 'queue')} without a message in the log begin where they ended, "
        f"{counted(len(state.missing), 'queue')} lack messages"
    )


def begin_queue_at(parts: RecoveryParts, queue: ConsumeQueue, following: int) -> None:
    """Let the next message of a queue without any get the offset `following`."""
    for file in queue.files:
        file.unmap()
        parts.kept.keep_away(file.path)
    queue.files = []
    queue.start_at(0)
    queue.begin_at_unit(following)
    queue.row[c.Q_LOG_END] = 0


def correct_minimums(parts: RecoveryParts, state: RecoveryState) -> None:
    """Set the minimum offset of each queue to its first unit whose record is in the log."""
    with parts.report.step("correct the minimum offsets"):
        for queue in parts.queues:
            queue.row[c.Q_NEXT] = queue.maximum  # the offset of the next message
            queue.keep_unproved(queue.maximum)
            if queue.files:
                queue.minimum = max(queue.minimum, queue.files[0].base // UNIT)
            queue.correct_minimum(parts.log.minimum)
        report_lost_begin(parts, state)
