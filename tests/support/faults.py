"""Faults of every kind, planted into a copy of a store, and what a doctor must say of each: kind, grade, file
and offset.

Each fault is a function of a `Scene` (a directory and what the plain reader knew of it before) that changes
files by hand and returns what it has `Planted`. They know the formats and nothing of the engine.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from broker_store.formats import index_file, queue_unit, record
from broker_store.formats.index_file import IndexGeometry
from broker_store.formats.queue_unit import QueueUnit
from tests.support.reference import ReferenceStore, hash_of, index_keys, tags_code
from tests.support.stores import StoreSizes

UNIT = queue_unit.SIZE
_TOPIC = "FixA"  # of the golden stores: four queues, some hundred messages each


@dataclass(frozen=True)
class Planted:
    """What must be found. `offset` None: the finding is about the whole file. `lost`: log offsets of records
    that are gone."""

    kind: str
    grade: str
    file: str
    offset: int | None = None
    lost: frozenset[int] = field(default_factory=frozenset)
    # Log offset of a record whose properties are others now, which nothing can bring back
    changed: int | None = None


class Scene:
    """A store directory before a fault."""

    def __init__(self, root: Path, sizes: StoreSizes, before: ReferenceStore, seed: int = 0):
        self.root, self.sizes, self.before = root, sizes, before
        self.records = self.before.walk.records
        self.choose = random.Random(seed)
        self.geometry = IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num)

    def record(
        self, *, fits: Callable[[record.StoredMessage], bool] = lambda found: True
    ) -> record.StoredMessage:
        """A message somewhere in the middle of the log, that has a queue and keys, a tag, and a body that a
        CRC covers."""
        middle = self.records[len(self.records) // 4 : -len(self.records) // 4]
        return self.choose.choice(
            [
                m
                for m in middle
                if m.topic == _TOPIC and m.keys and m.tags and len(m.body) > 20 and not m.sys_flag and fits(m)
            ]
        )

    def log_place(self, log_offset: int) -> tuple[str, int]:
        base = log_offset // self.sizes.mapped_file_size_commit_log * self.sizes.mapped_file_size_commit_log
        return f"commitlog/{base:020}", log_offset - base

    def queue_place(self, queue_id: int, number: int) -> tuple[str, int]:
        at = number * UNIT
        base = at // self.sizes.mapped_file_size_consume_queue * self.sizes.mapped_file_size_consume_queue
        return f"consumequeue/{_TOPIC}/{queue_id}/{base:020}", at - base

    def index_files(self) -> list[str]:
        return [f"index/{path.name}" for path in sorted((self.root / "index").iterdir())]

    def read(self, file: str, offset: int, length: int) -> bytes:
        return (self.root / file).read_bytes()[offset : offset + length]

    def write(self, file: str, offset: int, data: bytes) -> None:
        with open(self.root / file, "r+b") as opened:
            opened.seek(offset)
            opened.write(data)

    def flip(self, file: str, offset: int, bit: int = 0) -> None:
        self.write(file, offset, bytes([self.read(file, offset, 1)[0] ^ 1 << bit]))

    def truncate(self, file: str, length: int) -> None:
        with open(self.root / file, "r+b") as opened:
            opened.truncate(length)

    def append(self, file: str, data: bytes) -> None:
        with open(self.root / file, "ab") as opened:
            opened.write(data)

    def delete(self, file: str) -> None:
        (self.root / file).unlink()

    def make(self, file: str, content: bytes) -> None:
        (self.root / file).parent.mkdir(parents=True, exist_ok=True)
        (self.root / file).write_bytes(content)


def complaints(scene: Scene, planted: Planted | None, root: Path) -> list[str]:
    """What of the messages that could be read before cannot be read now, by place, by queue or by key; the
    plain reader looks."""
    after = ReferenceStore(root, scene.sizes)
    entries = {(entry.key_hash, entry.log_offset) for model in after.index for entry in model.entries[1:]}
    gone, changed = (planted.lost, planted.changed) if planted else (frozenset(), None)
    found = []
    for message in scene.records:
        here = after.records.get(message.log_offset)
        if message.log_offset in gone:
            if here == message:
                found.append(f"{message.log_offset} was lost and is there")
            continue
        if here != message and message.log_offset != changed:
            found.append(f"{message.log_offset} is not as it was")
        elif here.is_queued and after.queues[here.topic, here.queue_id].get(here.queue_offset) != QueueUnit(
            here.log_offset, here.size, tags_code(here)
        ):
            found.append(f"{message.log_offset} is not in its queue")
        elif any((hash_of(key), here.log_offset) not in entries for key in index_keys(here, with_tags=False)):
            found.append(f"{message.log_offset} cannot be found by each of its keys")
    for queue, units in after.queues.items():
        if sorted(units) != list(range(min(units, default=0), max(units, default=-1) + 1)):
            found.append(f"queue {queue} has a hole")
    return found


FAULTS: dict[str, Callable[[Scene], Planted]] = {}


def fault(function):
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


# The log ------------------------------------------------------------------------------------------


def _damaged_field(scene: Scene, at: int, bit: int = 0) -> Planted:
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    scene.flip(file, offset + at, bit)
    return Planted("bad-record", "lost", file, offset, frozenset({found.log_offset}))


@fault
def flipped_bit_in_a_body(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.size + 7)


@fault
def flipped_bit_in_a_crc(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.offset["body_crc"] + 2)


@fault
def flipped_bit_in_a_magic(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.offset["magic"] + 3)


@fault
def wrong_length_of_a_record(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.offset["total_size"] + 2, 3)


@fault
def negative_length_of_a_record(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.offset["total_size"], 7)


@fault
def wrong_length_of_a_body(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.offset["body_length"] + 3)


@fault
def flipped_bit_in_a_place(scene: Scene) -> Planted:
    return _damaged_field(scene, record.FIXED_IPV4.offset["log_offset"] + 4)


@fault
def flipped_bit_in_a_flag_of_ipv6(scene: Scene) -> Planted:
    return _damaged_field(scene, record.SYS_FLAG_AT + 3, 4)


def _contradiction(scene: Scene, at: int, bit: int = 0) -> Planted:
    """A header that states another place in a queue: the record is sound, only its neighbours show it."""
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    scene.flip(file, offset + at, bit)
    return Planted("queue-offset", "repair", file, None)


@fault
def flipped_bit_in_a_queue_offset(scene: Scene) -> Planted:
    return _contradiction(scene, record.FIXED_IPV4.offset["queue_offset"] + 7, 1)


@fault
def high_bit_in_a_queue_offset(scene: Scene) -> Planted:
    return _contradiction(scene, record.FIXED_IPV4.offset["queue_offset"] + 6, 3)


@fault
def flipped_bit_in_a_queue_number(scene: Scene) -> Planted:
    return _contradiction(scene, record.FIXED_IPV4.offset["queue_id"] + 3)


@fault
def flipped_bit_in_a_transaction_type(scene: Scene) -> Planted:
    return _contradiction(scene, record.SYS_FLAG_AT + 3, 2)


def _topic_at(found: record.StoredMessage) -> int:
    return found.size - len(found.raw_properties) - record.PROPERTIES_LENGTH.size - len(found.topic)


@fault
def flipped_bit_in_a_topic(scene: Scene) -> Planted:
    """FixA becomes FixC."""
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    scene.flip(file, offset + _topic_at(found) + 3, 1)
    return Planted("queue-offset", "repair", file, None)


@fault
def a_topic_that_nobody_knows(scene: Scene) -> Planted:
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    scene.flip(file, offset + _topic_at(found) + 1, 0)
    return Planted("queue-offset", "repair", file, None)


@fault
def flipped_bit_in_a_key(scene: Scene) -> Planted:
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    scene.flip(
        file, offset + found.size - len(found.raw_properties) + found.raw_properties.index(b"KEYS\x01") + 5
    )
    return Planted("index-missing", "repair", "index/", None, changed=found.log_offset)


@fault
def flipped_bit_in_a_tag(scene: Scene) -> Planted:
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    scene.flip(
        file, offset + found.size - len(found.raw_properties) + found.raw_properties.index(b"TAGS\x01") + 5
    )
    return Planted(
        "unit-wrong",
        "repair",
        *scene.queue_place(found.queue_id, found.queue_offset),
        changed=found.log_offset,
    )


@fault
def store_time_that_goes_back(scene: Scene) -> Planted:
    """Of a record in the middle, by a day; nothing else says when it was stored, but whole seconds in the
    index."""
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    at = record.FIXED[(found.sys_flag >> 4) & 3].offset["store_timestamp"]
    scene.write(file, offset + at, (found.store_timestamp - 86_400_000).to_bytes(8, "big"))
    return Planted("store-time", "harmless", file, offset, changed=found.log_offset)


@fault
def torn_record_in_the_middle(scene: Scene) -> Planted:
    """Its second half is zero."""
    found = scene.record()
    file, offset = scene.log_place(found.log_offset)
    half = found.size // 2
    scene.write(file, offset + half, bytes(found.size - half))
    return Planted("bad-record", "lost", file, offset, frozenset({found.log_offset}))


@fault
def several_records_overwritten(scene: Scene) -> Planted:
    number = len(scene.records) // 2
    gone = scene.records[number : number + 5]
    while scene.log_place(gone[0].log_offset)[0] != scene.log_place(gone[-1].log_offset)[0]:
        number += 5
        gone = scene.records[number : number + 5]
    file, offset = scene.log_place(gone[0].log_offset)
    scene.write(
        file, offset, scene.choose.randbytes(gone[-1].log_offset + gone[-1].size - gone[0].log_offset)
    )
    return Planted("bad-record", "lost", file, offset, frozenset(m.log_offset for m in gone))


@fault
def zeros_up_to_the_end_of_a_file(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    first = next(m for m in scene.records if m.log_offset > size + size // 2)
    file, offset = scene.log_place(first.log_offset)
    scene.write(file, offset, bytes(size - offset))
    return Planted(
        "bad-record",
        "lost",
        file,
        offset,
        frozenset(m.log_offset for m in scene.records if first.log_offset <= m.log_offset < 2 * size),
    )


@fault
def damaged_blank_at_the_end_of_a_file(scene: Scene) -> Planted:
    file, offset = scene.log_place(scene.before.walk.blanks[1][0])
    scene.flip(file, offset + 5)
    return Planted("bad-record", "lost", file, offset)


@fault
def torn_last_record(scene: Scene) -> Planted:
    last = scene.records[-1]
    file, offset = scene.log_place(last.log_offset)
    scene.write(file, offset + last.size // 2, bytes(last.size - last.size // 2))
    return Planted("torn-tail", "lost", file, offset, frozenset({last.log_offset}))


@fault
def garbage_behind_the_last_record(scene: Scene) -> Planted:
    file, offset = scene.log_place(scene.before.log_end)
    scene.write(file, offset, scene.choose.randbytes(64))
    return Planted("torn-tail", "next start", file, offset)


@fault
def log_file_too_short(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    file = f"commitlog/{size:020}"
    scene.truncate(file, size - 5000)
    gone = frozenset(
        m.log_offset
        for m in scene.records
        if 2 * size - 5000 < m.log_offset + m.size and m.log_offset < 2 * size
    )
    return Planted("file-length", "repair", file, None, gone)


@fault
def log_file_too_long(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    file = f"commitlog/{size:020}"
    scene.truncate(file, size + 4096)
    return Planted("file-length", "repair", file)


@fault
def log_file_cut_to_almost_nothing(scene: Scene) -> Planted:
    """Two in a row: the one after it has no bytes at all."""
    size = scene.sizes.mapped_file_size_commit_log
    for number, length in ((1, 100), (2, 0)):
        scene.truncate(f"commitlog/{number * size:020}", length)
    gone = frozenset(
        m.log_offset
        for m in scene.records
        if size <= m.log_offset < 3 * size and m.log_offset + m.size > size + 100
    )
    return Planted("file-length", "repair", f"commitlog/{size:020}", None, gone)


@fault
def log_file_of_no_bytes_in_the_middle(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    scene.truncate(f"commitlog/{size:020}", 0)
    return Planted(
        "file-length",
        "repair",
        f"commitlog/{size:020}",
        None,
        frozenset(m.log_offset for m in scene.records if size <= m.log_offset < 2 * size),
    )


@fault
def log_file_too_short_before_one_that_begins_with_damage(scene: Scene) -> Planted:
    """The next file begins with no good record, and holds good ones further on."""
    size = scene.sizes.mapped_file_size_commit_log
    file = f"commitlog/{size:020}"
    scene.truncate(file, size - 5000)
    first = next(m for m in scene.records if m.log_offset == 2 * size)
    scene.flip(*scene.log_place(first.log_offset + record.FIXED_IPV4.offset["magic"]))
    gone = {
        m.log_offset
        for m in scene.records
        if 2 * size - 5000 < m.log_offset + m.size and m.log_offset < 2 * size
    }
    return Planted("file-length", "repair", file, None, frozenset({*gone, first.log_offset}))


@fault
def first_log_file_too_short(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    scene.truncate(f"commitlog/{0:020}", size // 2)
    gone = frozenset(
        m.log_offset for m in scene.records if size // 2 < m.log_offset + m.size and m.log_offset < size
    )
    return Planted("file-length", "repair", f"commitlog/{0:020}", None, gone)


@fault
def first_log_file_too_long(scene: Scene) -> Planted:
    scene.append(f"commitlog/{0:020}", scene.choose.randbytes(4096 + 20))
    return Planted("file-length", "repair", f"commitlog/{0:020}")


def _last_log_file(scene: Scene) -> str:
    return scene.log_place(scene.records[-1].log_offset)[0]


@fault
def last_log_file_too_long(scene: Scene) -> Planted:
    file = _last_log_file(scene)
    scene.append(file, scene.choose.randbytes(4096 + 20))
    return Planted("file-length", "repair", file)


@fault
def last_log_file_too_short(scene: Scene) -> Planted:
    """It ends in the middle of its last record."""
    last = scene.records[-1]
    file, offset = scene.log_place(last.log_offset)
    scene.truncate(file, offset + last.size // 2)
    return Planted("file-length", "repair", file, None, frozenset({last.log_offset}))


@fault
def log_file_missing_in_the_middle(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    scene.delete(f"commitlog/{2 * size:020}")
    gone = frozenset(m.log_offset for m in scene.records if 2 * size <= m.log_offset < 3 * size)
    return Planted("file-missing", "lost", f"commitlog/{3 * size:020}", None, gone)


@fault
def first_log_file_missing(scene: Scene) -> Planted:
    """It differs from a file that became too old only in units and entries that name its messages."""
    size = scene.sizes.mapped_file_size_commit_log
    scene.delete(f"commitlog/{0:020}")
    return Planted(
        "log-start",
        "harmless",
        f"commitlog/{size:020}",
        None,
        frozenset(m.log_offset for m in scene.records if m.log_offset < size),
    )


@fault
def last_log_file_missing(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    base = scene.records[-1].log_offset // size * size
    for path in (scene.root / "commitlog").iterdir():
        if int(path.name) >= base:
            path.unlink()
    first = min(
        (m for m in scene.records if m.log_offset >= base and m.topic == _TOPIC),
        key=lambda m: m.queue_offset if m.queue_id == 0 else 1 << 40,
    )
    return Planted(
        "unit-extra",
        "lost",
        *scene.queue_place(0, first.queue_offset),
        frozenset(m.log_offset for m in scene.records if m.log_offset >= base),
    )


@fault
def foreign_file_in_the_log(scene: Scene) -> Planted:
    scene.make("commitlog/notes.txt", b"remember the milk")
    return Planted("stray-file", "repair", "commitlog/notes.txt")


def _renamed(scene: Scene, file: str, base: int) -> str:
    target = f"{file.rpartition('/')[0]}/{base:020}"
    (scene.root / file).rename(scene.root / target)
    return target


@fault
def log_file_renamed_to_an_absurd_base(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    return Planted(
        "misplaced-file", "repair", _renamed(scene, f"commitlog/{2 * size:020}", (1 << 40) // size * size)
    )


@fault
def first_log_file_renamed_to_no_multiple(scene: Scene) -> Planted:
    return Planted("misplaced-file", "repair", _renamed(scene, f"commitlog/{0:020}", 400))


@fault
def unused_log_file_renamed_to_an_absurd_base(scene: Scene) -> Planted:
    """It holds nothing that says where it belongs."""
    size = scene.sizes.mapped_file_size_commit_log
    file = f"commitlog/{(1 << 40) // size * size:020}"
    scene.make(file, bytes(size))
    return Planted("misplaced-file", "repair", file)


@fault
def two_log_files_swapped(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_commit_log
    first, second = (scene.root / f"commitlog/{number * size:020}" for number in (1, 2))
    _swap(first, second)
    return Planted("misplaced-file", "repair", f"commitlog/{size:020}")


def _swap(first: Path, second: Path) -> None:
    between = first.with_name("between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


# Queues -------------------------------------------------------------------------------------------


def _unit(scene: Scene) -> tuple[int, int]:
    """(queue, number) of a unit that stands in the middle of a file."""
    found = scene.record(fits=lambda m: 3 < m.queue_offset % 100 < 90)
    return found.queue_id, found.queue_offset


@fault
def hole_in_a_queue(scene: Scene) -> Planted:
    file, offset = scene.queue_place(*_unit(scene))
    scene.write(file, offset, bytes(3 * UNIT))
    return Planted("unit-missing", "repair", file, offset)


@fault
def step_back_in_a_queue(scene: Scene) -> Planted:
    """A unit as an older one is: it points to a record further up."""
    file, offset = scene.queue_place(*_unit(scene))
    scene.write(file, offset, scene.read(file, offset - 3 * UNIT, UNIT))
    return Planted("unit-wrong", "repair", file, offset)


def _wrong_unit(scene: Scene, name: str) -> Planted:
    file, offset = scene.queue_place(*_unit(scene))
    layout = queue_unit.LAYOUT
    scene.flip(file, offset + layout.offset[name] + (7 if name != "size" else 3), 2)
    return Planted("unit-wrong", "repair", file, offset)


@fault
def wrong_offset_in_a_unit(scene: Scene) -> Planted:
    return _wrong_unit(scene, "log_offset")


@fault
def wrong_size_in_a_unit(scene: Scene) -> Planted:
    return _wrong_unit(scene, "size")


@fault
def wrong_tag_in_a_unit(scene: Scene) -> Planted:
    return _wrong_unit(scene, "tags_code")


@fault
def unit_behind_the_end_of_a_queue(scene: Scene) -> Planted:
    number = scene.before.max_offset(_TOPIC, 1)
    file, offset = scene.queue_place(1, number)
    scene.write(file, offset, queue_unit.encode(scene.records[10].log_offset, scene.records[10].size, 0))
    return Planted("unit-extra", "repair", file, offset)


def _queue_file_missing(scene: Scene, which: int) -> Planted:
    names = sorted(path.name for path in (scene.root / f"consumequeue/{_TOPIC}/2").iterdir())
    scene.delete(f"consumequeue/{_TOPIC}/2/{names[which]}")
    return Planted("unit-missing", "repair", f"consumequeue/{_TOPIC}/2")


@fault
def first_queue_file_missing(scene: Scene) -> Planted:
    return _queue_file_missing(scene, 0)


@fault
def queue_file_missing_in_the_middle(scene: Scene) -> Planted:
    return _queue_file_missing(scene, 1)


@fault
def last_queue_file_missing(scene: Scene) -> Planted:
    return _queue_file_missing(scene, -1)


@fault
def queue_missing(scene: Scene) -> Planted:
    for path in (scene.root / f"consumequeue/{_TOPIC}/2").iterdir():
        path.unlink()
    return Planted("unit-missing", "repair", f"consumequeue/{_TOPIC}/2")


@fault
def queue_file_too_long(scene: Scene) -> Planted:
    file, _ = scene.queue_place(3, 100)
    scene.truncate(file, scene.sizes.mapped_file_size_consume_queue + 7)
    return Planted("file-length", "repair", file)


@fault
def queue_file_too_short(scene: Scene) -> Planted:
    file, _ = scene.queue_place(3, 100)
    scene.truncate(file, scene.sizes.mapped_file_size_consume_queue - 30)
    return Planted("file-length", "repair", file)


@fault
def queue_file_of_no_bytes(scene: Scene) -> Planted:
    file, _ = scene.queue_place(3, 100)
    scene.truncate(file, 0)
    return Planted("file-length", "repair", file)


@fault
def queue_file_renamed_to_another_base(scene: Scene) -> Planted:
    """The only file of a queue, whose units seem to be of other numbers then."""
    size = scene.sizes.mapped_file_size_consume_queue
    file, _ = scene.queue_place(3, scene.before.max_offset(_TOPIC, 3) - 1)
    return Planted("misplaced-file", "repair", _renamed(scene, file, int(file[-20:]) + 3 * size))


@fault
def queue_file_renamed_to_an_absurd_base(scene: Scene) -> Planted:
    size = scene.sizes.mapped_file_size_consume_queue
    file, _ = scene.queue_place(3, 100)
    return Planted("misplaced-file", "repair", _renamed(scene, file, (1 << 50) // size * size))


def _only_file(scene: Scene) -> str:
    directory = next(
        path
        for path in sorted((scene.root / "consumequeue").glob("*/*"))
        if len(list(path.iterdir())) == 1 and path.parent.name != _TOPIC
    )
    return str(next(directory.iterdir()).relative_to(scene.root))


@fault
def only_file_of_a_queue_renamed(scene: Scene) -> Planted:
    """Each unit is that of another number then, and nothing beside it says so."""
    file = _only_file(scene)
    return Planted(
        "misplaced-file", "repair", _renamed(scene, file, scene.sizes.mapped_file_size_consume_queue)
    )


@fault
def files_of_two_queues_swapped(scene: Scene) -> Planted:
    first, second = (scene.queue_place(queue_id, 0)[0] for queue_id in (1, 2))
    _swap(scene.root / first, scene.root / second)
    return Planted("misplaced-file", "repair", first)


@fault
def queue_file_copied_over_another(scene: Scene) -> Planted:
    first, second = (scene.queue_place(queue_id, 0)[0] for queue_id in (1, 2))
    scene.make(second, (scene.root / first).read_bytes())
    return Planted("misplaced-file", "repair", second)


@fault
def only_file_of_a_queue_too_long(scene: Scene) -> Planted:
    """Nothing beside it in its directory says how long it should be."""
    file = _only_file(scene)
    scene.append(file, bytes(5 * UNIT))
    return Planted("file-length", "repair", file)


@fault
def foreign_file_in_a_queue(scene: Scene) -> Planted:
    scene.make(f"consumequeue/{_TOPIC}/0/core", b"x" * 100)
    return Planted("stray-file", "repair", f"consumequeue/{_TOPIC}/0/core")


@fault
def foreign_directory_beside_the_queues(scene: Scene) -> Planted:
    scene.make(f"consumequeue/{_TOPIC}/backup/00000000000000000000", b"")
    return Planted("stray-file", "repair", f"consumequeue/{_TOPIC}/backup")


# The index ----------------------------------------------------------------------------------------


def _entry(scene: Scene, file: str, number: int, **changes: int) -> int:
    """Write an entry again; returns where it lies."""
    at = scene.geometry.entry_at(number)
    entry = index_file.decode_entry(scene.read(file, at, index_file.ENTRY.size))
    scene.write(file, at, index_file.encode_entry(entry._replace(**changes)))
    return at


@fault
def looped_chain(scene: Scene) -> Planted:
    """An entry names itself as the one before it."""
    file = scene.index_files()[1]
    return Planted("index-chain", "repair", file, _entry(scene, file, 77, previous=77))


@fault
def stale_slot(scene: Scene) -> Planted:
    """A slot as it was before its newest entry came."""
    file = scene.index_files()[1]
    number = index_file.decode_header(scene.read(file, 0, index_file.HEADER.size)).count - 1
    entry = index_file.decode_entry(scene.read(file, scene.geometry.entry_at(number), index_file.ENTRY.size))
    at = scene.geometry.slot_at(entry.key_hash % scene.geometry.slots)
    scene.write(file, at, index_file.SLOT.pack(entry.previous))
    return Planted("index-slot", "repair", file, at)


def _header_of(scene: Scene, name: str, value: int) -> Planted:
    file, at = scene.index_files()[1], index_file.HEADER.offset[name]
    scene.write(file, at, struct.pack(">i" if name in ("slots_used", "count") else ">q", value))
    return Planted(
        "index-header",
        "repair",
        file,
        index_file.HEADER.offset["begin_offset"] if name == "end_offset" else at,
    )


@fault
def index_header_that_counts_too_many_slots(scene: Scene) -> Planted:
    return _header_of(scene, "slots_used", 499)


@fault
def index_header_with_more_entries_than_fit(scene: Scene) -> Planted:
    return _header_of(scene, "count", 1 << 20)


@fault
def index_header_with_another_begin(scene: Scene) -> Planted:
    return _header_of(scene, "begin_timestamp", 12345)


@fault
def index_header_with_another_end_of_the_log(scene: Scene) -> Planted:
    return _header_of(scene, "end_offset", 98765)


@fault
def wrong_hash_in_an_index_entry(scene: Scene) -> Planted:
    file = scene.index_files()[2]
    at = scene.geometry.entry_at(300)
    found = index_file.decode_entry(scene.read(file, at, index_file.ENTRY.size))
    return Planted("index-entry", "repair", file, _entry(scene, file, 300, key_hash=found.key_hash ^ 0x10))


@fault
def wrong_place_in_an_index_entry(scene: Scene) -> Planted:
    file = scene.index_files()[2]
    at = scene.geometry.entry_at(300)
    found = index_file.decode_entry(scene.read(file, at, index_file.ENTRY.size))
    return Planted("index-entry", "repair", file, _entry(scene, file, 300, log_offset=found.log_offset + 1))


@fault
def wrong_time_in_an_index_entry(scene: Scene) -> Planted:
    file = scene.index_files()[2]
    return Planted("index-time", "repair", file, _entry(scene, file, 300, seconds=1 << 20))


def _index_file_missing(scene: Scene, which: int, kind: str) -> Planted:
    scene.delete(scene.index_files()[which])
    return Planted(kind, "repair", "index/")


@fault
def first_index_file_missing(scene: Scene) -> Planted:
    return _index_file_missing(scene, 0, "index-starts-late")


@fault
def index_file_missing_in_the_middle(scene: Scene) -> Planted:
    return _index_file_missing(scene, 2, "index-missing")


@fault
def last_index_file_missing(scene: Scene) -> Planted:
    return _index_file_missing(scene, -1, "index-behind")


@fault
def all_index_files_missing(scene: Scene) -> Planted:
    for file in scene.index_files():
        scene.delete(file)
    return Planted("no-index", "repair", "index")


@fault
def index_file_of_another_length(scene: Scene) -> Planted:
    file = scene.index_files()[1]
    scene.truncate(file, scene.geometry.file_bytes - 20)
    return Planted("file-length", "repair", file)


@fault
def first_index_file_too_long(scene: Scene) -> Planted:
    file = scene.index_files()[0]
    scene.append(file, scene.choose.randbytes(100))
    return Planted("file-length", "repair", file)


@fault
def last_index_file_too_long(scene: Scene) -> Planted:
    file = scene.index_files()[-1]
    scene.append(file, scene.choose.randbytes(100))
    return Planted("file-length", "repair", file)


@fault
def index_file_of_no_bytes(scene: Scene) -> Planted:
    file = scene.index_files()[1]
    scene.truncate(file, 0)
    return Planted("file-length", "repair", file)


@fault
def foreign_file_in_the_index(scene: Scene) -> Planted:
    scene.make("index/index.tar", b"x")
    return Planted("stray-file", "repair", "index/index.tar")


# Checkpoint and config/ ---------------------------------------------------------------------------


@fault
def checkpoint_ahead_of_the_log(scene: Scene) -> Planted:
    scene.write("checkpoint", 0, struct.pack(">q", scene.records[-1].store_timestamp + 60_000))
    return Planted("checkpoint-ahead", "repair", "checkpoint", 0)


@fault
def checkpoint_that_knows_queues_behind_the_log(scene: Scene) -> Planted:
    scene.write("checkpoint", 40, struct.pack(">q", 1 << 40))
    return Planted("checkpoint-ahead", "repair", "checkpoint", 40)


@fault
def checkpoint_too_short(scene: Scene) -> Planted:
    scene.truncate("checkpoint", 20)
    return Planted("checkpoint", "repair", "checkpoint")


@fault
def checkpoint_missing(scene: Scene) -> Planted:
    scene.delete("checkpoint")
    return Planted("checkpoint", "next start", "checkpoint")


@fault
def offset_of_a_group_beyond_the_end(scene: Scene) -> Planted:
    end = scene.before.max_offset(_TOPIC, 0)
    table = {f"{_TOPIC}@readers": {"0": end + 500, "1": 5}, "FixB@readers": {"2": 1}}
    scene.make("config/consumerOffset.json", json.dumps({"dataVersion": {}, "offsetTable": table}).encode())
    return Planted("offset-ahead", "next start", "config/consumerOffset.json")


@fault
def offset_of_a_delay_level_beyond_the_end(scene: Scene) -> Planted:
    scene.make("config/delayOffset.json", b'{"offsetTable":{1:1,3:77}}')
    return Planted("offset-ahead", "next start", "config/delayOffset.json")


@fault
def damaged_config_with_a_good_copy(scene: Scene) -> Planted:
    scene.make("config/subscriptionGroup.json", b'{"subscriptionGroupTable":{')
    scene.make("config/subscriptionGroup.json.bak", b'{"subscriptionGroupTable":{}}')
    return Planted("config", "next start", "config/subscriptionGroup.json")


@fault
def damaged_config_without_a_good_copy(scene: Scene) -> Planted:
    scene.make("config/consumerOffset.json", b"\0\0\0\0")
    return Planted("config", "lost", "config/consumerOffset.json")


@fault
def damaged_table_of_topics(scene: Scene) -> Planted:
    scene.make("config/topics.json", b"{]")
    return Planted("config", "lost", "config/topics.json")
