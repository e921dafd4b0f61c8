"""What a power cut can leave of a store, state by state, and whether the store that opens it keeps its word.

`Life` lets a store on a `SimulatedDisk` live through puts, syncs, rounds, cleaning, kills and cuts, and takes
a `CrashPoint` at every call of the seam. `states` walks what each point may leave on the disk; `Judge` opens
each and asks for what docs/durability.md section 3 lists: what was acknowledged as safe is at its offsets,
nothing is served that was not stored at that place, queues and index are exactly the log's, recovering again
changes nothing, a new message gets a new offset. A violation prints a command that makes the same disk again
from seed, point and choice (`tests/support/explore_crashes.py`).
"""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from broker_store.check.walk import check_store
from broker_store.engine.index import rebuilding
from broker_store.engine.index.rebuild import FRESH, OLD
from broker_store.errors import SyncError
from broker_store.formats import index_file, record
from broker_store.kernels import context as c
from broker_store.messages import GetRequest, GetStatus, Message, PutStatus
from tests.support.hand_store import Clock, HandStore, HandWorker, message, small_settings
from tests.support.name_rules import LENGTH, RULES, NameRules, Outcome
from tests.support.reference import hash_of, index_keys, tags_code
from tests.support.simulated_disk import PAGE, CrashPoint, SimulatedDisk, apply_change

SECTOR = 512
POOL = "POOL"  # ASYNC_FLUSH with a pool of buffers, in the place of a flush type
CHOICES_PER_POINT = 10  # fewer points are opened rather than fewer states of each
ROOT = Path("/data/store")
_UNIT = struct.Struct(">qiq")


