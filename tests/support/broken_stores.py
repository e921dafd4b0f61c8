"""Breaks stores in random ways and judges what a plain start, the doctor, a start that accepts damage, and
the pipeline's audit make of each.

    Original (files and messages) ── break 1 to 3 times ──► Broken ──► a start ──► Judgement
                                                                 ├──► doctor, repair, a start ──► Judgement
                                                                 ├──► a start with --accept-damage, a start
                                                                 ──► Judgement └──► check_store, the audit ──►
                                                                 Judgement

The judge is the plain reader: a message is *readable* if its bytes lie unchanged at its place in the log
files. Then one of these must hold of each message that the store had:

* whole: it is served at its queue offset, byte for byte, and found by its keys, or a lookup says that it may
  miss some;
* refused: the start (or the repair) ends with a sentence, and every readable message is still in the files;
* named: it was not readable, and the reader gets an error or the placeholder that bridges it. A start may
  also cut the log's end after a crash; then its report says where, names the whole messages that go with it,
  and what it cut is in lost+found. Where nothing was left of the log's end, as after a power cut, the report
  says which units of queues went with it. Without a record of ends a log whose first files are lost is one
  that retention shortened; then the report says how many messages the queues know before it.

Of every second store the last start is known. Where the machine was not restarted since, a start cuts nothing
good; where it was, and the last start was one with SYNC_FLUSH, a start cuts no record to which a unit leads.

The plan of a repair need not name a message before the first file of the log where the record of ends is gone
too: retention leaves such a store, and no file shows which it was. The check counts them.

The audit finds errors where `check_store` does, and only there.

No queue offset is given twice: a new message's offset is at or above every offset that was given before,
except for those beyond a reported cut and those of which neither record nor unit nor the record of ends is
left.

`tests/engine/test_broken_stores.py` runs a small share. Every violation names the seed from which `python -m
tests.support.broken_stores --seed N --cases 1` makes the same broken store again.
"""

from __future__ import annotations

import argparse
import functools
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from unittest.mock import patch

from broker_store.check.losses import Losses
from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.report import ERROR
from broker_store.check.walk import StoreCheck
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.index import rebuilding
from broker_store.engine.queue.consume_queue import UNIT
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import LastStart
from broker_store.errors import StoreError
from broker_store.formats import record
from broker_store.formats.record import StoredMessage
from broker_store.messages import GetRequest, GetStatus, PutStatus
from tests.support import stores
from tests.support.audit_in_process import NOT_COMPARED, audited
from tests.support.hand_store import START_MS, Clock, HandStore, HandWorker, message, small_settings
from tests.support.stores import StoreSizes

QUEUES = (("orders", 0), ("orders", 1), ("payments", 0), ("%RETRY%group", 0), ("quiet", 0))
SMALL = StoreSizes(16384, 400, 16, 64)  # as in small_settings
APACHE = "clean-small"  # written and closed by Apache's broker
REPAIRED = ("repaired", "accepted")  # closed, broken, repaired in this way, and closed again
REPAIRED_FROM = 20_000_000  # seeds below it keep the stores that tests name
MOVED_FROM = 30_000_000  # the same of seeds below it, in which no file is moved over another
# Seeds below it have no record of the last start; of those from it on every second one of ours
RECORDED_FROM = 33_000_000
# Of seeds from it on, every fourth store is one of SYNC_FLUSH whose machine was restarted since
SYNCED_FROM = 34_000_000
MAX_CHANGED_BYTES = 600
MAX_BREAKS = 3
MAX_ORIGINALS = 20  # of each kind; making one takes longer than judging a broken one
NEW_BODY = b"sent after the start"
STATED = "stated"  # given as `within`: the place in a queue that a record states is broken
# A start may write these although it refuses: none holds a message, a unit or a position.
# The last is broken in tests/engine/test_store_times.py
OWN_NAMES = ("abort", "lock", "config/storeTimes.json")


class Violation(AssertionError):
    """A message is lost, changed or hidden without a word, or an offset is given twice."""


@dataclass(frozen=True)
class Original:
    """A store before it is broken. `next_offsets` has the next queue offset of each queue."""

    name: str
    files: dict[str, bytes]
    messages: tuple[StoredMessage, ...]
    raw: dict[int, bytes]
    next_offsets: dict[tuple[str, int], int]
    sizes: StoreSizes = SMALL
    # Records that it had before it was repaired, or has changed: these may be served or not
    earlier: frozenset[bytes] = frozenset()

    def settings(self, root: Path) -> StoreSettings:
        return small_settings(root, **asdict(self.sizes))

    def place(self, log_offset: int) -> tuple[str, int]:
        """(log file, offset in it) of a log offset."""
        base = log_offset // self.sizes.mapped_file_size_commit_log * self.sizes.mapped_file_size_commit_log
        return f"commitlog/{base:020}", log_offset - base


