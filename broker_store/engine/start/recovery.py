"""Recovery: from any state that a crash left to a store whose log, queues and index agree.

The log alone decides what exists. Each step is a module of this folder:

     1 load          every file of the store                                  loading, empty_log
     2 queue ends    the log begins where it did; the end of each queue       log_extent, queue_ends,
                                                                              deleted_topics, proof
     3 choose        the log file to scan from                                log_scan
     4 scan          to the first record that is not good: the log's end      log_scan, agreement,
                                                                              index_repair
     5 decide        the end of a crash, or damage; then rehearse step 7      log_end, log_extent, rehearsal
    ------------------------------------------------------------------------- no file was changed so far
     6 cut           log, queues and index; keep copies                       log_end, queue_cut,
                                                                              index_repair, kept_files
     7 dispatch      what queues and index lack                               queue_redo, redispatch, bridge
     8 compare       no queue is shorter than the record of ends says         next_offsets

1. Load every file. A wrong length, a gap in the log or a foreign name stops the start, and so does a log
   that is not there.
2. Close the holes of queues, find the end of each (a zero unit, a step back), and compare it with the record
   of ends: a queue that is not as recorded is damaged. It is copied to lost+found, and built again from its
   last proved unit on.
3. Choose the file to scan from: after a crash by the checkpoint's stamps, after a stop in order by how far
   the queues cover the log (docs/spec/store-behaviour.md sections 4.2 and 4.3).
4. Scan from there, record by record, to the first that is not good: the log's end. On the way each record is
   compared with its unit and its index entries, up to the first of which anything is missing.
5. Decide what that end is. Above the checkpoint's log stamp it is the ordinary end of a crash, unless the
   process was killed since the machine was started, and good records or units of them follow. Below, bytes
   that were on disk have changed: damage, and the start stops, or goes on with `accept_damage`
   (docs/durability.md section 5). Then rehearse step 7 without a change: a start that is refused has changed
   no file.
6. Cut the log there, keep copies of what is removed, zero the tail; cut the queues there, and the index after
   the part that agreed.
7. Dispatch again from where queues or index no longer agree: mostly there is nothing left to do. If a queue
   has a hole, the walk starts over further back.
8. Check that no queue is shorter than the record says: an offset that was given is not given again.

Positions of the log after the scan, in log offsets:

    minimum      compared_from     start.base        agreed               end
    |------------|-----------------|-----------------|--------------------|............
    | not read   | compared        | scanned and compared                 | cut
                 |                 | with CRC                             |
                 |                                   | differs or lacks:  |
                 |                                   | dispatched again   |

What a killed process left is in the system's memory and may not be on the disk. Nothing counts as flushed
because it was found: `flushed` begins at the file of step 3. From there the flushers bring it to the disk and
then move the stamps, as they do for new writes. Only three things cannot wait:

- The zeros after the log's end are synced before anything is written there. An old record that reappeared
  after new ones would count as good.
- With SYNC_FLUSH the whole log is synced, because what is shown must not be lost.
- Names of log files are synced, since no flusher does it.

docs/durability.md section 1 states where this differs from Apache's broker, and why.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.engine.start.agreement import Agreement
from broker_store.engine.start.deleted_topics import drop_if_deleted, judge_record, open_recorded
from broker_store.engine.start.empty_log import begin_empty_log
from broker_store.engine.start.ends import IndexEnd
from broker_store.engine.start.given_numbers import find_given, record_next_offsets, record_numbers_below
from broker_store.engine.start.index_repair import index_place, repair_index
from broker_store.engine.start.kept_files import KeptFiles
from broker_store.engine.start.loading import load_files
from broker_store.engine.start.log_end import cut_log, lower_stamps
from broker_store.engine.start.log_extent import (
    require_begin,
    require_end,
    require_log,
    require_newest,
)
from broker_store.engine.start.log_records import LogRecords
from broker_store.engine.start.log_scan import choose_start, compare_before, scan_log
from broker_store.engine.start.next_offsets import compare_next_offsets, correct_minimums
from broker_store.engine.start.proof import KnownTopics, Proof
from broker_store.engine.start.queue_cut import copy_suspects, cut_queue, is_headless, remove_files
from broker_store.engine.start.queue_ends import close_holes, find_queue_end
from broker_store.engine.start.queue_redo import find_contradicted, go_back
from broker_store.engine.start.queue_units import QueueEnd, QueueUnits
from broker_store.engine.start.redispatch import dispatch_again
from broker_store.engine.start.rehearsal import rehearse
from broker_store.engine.start.report import counted
from broker_store.engine.start.start_records import LastStart
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.engine.start.stated_places import record_to_leave_out
from broker_store.engine.start.unsynced import sync_before_units, take_over_unsynced
from broker_store.engine.store_parts import StoreParts
from broker_store.kernels import context as c


class Recovery:
    """One run of recovery. After it, `log_end` of the report and the queues' next offsets are set."""

    def __init__(self, store: StoreParts, read_config: Callable[[str], str | None], last_start: LastStart):
        """`read_config` returns the text of a file in config/, None without it. `last_start` is the newest
        start before this one of a broker that opened the store."""
        self._store, self._read_config, self._last_start = store, read_config, last_start
        self._state = RecoveryState(Proof(store.ends, 0, False, False))

    @property
    def has_changed_files(self) -> bool:
        """True from the first change of a file on, also when the start is refused afterwards."""
        return self._state.has_changed_files

    @property
    def was_closed(self) -> bool:
        """True if this engine closed the store before this start, by the last block of the record of ends."""
        return self._state.was_closed

    @property
    def last_store_ms(self) -> int:
        """Store time of the last good record in ms, 0 without one."""
        return self._state.last_store_ms

    @property
    def unread_index(self) -> tuple[IndexEnd, ...]:
        """Rows of index files that were not read as a whole."""
        return self._state.unread_index

    @property
    def missing(self) -> list[tuple[ConsumeQueue, int]]:
        """Queues that are shorter than the record says, and its next offset."""
        return self._state.missing

    def run(self, clean: bool) -> int:
        """Bring log, queues and index to agreement; return the log's end. `clean`: the last run ended in
        order.

        Raises DamagedStoreError, StoreError.
        """
        parts, state = self._parts(clean), self._state
        state.trusts_index = clean  # until something in it is found that is not as recorded
        report = parts.report
        # 1. Load every file.
        load_files(parts, state)
        require_log(parts)
        if not parts.log.files:
            report.kind = (
                "first start" if clean and not len(parts.queues) else "normal" if clean else "abnormal"
            )
            with report.step("begin an empty log"):
                end = begin_empty_log(parts, state)
            report.log_end = end
            return end
        report.kind = "normal" if clean else "abnormal"
        # 2. The log begins where it did, and each queue has an end.
        # True if nothing was written since the record of ends: then it is the proof of all files
        is_exact = clean and parts.ends.found and parts.records.is_end(parts.ends.position)
        state.proof = Proof(parts.ends, parts.log.minimum, is_exact, parts.compares_all)
        if clean:
            for doubt in parts.tombstones.doubts(
                parts.ends.position if is_exact else parts.log.files[-1].end
            ):
                report.finding("warning", doubt, f"config/{TOMBSTONES}")
        with report.step("see that the log begins where it did"):
            require_begin(parts, state, is_exact)
        with report.step("find the end of each queue") as step:
            open_recorded(parts, KnownTopics(parts.read_config, clean))
            for queue in parts.queues:
                drop_if_deleted(parts, state, queue)
                close_holes(parts, state, queue)
                # Another file may be the first now: the one before may have been torn, so that its first
                # unit could not be read
                drop_if_deleted(parts, state, queue)
                find_queue_end(parts, state, queue, clean)
            if state.lost_begin is not None and not is_exact:
                record_numbers_below(parts, parts.log.minimum)
            require_newest(parts, state)
            step.detail = counted(len(parts.queues), "queue")
        # 3. Choose the file to scan from.
        start = choose_start(parts, state)
        # 4. Scan to the end of the log, and compare queues and index with it.
        with report.step("find how far the index is sure"):
            place = index_place(parts, state, start)
            topics = KnownTopics(parts.read_config, clean and not state.proof.is_exact)
            agreement = Agreement(
                parts.context, parts.queues, parts.index, parts.dispatcher, place, judge_record(parts, topics)
            )
            agreement.stops_without_queue = topics.is_known
            if not state.proof.is_exact and (clean or not parts.ends.found):
                agreement.allow_no_tags()
        compared_from = compare_before(parts, state, start, place, agreement)
        end = scan_log(parts, state, start, agreement)
        # 5. Decide what that end is, and whether the start can be finished.
        with report.step("see that the log reaches as far as it did"):
            require_end(parts, state, end)
            if state.is_end_lost:
                record_next_offsets(parts, state, end)
        # Below `agreed` queues and index hold all that the log holds.
        agreed = end if agreement.end is None else agreement.end
        headless = {queue for queue in parts.queues if is_headless(parts, state, queue, agreement)}
        # How the queues will be after step 6, which the rehearsal begins with
        kept = {
            queue: QueueEnd(0, 0) if queue in headless else parts.units.end_within(queue, end)
            for queue in parts.queues
        }
        state.contradicted = find_contradicted(parts, state, kept, compared_from)
        if not parts.settings.accept_damage:
            with report.step("see that the start can be finished") as step:
                step.detail = rehearse(
                    parts, state, start.base, agreed, end, place, compared_from, kept, headless
                )
        # 6. Cut. From here on files are changed.
        given = find_given(parts, state, end) if parts.settings.accept_damage else {}
        state.has_changed_files = True  # `abort` stays after a start that fails from here on
        parts.tombstones.write_noted()
        remove_files(parts, state)
        copy_suspects(parts, state, agreement.headless)
        cut_log(parts, end)
        with report.step("lower the checkpoint's stamps") as step:
            step.detail = (
                "they were above the log's last record"
                if lower_stamps(parts, state)
                else "they are not above the log's last record"
            )
        with report.step("cut queues at the log's end") as step:
            cut = sum(cut_queue(parts, state, queue, kept[queue]) for queue in parts.queues if queue in kept)
            report.cut["consumequeue"]["files"] = state.queue_files_gone
            step.detail = (
                f"{cut:,} units pointed at or beyond {end:,}" if cut else "nothing beyond the log's end"
            )
        if not clean:
            sync_before_units(parts, start, end)
        dispatch_from = repair_index(
            parts, state, start.base, agreement.index_place(agreed), end, place, agreement
        )
        for queue in state.shortened.keys() | headless:  # units that agreed were taken away too
            dispatch_from = min(dispatch_from, max(parts.log.minimum, queue.row[c.Q_LOG_END]))
        # 7. Dispatch again what queues and index lack.
        left_out = None if agreed == end else record_to_leave_out(parts, agreed)
        gone_back = {} if agreed == end else go_back(parts, state, compared_from)
        for queue, number in given.items():
            gone_back[queue] = max(number, gone_back.get(queue, 0))
        dispatch_again(parts, state, dispatch_from, end, gone_back, left_out)
        # 8. No offset is given again.
        with report.step("compare next offsets with the record of ends") as step:
            step.detail = compare_next_offsets(parts, state)
        correct_minimums(parts, state)
        parts.context.view[c.QUEUED_KEYS] = 0  # all that is in the log is dispatched
        with report.step("make the log ready to write") as step:
            step.file = parts.log.files[-1].path.name
            parts.log.start_writing(end)
        if not clean:
            take_over_unsynced(parts, start, end)
        parts.dispatcher.start_at(end)
        report.log_end = end
        return end

    def _parts(self, was_clean: bool) -> RecoveryParts:
        store = self._store
        records = LogRecords(store.log, store.settings, store.checkpoint, store.report, was_clean)
        return RecoveryParts(
            store.disk,
            store.settings,
            store.context,
            store.log,
            store.queues,
            store.index,
            store.dispatcher,
            store.checkpoint,
            store.ends,
            store.tombstones,
            store.times,
            self._read_config,
            store.report,
            store.root,
            self._last_start,
            was_clean,
            records,
            QueueUnits(store.disk, store.log, store.ends, records),
            KeptFiles(store.disk, store.root, store.report),
        )
