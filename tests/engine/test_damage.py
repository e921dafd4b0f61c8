"""Bytes that were on disk and have changed stop the start; what a crash tore does not (docs/durability.md
section 5)."""

import random

import pytest

from broker_store import processes
from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck, check_store
from broker_store.engine.disk.disk import Disk
from broker_store.engine.queue.consume_queue import UNIT
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.start.start_records import LastStart, StartRecords, last_start
from broker_store.errors import DamagedStoreError
from broker_store.facts.recoveries import dry_run
from broker_store.formats import record
from broker_store.messages import GetRequest, Message
from tests.support.hand_store import Clock, HandStore, message, opened, small_settings


def written(root, count=12, step_ms=0):
    """A store with so many messages that was closed; returns where each record lies."""
    clock, places = Clock(), []
    with opened(root, clock) as store:
        for number in range(count):
            clock.advance(step_ms)
            places.append(
                store.appender.put(
                    Message("T", 0, bytes([65 + number]) * 100, f"KEYS\x01k{number}\x02".encode())
                ).log_offset
            )
    return places


def flip(root, place, bit=0):
    path = root / "commitlog/00000000000000000000"
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("step_ms", [0, 7])
def test_any_changed_bit_of_a_record_that_was_closed_in_order_stops_the_start(step_ms, tmp_path):
    root = tmp_path / "store"
    places = written(root, step_ms=step_ms)
    choose = random.Random(step_ms)
    # size, magic, CRC, own place, body, lengths
    watched = [*range(12), *range(28, 36), *range(84, 84 + 4 + 100 + 1)]
    for at in [places[-1], *choose.sample(places[:-1], 4)]:
        for place in choose.sample(watched, 12):
            bit = choose.randrange(8)
            flip(root, at + place, bit)
            lost_its_place = place in range(28, 36)
            # Otherwise nothing distinguishes it from what a crash tore
            if not lost_its_place or (step_ms and at != places[-1]):
                with pytest.raises(DamagedStoreError) as raised:
                    HandStore(small_settings(root)).open()
                assert raised.value.offset == at
                assert "accept-damage" in str(raised.value)
            assert not check_store(root, small_settings(root)).ok
            flip(root, at + place, bit)
    assert check_store(root, small_settings(root)).ok


def test_damage_that_is_accepted_is_kept_aside_and_not_asked_about_again(tmp_path):
    root = tmp_path / "store"
    places = written(root, step_ms=5)
    before = (root / "commitlog/00000000000000000000").read_bytes()
    flip(root, places[4] + 120)
    damaged = (root / "commitlog/00000000000000000000").read_bytes()
    with opened(root, accept_damage=True) as store:
        assert store.reads.max_offset("T", 0) == 12  # none of the offsets that were given is given again
        read = record.decode_all(store.reads.get(GetRequest("T", 0, 0, 32)).body)
        assert [found.body for found in read] == [bytes([65 + number]) * 100 for number in range(4)] + [
            b""
        ] * 8
        assert all("REPAIRED" in found.properties for found in read[4:])
        report = store.report.as_dict()
        assert any(finding["severity"] == "error" for finding in report["findings"])
    (kept,) = (tmp_path / "lost+found").rglob("commitlog.*")
    assert kept.read_bytes() == damaged[places[4] : places[4] + len(kept.read_bytes())]
    assert len(kept.read_bytes()) >= places[-1] - places[4] and before != damaged
    assert check_store(root, small_settings(root)).findings == []
    with opened(root) as store:
        assert store.appender.put(Message("T", 0, b"goes on")).queue_offset == 12


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_was_cut_at_any_byte_comes_back_up_to_its_last_whole_record(seed, tmp_path):
    """The process was killed and nothing after a byte had reached the log yet, though queues and index had
    it."""
    root = tmp_path / "store"
    store = HandStore(small_settings(root)).begin()
    ends = [
        store.appender.put(
            Message("T", 0, bytes([65 + number]) * (37 * number), f"KEYS\x01k{number}\x02".encode())
        ).log_end
        for number in range(20)
    ]
    log = (root / "commitlog/00000000000000000000").read_bytes()
    everything = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    store.close()
    choose = random.Random(seed)
    for cut in [
        *ends[-2:],
        *(end + choose.choice((-1, 1, 4, 8)) for end in ends[:-1]),
        *choose.sample(range(ends[-1]), 25),
    ]:
        for path in root.rglob("*"):
            if path.is_file():
                path.unlink()
        for path, content in everything.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (root / "commitlog/00000000000000000000").write_bytes(log[:cut].ljust(len(log), b"\0"))
        (root / "checkpoint").unlink(missing_ok=True)
        whole = sum(end <= cut for end in ends)
        with opened(root) as again:
            assert again.reads.max_offset("T", 0) == whole, cut
            if whole:
                (offset,) = again.reads.query_keys("T", f"k{whole - 1}", 32).offsets
                assert record.decode(again.reads.records.record_at(offset)).queue_offset == whole - 1
        assert check_store(root, small_settings(root)).findings == []