@dataclass
class Broken:
    """The files of a store while breaks are made in them, and what the breaks were."""

    files: dict[str, bytes]
    original: Original
    choose: random.Random
    within: str = ""  # only files below it are broken
    breaks: list[str] = field(default_factory=list)
    last_start: LastStart | None = None  # where it is known

    @property
    def is_same_boot(self) -> bool:
        """Whether the machine was not restarted since the last start: what was written is there."""
        return self.last_start is not None and self.last_start.is_same_boot

    def pick(self, prefix: str = "") -> str | None:
        """A file below `prefix`; each directory of the store is as likely as the others."""
        prefix = prefix or self.within
        names = [name for name in self.files if name.startswith(prefix) and name not in OWN_NAMES]
        if not names:
            return None
        tops = sorted({name.split("/")[0] for name in names})
        top = self.choose.choice(tops)
        return self.choose.choice(sorted(name for name in names if name.split("/")[0] == top))

    def place(self, name: str, length: int) -> int:
        """An offset in a file, mostly where it holds data."""
        content = self.files[name]
        data_end = len(content.rstrip(b"\0"))
        end = data_end if data_end and self.choose.random() < 0.9 else len(content)
        return self.choose.randrange(max(1, end - length + 1))

    def has_own_unit(self, found: StoredMessage) -> bool:
        """Whether a unit of the message is left in a file of its own queue; one in the file of another queue
        does not show its queue."""
        unit = found.log_offset.to_bytes(8, "big") + found.size.to_bytes(4, "big")
        own = f"consumequeue/{found.topic}/{found.queue_id}/"
        contents = (
            content for name, content in self.files.items() if name.startswith(own) and unit in content
        )
        return any(
            content.startswith(unit, at) for content in contents for at in range(0, len(content), UNIT)
        )

    @functools.cached_property
    def ends(self) -> EndsFile:
        """The record of ends as far as its blocks are whole."""
        ends = EndsFile(_OneFile(self.files.get("ends")), Path("ends"))
        ends.load()
        return ends

    def has_unit_in_place(self, found: StoredMessage) -> bool:
        """Whether the message's unit lies where it was written."""
        at, size = found.queue_offset * UNIT, self.original.sizes.mapped_file_size_consume_queue
        content = self.files.get(f"consumequeue/{found.topic}/{found.queue_id}/{at // size * size:020}", b"")
        return content[at % size : at % size + 12] == found.log_offset.to_bytes(
            8, "big"
        ) + found.size.to_bytes(4, "big")

    def proved_from(self, cut_at: int) -> list[StoredMessage]:
        """The messages at or beyond a cut whose units lie where they were written."""
        return [
            found
            for found in self.original.messages
            if found.log_offset >= cut_at and self.has_unit_in_place(found)
        ]

    def may_be_expired(self, found: StoredMessage) -> bool:
        """Whether the log begins after the message and nothing is left that says that it began before: as
        after retention."""
        bases = [
            int(name.split("/")[1])
            for name, content in self.files.items()
            if name.startswith("commitlog/") and content
        ]
        return not self.ends.found and bool(bases) and found.log_offset < min(bases)

    @functools.cached_property
    def known_end(self) -> int:
        """Log offset after all that records, units and the record of ends say to have been there."""
        return max(
            [
                self.ends.position,
                *(found.log_offset + found.size for of_queue in self.known.values() for found in of_queue),
            ]
        )

    @functools.cached_property
    def known(self) -> dict[tuple[str, int], list[StoredMessage]]:
        """By (topic, queue id) the messages of which the record or a unit is left."""
        alive = readable(self.files, self.original)
        known: dict[tuple[str, int], list[StoredMessage]] = {}
        for found in self.original.messages:
            if found.log_offset in alive or self.has_own_unit(found):
                known.setdefault((found.topic, found.queue_id), []).append(found)
        return known

    def known_next(self, topic: str, queue_id: int, cut_at: int | None = None) -> int:
        """The least next offset that can be known of a queue: from records, units and the record of ends that
        are left below a cut of the log."""
        known = (
            found.queue_offset + 1
            for found in self.known.get((topic, queue_id), ())
            if cut_at is None or found.log_offset < cut_at
        )
        return max([self.ends.next_offset(topic, queue_id), *known])

    def overwrite(self, name: str, at: int, data: bytes) -> None:
        content = self.files[name]
        self.files[name] = content[:at] + data + content[at + len(data) :]


class _OneFile:
    """As much of a disk as the record of ends reads."""

    def __init__(self, content: bytes | None):
        self._content = content

    def read_file(self, path: Path, at_most: int) -> bytes | None:
        return self._content


SAME_BOOT = LastStart(START_MS, is_same_boot=True)
SYNCED = LastStart(START_MS, is_sync_flush=True)


@dataclass(frozen=True)
class Known:
    """In the place of `StartRecords`: the last start is known."""

    start: LastStart
    failure: str = ""

    def begin(self, report: RecoveryReport) -> None:
        pass

    def write(self, report: RecoveryReport, at_once: bool = False) -> None:
        pass

    def last_start(self, report: RecoveryReport) -> LastStart:
        return self.start


Break = Callable[[Broken], str | None]
BREAKS: list[Break] = []


def a_break(function: Break) -> Break:
    BREAKS.append(function)
    return function


