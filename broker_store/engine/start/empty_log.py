"""A store without any log file: the log begins again, after everything that was there.

the log before      [ 0 ............ known )                the newest offset that any file states
the log now                          | end )  = known, rounded up to a whole file
a queue             its minimum and its next number are `following`: no message of it can be read, and
                    no number is given again
"""

from __future__ import annotations

from broker_store.engine.queue.consume_queue import queue_name
from broker_store.engine.start.deleted_topics import open_recorded
from broker_store.engine.start.given_numbers import number_after_gone
from broker_store.engine.start.index_repair import indexed_to
from broker_store.engine.start.log_end import lower_stamps
from broker_store.engine.start.next_offsets import begin_queue_at
from broker_store.engine.start.proof import KnownTopics
from broker_store.engine.start.queue_ends import find_queue_end, take_away
from broker_store.engine.start.queue_units import NEVER
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.formats.record import MIN_RECORD
from broker_store.kernels import context as c


def begin_empty_log(parts: RecoveryParts, state: RecoveryState) -> int:
    """Begin the log of a store that had one, after the end of that one; return the log offset of its begin.

    The records of queues and index count as removed by retention (docs/spec/store-behaviour.md section 4.5),
    so no offset is given again.
    """
    given = {}
    for queue in parts.queues:
        if queue.hole is not None:
            parts.report.finding(
                "warning",
                f"a file is missing or empty: those from {queue.hole.files[0].name} on are taken away",
                queue_name(queue),
            )
            take_away(parts, state, queue, queue.hole.files)
        given[queue] = number_after_gone(
            parts, state, queue, parts.units.number_after_units(queue, NEVER), 0, NEVER
        )
        find_queue_end(parts, state, queue, clean=False, log_end=NEVER)
    known = max([parts.ends.position, indexed_to(parts), *(queue.row[c.Q_LOG_END] for queue in parts.queues)])
    open_recorded(parts, KnownTopics(parts.read_config, was_clean=False))
    following = {
        queue: max(queue.maximum, given.get(queue, 0), parts.ends.next_offset(queue.topic, queue.queue_id))
        for queue in parts.queues
    }
    # A record whose number is larger than the count of records that have room before it is damaged
    # (`_is_misnumbered`).
    known = max(known, MIN_RECORD * max(following.values(), default=0))
    end = -(-known // parts.log.file_size) * parts.log.file_size
    state.has_changed_files = True
    for path in state.away:
        parts.kept.keep_away(path)
    lower_stamps(parts, state)
    parts.log.start_writing(end)
    parts.dispatcher.start_at(end)
    if known:
        parts.ends.lower(end, end)
    parts.ends.begin_at(end)
    for queue in parts.queues:
        if following[queue] > queue.maximum:
            begin_queue_at(parts, queue, following[queue])
        queue.row[c.Q_NEXT] = queue.minimum = following[queue]
        queue.row[c.Q_LOG_END] = 0
    parts.index.drop_unused()
    parts.index.start_writing()
    return end