def test_after_a_kill_a_bad_record_is_cut_only_above_what_was_recorded_as_synced(tmp_path):
    """A round stands in the middle: up to there the log was on the disk."""
    root, clock = tmp_path / "store", Clock()
    store = HandStore(small_settings(root), clock).begin()
    places = []
    for number in range(12):
        clock.advance(7)
        places.append(store.appender.put(Message("T", 0, bytes([65 + number]) * 100, b"")).log_offset)
        if number == 6:
            store.flush(), store.round()
    store.die()
    ends = EndsFile(Disk(), root / "ends")
    ends.load()
    assert ends.position == places[7]
    everything = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for number, place in enumerate(places):
        for path, content in everything.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        flip(root, place + 120)
        damaged = (root / "commitlog/00000000000000000000").read_bytes()
        again = HandStore(small_settings(root), clock)
        if number < 7:
            with pytest.raises(DamagedStoreError):
                again.begin()
            assert (root / "commitlog/00000000000000000000").read_bytes() == damaged
        else:
            again.begin()
            assert again.reads.max_offset("T", 0) == number
            assert again.report.as_dict()["cut"]["commitlog"]["from"] == place
        again.die()


def _killed(tmp_path, count=120):
    """A store that was killed before a checkpoint knew of any record, and the log offsets of its records."""
    store = HandStore(
        small_settings(tmp_path / "store"), records=StartRecords(tmp_path / "recoveries", tmp_path / "store")
    ).begin()
    offsets = [
        store.appender.put(message("T", 0, b"%d-" % number + bytes(300), unique=f"u{number}")).log_offset
        for number in range(count)
    ]
    store.die()
    return store, offsets


def _started_again(store, **changes):
    records = StartRecords(store.root.parent / "recoveries", store.root)
    return HandStore(small_settings(store.root, **changes), store.clock, records=records).begin()


HURTS = {
    "a bit of a body": lambda raw, at, size: raw.__setitem__(at + 100, raw[at + 100] ^ 1),
    "a record zeroed": lambda raw, at, size: raw.__setitem__(slice(at, at + size), bytes(size)),
    "its length": lambda raw, at, size: raw.__setitem__(slice(at, at + 4), b"\x7f\0\0\0"),
    "all to the end of its file": lambda raw, at, size: raw.__setitem__(
        slice(at, len(raw)), bytes(len(raw) - at)
    ),
}


@pytest.mark.parametrize("hurt", HURTS)
def test_a_bad_record_before_good_ones_is_damage_where_the_machine_was_not_restarted(tmp_path, hurt):
    """It was cut with all after it, acknowledged messages of SYNC_FLUSH among them, and their numbers were
    given again."""
    store, offsets = _killed(tmp_path)
    path = sorted((store.root / "commitlog").iterdir())[1]
    bad = next(number for number, offset in enumerate(offsets) if offset > int(path.name) + 5_000)
    raw = bytearray(path.read_bytes())
    HURTS[hurt](raw, offsets[bad] - int(path.name), offsets[bad + 1] - offsets[bad])
    path.write_bytes(raw)
    before = {each.name: each.read_bytes() for each in (store.root / "commitlog").iterdir()}
    with pytest.raises(
        DamagedStoreError,
        match=f"a good record follows at .*, and this machine was not "
        f"restarted.*{path.name}|{path.name}.*this machine was not restarted",
    ):
        _started_again(store)
    assert {each.name: each.read_bytes() for each in (store.root / "commitlog").iterdir()} == before
    again = _started_again(store, accept_damage=True)
    assert again.appender.put(message("T", 0)).queue_offset >= len(offsets) - 1, "no number is given twice"
    again.close()


def test_after_a_restart_of_the_machine_the_same_may_be_what_a_power_cut_left(tmp_path, monkeypatch):
    store, offsets = _killed(tmp_path)
    path = sorted((store.root / "commitlog").iterdir())[1]
    bad = next(number for number, offset in enumerate(offsets) if offset > int(path.name) + 5_000)
    raw = bytearray(path.read_bytes())
    raw[offsets[bad] - int(path.name) + 100] ^= 1
    path.write_bytes(raw)
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    again = _started_again(store)
    assert (
        "not known to have been on the disk" in again.report.as_dict()["findings"][0]["what"]
        and again.reads.max_offset("T", 0) == bad
    )
    again.close()


