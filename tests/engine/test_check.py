"""The check is quiet about what the real broker wrote, and names what was planted."""

import os
import random
import struct

import pytest

from broker_store.check import index as check_index
from broker_store.check import slices as check_slices
from broker_store.check.report import CheckReport
from broker_store.check.walk import check_store
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.errors import StoreError
from broker_store.formats import index_file, queue_unit, record
from broker_store.formats.index_file import IndexGeometry
from broker_store.messages import Message
from tests.support import stores
from tests.support.hand_store import message, opened, small_settings
from tests.support.reference import ReferenceStore, index_from_log, queues_from_log, walk_log

LOG_FILE = "commitlog/00000000000000262144"


def poke(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path, offset, bit=0):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def kinds(report):
    return set(report.kinds)


def findings_of(report, kind):
    return [finding for finding in report.findings if finding.kind == kind]


@pytest.fixture
def clean(tmp_path):
    return stores.unpack("clean-small", tmp_path)


@pytest.mark.parametrize("name", stores.NAMES)
def test_a_store_of_the_real_broker_is_sound_and_shows_its_sizes(name, tmp_path):
    root = stores.unpack(name, tmp_path)
    report = check_store(root)
    assert (report.ok, report.findings) == (True, [])
    sizes = stores.SIZES[name]
    assert report.sizes == FileSizes(
        sizes.mapped_file_size_commit_log,
        sizes.mapped_file_size_consume_queue,
        sizes.max_hash_slot_num,
        sizes.max_index_num,
    )
    assert check_store(root, sizes).findings == []
    store = ReferenceStore(root, sizes)
    assert report.log_end == store.log_end
    assert report.counts["records"] == len(store.records)
    assert report.counts["units"] == sum(len(units) for units in store.queues.values())
    assert report.counts["entries"] == sum(model.header.count - 1 for model in store.index)


@pytest.mark.parametrize("variant", stores.variants())
def test_what_was_done_to_a_crashed_store_is_named(variant, tmp_path):
    report = check_store(stores.unpack_variant(variant, tmp_path))
    expected = {
        "kill9": set(),
        "torn-half": {"torn-tail"},
        "torn-all": {"unit-extra", "index-extra"},
        "bad-magic": {"torn-tail"},
        "bad-size": {"torn-tail"},
        "negative-size": {"torn-tail"},
        "bitflip-tail": {"bad-record"},
        "bitflip-early": {"bad-record"},
        "garbage-tail": {"torn-tail"},
        "log-behind": {"unit-extra", "index-extra"},
        "no-index": {"no-index"},
        "no-last-index": {"index-behind"},
        "no-consumequeue": {"unit-missing"},
        "no-fixa-queues": {"unit-missing"},
        "no-last-queue-files": {"unit-missing"},
        "no-queues-no-index": {"unit-missing", "no-index"},
        "no-checkpoint": {"checkpoint"},
        "nothing-but-log": {"unit-missing", "no-index", "checkpoint"},
        "abort-removed-torn": {"torn-tail"},
    }[variant]
    assert kinds(report) == expected
    assert (
        report.log_end == stores.facts("crash")["variants"][variant]["expected"]["commitLog"]["maxPhyOffset"]
    )
    # Only what the next start would not repair by itself is an error.
    assert report.ok == (variant not in ("bitflip-tail", "bitflip-early", "abort-removed-torn"))


def test_a_flipped_body_bit_is_named_with_its_record_and_what_follows(tmp_path):
    report = check_store(stores.unpack_variant("bitflip-early", tmp_path))
    (finding,) = report.findings
    assert (finding.severity, finding.kind, finding.offset) == ("error", "bad-record", 2216)
    assert finding.file.endswith(LOG_FILE) and "CRC" in finding.what and "go on at 2519" in finding.what
    assert report.counts["records"] == 3105


