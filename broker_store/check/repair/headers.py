"""Records with a sound body that state another queue or number than the unit that points to them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np

from broker_store.check.files import StoreFile
from broker_store.check.log import Stretch
from broker_store.check.repair.actions import Action, Restore
from broker_store.check.repair.pieces import Place
from broker_store.check.rules import QUEUE_OFFSET
from broker_store.check.walk import StoreCheck
from broker_store.engine.log.row_buffer import ColumnBuffer
from broker_store.formats import record
from broker_store.formats.queue_unit import LIGHT_QUEUE

_MAX_SUSPECTS = 1 << 16  # units of a span that are compared with their records

Patches = list[tuple[int, bytes]]  # offset in the record or file, bytes


class HeaderPlan:
    """Plans the repair of headers. `restored` are (topic, queue id, queue offset) that are written into a
    record again, `stretches` the damaged stretches of one record that is good with them."""

    def __init__(self, check: StoreCheck):
        self._check, self._log = check, check.log
        self.restored: list[tuple[str, int, int]] = []
        self.stretches: set[Stretch] = set()

    def actions(self) -> Iterator[Action]:
        """Write into records what their units say.

        A record that is not good, because its topic is no valid name, is restored where that makes it good;
        otherwise it is bridged.
        """
        done: set[int] = set()
        stretches = sorted(self._log.stretches)
        lows = [stretch.low for stretch in stretches]
        out_of_sequence = self._out_of_sequence()
        for place in self._suspects():
            found, file = self._log.record_from(place.at), self._log.file_at(place.at)
            if found is None or file is None or place.at in done or found.size != place.size:
                continue
            if self._is_unit_wrong(found, place, out_of_sequence):
                continue
            patches = _patches(found, place)
            if patches is None:
                continue
            stretch = stretches[number] if (number := bisect.bisect_right(lows, place.at) - 1) >= 0 else None
            if stretch is not None and place.at < stretch.high:
                if (
                    stretch.is_tail
                    or (stretch.low, stretch.high) != (place.at, place.end)
                    or not self._is_good(file, place, patches)
                ):
                    continue
                self.stretches.add(stretch)
            done.add(place.at)
            self.restored.append((place.topic, place.queue_id, place.number))
            own = f"{found.topic}/{found.queue_id} at {found.queue_offset}" if found.is_queued else "no queue"
            what = (
                f"The record states {own}; its unit says {place.topic}/{place.queue_id} at "
                f"{place.number}. Write that into it."
            )
            at = place.at - file.base
            changed = sum(len(data) for _, data in patches)
            yield Restore(file.path, at, changed, what, [(at + offset, data) for offset, data in patches])

    def _is_unit_wrong(self, found: record.StoredMessage, place: Place, out_of_sequence: set[int]) -> bool:
        """Return whether a record is right as it is, so that a unit which leads to it and says `place` is
        wrong, or both agree."""
        stated = (found.topic, found.queue_id, found.queue_offset, found.is_queued)
        if stated == (place.topic, place.queue_id, place.number, True) or self._is_confirmed(found):
            return True
        # It states the number that follows the record before it: the unit is damaged
        is_own_queue = stated[:2] == (place.topic, place.queue_id) and found.is_queued
        return is_own_queue and place.at not in out_of_sequence

    def _is_confirmed(self, found: record.StoredMessage) -> bool:
        """Return whether the unit of the place that the record states points to it."""
        queue = self._check.queues.get((found.topic, found.queue_id))
        if queue is None or not queue.first <= found.queue_offset < queue.end or not found.is_queued:
            return False
        return int(queue.units(found.queue_offset, 1)["log_offset"][0]) == found.log_offset

    def _out_of_sequence(self) -> set[int]:
        """Return the log offsets of records that do not state the number after that of the previous record of
        their queue."""
        bases = {str(file.path): file.base for file in self._log.files}
        found = {gap.before for gap in self._check.units.gaps}
        for finding in self._check.report.findings:
            if finding.kind == QUEUE_OFFSET and finding.file in bases and finding.offset is not None:
                found.add(bases[finding.file] + finding.offset)
        return found

    def _is_good(self, file: StoreFile, place: Place, patches: Patches) -> bool:
        """Return whether the record at a place is good with these bytes in it, by the kernel with which a
        check walks the log."""
        with self._check.disk.open_reader(file.path) as reader:
            raw = bytearray(reader.read(place.at - file.base, place.size))
        for offset, data in patches:
            raw[offset : offset + len(data)] = data
        room = ColumnBuffer(1, place.size)  # of keys: each has at least one byte
        room.begin(np.frombuffer(raw, dtype=np.uint8), place.at, place.size + record.BLANK_BYTES)
        room.step(place.size)
        return room.count == 1

    def _suspects(self) -> Iterator[Place]:
        """Yield units whose number no record of their queue has."""
        for (topic, queue_id), first, end in self._spans():
            queue = self._check.queues.get((topic, queue_id))
            if queue is None or topic.startswith(LIGHT_QUEUE):
                continue
            first, end = max(first, queue.first), min(end, queue.end)
            for low in {first, max(first, end - _MAX_SUSPECTS)}:
                units = queue.units(low, max(0, min(_MAX_SUSPECTS, end - low)))
                for place in np.flatnonzero((units["size"] > 0) & (units["log_offset"] >= self._log.start)):
                    offset, size = int(units["log_offset"][place]), int(units["size"][place])
                    yield Place(offset, size, topic, queue_id, low + int(place))

    def _spans(self) -> list[tuple[tuple[str, int], int, int]]:
        """Return (queue, first number, end) of the numbers that no record has: gaps, those after the last
        record, and some before the first."""
        spans = [((gap.topic, gap.queue_id), gap.first, gap.end) for gap in self._check.units.gaps]
        for key, queue in self._check.queues.items():
            spans.append((key, queue.first if queue.next is None else queue.next, queue.end))
            if queue.covered_from is not None:
                low = max(queue.first, queue.covered_from - _MAX_SUSPECTS)
                spans.append((key, low, queue.covered_from))
        return spans


def _patches(found: record.StoredMessage, place: Place) -> Patches | None:
    """Return the patches by which a record states its place in its queue; None when its topic has another
    length, or a CRC of the whole record shows that it states what was stored."""
    if record.has_record_crc(found.raw_properties):
        return None
    fixed = record.FIXED_IPV4.offset
    patches: Patches = []
    if found.topic != place.topic:
        topic = place.topic.encode()
        if len(topic) != len(found.topic.encode()):
            return None
        patches.append(
            (found.size - len(found.raw_properties) - record.PROPERTIES_LENGTH.size - len(topic), topic)
        )
    if found.queue_id != place.queue_id:
        patches.append((fixed["queue_id"], place.queue_id.to_bytes(4, "big")))
    if found.queue_offset != place.number:
        patches.append((fixed["queue_offset"], place.number.to_bytes(8, "big")))
    if not found.is_queued:
        patches.append(
            (record.SYS_FLAG_AT, record.SYS_FLAG.pack(found.sys_flag & ~record.TRANSACTION_PREPARED))
        )
    return patches