@dataclass(frozen=True)
class Written:
    """A record that once was appended at a place of the log."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    raw: bytes
    # What its queue must hold of it, None for a message that is in no queue
    unit: tuple[int, int, int] | None
    hashes: tuple[int, ...]  # of its keys, as they go into the index
    a_key: str | None


class History:
    """Everything ever appended, by place; a place that was lost in a cut is used again."""

    def __init__(self) -> None:
        self.at: dict[int, dict[bytes, Written]] = {}

    def add(self, raw: bytes) -> Written:
        found = record.decode(raw)
        hashes = tuple(hash_of(key) for key in index_keys(found))
        unit = (found.log_offset, found.size, tags_code(found)) if found.is_queued else None
        a_key = next(iter(found.keys), None) if found.is_indexed else None
        written = Written(
            found.topic, found.queue_id, found.queue_offset, found.log_offset, raw, unit, hashes, a_key
        )
        return self.at.setdefault(found.log_offset, {}).setdefault(raw, written)


@dataclass(frozen=True)
class Promise:
    """What holds whatever a power cut takes."""

    safe: tuple[Written, ...]
    # topic: log offset below which nothing of it may be served
    deleted: dict[str, int] = field(default_factory=dict)


class Life:
    """A store and what happens to it. `rng` decides; the same seed leads the same life."""

    TOPICS = (("orders", 0), ("orders", 1), ("payments", 0), ("%RETRY%group", 0))
    MORE_TOPICS = (("SCHEDULE_TOPIC_XXXX", 1), ("%RETRY%" + "g" * 150, 0))

    def __init__(
        self,
        seed: int,
        flush: str,
        wide: bool = False,
        rebuilds: bool = False,
        rules: NameRules = RULES["directory"],
        rolls: bool = False,
    ):
        self.rng = random.Random(seed)
        self.rebuilds = rebuilds  # of the index; off in lives that are known by their seed
        self.seed = seed
        # Bursts of small messages, so that files of a queue roll between two rounds; no timer, which takes
        # time
        self.rolls = rolls
        self.has_pool = flush == POOL
        flush = "ASYNC_FLUSH" if self.has_pool else flush
        self.settings = small_settings(
            ROOT,
            flush_disk_type=flush,
            timer_wheel_enable=not rolls,
            transient_store_pool_enable=self.has_pool,
        )
        self.flush_type = flush
        # With delayed messages, those of transactions, and topics that need version 2 of the record
        self.is_wide = wide
        self.clock = Clock()
        self.history = History()
        self.acknowledged: list[Written] = []
        self.safe: set[Written] = set()
        self.deleted: dict[str, int] = {}
        self.points: list[CrashPoint] = []
        self.number = 0
        self._take(SimulatedDisk(self.clock, rules=rules))
        self.begin()

    def _take(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        disk.on_event = self.point

    def point(self, what: str) -> None:
        found = self.disk.crash_point(what)
        found.promised = Promise(tuple(self.safe), dict(self.deleted))
        self.points.append(found)

    def begin(self) -> None:
        self.store = HandStore(self.settings, self.clock, self.disk).begin()
        self._became_safe()

    # What may happen ------------------------------------------------------------------------------

    def put(self, count: int = 1) -> None:
        rng = self.rng
        self._make_room()
        messages = []
        for _ in range(count):
            self.number += 1
            topic, queue_id = rng.choice(self.TOPICS)
            size = rng.choice((3, 40, 200, 900, 3000))
            body = self.number.to_bytes(3, "big") + rng.randbytes(size - 3)
            keys = [f"k{self.number}", f"g{self.number % 5}"][: rng.randrange(3)]
            sent = message(
                topic, queue_id, body, tag=rng.choice((None, "a", "b")), keys=keys, unique=f"u{self.number}"
            )
            messages.append(self._widened(sent) if self.is_wide else sent)
        results = list(self.store.appender.put_many(messages))
        for result in results:
            if result.ok:
                self._wrote(result.log_offset, result.log_end)
        assert all(result.ok for result in results), results
        self.point("put")

    def burst(self) -> None:
        """More small messages of one queue than a file of it has units."""
        topic, queue_id = self.rng.choice(self.TOPICS)
        for _ in range(self.rng.choice((2, 5))):
            self._make_room()
            messages = []
            for _ in range(10):
                self.number += 1
                messages.append(message(topic, queue_id, self.number.to_bytes(3, "big")))
            for result in list(self.store.appender.put_many(messages)):
                assert result.ok, result
                self._wrote(result.log_offset, result.log_end)
            if self.flush_type == "SYNC_FLUSH":
                self.flush()
            if self.has_pool:
                self.commit()
        self.point("burst")

    def _widened(self, sent: Message) -> Message:
        if self.rng.random() < 0.3:
            sent.topic, sent.queue_id = self.rng.choice(self.MORE_TOPICS)
            sent.properties += b"DELAY\x01%d\x02" % self.rng.randint(0, 19)
        sent.sys_flag = self.rng.choice((0, 0, 0, 0, 0, 4, 8, 12))
        if self.rng.random() < 0.3:
            sent.born_host = (self.rng.randbytes(16), 5)
        return sent

    def put_batch(self) -> None:
        self._make_room()
        self.number += 1
        topic, queue_id = self.rng.choice(self.TOPICS)
        chain = b""
        for inner in range(self.rng.randrange(1, 5)):
            body, own = (
                self.rng.randbytes(self.rng.randrange(200)),
                b"KEYS\x01b%d-%d\x02" % (self.number, inner),
            )
            size = 22 + len(body) + len(own)
            chain += (
                struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(own)) + own
            )
        result = self.store.appender.put_batch(message(topic, queue_id, chain, tag="batch"))
        assert result.ok, result
        for at, end in zip(result.log_offsets, (*result.log_offsets[1:], result.log_end), strict=True):
            self._wrote(at, end)
        self.point("put batch")

    def _make_room(self) -> None:
        """Keys wait for the index until the log is synced, or in its files, and two files as small as these
        hold few."""
        if self.store._parts.context.view[c.QUEUED_KEYS] > 10:
            if self.flush_type == "SYNC_FLUSH":
                self.flush()
            elif self.has_pool:
                self.commit()

    def _wrote(self, log_offset: int, log_end: int) -> None:
        size = struct.unpack(">i", self.store.log.appended(log_offset, 4))[0]
        written = self.history.add(self.store.log.appended(log_offset, size))
        if self.flush_type == "ASYNC_FLUSH":
            self.acknowledged.append(written)
            return

        def answered(status: PutStatus) -> None:
            if status is PutStatus.PUT_OK:
                self.acknowledged.append(written)
                self.safe.add(written)

        self.store.confirmation.when_confirmed(log_end, answered)

    def _became_safe(self) -> None:
        """With asynchronous flush an acknowledged message is safe once the store says that it is flushed."""
        if self.flush_type == "ASYNC_FLUSH":
            flushed = self.store.log.flushed
            self.safe |= {
                written for written in self.acknowledged if written.log_offset + len(written.raw) <= flushed
            }

    def commit(self) -> None:
        """What is in buffers goes to the files."""
        self.store.commit()
        self.point("committed")

    def flush(self) -> None:
        self.store.flush()
        assert self.store.is_writable
        self._became_safe()
        self.point("flushed")

    def round(self) -> None:
        self.store.round()
        assert self.store.is_writable
        self.point("round")

    def prepare(self) -> None:
        self.store.prepare()

    def wait(self) -> None:
        self.clock.advance(self.rng.choice((1, 700, 3500)))

    def clean(self) -> None:
        """Retention by force: what lies below the new minimum is no longer promised from here on."""
        if len(self.store.log.files) > 1:
            self._forget(lambda written: written.log_offset < self.store.log.files[1].base)
            self.store.cleaning.delete_expired(any_age=True, most=1)

    def delete_topic(self) -> None:
        topic = self.rng.choice(self.TOPICS)[0]
        if not self.store.queue_ids(topic):
            return
        if self.flush_type == "SYNC_FLUSH":
            self.flush()
        end = self.store.log.wrote
        self._forget(lambda written: written.topic == topic and written.log_offset < end)
        self.store.delete_topic(topic)
        self.deleted[topic] = end
        self.point(f"deleted {topic}")

    def _forget(self, which) -> None:
        self.acknowledged = [written for written in self.acknowledged if not which(written)]
        self.safe = {written for written in self.safe if not which(written)}

    def rebuild(self) -> None:
        """The index is built again and put in the place of the old one, or given up on the way."""
        if self.flush_type == "SYNC_FLUSH":
            self.flush()
        if self.has_pool:
            self.commit()
        with patch.object(rebuilding, "Worker", HandWorker):
            self.store.rebuilding.begin()
        if self.rng.random() < 0.2:
            self.store.rebuilding.cancel()
        self.store.rebuilding.worker.run(self.clock())
        self.store.tick()
        assert self.store.rebuilding.progress().state in ("done", "cancelled"), (
            self.store.rebuilding.progress()
        )
        self.point("rebuilt")

    def close_and_open(self) -> None:
        if self.flush_type == "SYNC_FLUSH":
            self.flush()
        self.store.close()
        self.safe |= set(self.acknowledged)
        self.point("closed")
        self.begin()

    def kill(self) -> None:
        """kill -9: nothing that was acknowledged may be missing, but what was in a buffer of the pool."""
        if self.has_pool:
            self._lose_after(self.store.log.committed)
        self.store.die()
        self.disk.kill()
        self.begin()
        Judge(self).look(self.store, Promise(tuple(self.acknowledged), self.deleted))

    def cut(self) -> None:
        """The power goes; life goes on with one of the states it may leave."""
        self.point("cut")
        point = self.points[-1]
        choice = self.rng.choice(list(random_choices(point, self.rng, 4)))
        self.store.die()
        self._take(disk_of(point, choice, self.clock))
        self.begin()
        Judge(self).look(self.store, point.promised)
        self._lose_after(self.store.log.wrote)

    def _lose_after(self, there: int) -> None:
        self.deleted = {topic: min(before, there) for topic, before in self.deleted.items()}
        self._forget(lambda written: written.log_offset + len(written.raw) > there)

    def live(self, steps: int) -> None:
        deeds = (
            [self.put] * 8
            + [lambda: self.put(4)] * 2
            + [self.put_batch] * 2
            + [self.flush] * 4
            + [self.round] * 3
            + [self.wait] * 4
        )
        deeds += [self.prepare, self.clean, self.delete_topic, self.close_and_open, self.kill, self.cut]
        if self.rebuilds:
            deeds += [self.rebuild] * 3
        if self.has_pool:
            deeds += [self.commit] * 5
        if self.rolls:
            deeds += [self.burst] * 6 + [self.prepare] * 2
        for _ in range(steps):
            self.rng.choice(deeds)()


class BrokenLife(Life):
    """A life whose sync number `failing` fails; it goes on until the store takes nothing more."""

    def __init__(self, seed: int, flush: str, failing: int, rules: NameRules = RULES["directory"]):
        self.left = failing
        super().__init__(seed, flush, rules=rules)

    def point(self, what: str) -> None:
        super().point(what)
        self.left -= what.startswith("sync")
        if self.left == 0 and what.startswith("sync"):
            raise SyncError("injected")

    def live(self, steps: int) -> None:
        try:
            super().live(steps)
        except (SyncError, AssertionError):
            assert self.left <= 0
            self.point("after the failed sync")


# States -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Which version of each uncertain page is on the disk, and which changes of names and lengths."""

    pages: tuple[tuple[int, int, tuple[int, ...]], ...]  # (file, page, version of it, or one a sector)
    names: Outcome = Outcome()
    lengths: tuple[tuple[int, int], ...] = ()  # (file, length) of files whose newest length is lost

    def as_json(self) -> str:
        value = {"pages": self.pages, "done": sorted(self.names.done), "empty": sorted(self.names.empty)} | (
            {"lengths": self.lengths} if self.lengths else {}
        )
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Choice:
        value = json.loads(text)
        pages = tuple((file, page, tuple(versions)) for file, page, versions in value["pages"])
        return cls(
            pages,
            Outcome(frozenset(value["done"]), frozenset(value["empty"])),
            tuple((file, length) for file, length in value.get("lengths", ())),
        )