@pytest.mark.parametrize(
    "part", ["total_size", "magic", "body_crc", "queue_id", "queue_offset", "log_offset", "topic", "keys"]
)
def test_each_part_of_a_record_that_matters_is_watched(part, clean):
    store = ReferenceStore(clean, stores.SIZES["clean-small"])
    message = next(
        m
        for m in store.walk.records
        if m.log_offset > 400_000 and m.topic == "FixB" and m.keys and m.sys_flag == 0 and m.body
    )
    base = message.log_offset // 262144 * 262144
    at = message.log_offset - base
    raw = record.encode(
        Message(message.topic, message.queue_id, message.body, message.raw_properties),
        message.queue_offset,
        message.log_offset,
        0,
    )
    place = record.FIXED_IPV4.offset.get(part)
    place = (
        raw.index(b"FixB") if part == "topic" else raw.index(b"KEYS\x01") + 6 if part == "keys" else place + 3
    )
    flip(clean / f"commitlog/{base:020}", at + place)
    report = check_store(clean)
    assert not report.ok
    expected = {
        "queue_id": "queue-offset",
        "queue_offset": "queue-offset",
        "topic": "queue-offset",
        "keys": "index-missing",
    }
    assert expected.get(part, "bad-record") in kinds(report)


@pytest.mark.parametrize(
    ("slice_bytes", "rest_bytes"),
    [(10_000, 8 << 20), (10_000, 100), (400, 8 << 20)],
    ids=["small", "rest-left", "less-than-a-record"],
)
@pytest.mark.parametrize("variant", ["bitflip-early", "torn-half", "none"])
def test_slices_that_are_read_ahead_give_what_one_slice_gives(
    variant, slice_bytes, rest_bytes, tmp_path, monkeypatch
):
    root = (
        stores.unpack_variant(variant, tmp_path)
        if variant != "none"
        else stores.unpack("clean-small", tmp_path)
    )
    whole = check_store(root)
    monkeypatch.setattr(check_slices, "USUAL_SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(check_slices, "REST_BYTES", rest_bytes)
    monkeypatch.setattr(check_index, "ENTRIES_PER_READ", 50)
    monkeypatch.setattr(check_index, "SLOTS_PER_READ", 70)
    report = check_store(root)
    assert (
        report.findings == whole.findings
        and report.counts == whole.counts
        and report.log_end == whole.log_end
    )


def test_a_file_that_is_cut_while_it_is_read_is_a_finding(clean, monkeypatch):
    monkeypatch.setattr(check_slices, "USUAL_SLICE_BYTES", 10_000)

    def cut(done, total, step):
        if done > 300_000:
            os.truncate(clean / LOG_FILE, 60_000)

    report = check_store(clean, on_progress=cut)
    assert any(finding.file == str(clean / LOG_FILE) for finding in findings_of(report, "bad-record"))


@pytest.mark.parametrize("slice_bytes", [10_000, 400])
def test_what_cannot_be_read_ahead_is_reported_unless_it_is_not_needed(slice_bytes, clean, monkeypatch):
    monkeypatch.setattr(check_slices, "USUAL_SLICE_BYTES", slice_bytes)
    good = [
        found.log_offset
        for found in ReferenceStore(clean, stores.SIZES["clean-small"]).walk.records
        if 262144 < found.log_offset < 262144 + 99_000
    ][-1]
    read_into = Reader.read_into

    def fails(reader, target, offset):
        if reader.path == clean / LOG_FILE and offset <= 100_000 < offset + len(target):
            raise StoreError(f"{reader.path}: reading at {offset} failed: Input/output error")
        return read_into(reader, target, offset)

    monkeypatch.setattr(Reader, "read_into", fails)
    with pytest.raises(StoreError, match="Input/output error"):
        check_store(clean)
    assert check_store(clean, log_end=good).ok


def test_every_byte_of_a_queue_unit_is_watched(clean):
    path = clean / "consumequeue/FixA/1/00000000000000002000"
    for place in range(20):
        flip(path, 40 + place, place % 8)
        report = check_store(clean)
        assert not report.ok, place
        assert all(finding.file == str(path) and finding.offset == 40 for finding in report.findings), place
        flip(path, 40 + place, place % 8)
    assert check_store(clean).ok


@pytest.mark.slow
def test_any_flipped_bit_in_the_used_part_of_an_index_file_is_named(clean):
    path = sorted((clean / "index").iterdir())[1]
    used = IndexGeometry(500, 2000).file_bytes
    generator = random.Random(3)
    places = [
        *range(40),
        *(generator.randrange(40, 2040) for _ in range(40)),
        *(generator.randrange(2060, used) for _ in range(80)),
    ]
    for place in places:
        bit = generator.randrange(8)
        flip(path, place, bit)
        report = check_store(clean, stores.SIZES["clean-small"])
        assert not report.ok, (place, bit)
        assert any(finding.file == str(path) for finding in report.findings), (place, bit)
        flip(path, place, bit)
    assert check_store(clean).ok


def test_a_hole_in_a_queue_is_an_error_and_a_queue_that_lags_after_a_crash_is_not(clean):
    path = clean / "consumequeue/FixC/2/00000000000000002000"
    poke(path, 60, bytes(40))
    report = check_store(clean)
    (finding,) = report.findings
    assert (finding.severity, finding.kind, finding.file, finding.offset) == (
        "error",
        "unit-missing",
        str(path),
        60,
    )
    assert "units 103 to 104 are missing" in finding.what
    last = sorted((clean / "consumequeue/FixC/2").iterdir())[-1]
    last.unlink()
    assert not check_store(clean).ok
    (clean / "abort").write_text("1")
    report = check_store(clean)
    assert report.ok and kinds(report) == {"unit-missing"}


def test_a_unit_without_a_record_is_named(clean):
    path = sorted((clean / "consumequeue/FixA/0").iterdir())[-1]
    used = path.read_bytes().rstrip(b"\0")
    end = -(-len(used) // 20) * 20
    poke(path, end, queue_unit.encode(100, 50, 0) + queue_unit.encode(1 << 40, 50, 0))
    report = check_store(clean)
    assert [(finding.kind, finding.offset) for finding in report.findings] == [
        ("unit-extra", end + 20),
        ("unit-extra", end),
    ]


def test_a_queue_offset_given_twice_or_left_out_is_named(tmp_path):
    for offsets, what in (((0, 1, 1, 2), "given again"), ((0, 1, 3, 4), "in no record")):
        root = tmp_path / what
        write_store(root, [(f"k{n}", offset) for n, offset in enumerate(offsets)])
        assert any(what in finding.what for finding in findings_of(check_store(root), "queue-offset"))


def test_stray_missing_and_misshapen_files_are_named(clean):
    (clean / "commitlog/notes.txt").write_text("x")
    (clean / "index/readme").write_text("x")
    (clean / "consumequeue/FixA/x").mkdir()
    (clean / "consumequeue/FixA/1/00000000000000002000").unlink()
    with open(clean / "consumequeue/FixB/1/00000000000000000000", "ab") as file:
        file.write(b"x")
    (clean / "commitlog/00000000000001572864").write_bytes(b"")
    report = check_store(clean)
    assert [finding.file.removeprefix(str(clean)) for finding in findings_of(report, "stray-file")] == [
        "/commitlog/notes.txt",
        "/consumequeue/FixA/x",
        "/index/readme",
    ]
    assert kinds(report) >= {"stray-file", "file-missing", "file-length", "empty-file", "unit-missing"}
    assert findings_of(report, "empty-file")[0].severity == "warning"


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("lock", path)], ids=["directory", "FIFO", "link"]
)
@pytest.mark.parametrize(
    "name", ["lock", "commitlog/00000000000001572864", "consumequeue/FixA/0/00000000000000004000"]
)
def test_what_is_no_file_in_the_place_of_one_is_an_error(clean, name, make):
    (clean / name).unlink(missing_ok=True)
    make(clean / name)
    report = check_store(clean)
    assert [finding.file for finding in findings_of(report, "unreadable")] == [
        str(clean / name)
    ] and not report.ok


