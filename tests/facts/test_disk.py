"""The disk forecast: what goes when, and who loses what by it, is what retention really does at that time."""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager

import pytest

from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.status import samples
from broker_store.engine.status.samples import Sample
from broker_store.facts import deletion
from broker_store.facts.deletion import ForcedDeletion, Rules, offsets_of
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk import DiskView
from broker_store.facts.growth import DAY_MS, HOUR_MS, MINUTE_MS
from broker_store.facts.marks import HORIZON_MS
from broker_store.facts.positions import Positions
from broker_store.facts.timeline import Timeline
from broker_store.formats import record
from tests.support import plain_forecast as plain
from tests.support.hand_store import START_MS, Clock, message, opened, small_settings
from tests.support.stores import SIZES, unpack

QUEUES = (("topic", 0), ("topic", 1), ("rare", 0))


class UsedDisk(Disk):
    """Says how full it is."""

    total, used = 1 << 30, 0.5

    def usage(self, path):
        return Usage(self.total, round(self.total * (1 - self.used)))


def hour_in(ms: int) -> str:
    """The host's hour of the day, so long after the start."""
    return f"{time.localtime((START_MS + ms) / 1000).tm_hour:02d}"


class World:
    """A store filled over 30 invented hours, unevenly, whose files were last touched when the clock says."""

    def __init__(self, store, clock, disk):
        self.store, self.clock, self.disk = store, clock, disk
        self.offsets = []
        chance = random.Random(11)
        for hour in range(30):
            for _ in range(chance.randrange(2, 9)):
                topic, queue_id = QUEUES[chance.choices((0, 1, 2), (10, 5, 1))[0]]
                store.appender.put(
                    message(
                        topic,
                        queue_id,
                        body=b"x" * chance.randrange(200, 3000),
                        unique=f"u{hour}-{chance.random()}",
                    )
                )
                clock.advance(chance.randrange(1, 300_000))
            clock.now_ms = START_MS + (hour + 1) * HOUR_MS
        store.flush(), store.round()
        self.touch()

    def touch(self) -> None:
        """The files' times are the invented clock's: when each was full."""
        times = plain.records(self.store.root)
        for file in self.store.log.files:
            last = max(
                (stored_ms for place, _, stored_ms in times if file.base <= place < file.end),
                default=self.clock(),
            )
            os.utime(file.path, (last / 1000, last / 1000))

    def position(self, group: str, topic: str, queue_id: int, at: int) -> None:
        self.offsets.append((group, topic, {queue_id: at}))

    @contextmanager
    def look(self, **changes):
        store = self.store
        ends = {
            queue: (store.reads.min_offset(*queue), store.reads.max_offset(*queue))
            for queue in store.queues()
        }
        read_samples = changes.pop("read_samples", lambda wanted, from_ms: [])
        are_full = changes.pop("samples_are_full", None)
        rules = Rules.of(store.settings)._replace(**changes)
        directory = StoreDirectory(store.root, self.disk)
        with Positions(directory, ends, store.log.wrote) as positions:
            safe_to = store.status.positions().checkpoint_position
            view = DiskView(
                directory,
                positions,
                rules,
                self.clock(),
                is_running=True,
                offsets=self.offsets,
                read_samples=read_samples,
                safe_to=safe_to,
            )
            known = {"is_running": True, "read_samples": read_samples, "samples_are_full": are_full}
            view.timeline = lambda group: Timeline(
                group, positions, view, rules, self.clock(), self.offsets, **known
            ).facts()
            yield view


@pytest.fixture
def world(tmp_path):
    clock, disk = Clock(), UsedDisk()
    with opened(
        tmp_path / "store",
        clock,
        disk,
        file_reserved_time=10,
        delete_when=f"{hour_in(0)};{hour_in(6 * HOUR_MS)}",
        delete_file_batch_max=3,
    ) as store:
        world = World(store, clock, disk)
        yield world