def test_a_bad_record_before_good_ones_is_damage_in_a_closed_store_whose_checkpoint_and_ends_are_gone(
    tmp_path, monkeypatch
):
    """Nothing says any more which records were on the disk, so the log was cut as after a power cut. A close
    syncs all of it."""
    store, offsets = _killed(tmp_path)
    _started_again(store).close()
    path = sorted((store.root / "commitlog").iterdir())[len(offsets) * 400 // 16384]
    bad = next(number for number, offset in enumerate(offsets) if offset > int(path.name) + 1_000)
    raw = bytearray(path.read_bytes())
    raw[offsets[bad] - int(path.name) + 100] ^= 1
    path.write_bytes(raw)
    (store.root / "checkpoint").write_bytes(bytes((store.root / "checkpoint").stat().st_size))
    (store.root / "ends").write_bytes(b"")
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    with pytest.raises(
        DamagedStoreError,
        match=f"a good record follows at {offsets[bad + 1]:,}, and the store was closed in order",
    ):
        _started_again(store)
    again = _started_again(store, accept_damage=True)
    assert again.appender.put(message("T", 0)).queue_offset >= len(offsets) - 1, "no number is given twice"
    again.close()


@pytest.mark.parametrize("left", [0, 4, 60, 200])
def test_the_part_of_a_record_that_a_kill_leaves_is_cut_as_before(tmp_path, left):
    """A unit is written after its record, so that one is not there."""
    store, offsets = _killed(tmp_path)
    _leave_in_log(store, offsets[-1], left)
    queue = max((store.root / "consumequeue/T/0").iterdir())
    units = bytearray(queue.read_bytes())
    at = (len(offsets) - 1) * 20 - int(queue.name)
    units[at : at + 20] = bytes(20)
    queue.write_bytes(units)
    again = _started_again(store)
    assert again.reads.max_offset("T", 0) == len(offsets) - 1
    again.close()


def _last_file(store, offsets):
    max((store.root / "commitlog").iterdir()).unlink()


def _last_record(store, offsets):
    _leave_in_log(store, offsets[-1], 0)


def _half_of_last_record(store, offsets):
    _leave_in_log(store, offsets[-1], 200)


def _leave_in_log(store, offset, length):
    """Zero what follows `length` bytes of the record at a log offset."""
    path = max((store.root / "commitlog").iterdir())
    at = offset - int(path.name) + length
    raw = path.read_bytes()
    path.write_bytes(raw[:at].ljust(len(raw), b"\0"))


@pytest.mark.parametrize("lose", [_last_file, _last_record, _half_of_last_record])
def test_a_log_that_ends_before_what_its_queues_have_is_damage_where_the_machine_was_not_restarted(
    tmp_path, lose
):
    """It was taken for the end that a crash leaves, and its numbers were given again."""
    store, offsets = _killed(tmp_path)
    lose(store, offsets)
    before = {
        each: each.read_bytes() for each in store.root.rglob("*") if each.is_file() and each.name != "abort"
    }
    with pytest.raises(
        DamagedStoreError, match="by the queues a record began at .*, and this machine was not restarted"
    ):
        _started_again(store)
    assert {
        each: each.read_bytes() for each in store.root.rglob("*") if each.is_file() and each.name != "abort"
    } == before
    for is_same_boot in (True, False):
        check = StoreCheck(store.root, small_settings(store.root), last_start=LastStart(1, is_same_boot))
        check.run()
        extra = {
            finding.severity
            for finding in check.report.findings
            if finding.kind in ("unit-extra", "torn-tail")
        }
        assert extra == {"error" if is_same_boot else "warning"}, "the check says of it what the start does"
    dry = dry_run(store.settings, record_in=store.root.parent / "recoveries", keeps_record=False)
    assert dry.state == "failed" and "this machine was not restarted" in dry.error, (
        "so does a dry run that leaves no record"
    )
    assert len(list((store.root.parent / "recoveries").iterdir())) == 2
    again = _started_again(store, accept_damage=True)
    assert again.appender.put(message("T", 0)).queue_offset >= len(offsets), "no number is given twice"
    again.close()


def _bit_of_last_record(store, offsets):
    path = max((store.root / "commitlog").iterdir())
    raw = bytearray(path.read_bytes())
    raw[offsets[-1] - int(path.name) + 100] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("lose", [_last_file, _last_record, _half_of_last_record, _bit_of_last_record])
@pytest.mark.parametrize("is_sync", [True, False])
def test_with_sync_flush_a_unit_says_after_a_restart_of_the_machine_too_that_its_record_was_there(
    tmp_path, monkeypatch, lose, is_sync
):
    """Its record was synced before. The log was cut, acknowledged messages with it, and their numbers were
    given again."""
    store = HandStore(
        small_settings(tmp_path / "store", flush_disk_type="SYNC_FLUSH" if is_sync else "ASYNC_FLUSH"),
        records=StartRecords(tmp_path / "recoveries", tmp_path / "store"),
    ).begin()
    offsets = []
    for number in range(120):
        offsets.append(
            store.appender.put(message("T", 0, b"%d-" % number + bytes(300), unique=f"u{number}")).log_offset
        )
        store.flush()
    assert store.confirmed == store.log.wrote
    store.die()
    lose(store, offsets)
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    if not is_sync:
        _started_again(store).close()
        return
    before = {
        each: each.read_bytes() for each in store.root.rglob("*") if each.is_file() and each.name != "abort"
    }
    with pytest.raises(
        DamagedStoreError,
        match="by the queues a record began at .*, and with SYNC_FLUSH a record is synced before its unit "
        "is written",
    ):
        _started_again(store)
    assert {
        each: each.read_bytes() for each in store.root.rglob("*") if each.is_file() and each.name != "abort"
    } == before
    check = StoreCheck(
        store.root, small_settings(store.root), last_start=last_start(tmp_path / "recoveries", store.root)
    )
    check.run()
    assert {
        finding.severity for finding in check.report.findings if finding.kind in ("unit-extra", "torn-tail")
    } == {"error"}
    again = _started_again(store, accept_damage=True)
    assert again.appender.put(message("T", 0)).queue_offset >= len(offsets), "no number is given twice"
    again.close()


@pytest.mark.parametrize("is_file_lost", [False, True])
def test_with_sync_flush_later_units_prove_the_log_where_that_of_its_first_lost_record_is_gone(
    tmp_path, monkeypatch, is_file_lost
):
    """A power cut takes units that were not synced, of one queue and not of another; the records were synced
    before."""
    records = StartRecords(tmp_path / "recoveries", tmp_path / "store")
    store = HandStore(
        small_settings(tmp_path / "store", flush_disk_type="SYNC_FLUSH"), records=records
    ).begin()
    offsets = []
    for number in range(120):
        offsets.append(
            store.appender.put(
                message("T", number % 2, b"%d-" % number + bytes(300), unique=f"u{number}")
            ).log_offset
        )
        store.flush()
    store.die()
    newest = max((store.root / "commitlog").iterdir())
    lost = next(number for number, at in enumerate(offsets) if at >= int(newest.name)) + (
        0 if is_file_lost else 3
    )
    if is_file_lost:
        newest.unlink()
    else:
        raw = bytearray(newest.read_bytes())
        raw[offsets[lost] - int(newest.name) + 100] ^= 1
        newest.write_bytes(raw)
    units, at = store.root / f"consumequeue/T/{lost % 2}", lost // 2 * UNIT
    path = max(path for path in units.iterdir() if int(path.name) <= at)
    raw = bytearray(path.read_bytes())
    raw[at - int(path.name) :] = bytes(len(raw) - at + int(path.name))
    path.write_bytes(raw)
    for later in [later for later in units.iterdir() if int(later.name) > at]:
        later.unlink()
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    with pytest.raises(
        DamagedStoreError,
        match="by the queues a record began at .*, and with SYNC_FLUSH a record is synced before its unit "
        "is written",
    ):
        _started_again(store)


@pytest.mark.parametrize("lose", [_last_file, _last_record, _half_of_last_record])
def test_a_repair_names_what_was_after_the_end_of_a_log_after_a_kill_and_the_store_starts(tmp_path, lose):
    store, offsets = _killed(tmp_path)
    lose(store, offsets)
    check = StoreCheck(store.root, small_settings(store.root), last_start=LastStart(1, True))
    check.run()
    plan = make_plan(check, store.settings)
    Repair(plan).run()
    again = _started_again(store)
    assert again.reads.max_offset("T", 0) == len(offsets) and again.appender.put(
        message("T", 0)
    ).queue_offset == len(offsets)
    assert plan.losses.messages == sum(offset >= check.log.end for offset in offsets)
    again.close()


@pytest.mark.parametrize("lose", [_last_file, _last_record, _half_of_last_record])
def test_after_a_restart_of_the_machine_the_log_ends_where_it_does(tmp_path, monkeypatch, lose):
    store, offsets = _killed(tmp_path)
    lose(store, offsets)
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    again = _started_again(store)
    assert (
        again.reads.max_offset("T", 0) == sum(offset < again.log.wrote for offset in offsets) < len(offsets)
    )
    again.close()