def test_a_log_file_of_another_length_is_an_error(clean):
    with open(clean / LOG_FILE, "r+b") as file:
        file.truncate(262143)
    assert "file-length" in kinds(check_store(clean))


def test_a_missing_log_file_in_the_middle_is_an_error(clean):
    (clean / LOG_FILE).unlink()
    report = check_store(clean)
    assert not report.ok and "file-missing" in kinds(report)


def test_log_files_deleted_from_the_front_are_retention_and_no_damage(clean):
    (clean / "commitlog/00000000000000000000").unlink()
    report = check_store(clean)
    assert report.ok, report.findings
    assert report.counts["units"] == 3102


def test_a_file_that_turns_to_zero_before_the_next_begins_is_an_error(clean):
    poke(clean / LOG_FILE, 200_000, bytes(62144))
    report = check_store(clean)
    (finding,) = findings_of(report, "bad-record")
    assert "zero" in finding.what or "go on" in finding.what or "goes on" in finding.what
    assert not report.ok


def test_old_records_after_a_log_that_was_cut_are_not_taken_for_damage(clean):
    """Apache only moves positions when it cuts a log; whole old records stay after its end."""
    store = ReferenceStore(clean, stores.SIZES["clean-small"])
    cut = store.walk.records[-20].log_offset
    base = cut // 262144 * 262144
    poke(clean / f"commitlog/{base:020}", cut - base, b"\0\0\0\0")
    keep = [message for message in store.walk.records if message.log_offset < cut]
    for (topic, queue_id), units in store.queues.items():
        kept = [unit for unit in units.values() if unit.log_offset < cut]
        for path in sorted((clean / f"consumequeue/{topic}/{queue_id}").iterdir()):
            first = int(path.name) // 20
            path.write_bytes(
                b"".join(queue_unit.encode(*unit) for unit in kept[first : first + 100]).ljust(2000, b"\0")
            )
    for path, model in zip(sorted((clean / "index").iterdir()), index_from_log(keep, 500, 2000), strict=True):
        path.write_bytes(model.to_bytes())
    report = check_store(clean)
    assert kinds(report) <= {"stale-tail", "checkpoint-ahead"}
    assert report.log_end == cut