def test_each_file_goes_when_it_was_forecast_and_the_groups_named_lose_what_was_named(world):
    tops = {queue: world.store.reads.max_offset(*queue) for queue in QUEUES}
    world.position("keeps-up", "topic", 0, tops["topic", 0])
    world.position("half", "topic", 0, tops["topic", 0] // 2)
    world.position("half", "topic", 1, 3)
    world.position("stands", "topic", 1, 0)
    world.position("stands", "rare", 0, 1)
    world.position("all@broadcast", "topic", 0, 5)
    with world.look() as view:
        forecast = view.forecast(100)
    full = [file for file in forecast.files if file.is_full]
    assert len(full) == len(world.store.log.files) - 1 > 10
    assert [file.goes_ms for file in full] == sorted(file.goes_ms for file in full)
    root = world.store.root
    lost_by_plain = {
        file.name: {
            (group, topic, queue_id): plain.unread(
                root, topic, queue_id, at, file.base, file.base + file.size
            )
            for group, topic, queues in world.offsets
            for queue_id, at in queues.items()
        }
        for file in full
    }
    assert any(file.losses for file in full) and not any(
        loss.group == "keeps-up" for file in full for loss in file.losses
    )
    for file in full:
        told = {
            (loss.group + "@broadcast" * loss.is_broadcast, queue.topic, queue.queue_id): (
                queue.messages,
                queue.bytes,
            )
            for loss in file.losses
            for queue in loss.queues
        }
        assert told == {place: lost for place, lost in lost_by_plain[file.name].items() if lost[0]}, file.name
        for loss in file.losses:
            assert (loss.messages, loss.bytes) == (
                sum(queue.messages for queue in loss.queues),
                sum(queue.bytes for queue in loss.queues),
            )
    # Time goes on in steps of the look; at each file's moment it is there before the look and gone after it.
    gone = 0
    while gone < len(full):
        if full[gone].goes_ms - world.clock() > HOUR_MS:
            world.clock.now_ms = full[gone].goes_ms - MINUTE_MS
            world.store.look_at_disk()
            assert world.store.log.files[0].path.name == full[gone].name, "not a minute early"
        world.clock.now_ms = max(world.clock(), full[gone].goes_ms)
        before = {queue: world.store.reads.min_offset(*queue) for queue in QUEUES}
        world.store.look_at_disk()
        now_gone = len(full) + 1 - len(world.store.log.files)
        batch, gone = full[gone:now_gone], now_gone
        assert batch, "it went when it was said"
        assert (
            max(file.goes_ms for file in batch) - world.clock() < world.store.settings.clean_resource_interval
        )
        really = {}
        for group, topic, queues in world.offsets:
            for queue_id, at in queues.items():
                low = before[topic, queue_id]
                really[group] = really.get(group, 0) + max(
                    0, world.store.reads.min_offset(topic, queue_id) - max(at, low)
                )
        named = {}
        for file in batch:
            for loss in file.losses:
                name = loss.group + "@broadcast" * loss.is_broadcast
                named[name] = named.get(name, 0) + loss.messages
        assert {group: count for group, count in really.items() if count} == named
    assert {loss for file in full for loss in (entry.group for entry in file.losses)} == {
        "half",
        "stands",
        "all",
    }


def test_another_retention_is_asked_for_and_nothing_is_changed_by_it(world):
    with world.look(reserved_hours=2) as view, world.look() as now:
        soon, usual = view.forecast(100).files, now.forecast(100).files
        assert view.facts().settings.retention_hours == 2
    for one, other in zip(soon, usual, strict=True):
        assert one.expires_ms is None or one.expires_ms == other.expires_ms - 8 * HOUR_MS
    assert all(one.goes_ms <= other.goes_ms for one, other in zip(soon, usual, strict=True))
    assert len(world.store.log.files) == len(list((world.store.root / "commitlog").iterdir()))


def test_a_tight_disk_lets_expired_files_go_at_any_hour_and_a_fuller_one_takes_the_oldest(world):
    world.position("stands", "topic", 0, 0)
    world.disk.used = 0.8
    with world.look() as view:
        forecast = view.forecast(100)
    due = [file.name for file in forecast.files if file.goes_ms is not None and file.goes_ms <= world.clock()]
    assert len(due) == 3, "as many as a look takes; the next go ten seconds later"
    world.store.look_at_disk()
    assert (
        due == [file.name for file in forecast.files[: len(due)]]
        and world.store.log.files[0].path.name == forecast.files[3].name
    )
    with world.look() as view:
        forced = view.forecast(100).forced
    world.disk.used = 0.87
    before = [file.path.name for file in world.store.log.files]
    low = world.store.reads.min_offset("topic", 0)
    world.store.look_at_disk()
    assert forced.files == before[: len(before) - len(world.store.log.files)] and len(forced.files) == 3
    assert forced.bytes == 3 * 16384
    (loss,) = forced.losses
    assert (loss.group, loss.messages) == ("stands", world.store.reads.min_offset("topic", 0) - low)


def test_where_forced_cleaning_is_off_nothing_goes_by_force(world):
    with world.look(is_forced=False) as view:
        assert view.forecast().forced == ForcedDeletion(files=[], bytes=0, losses=[], losses_left_out=0)


def test_the_groups_that_lose_most_by_a_file_are_named_and_the_others_counted(world, monkeypatch):
    monkeypatch.setattr(deletion, "MAX_LOSS_GROUPS", 3)
    for number in range(7):
        world.position(f"group-{number}", "topic", 0, 0)
    with world.look() as view:
        first = view.forecast(100).files[0]
        forced = view.forecast(100).forced
    for of in (first, forced):
        assert [loss.group for loss in of.losses] == [
            "group-0",
            "group-1",
            "group-2",
        ] and of.losses_left_out == 4


def test_a_group_that_reads_too_late_is_named_before_those_that_lack_more_and_read_in_time(
    world, monkeypatch
):
    """The only group that loses messages was the one left out."""
    monkeypatch.setattr(deletion, "MAX_LOSS_GROUPS", 3)
    for number in range(7):
        world.position(f"busy-{number}", "topic", 0, 0)
    world.position("stands", "rare", 0, 0)
    speeds = {"stands": 0.0} | {f"busy-{number}": 1e6 for number in range(7)}
    monkeypatch.setattr(deletion.Losses, "_speed", lambda losses, place: speeds[place[0]] if place else None)
    monkeypatch.setattr(deletion.samples, "position_of", lambda group, *queue: (group, *queue))
    with world.look() as view:
        first = next(
            file
            for file in reversed(view.forecast(100).files)
            if file.is_full and file.losses and any(loss.group == "stands" for loss in file.losses)
        )
    assert [(loss.group, loss.is_read_in_time) for loss in first.losses] == [
        ("stands", False),
        ("busy-0", True),
        ("busy-1", True),
    ]
    assert first.losses_left_out == 5


def test_the_rate_is_what_the_log_gained_in_each_window(world):
    world.clock.advance(7 * MINUTE_MS)
    with world.look() as view:
        facts = view.facts()
    now, root = world.clock(), world.store.root
    first = plain.records(root)[0][2]
    assert [window.window_ms for window in facts.rate.windows] == [
        10 * MINUTE_MS,
        HOUR_MS,
        6 * HOUR_MS,
        DAY_MS,
    ] and facts.log.first_ms == first
    for window in facts.rate.windows:
        assert window.bytes == plain.bytes_since(root, now - window.window_ms)
        assert window.bytes_per_s == pytest.approx(window.bytes * 1000 / window.window_ms)
    per_s = [window.bytes_per_s for window in facts.rate.windows]
    assert (
        facts.rate.low_bytes_per_s,
        facts.rate.high_bytes_per_s,
        facts.rate.bytes_per_s,
    ) == (min(per_s), max(per_s), per_s[-1])
    assert facts.log.messages == sum(
        len(plain.units(root, *queue)) for queue in QUEUES
    ) and facts.log.end == plain.log_end(root)


def test_marks_come_when_the_room_is_used_up_at_that_rate(world):
    world.disk.total = 1 << 20
    world.disk.used = 0.5
    with world.look(reserved_hours=10_000) as view:
        facts = view.facts()
    rate = facts.rate
    per_ms = rate.bytes_per_s * (1 + rate.overhead) / 1000
    for mark in facts.marks:
        left = (1 << 20) * (mark.percent - 50) / 100
        assert mark.at_ms - world.clock() == pytest.approx(left / per_ms, rel=1e-6)
        assert mark.earliest_ms <= mark.at_ms <= (mark.latest_ms or 1 << 60) and not mark.is_reached
    assert [mark.what for mark in facts.marks] == ["expired", "forced", "refused", "full"]
    # Files that go by age keep it below: then no mark is ever reached, and that is said by the highest use.
    world.disk.total = 4 << 20
    with world.look(reserved_hours=1) as view:
        facts = view.facts()
    assert (
        [mark.at_ms for mark in facts.marks] == [None] * 4
        and 0.5 <= facts.highest_ratio < 0.75
        and facts.horizon_ms == HORIZON_MS
    )


def test_what_others_write_counts_when_samples_tell_it(world):
    world.disk.total, grows = 1 << 26, 50_000

    def read_samples(wanted, from_ms):
        values = {samples.DISK_TOTAL: 1 << 26, samples.OWN_BYTES: 1 << 20}
        taken = [
            Sample(
                world.clock() - n * MINUTE_MS,
                MINUTE_MS,
                values | {samples.DISK_FREE: (1 << 25) + n * 60 * grows},
            )
            for n in range(20, -1, -1)
        ]
        return [
            sample._replace(values={name: value for name, value in sample.values.items() if wanted(name)})
            for sample in taken
        ]

    with world.look() as view, world.look(read_samples=read_samples) as knowing:
        assert view.facts().rate.others_bytes_per_s is None
        assert knowing.facts().rate.others_bytes_per_s == pytest.approx(grows)
        assert knowing.facts().marks[3].at_ms - world.clock() == pytest.approx(
            (1 << 25) / grows * 1000, rel=0.02
        )


@pytest.mark.parametrize("back_at", [None, 100, 170])
def test_rates_say_that_times_go_back_within_their_windows_or_that_it_is_not_known(tmp_path, back_at):
    """A clock that went back by two hours, in 200 messages a minute apart: from number `back_at` on, to the
    last but one."""
    clock, disk, root = Clock(), UsedDisk(), tmp_path / "store"
    sizes = {"mapped_file_size_commit_log": 300_000}
    with opened(root, clock, disk, **sizes) as store:
        for _ in range(200):
            clock.advance(MINUTE_MS)
            store.appender.put(message(body=bytes(100)))
    found = plain.records(root)
    (log,) = (root / "commitlog").glob("0" * 20)
    with open(log, "r+b") as file:
        for place, _, stored_ms in found[back_at:-1] if back_at else ():
            file.seek(place + record.FIXED_IPV4.offset["store_timestamp"])
            file.write((stored_ms - 2 * HOUR_MS).to_bytes(8, "big"))
    for name in ("ends", f"config/{STORE_TIMES}"):
        (root / name).unlink()

    def doubt(is_running: bool) -> str | None:
        directory = StoreDirectory(root)
        with Positions(directory, log_end=found[-1][0] + found[-1][1]) as positions:
            view = DiskView(
                directory,
                positions,
                Rules.of(small_settings(root, **sizes)),
                clock(),
                is_running=is_running,
                offsets=[],
            )
            assert view.facts().rate.windows
            return view.facts().rate.doubt

    assert "it is not known of the whole log whether store times go back" in doubt(is_running=False)
    with opened(root, clock, disk, **sizes):
        running = doubt(is_running=True)
    assert running == doubt(is_running=False)
    if back_at is None:
        assert running is None
    else:
        assert (
            running
            == f"store times go back at {found[back_at][0]:,} of the log by {2 * HOUR_MS - MINUTE_MS:,} "
            f"ms, so these rates may be wrong"
        )


def test_too_little_history_is_no_rate_and_no_date(tmp_path):
    clock, disk = Clock(), UsedDisk()
    with opened(tmp_path / "store", clock, disk) as store:
        store.appender.put(message())
        clock.advance(5_000)
        with Positions(
            StoreDirectory(store.root, disk), {("topic", 0): (0, 1)}, store.log.wrote
        ) as positions:
            view = DiskView(
                StoreDirectory(store.root, disk),
                positions,
                Rules.of(store.settings),
                clock(),
                is_running=True,
                offsets=[],
            )
            facts = view.facts()
            assert facts.rate.bytes_per_s is None and facts.rate.low_bytes_per_s is None
            assert {mark.at_ms for mark in facts.marks} == {None} and facts.highest_ratio is None
            assert view.forecast().files == [] and view.forecast().forced.files == []


def test_what_the_disk_holds_adds_up(world):
    with world.look() as view:
        use = {row.kind: row.bytes for row in view.facts().use}
    assert list(use) == [
        "commitlog",
        "preallocated",
        "consumequeue",
        "index",
        "timer",
        "config",
        "lost+found",
        "samples",
        "others",
    ]
    on_disk = sum(path.stat().st_blocks * 512 for path in (world.store.root / "commitlog").iterdir())
    assert use["commitlog"] + use["preallocated"] == on_disk and use["preallocated"] > 0
    assert sum(use.values()) == world.disk.total // 2


@pytest.mark.parametrize("name", ["crash", "broker-dir"])
def test_a_store_of_the_real_broker_is_forecast_from_its_files_alone(tmp_path, name):
    root = unpack(name, tmp_path)
    if not (root / "commitlog").is_dir():
        root = root / "store"
    directory, times = StoreDirectory(root), {place: stored_ms for place, _, stored_ms in plain.records(root)}
    with Positions(directory) as positions:
        assert (
            positions.log_end == plain.log_end(root)
            and SIZES[name].mapped_file_size_commit_log == positions.log[0].size
        )
        for queue in positions.queues():
            known = plain.units(root, *queue)
            low, high = positions.ends(queue)
            assert (low, high) == ((known[0][0], known[-1][0] + 1) if known else (high, high)), queue
            for number, place, size in known[:: max(1, len(known) // 20)]:
                assert positions.unit(queue, number)[:2] == (place, size)
                assert positions.stored_ms(queue, number) == times[place]
                assert (
                    positions.first_from(queue, place) == number
                    and positions.first_from(queue, place + 1) == number + 1
                )
        offsets = offsets_of(directory, positions)
        view = DiskView(
            directory,
            positions,
            Rules(72, frozenset({4}), 75, 85, 90, True, 10, 10_000),
            START_MS,
            is_running=False,
            offsets=offsets,
        )
        facts, forecast = view.facts(), view.forecast()
    assert facts.is_running is False and facts.log.last_ms == plain.records(root)[-1][2]
    for window in facts.rate.windows:
        assert window.bytes == plain.bytes_since(root, facts.rate.until_ms - window.window_ms)
    for file in forecast.files:
        for loss in file.losses:
            for queue in loss.queues:
                at = next(
                    queues[queue.queue_id]
                    for group, topic, queues in offsets
                    if group.partition("@")[0] == loss.group and topic == queue.topic
                )
                assert plain.unread(
                    root, queue.topic, queue.queue_id, at, file.base, file.base + file.size
                ) == (queue.messages, queue.bytes)
