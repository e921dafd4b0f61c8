"""The index: from where on its entries are compared with the log, and how it is cut and filled again.

index files   [ 1 ][ 2 ][ 3 ]
                   ^ place: entries before it are kept as they are
                        ^ agreed: entries up to here are those of the log
                        |---> taken out; dispatch adds them again
"""

from __future__ import annotations

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.index.places import IndexPlace, place_at_end, place_before, place_of, whole_place_of
from broker_store.engine.index.relink import cut_index, is_linked, settle_passed
from broker_store.engine.start.agreement import Agreement
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.formats.index_file import FIRST_ENTRY, IndexHeader
from broker_store.kernels import context as c


def index_place(parts: RecoveryParts, state: RecoveryState, start: MappedFile) -> IndexPlace | None:
    """Return from where on index entries are compared, None without an index: earlier ones have been on the
    disk since the stamps that chose `start` were set."""
    if not parts.settings.message_index_enable:
        return None
    if not parts.was_clean or not state.proof.is_exact or parts.ends.note:
        return _place_after_record(parts, state, start)
    unsound = state.proof.first_unsound(parts.index, parts.log.minimum)
    if unsound is None:
        return place_at_end(parts.index.files)
    number, why = unsound
    state.trusts_index = False
    place = place_before(parts.index.files, number)
    parts.report.finding(
        "warning",
        f"{why}; the index is made again from {max(place.log_offset, parts.log.minimum):,} of the log on",
        "index",
    )
    return place


def _place_after_record(parts: RecoveryParts, state: RecoveryState, start: MappedFile) -> IndexPlace:
    """Return from where on index entries are compared, for a store that was written after its record of ends,
    or has none."""
    state.trusts_index = False
    known = max(parts.log.minimum, parts.ends.position)
    if not parts.was_clean:
        known = min(start.base, known)  # a block is on the disk before the stamps that chose `start` move
    elif parts.ends.note:
        known = parts.log.minimum  # the record is damaged: the whole index is compared with the log
    place = whole_place_of(parts.index.files, known, parts.log.minimum, parts.records.begins_record)
    missing = state.proof.first_missing(parts.index, parts.log.minimum)
    if missing is None and not parts.compares_all:
        return place
    # If a file is missing, others may be damaged, and their entries decide from where on the log is compared.
    found = [one for one in (missing, state.proof.first_changed(parts.index)) if one is not None]
    if not found:
        return place
    number, why = min(found)
    # Never beyond `known`, in any file: entries there may belong to records that a power cut took.
    place = min(place, place_before(parts.index.files, number))
    parts.report.finding(
        "warning",
        f"{why}; the index is compared with the log from {max(place.log_offset, parts.log.minimum):,} on",
        "index",
    )
    return place


def index_redo(
    parts: RecoveryParts, state: RecoveryState, start: int, agreed: int, end: int, place: IndexPlace | None
) -> int:
    """Return the log offset from which on the log is dispatched again for the index."""
    newest = parts.index.newest_used()
    if place is None or not state.trusts_index or newest is None or newest.end_offset < end:
        return agreed
    return max(parts.log.minimum, place_of(parts.index.files, min(agreed, start)).log_offset)


def repair_index(
    parts: RecoveryParts,
    state: RecoveryState,
    start: int,
    agreed: IndexPlace,
    end: int,
    place: IndexPlace | None,
    agreement: Agreement,
) -> int:
    """Cut the index after the part that agreed; return the log offset from which on the log must be
    dispatched again."""
    index = parts.index
    if place is None:
        return agreed.log_offset
    with parts.report.step("repair the index") as step:
        index.drop_unused()
        newest = index.newest()
        is_beyond = False
        if newest is not None and state.trusts_index:
            # Closed in order. With entries of records beyond the log's end it is cut there.
            is_beyond = newest.end_offset >= end
            if not is_beyond:
                state.unread_index = () if parts.compares_all else parts.ends.index
                index.start_writing()
                _index_from(parts, newest)
                step.detail = "it was closed in order"
                return agreed.log_offset
            agreed = IndexPlace(len(index.files) - 1, newest.count, min(agreed.log_offset, start))
        is_whole = newest is not None and (agreed.file, agreed.entry) == (
            len(index.files) - 1,
            newest.count,
        )
        # Entries of damaged parts of the log: without this a lookup would end at one of them.
        settled = sum(settle_passed(index.files, part, parts.kept.copy_aside) for part in agreement.passed)
        names = [int(file.name) for file in index.files]
        compared = names[place.file] if names else 0
        if (
            parts.was_clean
            and newest is not None
            and is_whole
            and not settled
            and agreed.log_offset == end
            and agreement.ends_with(newest)
            and is_linked(index.files, place.file)
        ):
            # Files before the compared ones were not read: a worker compares them with the record later.
            state.unread_index = tuple(end for end in parts.ends.index if end.name < compared)
            parts.ends.index = state.unread_index
            index.start_writing()
            _index_from(parts, newest)
            step.detail = "its entries are those of the log"
            return end
        # After a crash the crash tore the end of the index. After a stop in order it is damage, and a copy is
        # kept.
        if parts.was_clean and not is_whole:
            for file in index.files[place.file :]:
                parts.kept.copy_aside(file.path, file.map())
        agreed_to = agreed.entry if agreed.file == place.file else index.geometry.entries
        state.unread_index = tuple(
            end
            for end in parts.ends.index
            if end.name < compared or (end.name == compared and end.count <= agreed_to)
        )
        # Later ones may be filled again under their names.
        parts.ends.index = tuple(end for end in parts.ends.index if end.name in names[: place.file])
        cut, gone, linked = cut_index(
            index.files, agreed, place.file, parts.kept.keep_away, parts.records.stored_ms
        )
        parts.report.cut["index"] = {"entries": cut, "files": gone, "linked": linked}
        index.start_writing()
        last = _index_from(parts, index.newest())
        dispatch_from = agreed.log_offset
        if is_beyond:  # it was not compared: its entries may end anywhere
            dispatch_from = min(
                dispatch_from, parts.log.minimum if last is None else max(parts.log.minimum, last)
            )
        step.detail = (
            f"{cut:,} entries and {gone:,} files taken out, {linked:,} files linked again; goes on "
            f"from {dispatch_from:,}"
        )
        if settled:
            step.detail += (
                f"; of the entries that cannot be compared, {settled:,} were out of order and are "
                f"put in order"
            )
        return dispatch_from


def _index_from(parts: RecoveryParts, newest: IndexHeader | None) -> int | None:
    """Let dispatch add no entry of the last record in the index, which has all its entries; return its log
    offset, None without one."""
    if newest is None or newest.count <= FIRST_ENTRY:
        return None
    parts.context.view[c.INDEX_END_OFFSET] = newest.end_offset + 1
    return newest.end_offset


def indexed_to(parts: RecoveryParts) -> int:
    """Return the log offset after the begin of the last record in the index; 0 without one, and where the
    newest file's header and last entry differ."""
    newest = next((file for file in reversed(parts.index.files) if file.bounded_count > FIRST_ENTRY), None)
    if newest is None or newest.entry(newest.bounded_count - 1).log_offset != newest.header().end_offset:
        return 0
    return newest.header().end_offset + 1