def test_a_checkpoint_newer_than_the_log_is_an_error(clean):
    poke(clean / "checkpoint", 8, struct.pack(">q", 1 << 50))
    poke(clean / "checkpoint", 40, struct.pack(">q", 1 << 50))
    report = check_store(clean)
    assert [(finding.kind, finding.offset) for finding in report.findings] == [
        ("checkpoint-ahead", 8),
        ("checkpoint-ahead", 40),
    ]
    (clean / "checkpoint").write_bytes(b"short")
    assert kinds(check_store(clean)) == {"checkpoint"}


def test_unreadable_config_is_an_error_unless_its_copy_is_good(tmp_path):
    root = stores.unpack("broker-dir", tmp_path)
    (root / "config/topics.json").write_text("{")
    report = check_store(root)
    assert report.ok and kinds(report) == {"config"}
    (root / "config/topics.json.bak").write_text("[")
    assert not check_store(root).ok


def test_a_symbolic_link_in_place_of_a_file_is_an_error(clean):
    path = sorted((clean / "index").iterdir())[0]
    path.rename(clean / "elsewhere")
    path.symlink_to(clean / "elsewhere")
    assert "unreadable" in kinds(check_store(clean))


def test_a_store_in_use_is_checked_up_to_where_it_was_dispatched(clean):
    store = ReferenceStore(clean, stores.SIZES["clean-small"])
    middle = store.walk.records[1500].log_offset
    limited = check_store(clean, log_end=middle)
    assert limited.ok and limited.findings == []
    assert (limited.counts["records"], limited.log_end) == (1500, middle)


def test_it_can_be_stopped_and_reports_how_far_it_is(clean):
    seen = []
    report = check_store(clean, on_progress=lambda done, total, step: seen.append((done, total, step)))
    assert report.ok and seen and {step for _, _, step in seen} == {"log", "index", "queues"}
    assert all(0 <= done <= total for done, total, _ in seen)
    stopped = check_store(clean, should_stop=lambda: True)
    assert stopped.stopped and not stopped.ok