def _uncertain(point: CrashPoint) -> list[tuple[int, int, int]]:
    return [
        (number, page, len(versions))
        for number, state in point.files.items()
        for page, versions in state.pages.items()
    ]


def choices(point: CrashPoint, rng: random.Random, most_random: int) -> Iterator[Choice]:
    """Ways the disk may look, from the plain to the mixed."""
    pages = _uncertain(point)
    newest, oldest = {p[:2]: p[2] - 1 for p in pages}, {p[:2]: 0 for p in pages}
    all_names, no_names = point.rules.everything(point.pending), point.rules.nothing(point.pending)

    def made(versions: dict, names: Outcome, lengths: tuple[tuple[int, int], ...] = ()) -> Choice:
        return Choice(tuple((*key, (version,)) for key, version in versions.items()), names, lengths)

    yield made(newest, all_names)
    if not pages and not point.pending:
        return
    yield made(oldest, no_names)
    yield made(oldest, all_names)
    yield made(newest, no_names)
    for key in newest:
        yield made(newest | {key: 0}, all_names)
        yield made(oldest | {key: newest[key]}, all_names)
    for number in {key[0] for key in newest}:
        of_file = {key for key in newest if key[0] == number}
        yield made(newest | {key: 0 for key in of_file}, all_names)
        yield made(oldest | {key: newest[key] for key in of_file}, all_names)
    for names in point.rules.singly(point.pending):
        yield made(newest, names)
        yield made(oldest, names)
    for number, state in point.files.items():
        for length in set(state.shorter):
            yield made(newest, all_names, ((number, length),))
            yield made(oldest, all_names, ((number, length),))
    yield from random_choices(point, rng, most_random)