@a_break
def flip_a_bit(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None or not broken.files[name]:
        return None
    at, bit = broken.place(name, 1), broken.choose.randrange(8)
    broken.overwrite(name, at, bytes([broken.files[name][at] ^ 1 << bit]))
    return f"bit {bit} at {at} of {name} is flipped"


def _range(broken: Broken, what: str, made: Callable[[int], bytes]) -> str | None:
    name = broken.pick()
    if name is None or not broken.files[name]:
        return None
    length = broken.choose.choice((1, 4, 8, 20, 20, 40, 91, 512, MAX_CHANGED_BYTES))
    length = min(length, len(broken.files[name]))
    at = broken.place(name, length)
    if broken.choose.random() < 0.5:
        at -= at % 20  # whole units
    broken.overwrite(name, at, made(length))
    return f"{length} bytes at {at} of {name} are {what}"


@a_break
def zero_a_range(broken: Broken) -> str | None:
    return _range(broken, "zero", bytes)


@a_break
def overwrite_a_range(broken: Broken) -> str | None:
    return _range(broken, "random", broken.choose.randbytes)


@a_break
def zero_a_page(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None or not broken.files[name]:
        return None
    at = broken.place(name, 1) // 4096 * 4096
    broken.overwrite(name, at, bytes(min(4096, len(broken.files[name]) - at)))
    return f"the page at {at} of {name} is zero"


@a_break
def zero_a_file(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None:
        return None
    broken.files[name] = bytes(len(broken.files[name]))
    return f"{name} is zero"


@a_break
def shorten_a_file(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None or not broken.files[name]:
        return None
    length = broken.choose.choice((0, broken.choose.randrange(len(broken.files[name]))))
    broken.files[name] = broken.files[name][:length]
    return f"{name} is cut to {length} bytes"


@a_break
def lengthen_a_file(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None:
        return None
    length = broken.choose.choice((1, 20, 4096, 16384))
    more = bytes(length) if broken.choose.random() < 0.5 else broken.choose.randbytes(length)
    broken.files[name] += more
    return f"{length} bytes are appended to {name}"


@a_break
def remove_a_file(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None:
        return None
    del broken.files[name]
    return f"{name} is removed"


@a_break
def remove_the_last_file(broken: Broken) -> str | None:
    """The newest of a sequence of files."""
    name = broken.pick()
    if name is None:
        return None
    last = max(other for other in broken.files if PurePosixPath(other).parent == PurePosixPath(name).parent)
    del broken.files[last]
    return f"{last} is removed"


@a_break
def remove_a_directory(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None or "/" not in name:
        return None
    parents = [parent for parent in PurePosixPath(name).parents if parent != PurePosixPath(".")]
    gone = str(broken.choose.choice(parents))
    broken.files = {
        other: content for other, content in broken.files.items() if not other.startswith(gone + "/")
    }
    return f"{gone}/ is removed"


@a_break
def swap_two_files(broken: Broken) -> str | None:
    first = broken.pick()
    second = broken.pick(first.split("/")[0]) if first else None
    if first is None or second is None or first == second:
        return None
    broken.files[first], broken.files[second] = broken.files[second], broken.files[first]
    return f"{first} and {second} are swapped"


@a_break
def copy_over_another(broken: Broken) -> str | None:
    first = broken.pick()
    second = broken.pick(first.split("/")[0]) if first else None
    if first is None or second is None or first == second:
        return None
    broken.files[second] = broken.files[first]
    return f"{second} has the content of {first}"


def move_over_another(broken: Broken) -> str | None:
    """As `mv` does it: what the second held is gone, and the first is no longer where it was."""
    first = broken.pick()
    second = broken.pick(first.split("/")[0]) if first else None
    if first is None or second is None or first == second:
        return None
    broken.files[second] = broken.files.pop(first)
    return f"{first} is moved over {second}"


@a_break
def rename_to_another_base(broken: Broken) -> str | None:
    name = broken.pick()
    if name is None or not PurePosixPath(name).name.isdigit() or len(PurePosixPath(name).name) < 17:
        return None
    other = str(PurePosixPath(name).parent / f"{broken.choose.choice((0, 400, 16384, 1 << 20)):020}")
    if other in broken.files:
        return None
    broken.files[other] = broken.files.pop(name)
    return f"{name} is renamed to {other}"


@a_break
def move_bytes_within(broken: Broken) -> str | None:
    """A write that went to the wrong place: a range has the bytes of another range of the same file."""
    name = broken.pick()
    if name is None or len(broken.files[name]) < 200:
        return None
    length = broken.choose.choice((20, 40, 120))
    source, target = broken.place(name, length), broken.place(name, length)
    broken.overwrite(name, target, broken.files[name][source : source + length])
    return f"{length} bytes at {target} of {name} are those at {source}"


@a_break
def toggle_abort(broken: Broken) -> str | None:
    """The file that says whether the store was closed: gone after a kill, or there after a close."""
    if "abort" in broken.files:
        del broken.files["abort"]
        return "abort is removed"
    broken.files["abort"] = b"1"
    return "abort is there"


def change_what_a_record_states(broken: Broken) -> str:
    """A flipped bit in a record's queue id, queue offset, flags or topic, which no CRC covers. Each other one
    is of an early record."""
    choose, original = broken.choose, broken.original
    found = choose.choice(original.messages[:12] if choose.random() < 0.5 else original.messages)
    name, at = original.place(found.log_offset)
    fixed, topic = record.FIXED_IPV4.offset, found.topic.encode()
    what = choose.choice(("queue_id", "queue_id", "queue_offset", "queue_offset", "sys_flag", "topic"))
    bit = choose.randrange(8)
    if what == "topic":
        begin = found.size - len(found.raw_properties) - record.PROPERTIES_LENGTH.size - len(topic)
        byte = begin + choose.randrange(len(topic))
    elif choose.random() < 0.5:
        # Of a low byte: another place that there is
        byte, bit = fixed[what] + (7 if what == "queue_offset" else 3), choose.randrange(3)
    else:
        byte = fixed[what] + choose.randrange(8 if what == "queue_offset" else 4)
    broken.overwrite(name, at + byte, bytes([broken.files[name][at + byte] ^ 1 << bit]))
    return (
        f"{what} of the record of {found.topic}/{found.queue_id} {found.queue_offset} at "
        f"{found.log_offset}: bit {bit} of byte {byte} is flipped"
    )


# Stores -------------------------------------------------------------------------------------------


@functools.cache
def make_original(name: str, seed: int) -> Original:
    """A store of some hundred messages in small files, closed (`clean`), killed (`killed`) or one of
    REPAIRED."""
    with tempfile.TemporaryDirectory() as directory:
        if name == APACHE:
            root = stores.unpack(APACHE, Path(directory))
            places = [row["physicalOffset"] for row in stores.messages(APACHE)]
            return _original(root, name, places, stores.SIZES[APACHE])
        if name in REPAIRED:
            return _mended_original(Path(directory), name, random.Random(seed))
        return _make_original(Path(directory) / "store", name, random.Random(seed))


def _mended_original(directory: Path, name: str, choose: random.Random) -> Original:
    """A store that was closed, broken, and repaired or started with --accept-damage; then it got some
    messages, and was closed again."""
    while True:
        root = directory / str(choose.randrange(1 << 30))
        first = _make_original(root, "clean", choose)
        shutil.rmtree(root)
        broken = break_store(first, choose, choose.choice(("", "commitlog/")))
        write_out(broken, root)
        if (made := _mended(root, name, broken, choose)) is not None:
            return made
        for left in directory.iterdir():
            shutil.rmtree(left)  # lost+found too, which each start reads


def _mended(root: Path, name: str, broken: Broken, choose: random.Random) -> Original | None:
    """What the repaired or accepted store serves, None when it was refused or its index could not be made."""
    clock = Clock()
    clock.advance(10**9)
    settings = replace(broken.original.settings(root), accept_damage=name == "accepted")
    try:
        if name == "repaired":
            check = StoreCheck(root, noted=_noted(broken.original))
            check.run()
            plan = make_plan(check, settings)
            Repair(plan).run()
            if plan.left:
                return None
        store = HandStore(settings, clock).begin()
    except StoreError:
        return None
    try:
        if store.index_doubt is not None:
            return None
        for number in range(choose.choice((0, 3, 40))):
            store.appender.put(
                message(
                    *choose.choice(QUEUES[:-1]),
                    b"more%d" % number + bytes(200),
                    keys=[f"more{number}"],
                    unique=f"n{number}",
                )
            )
            clock.advance(40)
        kept, raw, following, changed = [], {}, {}, set()
        for queue in list(store.queue_table):
            for served in _served(store, queue.topic, queue.queue_id)[0].values():
                found = record.decode(served)
                if broken.original.raw.get(found.log_offset, served) != served and not _is_placeholder(
                    served
                ):
                    changed.add(served)  # where no check looks; a repair may put a placeholder there
                    continue
                kept.append(found)
                raw[found.log_offset] = served
            following[queue.topic, queue.queue_id] = store.reads.max_offset(queue.topic, queue.queue_id)
        store.close()
    finally:
        store.die()
    if not kept:
        return None
    files = tree(root)
    files.pop("lock", None)
    kept.sort(key=lambda found: found.log_offset)
    return Original(
        name,
        files,
        tuple(kept),
        raw,
        following,
        earlier=frozenset(changed | set(broken.original.raw.values())),
    )


def _make_original(root: Path, name: str, choose: random.Random) -> Original:
    clock = Clock()
    store = HandStore(small_settings(root), clock).begin()
    results = []
    for number in range(choose.randrange(60, 160)):
        # The last queue gets nothing more after a while: nothing of it lies where a start scans.
        topic, queue_id = choose.choice(QUEUES if number < 40 else QUEUES[:-1])
        body = number.to_bytes(3, "big") + choose.randbytes(choose.choice((3, 40, 200, 900)))
        sent = message(
            topic,
            queue_id,
            body,
            tag=choose.choice((None, "a", "b")),
            keys=[f"k{number}"],
            unique=f"u{number}",
        )
        result = store.appender.put(sent)
        assert result.ok, result
        results.append(result)
        clock.advance(choose.choice((0, 1, 40, 3500)))
        if choose.random() < 0.1:
            store.flush()
        if choose.random() < 0.05:
            store.round()
    if name == "clean":
        store.close()
    else:
        store.die()
    return _original(root, name, [result.log_offset for result in results], SMALL)


def _original(root: Path, name: str, places: list[int], sizes: StoreSizes) -> Original:
    files = tree(root)
    files.pop("lock", None)
    raw: dict[int, bytes] = {}
    kept: list[StoredMessage] = []
    following: dict[tuple[str, int], int] = {}
    for log_offset in places:
        base = log_offset // sizes.mapped_file_size_commit_log * sizes.mapped_file_size_commit_log
        content, at = files[f"commitlog/{base:020}"], log_offset - base
        found = record.decode(content, at, log_offset=log_offset)
        if found.is_queued:
            kept.append(found)
            raw[log_offset] = content[at : at + found.size]
            following[found.topic, found.queue_id] = found.queue_offset + 1
    return Original(name, files, tuple(kept), raw, following, sizes)


def break_store(
    original: Original, choose: random.Random, within: str = "", *, moves: bool = False
) -> Broken:
    """One to three random breaks, of files below `within`; or a changed record, and in one of three cases one
    more.

    `moves`: one of the breaks may be a file that is moved over another.
    """
    broken = Broken(dict(original.files), original, choose, "" if within == STATED else within)
    if within == STATED:
        broken.breaks.append(change_what_a_record_states(broken))
        if choose.random() < 1 / 3 and (done := choose.choice(BREAKS)(broken)) is not None:
            broken.breaks.append(done)
        return broken
    wanted = choose.choice((1, 1, 1, 2, MAX_BREAKS))
    breaks = [each for each in BREAKS if not within or each is not toggle_abort] + [move_over_another] * moves
    while len(broken.breaks) < wanted and any(name.startswith(within) for name in broken.files):
        done = choose.choice(breaks)(broken)
        if done is not None:
            broken.breaks.append(done)
    return broken


def write_out(broken: Broken, root: Path) -> None:
    root.mkdir(parents=True)
    for name, content in broken.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def readable(files: dict[str, bytes], original: Original) -> set[int]:
    """Log offsets of the messages whose bytes lie unchanged at their place."""
    found = set()
    for at, content in original.raw.items():
        name, start = original.place(at)
        if files.get(name, b"")[start : start + len(content)] == content:
            found.add(at)
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


# Judging ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """How a broken store ended: `whole`, `refused`, `cut`, or `bridged` (messages were lost before, and are
    named)."""

    outcome: str
    sentence: str = ""


def judge_start(
    root: Path, broken: Broken, losses: Losses | None = None, accept_damage: bool = False
) -> Judgement:
    """Start the engine on the store, and once more without `accept_damage`; `losses` are what a repair named
    before it. Raises Violation."""
    was_repaired = losses is not None
    original = broken.original
    alive = readable(broken.files, original)
    clock = Clock()
    clock.advance(10**9)
    before = tree(root)
    records = None if broken.last_start is None else Known(broken.last_start)
    store = HandStore(replace(original.settings(root), accept_damage=accept_damage), clock, records=records)
    try:
        try:
            store.begin()
        except StoreError as error:
            if was_repaired:
                raise Violation(f"the repaired store does not start: {error}") from error
            _same_files(before, tree(root))
            return Judgement("refused", str(error))
        cut_at = _reported_cut(store, with_index=not was_repaired)
        if was_repaired and cut_at is not None:
            raise Violation(f"the repaired store is cut at {cut_at}")
        if (
            cut_at is not None
            and broken.is_same_boot
            and not accept_damage
            and (good := {at for at in alive if at >= cut_at})
        ):
            raise Violation(
                f"no kill leaves a bad record before a good one, and {len(good)} good ones are cut, "
                f"first at {min(good)}"
            )
        if (
            cut_at is not None
            and broken.last_start == SYNCED
            and not accept_damage
            and (proved := broken.proved_from(cut_at))
        ):
            raise Violation(
                f"a unit follows its synced record, and {len(proved)} lead beyond the cut at "
                f"{cut_at}: first {proved[0].topic}/{proved[0].queue_id} {proved[0].queue_offset}"
            )
        named = _named_parts(store)
        lost = _judge_queues(store, broken, alive, cut_at, named, losses)
        is_index_lost = _judge_keys(store, original, alive, cut_at)
        if was_repaired and is_index_lost:
            raise Violation(f"after the repair {store.index_doubt}")
        _judge_new_offsets(store, broken, cut_at)
        store.close()
    finally:
        store.die()
    before = tree(root)
    again = HandStore(original.settings(root), clock, records=records)
    try:
        again.begin()
        _judge_queues(again, broken, alive, cut_at, named, losses)
    except StoreError as error:
        if not is_index_lost or accept_damage:
            raise Violation(f"the second start is refused: {error}") from error
        _same_files(before, tree(root))
        return Judgement("refused", str(error))
    finally:
        again.die()
    if cut_at is not None:
        return Judgement("cut", str(cut_at))
    return Judgement("bridged" if lost else "whole")


def _same_files(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    # A last file of no bytes holds nothing; a power cut leaves it, and a start takes it away.
    before, after = (
        {name: content for name, content in files.items() if content} for files in (before, after)
    )
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if name not in OWN_NAMES and before.get(name) != after.get(name)
    )
    if changed:
        raise Violation(f"the start was refused and yet changed {changed[:4]}")


def _reported_cut(store: HandStore, with_index: bool) -> int | None:
    """Log offset at which the start says that it cut the log, or queues whose end it no longer had; None if
    it kept all of it.

    `with_index`: or the index. After a repair a start may still build the index again, which loses nothing.
    """
    facts = store.report.as_dict()
    cut = facts["cut"]["commitlog"]
    if cut["bytes"] or cut["files"]:
        return cut["from"]
    is_cut = facts["cut"]["consumequeue"]["units"] or (with_index and facts["cut"]["index"]["entries"])
    return facts["log_end"] if facts["kind"] == "abnormal" and is_cut else None


@dataclass(frozen=True)
class Named:
    """Log offsets below and from which a start says that messages are lost, or may be.

    `left_out`: log offsets of records that it does not trust, and says so. `passed`: damaged parts [low,
    high) of the log after which it goes on; of their messages those count that nothing else says to have
    been there. `with_begin`: of a begin that is lost for certain the messages by (topic, queue id), as
    (first, last); None where it is not certain.
    """

    below: int
    behind: int
    with_begin: dict[tuple[str, int], tuple[int, int]] | None
    left_out: frozenset[int]
    passed: tuple[tuple[int, int], ...]
    # As a whole, which was accepted: messages that nothing else names cannot be known
    is_log_gone: bool
    # (topic, queue id, first, last) of the whole messages that went with the log's end
    cut: tuple[tuple[str, int, int, int], ...]

    def is_cut(self, found: StoredMessage) -> bool:
        return any(
            (topic, queue_id) == (found.topic, found.queue_id) and first <= found.queue_offset <= last
            for topic, queue_id, first, last in self.cut
        )

    def has(self, found: StoredMessage, known_next: int) -> bool:
        """Whether the message is named. With the begin one need not be whose number is at or above
        `known_next`: nothing says that it was there."""
        if found.log_offset in self.left_out or (self.is_log_gone and found.queue_offset >= known_next):
            return True
        if found.queue_offset >= known_next and any(
            low <= found.log_offset < high for low, high in self.passed
        ):
            return True
        if found.log_offset >= self.below or self.with_begin is None:
            return found.log_offset < self.below or found.log_offset >= self.behind
        first, last = self.with_begin.get((found.topic, found.queue_id), (1, 0))
        return first <= found.queue_offset <= last or found.queue_offset >= known_next


_LOST_WITH_BEGIN = re.compile(r"messages ([\d,]+) to ([\d,]+) are lost with the log files that are missing")


_PASSED = re.compile(
    r"accepted: queues and index go on with the record at ([\d,]+) of the log$|the log goes on at ([\d,]+), and units and entries of what"
)


def _named_parts(store: HandStore) -> Named:
    """What the start says of messages that are lost with a part of the log."""
    facts = store.report.as_dict()
    found = facts["findings"]
    reasons = ("does not state where it began", "its retention deleted", "; accepted")
    has_begin = any(
        one["file"] == "commitlog" and any(reason in one["what"] for reason in reasons) for one in found
    )
    has_end = any(
        one["what"].endswith("; accepted")
        and (
            one["what"].startswith("the log ends at ")
            or "cutting here would lose what follows" in one["what"]
        )
        for one in found
    )
    is_certain = any(
        one["file"] == "commitlog"
        and one["what"].startswith("the log begins at ")
        and one["what"].endswith("; accepted")
        for one in found
    )
    with_begin = {}
    for one in found:
        if words := _LOST_WITH_BEGIN.fullmatch(one["what"]):
            _, topic, queue_id = one["file"].split("/")
            with_begin[topic, int(queue_id)] = tuple(int(word.replace(",", "")) for word in words.groups())
    below, behind = store.log.minimum if has_begin else 0, facts["log_end"] if has_end else sys.maxsize
    left_out = frozenset(
        int(PurePosixPath(one["file"]).name) + one["offset"]
        for one in found
        if (one["file"] or "").startswith("commitlog/")
        and one["what"].endswith("its place in the queue is damaged; accepted: it is left out")
    )
    passed = tuple(
        (int(PurePosixPath(one["file"]).name) + one["offset"], int((words[1] or words[2]).replace(",", "")))
        for one in found
        if (words := _PASSED.search(one["what"])) is not None
    )
    is_log_gone = any(
        one["file"] == "commitlog"
        and one["what"].startswith("there is no log file")
        and one["what"].endswith("; accepted")
        for one in found
    )
    cut = tuple(
        (one["topic"], one["queue_id"], one["first"], one["last"])
        for one in facts["cut"]["messages"]["queues"]
    )
    return Named(below, behind, with_begin if is_certain else None, left_out, passed, is_log_gone, cut)


def _served(store: HandStore, topic: str, queue_id: int) -> tuple[dict[int, bytes], set[int]]:
    """(record by queue offset, queue offsets that are answered as damaged) of one queue."""
    served: dict[int, bytes] = {}
    damaged: set[int] = set()
    at, end = store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id)
    while at < end:
        result = store.reads.get_blocking(GetRequest(topic, queue_id, at, max_count=32))
        if result.status is GetStatus.FOUND:
            for found, raw in _cut_records(bytes(result.body)):
                served[found.queue_offset] = raw
        elif result.status in (
            GetStatus.MESSAGE_DAMAGED,
            GetStatus.OFFSET_FOUND_NULL,
            GetStatus.MESSAGE_WAS_REMOVING,
        ):
            damaged.add(at)
        else:
            raise Violation(f"{topic}/{queue_id} at {at} of {end} is answered {result.status.name}")
        at = result.next_offset if result.next_offset > at else at + 1
    return served, damaged


def _cut_records(body: bytes) -> list[tuple[StoredMessage, bytes]]:
    found, at = [], 0
    while at < len(body):
        size = record.read_head(body, at).total_size
        raw = body[at : at + size]
        found.append((record.decode(raw), raw))
        at += size
    return found


def _is_named(losses: Losses | None, found: StoredMessage, broken: Broken) -> bool:
    """Whether the plan of a repair said that the message is lost. Bytes of which no queue is known count
    where its queue has no unit of it."""
    if losses is None:
        return False
    if any(
        (one.topic, one.queue_id) == (found.topic, found.queue_id)
        and one.first <= found.queue_offset <= one.last
        for one in losses.ranges
    ):
        return True
    if found.log_offset >= broken.known_end:
        return True  # of a killed store whose last log file is gone nothing says how far it went
    if broken.may_be_expired(found) or (losses.perhaps_expired and found.log_offset < losses.log_begin):
        return True
    if broken.has_own_unit(found):
        return False
    return losses.unnamed_bytes > 0 or f"{found.topic}/{found.queue_id}" in losses.ends_unknown


def _judge_queues(
    store: HandStore, broken: Broken, alive: set[int], cut_at: int | None, named: Named, losses: Losses | None
) -> int:
    """Compare what is served with what was stored; how many messages are gone, each of them named."""
    original = broken.original
    lost = 0
    by_queue: dict[tuple[str, int], dict[int, StoredMessage]] = {}
    for found in original.messages:
        by_queue.setdefault((found.topic, found.queue_id), {})[found.queue_offset] = found
    for (topic, queue_id), expected in by_queue.items():
        name = f"{topic}/{queue_id}"
        served, damaged = _served(store, topic, queue_id)
        for number, found in expected.items():
            raw = served.get(number)
            if raw == original.raw[found.log_offset]:
                continue
            if cut_at is not None and found.log_offset >= cut_at:
                if found.log_offset in alive and not named.is_cut(found):
                    raise Violation(
                        f"{name} {number} at log offset {found.log_offset} is readable and cut at "
                        f"{cut_at} without its name"
                    )
                lost += 1
                continue
            if found.log_offset in alive:
                how = "as damaged" if number in damaged else "not" if raw is None else "changed"
                raise Violation(
                    f"{name} {number} at log offset {found.log_offset} is readable and served {how}"
                )
            lost += 1
            is_new = (
                raw is not None
                and record.decode(raw).body == NEW_BODY
                and number >= broken.known_next(topic, queue_id, cut_at)
            )
            if raw is not None and not is_new:
                _judge_changed(name, found, raw)
            elif (
                number not in damaged
                and not named.has(found, broken.known_next(topic, queue_id, cut_at))
                and not _is_named(losses, found, broken)
            ):
                raise Violation(f"{name} {number} is gone without a word")
        # A repair puts placeholders, or records that it finds, also where an accepted start left numbers
        # without one.
        extra = {
            number
            for number, raw in served.items()
            if number not in expected
            and number < original.next_offsets[topic, queue_id]
            and not (_is_placeholder(raw) or raw in original.earlier)
            and not (
                number >= broken.known_next(topic, queue_id, cut_at) and record.decode(raw).body == NEW_BODY
            )
        }
        if extra:
            raise Violation(f"{name} serves {sorted(extra)[:4]}, which were never stored")
    return lost


def _is_placeholder(raw: bytes) -> bool:
    found = record.decode(raw)
    # One with little room is not marked
    return b"REPAIRED\x01" in found.raw_properties or not (found.body + found.raw_properties).strip(b"-")


def _judge_changed(name: str, found: StoredMessage, raw: bytes) -> None:
    """What is served in place of a message that was damaged: a placeholder, or bytes that no check covers."""
    served = record.decode(raw)
    if _is_placeholder(raw) or not served.body:
        return
    if served.body != found.body:
        raise Violation(f"{name} {found.queue_offset} is served with another body")


def _judge_keys(store: HandStore, original: Original, alive: set[int], cut_at: int | None) -> bool:
    """Whether the index is damaged and cannot be made from the log, which is damaged too: then a lookup says
    so."""
    # What a start does not read of the index is compared after it; until then a lookup says so.
    with patch.object(rebuilding, "Worker", HandWorker):
        store.worker("prover").run(store.clock())
    _finish_rebuild(store)
    if store.index_doubt is not None and store.rebuilding.progress().state == "failed":
        return True
    for found in original.messages:
        if found.log_offset not in alive or (cut_at is not None and found.log_offset >= cut_at):
            continue
        for key in found.keys:
            if found.log_offset not in store.reads.query_keys(found.topic, key, 64).offsets:
                raise Violation(
                    f"{found.topic}/{found.queue_id} {found.queue_offset} is not found by its key {key}"
                )
    return False


def _finish_rebuild(store: HandStore) -> None:
    if store.rebuilding.worker is not None:
        store.rebuilding.worker.run(store.clock())
        store.tick()


def _judge_new_offsets(store: HandStore, broken: Broken, cut_at: int | None) -> None:
    original = broken.original
    for (topic, queue_id), following in original.next_offsets.items():
        following = min(following, broken.known_next(topic, queue_id))
        if cut_at is not None:
            kept = [
                found.queue_offset + 1
                for found in original.messages
                if (found.topic, found.queue_id) == (topic, queue_id) and found.log_offset < cut_at
            ]
            following = min(max(kept, default=0), broken.known_next(topic, queue_id, cut_at))
        result = store.appender.put(message(topic, queue_id, NEW_BODY, unique="new"))
        if result.status is PutStatus.MESSAGE_ILLEGAL:
            continue  # a name longer than a new message may have
        if not result.ok:
            raise Violation(f"a new message of {topic}/{queue_id} is refused: {result.status.name}")
        if result.queue_offset < following:
            raise Violation(
                f"{topic}/{queue_id} gives offset {result.queue_offset} again; {following} is the next"
            )


def _noted(original: Original) -> FileSizes:
    """The sizes that the record of the last start has: none of a store on which no broker of ours ran."""
    return FileSizes() if original.name == APACHE else FileSizes(**asdict(original.sizes))


def judge_repair(root: Path, broken: Broken) -> Judgement:
    """Let the doctor plan and apply, then start the engine. Raises Violation."""
    before = tree(root)
    try:
        check = StoreCheck(root, noted=_noted(broken.original), last_start=broken.last_start)
        check.run()
        plan = make_plan(check, broken.original.settings(root))
        if tree(root) != before:
            raise Violation("a plan changed the store")
        Repair(plan).run()
    except StoreError as error:
        gone = readable(broken.files, broken.original) - readable(tree(root), broken.original)
        if gone:
            raise Violation(
                f"the repair was refused and {len(gone)} readable messages are gone: {error}"
            ) from error
        _require_each_somewhere(root, broken)
        return Judgement("refused", str(error))
    if plan.left:
        gone = readable(broken.files, broken.original) - readable(tree(root), broken.original)
        if gone:
            raise Violation(f"the repair left {plan.left[0]!r} and {len(gone)} readable messages are gone")
        _require_each_somewhere(root, broken)
        return Judgement("refused", plan.left[0])
    _require_each_somewhere(root, broken)
    return judge_start(root, broken, plan.losses)


def _require_each_somewhere(root: Path, broken: Broken) -> None:
    """What lay whole in a file of the log, under any name, lies in a file of the store or of lost+found after
    a repair."""
    before = b"".join(content for name, content in broken.files.items() if name.startswith("commitlog/"))
    after = b"".join(path.read_bytes() for path in root.parent.rglob("*") if path.is_file())
    gone = [
        found
        for found in broken.original.messages
        if (raw := broken.original.raw[found.log_offset]) in before and raw not in after
    ]
    if gone:
        raise Violation(
            f"{len(gone)} messages were whole in some file of the log, and are in none after the "
            f"repair: first {gone[0].topic}/{gone[0].queue_id} {gone[0].queue_offset}"
        )


# Running ------------------------------------------------------------------------------------------


def _original_of(seed: int) -> tuple[str, int]:
    """(kind, seed) of the store that a case breaks: one of ten is Apache's, three of ten were killed, and of
    later seeds two of ten repaired."""
    kind = seed % 10
    if seed >= REPAIRED_FROM and kind in (7, 8):
        return REPAIRED[kind - 7], seed // 10 % MAX_ORIGINALS
    return (APACHE, 0) if kind == 9 else ("killed" if kind < 3 else "clean", seed // 10 % MAX_ORIGINALS)


def judge_accepted(root: Path, broken: Broken) -> Judgement:
    """Start the engine with --accept-damage, then without. Raises Violation."""
    return judge_start(root, broken, accept_damage=True)


def judge_audit(root: Path, broken: Broken) -> Judgement:
    """Check the store, then audit it; `other kinds` where both find errors, and not the same kinds. Raises
    Violation.

    Of an index whose entries are in disorder, both say so, and each counts what else is wrong in its own
    order.
    """
    known = {"noted": _noted(broken.original), "last_start": broken.last_start}
    check = StoreCheck(root, **known)
    check.run()
    checked, named = (
        {(severity, kind) for severity, kind in found if kind not in NOT_COMPARED}
        for found in (
            [(one.severity, one.kind) for one in check.report.findings],
            [(one["severity"], one["kind"]) for one in audited(root, **known)["findings"]],
        )
    )
    errors, of_audit = ({kind for severity, kind in found if severity == ERROR} for found in (checked, named))
    if bool(errors) != bool(of_audit):
        raise Violation(f"the check finds {sorted(checked)}, the audit {sorted(named)}")
    return Judgement(
        "alike" if checked == named else "other kinds",
        "" if checked == named else f"check {sorted(checked - named)}, audit {sorted(named - checked)}",
    )


WAYS = {"start": judge_start, "repair": judge_repair, "accept": judge_accepted}
ALL_WAYS = WAYS | {"audit": judge_audit}


def broken_store(seed: int, kind: str = "", within: str = "") -> Broken:
    """The broken store of a seed. `kind` is the store that is broken (of all kinds without it), `within`
    where its broken files lie, or STATED."""
    original = make_original(kind, seed % MAX_ORIGINALS) if kind else make_original(*_original_of(seed))
    broken = break_store(original, random.Random(seed), within, moves=seed >= MOVED_FROM)
    if seed >= RECORDED_FROM and original.name != APACHE and seed // 10 % 2 == 1:
        broken.last_start = SYNCED if seed >= SYNCED_FROM and seed // 20 % 2 == 1 else SAME_BOOT
    return broken


def run_case(
    seed: int, directory: Path, kind: str = "", within: str = "", ways: Iterable[str] = tuple(WAYS)
) -> tuple[Broken, dict[str, Judgement | BaseException]]:
    """Make and break one store (see `broken_store`) and judge it once for each of `ways`."""
    broken = broken_store(seed, kind, within)
    judged: dict[str, Judgement | BaseException] = {}
    for way in ways:
        root = directory / way / "store"
        write_out(broken, root)
        try:
            judged[way] = ALL_WAYS[way](root, broken)
        except Exception as error:  # a refusal is judged before it comes here
            judged[way] = error
        finally:
            shutil.rmtree(directory / way)
    return broken, judged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument(
        "--seed",
        type=int,
        default=SYNCED_FROM,
        help="of the first case; each following case has the next number",
    )
    parser.add_argument(
        "--kind",
        default="",
        choices=("", "clean", "killed", APACHE, *REPAIRED),
        help="of the stores; all without it",
    )
    parser.add_argument(
        "--within",
        default="",
        help=f"the directory of the store whose files are broken, or {STATED!r}: what a record states",
    )
    parser.add_argument(
        "--way", default="", choices=("", *ALL_WAYS), help="that a store is judged by; all without it"
    )
    parser.add_argument("--show", type=int, default=20, help="violations that are printed")
    parser.add_argument("--trace", action="store_true", help="print where each violation was raised")
    options = parser.parse_args()
    ends: Counter[str] = Counter()
    shown = violations = 0
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.seed, options.seed + options.cases):
            broken, judged = run_case(
                seed,
                Path(directory),
                options.kind,
                options.within,
                [options.way] if options.way else ALL_WAYS,
            )
            for way, end in judged.items():
                if isinstance(end, Judgement):
                    ends[f"{broken.original.name} {way}: {end.outcome}"] += 1
                    if options.cases == 1:
                        print(f"{way}: {end.outcome} {end.sentence}")
                    continue
                violations += 1
                ends[f"{broken.original.name} {way}: VIOLATION"] += 1
                if shown < options.show:
                    shown += 1
                    print(
                        f"seed {seed} ({broken.original.name}) {way}: {type(end).__name__}: {end}\n    "
                        + "; ".join(broken.breaks)
                    )
                    if options.trace:
                        traceback.print_exception(end)
            if seed % 500 == 499:
                print(
                    f"{seed + 1 - options.seed:,} cases, {violations:,} violations",
                    file=sys.stderr,
                    flush=True,
                )
    for name, count in sorted(ends.items()):
        print(f"{count:>8,}  {name}")
    print(f"{options.cases:,} stores, {violations:,} violations")
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