def test_of_many_findings_of_a_kind_the_first_hundred_are_listed_and_all_are_counted():
    report = CheckReport()
    for number in range(500):
        report.add("warning", "unit-wrong", "f", number, "x")
    report.add("error", "unit-wrong", "f", 500, "x")
    assert len(report.findings) == 101 and report.kinds == {"unit-wrong": 501}
    assert not report.ok


def test_the_sizes_of_an_unusual_index_are_found_from_its_entries(tmp_path):
    root = tmp_path / "store"
    write_store(root, [(f"key-{number}", number) for number in range(40)], slots=7, entries=91)
    report = check_store(root)
    assert report.findings == []
    assert (report.sizes.max_hash_slot_num, report.sizes.max_index_num) == (7, 91)


def test_the_last_entry_of_an_index_is_distinguished_from_others_of_the_same_message(tmp_path):
    # With 490 slots in place of 500 the entry of first-218 would lie where the last one is counted, and its
    # slot would name it.
    assert index_file.key_hash("topic#first-218") % 490 == index_file.key_hash("topic#last") % 500
    with opened(tmp_path, max_hash_slot_num=500, max_index_num=900) as store:
        store.appender.put(message(keys=("a",)))
        store.appender.put(message(keys=("first-218", "middle", "last")))
    report = check_store(tmp_path)
    assert report.ok and (report.sizes.max_hash_slot_num, report.sizes.max_index_num) == (500, 900)


def test_an_empty_directory_is_an_empty_store_and_none_is_an_error(tmp_path):
    report = check_store(tmp_path)
    assert report.ok and kinds(report) == {"empty"}
    with pytest.raises(StoreError):
        check_store(tmp_path / "absent")


def write_store(root, keyed_offsets, slots=50, entries=200):
    """A store of one queue whose records have these keys and queue offsets, made by formats and reference
    alone."""
    raw = b""
    for key, queue_offset in keyed_offsets:
        raw += record.encode(
            Message("T", 0, b"body", f"KEYS\x01{key}\x02".encode()), queue_offset, len(raw), 1000
        )
    (root / "commitlog").mkdir(parents=True)
    (root / "index").mkdir()
    (root / "consumequeue/T/0").mkdir(parents=True)
    (root / "commitlog/00000000000000000000").write_bytes(raw.ljust(16384, b"\0"))
    records = walk_log([(0, raw.ljust(16384, b"\0"))]).records
    units = b"".join(queue_unit.encode(*unit) for unit in queues_from_log(records)["T", 0])
    (root / "consumequeue/T/0/00000000000000000000").write_bytes(units.ljust(2000, b"\0"))
    for number, model in enumerate(index_from_log(records, slots, entries)):
        assert len(model.to_bytes()) == index_file.IndexGeometry(slots, entries).file_bytes
        (root / f"index/{number:017}").write_bytes(model.to_bytes())
    (root / "checkpoint").write_bytes(bytes(4096))


def test_records_of_a_deleted_topic_have_no_units_and_that_is_no_damage(tmp_path):
    root = tmp_path / "store"
    write_store(root, [("a", 0), ("b", 1), ("c", 2), ("d", 0), ("e", 1)])
    log = (root / "commitlog/00000000000000000000").read_bytes()
    records = walk_log([(0, log)]).records
    queue = root / "consumequeue/T/0/00000000000000000000"
    queue.write_bytes(
        b"".join(queue_unit.encode(m.log_offset, m.size, 0) for m in records[3:]).ljust(2000, b"\0")
    )
    report = check_store(root)  # as Apache leaves a topic that was deleted and made again
    assert report.ok and report.counts["records_of_deleted_topics"] == 3
    queue.unlink()
    assert not check_store(root).ok
    (root / "config").mkdir()
    (root / "config/topics.json").write_text('{"topicConfigTable":{"Other":{}}}')
    assert check_store(root).ok
    (root / "config/topics.json").unlink()
    (root / "config/deletedTopics.json").write_text('{"T":100000}')
    assert check_store(root).ok