def random_choices(point: CrashPoint, rng: random.Random, count: int) -> Iterator[Choice]:
    """Blends of everything, with torn pages."""
    pages = _uncertain(point)
    for _ in range(count):
        kept = rng.random()
        chosen = []
        for number, page, versions in pages:
            if rng.random() < 0.2:
                chosen.append((number, page, tuple(rng.randrange(versions) for _ in range(PAGE // SECTOR))))
            else:
                chosen.append(
                    (number, page, (versions - 1 if rng.random() < kept else rng.randrange(versions),))
                )
        names = point.rules.chance(point.pending, rng, kept)
        # Of a source of its own: lives and states that are known by their seed stay what they were.
        of_lengths = random.Random(f"{kept} {names}")
        lengths = [
            (number, of_lengths.choice(state.shorter))
            for number, state in point.files.items()
            if state.shorter and of_lengths.random() < 0.3
        ]
        yield Choice(tuple(chosen), names, tuple(lengths))


@functools.cache
def _parents(path: Path) -> tuple[Path, ...]:
    """The directories above a path, the nearest first; lives use the same few hundred paths."""
    return tuple(path.parents)


def contents_of(point: CrashPoint, choice: Choice) -> tuple[dict[Path, bytes], set[Path]]:
    """The files and directories of a choice."""
    names, directories = dict(point.names), set(point.directories)
    for change in point.pending:
        if change.kind != LENGTH and change.number in choice.names.done:
            apply_change(change, change.file, names, directories)
    # A directory whose own name is lost is out of reach, with all that was synced in it.
    directories = {each for each in directories if directories.issuperset(_parents(each))}
    parts: dict[int, dict[int, bytes]] = {}
    shorter = dict(choice.lengths)
    for number, page, versions in choice.pages:
        of_page = point.files[number].pages[page]
        if len(versions) == 1:
            chosen = of_page[versions[0]]
        else:
            chosen = b"".join(
                of_page[version][n * SECTOR : (n + 1) * SECTOR] for n, version in enumerate(versions)
            )
        parts.setdefault(number, {})[page] = chosen
    contents = {}
    for path, number in names.items():
        if _parents(path)[0] not in directories:
            continue
        content = b"" if number in choice.names.empty else point.files[number].content
        if content and number in parts:
            pages = parts[number]
            content = b"".join(
                pages.get(at // PAGE, content[at : at + PAGE]) for at in range(0, len(content), PAGE)
            )
        contents[path] = content[: shorter.get(number)]
    return contents, directories


def disk_of(point: CrashPoint, choice: Choice, clock: Clock) -> SimulatedDisk:
    return SimulatedDisk.of(clock, *contents_of(point, choice), point.rules)


# Judging ------------------------------------------------------------------------------------------


class Violation(AssertionError):
    """The store did not keep its word."""


class Judge:
    """Asks an opened store for what must hold."""

    def __init__(self, life: Life):
        self.life, self.history = life, life.history
        self.states = 0

    def judge(self, point: CrashPoint, choice: Choice, thorough: bool = False) -> None:
        """Open the state in a store of its own."""
        self.states += 1
        clock = Clock(self.life.clock.now_ms + 1000)
        disk = disk_of(point, choice, clock)
        self.judge_disk(disk, clock, point.promised, thorough)

    def judge_disk(self, disk: SimulatedDisk, clock: Clock, promise: Promise, thorough: bool) -> None:
        store = HandStore(self.life.settings, clock, disk)
        try:
            store.begin()
            self.look(store, promise)
            if thorough:
                store.die()
                disk.kill()
                before = _what_counts(disk)
                store = HandStore(self.life.settings, clock, disk).begin()
                if _what_counts(disk) != before:
                    raise Violation(f"recovering again changed {_difference(before, _what_counts(disk))}")
                self.look(store, promise)
            self._take_one_more(store)
            if thorough:
                store.close()
                report = check_store(ROOT, self.life.settings, disk=disk)
                if report.errors:
                    raise Violation(f"check_store: {report.errors[0]}")
        finally:
            store.die()

    def look(self, store: HandStore, promise: Promise) -> None:
        found = self._walk_log(store)
        self._compare_queues(store, found, promise)
        self._compare_index(store, found)
        if left := {FRESH, OLD} & set(store.disk.list_names(ROOT)):
            raise Violation(f"of a rebuild {sorted(left)} is left")
        minimum = store.log.minimum
        for written in promise.safe:
            if written.log_offset not in found or found[written.log_offset] is not written:
                raise Violation(
                    f"safe message {_name(written)} is not in the log [{minimum}, {store.log.wrote})"
                )

    def _walk_log(self, store: HandStore) -> dict[int, Written]:
        """Every record of the log, each of which must be one that was stored there."""
        found: dict[int, Written] = {}
        at, end, file = store.log.minimum, store.log.wrote, None
        while at < end:
            if file is None or at >= file.end:
                file = store.log.file_at(at)
                content = store.disk.files[file.path].array
            size, magic = record.HEAD.unpack(content, at - file.base)
            if magic == record.BLANK_MAGIC:
                at = file.end
                continue
            raw = content[at - file.base : at - file.base + max(size, 0)].tobytes()
            written = self.history.at.get(at, {}).get(raw)
            if written is None:
                raise Violation(f"at {at} of the log, which ends at {end}, lies what was never stored there")
            found[at] = written
            at += size
        if any(
            store.log.current.map().read(end - store.log.current.base, min(8, store.log.current.end - end))
        ):
            raise Violation(f"behind the end {end} of the log something is left")
        return found

    def _compare_queues(self, store: HandStore, found: dict[int, Written], promise: Promise) -> None:
        expected: dict[tuple[str, int], dict[int, Written]] = {}
        for written in found.values():
            if written.unit is not None and written.log_offset >= store._parts.tombstones.before(
                written.topic
            ):
                expected.setdefault((written.topic, written.queue_id), {})[written.queue_offset] = written
        for queue in store.queue_table:
            units = expected.pop((queue.topic, queue.queue_id), {})
            name = f"{queue.topic}/{queue.queue_id}"
            file = None
            for number in range(queue.minimum, queue.maximum):
                if file is None or number * 20 >= file.end:
                    file = queue.file_of(number)
                    content = store.disk.files[file.path].array
                unit = _UNIT.unpack_from(content, number * 20 - file.base)
                written = units.pop(number, None)
                if written is None or written.unit != unit:
                    raise Violation(
                        f"unit {number} of {name} says {unit}, the log {written and written.unit}"
                    )
                if unit[0] < promise.deleted.get(queue.topic, 0):
                    raise Violation(f"unit {number} of {name} is of the deleted topic")
            if units:
                raise Violation(f"{name} [{queue.minimum}, {queue.maximum}) lacks units {sorted(units)}")
        if expected:
            raise Violation(f"there is no queue for {list(expected)}")

    def _compare_index(self, store: HandStore, found: dict[int, Written]) -> None:
        minimum = store.log.minimum
        entries = []
        for file in store.index.files:
            content = store.disk.files[file.path].array
            count = index_file.decode_header(content).count
            for number in range(1, count):
                entry = index_file.decode_entry(content, file.geometry.entry_at(number))
                if entry.log_offset >= minimum:
                    entries.append((entry.log_offset, entry.key_hash))
        expected = [(written.log_offset, hashed) for written in found.values() for hashed in written.hashes]
        if entries != expected:
            both = zip(entries, expected, strict=False)
            first = next(
                (n for n, (left, right) in enumerate(both) if left != right), min(len(entries), len(expected))
            )
            raise Violation(
                f"index entry {first} of {len(entries)} is {entries[first : first + 2]}, of "
                f"{len(expected)} the log makes {expected[first : first + 2]}"
            )
        for written in list(found.values())[-2:]:
            if written.a_key is not None:
                result = store.reads.query_keys(written.topic, written.a_key, 64)
                if written.log_offset not in result.offsets:
                    raise Violation(f"key {written.a_key} of {_name(written)} is not found")

    def _take_one_more(self, store: HandStore) -> None:
        topic, queue_id = self.life.TOPICS[0]
        following = store.reads.max_offset(topic, queue_id)
        result = store.appender.put(message(topic, queue_id, b"one more"))
        if store.settings.transient_store_pool_enable:
            store.commit()
        store.flush()
        if not result.ok or result.queue_offset != following:
            raise Violation(f"a new message of {topic}/{queue_id} [.., {following}) was answered {result}")
        read = store.reads.get(GetRequest(topic, queue_id, following))
        if read.status is not GetStatus.FOUND or record.decode(read.body).body != b"one more":
            raise Violation(f"the new message is read as {read.status.name}")


def _name(written: Written) -> str:
    return f"{written.topic}/{written.queue_id} {written.queue_offset} at {written.log_offset}"


def _what_counts(disk: SimulatedDisk) -> dict[Path, bytes]:
    """All but the index, whose entries may be spread over files in another way when it is built again."""
    parts = ("commitlog", "consumequeue", "checkpoint")
    return {
        path: content
        for path, content in disk.contents().items()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in parts
    }


def _difference(before: dict, after: dict) -> list[str]:
    return sorted(str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path))


@dataclass(frozen=True)
class Exploration:
    """A life, and how its points are opened; everything that decides which states are opened."""

    seed: int
    flush: str
    steps: int
    states: int
    rules: str = "directory"
    wide: bool = False
    rebuilds: bool = False
    rolls: bool = False
    failing_sync: int | None = None
    most_random: int = 12

    def live(self) -> Life:
        """The life, at its end."""
        rules = RULES[self.rules]
        if self.failing_sync is None:
            life = Life(self.seed, self.flush, self.wide, self.rebuilds, rules, self.rolls)
        else:
            life = BrokenLife(self.seed, self.flush, self.failing_sync, rules)
        try:
            life.live(self.steps)
        except BaseException as error:
            error.add_note(f"{self}, after {len(life.points)} points")
            raise
        life.store.die()
        return life

    def run(self) -> int:
        """Open up to `states` different disks that the life may have left; how many were opened."""
        life = self.live()
        judge = Judge(life)
        rng = random.Random(self.seed + 1)
        points = list(enumerate(life.points))
        if len(points) * CHOICES_PER_POINT > self.states:
            points = sorted(
                rng.sample(points, max(1, self.states // CHOICES_PER_POINT)), key=lambda point: point[0]
            )
        per_point = self.states // len(points)
        seen: set[int] = set()
        for number, point in points:
            walk = list(choices(point, rng, self.most_random))
            chosen = walk if len(walk) <= per_point else rng.sample(walk, per_point)
            for choice in chosen:
                contents, _ = contents_of(point, choice)
                key = hash((frozenset(contents.items()), len(point.promised.safe)))
                if key in seen:
                    continue
                seen.add(key)
                is_thorough = judge.states % 20 == 0
                try:
                    judge.judge(point, choice, is_thorough)
                except BaseException as error:
                    error.add_note(
                        f"point {number} ({point.what}); the same state again: "
                        f"{self.command(number, choice, is_thorough)}"
                    )
                    raise
        return judge.states

    def open_one(self, point_number: int, choice: Choice, thorough: bool) -> None:
        """One state once more."""
        life = self.live()
        Judge(life).judge(life.points[point_number], choice, thorough)

    def command(self, point_number: int, choice: Choice, thorough: bool) -> str:
        options = [
            f"--seed {self.seed} --flush {self.flush} --rules {self.rules} --steps {self.steps} "
            f"--point {point_number}"
        ]
        options += [
            f"--{name}"
            for name, is_on in (
                ("wide", self.wide),
                ("rebuilds", self.rebuilds),
                ("rolls", self.rolls),
                ("thorough", thorough),
            )
            if is_on
        ]
        options += [f"--failing-sync {self.failing_sync}"] if self.failing_sync is not None else []
        return f"python -m tests.support.explore_crashes {' '.join(options)} --choice '{choice.as_json()}'"


def explore(seed: int, flush: str, steps: int, states: int, **more) -> int:
    """`Exploration.run` of a life of `steps`."""
    return Exploration(seed, flush, steps, states, **more).run()