def test_a_lost_first_unit_is_not_taken_for_a_deleted_topic(clean):
    path = clean / "consumequeue/FixB/3/00000000000000000000"
    poke(path, 0, bytes(20))
    assert [finding.kind for finding in check_store(clean).findings] == ["unit-missing"]
    poke(path, 0, queue_unit.encode(1 << 30, 100, 0))
    assert not check_store(clean).ok


def test_files_that_a_store_in_use_deletes_meanwhile_are_no_damage(clean):
    def delete(done, total, step):
        for path in (clean / "commitlog/00000000000000000000", clean / "commitlog/00000000000000262144"):
            path.unlink(missing_ok=True)

    store = ReferenceStore(clean, stores.SIZES["clean-small"])
    (clean / "abort").write_text("1")
    report = check_store(clean, on_progress=delete, log_end=store.log_end)
    assert report.ok, report.findings


def test_an_index_that_a_running_store_goes_on_filling_is_no_damage(tmp_path):
    with opened(tmp_path / "store", max_hash_slot_num=16, max_index_num=4000) as store:
        store.appender.put(message(keys=["first"]))
        dispatched = store.status.positions().dispatched

        def put_more(done, total, step):
            for number in range(8):
                store.appender.put(message(keys=[f"{step}-{done}-{number}"]))

        report = check_store(
            tmp_path / "store",
            small_settings(tmp_path / "store", max_index_num=4000),
            on_progress=put_more,
            log_end=dispatched,
        )
        assert report.counts["records"] == 1 and store.status.positions().dispatched > dispatched
    assert report.ok and not kinds(report)


def test_a_light_queue_is_compared_with_what_the_records_of_other_topics_say(tmp_path):
    root, unit = tmp_path / "store", queue_unit.SIZE
    with opened(root) as store:
        put = [
            store.appender.put(
                message(
                    more={
                        "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b",
                        "INNER_MULTI_QUEUE_OFFSET": f"{number},{number + 7}",
                    }
                )
            )
            for number in range(3)
        ]
    units = (root / "consumequeue/topic/0/00000000000000000000").read_bytes()
    light = root / "consumequeue/%LMQ%a/0/00000000000000000000"
    light.parent.mkdir(parents=True)
    light.write_bytes(units)
    report = check_store(root)
    assert report.findings == [] and report.counts["units"] == 6 and all(answer.ok for answer in put)
    # That of another number, and no record
    for wrong in (units[unit : 2 * unit], queue_unit.encode(5, 100, 0)):
        poke(light, 0, wrong)
        assert [(finding.kind, finding.file, finding.offset) for finding in check_store(root).findings] == [
            ("unit-extra", str(light), 0)
        ]
    poke(light, 0, units[:unit])


def test_tombstones_are_read_as_a_start_reads_them(open_store):
    """A number that is no log offset made the check blame sound units, and a repair take their queues
    away."""
    store = open_store()
    for number in range(20):
        store.appender.put(message("quiet", 0, b"%d" % number))
    store.close()
    (store.root / "config").mkdir(exist_ok=True)
    (store.root / "config/deletedTopics.json").write_text('{"quiet": 99999999999999999999999}')
    (store.root / "config/deletedTopics.json.bak").write_text("{}")
    assert [(one.severity, one.kind) for one in check_store(store.root).findings] == [("warning", "config")]
    for path in (store.root / "config").glob("deletedTopics.json*"):
        path.unlink()  # the store is checked once more when the test ends


def test_a_bit_after_the_end_of_a_queue_is_reported(open_store):
    store = open_store()
    for number in range(5):
        store.appender.put(message("quiet", 0, b"%d" % number))
    store.close()
    path = store.root / "consumequeue/quiet/0" / ("0" * 20)
    content = path.read_bytes()
    path.write_bytes(content[:140] + b"\1" + content[141:])  # two units after the end, in the offset alone
    assert [(one.severity, one.kind, one.offset) for one in check_store(store.root).findings] == [
        ("error", "unit-extra", 140)
    ]
    path.write_bytes(content)
