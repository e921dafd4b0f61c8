"""After kill -9 everything that was acknowledged is there, and whatever is wrong with a directory is said in
a sentence."""

import random
import shutil

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.log import whole_records
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.start import log_end
from broker_store.engine.start.report import time_text
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError, OtherDiskError, StoreError
from broker_store.facts.recoveries import dry_run
from broker_store.formats import checkpoint, queue_unit, record
from broker_store.formats.index_file import IndexGeometry
from broker_store.messages import GetRequest, PutStatus
from broker_store.units import document_of, fields_of
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import HandStore, findings, message, small_settings


def fill(store, count=150, seed=1):
    """[(topic, queue id, queue offset, body, key)] of what was acknowledged."""
    rng, stored = random.Random(seed), []

    def keep(sent, result, number):
        return lambda status: (
            stored.append((sent.topic, sent.queue_id, result.queue_offset, sent.body, f"k{seed}-{number}"))
            if status is PutStatus.PUT_OK
            else None
        )

    for number in range(count):
        sent = message(
            rng.choice("ABC"),
            rng.randrange(2),
            rng.randbytes(rng.choice((5, 300, 2500))),
            keys=(f"k{seed}-{number}",),
        )
        result = store.appender.put(sent)
        if not result.ok:
            store.flush(), store.look_at_disk()
            result = store.appender.put(sent)
        store.confirmation.when_confirmed(result.log_end, keep(sent, result, number))
        store.clock.advance(rng.choice((0, 1, 400)))
        if rng.random() < 0.2:
            store.flush()
        if rng.random() < 0.1:
            store.round()
    return stored


def all_there(store, stored):
    for topic, queue_id, offset, body, key in stored:
        (found,) = record.decode_all(store.reads.get(GetRequest(topic, queue_id, offset, 1)).body)
        assert (found.body, found.queue_offset) == (body, offset)
        assert any(record.decode(raw).body == body for raw in store.reads.query_keys(topic, key, 64).records)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_copy_taken_while_the_store_runs_opens_with_everything_acknowledged(
    open_store, clock, directory, flush
):
    store = open_store(flush_disk_type=flush)
    stored = fill(store)
    for copy in range(4):
        stored += fill(store, 30, seed=copy)
        shutil.copytree(store.root, directory / f"copy-{copy}" / "store")
        again = HandStore(
            small_settings(directory / f"copy-{copy}" / "store", flush_disk_type=flush), clock
        ).begin()
        assert again.report.as_dict()["kind"] == "abnormal"
        all_there(again, stored)
        for topic, queue_id in again.queues():
            following = again.reads.max_offset(topic, queue_id)
            assert again.appender.put(message(topic, queue_id)).queue_offset == following
        again.flush()
        again.close()


def test_a_clean_stop_and_start_scans_little_and_changes_nothing(open_store):
    store = open_store()
    stored = fill(store)
    store.close()
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert not (store.root / "abort").exists()
    store = open_store()
    assert (store.root / "abort").exists()
    report = store.report.as_dict()
    assert (report["kind"], report["redispatched"], report["cut_bytes"], report["findings"]) == (
        "normal",
        0,
        0,
        [],
    )
    assert report["scanned_bytes"] <= 16384
    all_there(store, stored)
    store.close()
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "parts", [("consumequeue",), ("index",), ("checkpoint",), ("consumequeue", "index", "checkpoint")]
)
def test_all_but_the_log_can_be_made_again(open_store, parts):
    store = open_store()
    stored = fill(store)
    store.die()
    for part in parts:
        path = store.root / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    all_there(open_store(), stored)


@pytest.mark.parametrize("cut", [0, 1, 20, 37, 60, 399])
def test_a_queue_with_a_hole_at_any_unit_is_made_again_from_the_log(open_store, cut):
    store = open_store()
    stored = fill(store)
    store.die()
    for path in (store.root / "consumequeue").rglob("0" * 20):
        raw = bytearray(path.read_bytes())
        raw[cut : cut + 20] = bytes(len(raw[cut : cut + 20]))
        path.write_bytes(raw)
    all_there(open_store(), stored)


def derived(store):
    """What queues and index hold, without what their names and room ahead have of chance."""
    queues = {
        path.relative_to(store.root): path.read_bytes()
        for path in (store.root / "consumequeue").rglob("0*")
        if path.is_file()
    }
    return queues, [path.read_bytes() for path in sorted((store.root / "index").iterdir())]


@pytest.mark.quick(15)
@pytest.mark.parametrize("seed", range(60))
def test_whatever_byte_of_a_queue_or_of_the_index_a_crash_changed_is_made_right(open_store, seed):
    store, rng = open_store(), random.Random(seed)
    fill(store, seed=seed)
    units = {(queue.topic, str(queue.queue_id)): queue.maximum for queue in store.queue_table}
    entries = [file.entries for file in store.index.facts()]
    store.die()
    (store.root / "checkpoint").unlink(missing_ok=True)
    before = derived(store)
    for _ in range(rng.choice((1, 1, 3))):
        if rng.random() < 0.5:
            path = rng.choice(
                sorted(path for path in (store.root / "consumequeue").rglob("0*") if path.is_file())
            )
            used = range(20 * units[path.parts[-3:-1]] - int(path.name))
        else:
            number, path = rng.choice(list(enumerate(sorted((store.root / "index").iterdir()))))
            index = IndexGeometry(16, 64)
            used = [*range(index.entries_at), *range(index.entry_at(1), index.entry_at(1 + entries[number]))]
        raw = bytearray(path.read_bytes())
        raw[rng.choice(used[: len(raw)])] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
    assert derived(open_store()) == before


def test_what_a_killed_process_left_whole_is_compared_and_not_made_again(open_store):
    store = open_store()
    stored = fill(store)
    store.die()
    before = {
        path: path.read_bytes()
        for path in store.root.rglob("*/*")
        if path.is_file() and path.name != STORE_TIMES
    }
    store = open_store()
    report = store.report.as_dict()
    steps = {step["name"]: step["detail"] for step in report["steps"]}
    assert (
        steps["repair the index"]
        == f"0 entries and 0 files taken out, 0 files linked again; goes on from {report['log_end']:,}"
    )
    assert steps["cut the log at its end"] == f"the log ends at {report['log_end']:,}"
    assert (report["kind"], report["redispatched"], report["findings"]) == ("abnormal", 0, [])
    assert {
        path: path.read_bytes()
        for path in store.root.rglob("*/*")
        if path.is_file() and path.name != STORE_TIMES
    } == before
    all_there(store, stored)


def test_dispatch_goes_on_where_a_killed_process_stopped(open_store):
    """The log has all, a queue and the index lack the last third."""
    store = open_store()
    stored = fill(store, 60)
    half = store.log.wrote
    before = {
        path: path.read_bytes()
        for part in ("consumequeue", "index")
        for path in (store.root / part).rglob("*")
        if path.is_file()
    }
    stored += fill(store, 30, seed=2)
    store.die()
    missing = sum(queue.maximum for queue in store.queue_table)
    for path in [
        path
        for part in ("consumequeue", "index")
        for path in (store.root / part).rglob("*")
        if path.is_file()
    ]:
        path.write_bytes(before[path]) if path in before else path.unlink()
    store = open_store()
    all_there(store, stored)
    (step,) = (step for step in store.report.as_dict()["steps"] if step["name"] == "dispatch again")
    assert step["detail"].startswith(f"from {half:,} to ") and 0 < step["messages"] < missing


def stamp(store):
    return checkpoint.decode((store.root / "checkpoint").read_bytes()).physic_msg_timestamp


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_counts_as_flushed_because_it_was_found(open_store, flush):
    store = open_store(flush_disk_type=flush)
    store.appender.put(message(body=b"x" * 500, keys=("k",)))
    store.die()
    synced = []
    disk = FailingDisk(lambda name: synced.append(name) if name == "sync" else None)
    store = open_store(disk, flush_disk_type=flush)
    positions = store.status.positions()
    assert positions.confirmed == positions.wrote > 0
    if flush == "SYNC_FLUSH":
        assert positions.flushed == positions.wrote  # what is shown is on the disk
    else:
        assert positions.flushed == 0 and stamp(store) == 0
        assert len(synced) == 1  # the zeros after the end
        store.flush(), store.round()
    assert store.status.positions().flushed == positions.wrote and stamp(store) == store.clock()
    assert len(synced) >= 5  # the end, the log, queue, index, checkpoint


def test_a_torn_tail_is_cut_kept_aside_and_never_comes_back(open_store):
    store = open_store()
    kept = store.appender.put(message(body=b"kept"))
    torn = store.appender.put(message(body=b"torn" * 50))
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    raw[torn.log_end - 100] ^= 1
    path.write_bytes(raw)
    cut = bytes(raw[kept.log_end : torn.log_end]).rstrip(b"\0")
    store = open_store()
    report = store.report.as_dict()
    assert report["log_end"] == kept.log_end and report["cut_bytes"] == len(cut)
    (aside,) = (store.root.parent / "lost+found").rglob("commitlog.*")
    assert aside.read_bytes() == cut
    assert not any(path.read_bytes()[kept.log_end :])
    again = store.appender.put(message(body=b"new"))
    assert (again.log_offset, again.queue_offset) == (kept.log_end, 1)


def test_whole_messages_behind_the_end_are_named_when_they_are_cut(open_store):
    store = open_store()
    store.appender.put(message(body=b"kept"))
    torn = store.appender.put(message(body=b"torn" * 50))
    behind = [store.appender.put(message(topic="payments", body=b"whole %d" % number)) for number in range(3)]
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    raw[torn.log_end - 100] ^= 1
    path.write_bytes(raw)
    dry = dry_run(store.settings)
    report = open_store().report.as_dict()
    assert report["log_end"] == torn.log_offset == dry.log_end and report["cut"]["messages"] == document_of(
        dry.cut.messages
    )
    told = [finding.what for finding in dry.findings if "whole message" in finding.what]
    assert told == [
        "3 whole messages lie after the log's end: payments/0 0 to 2; a start cuts them, and keeps "
        "them in lost+found"
    ]
    rows = [
        {
            "topic": "payments",
            "queue_id": 0,
            "first": behind[0].queue_offset,
            "last": behind[-1].queue_offset,
            "messages": 3,
        }
    ]
    assert report["cut"]["messages"] == {
        "whole": 3,
        "queues": rows,
        "queues_left_out": 0,
        "searched_to": None,
    }
    (named,) = [finding["what"] for finding in report["findings"] if "whole message" in finding["what"]]
    assert named == "3 whole messages after the log's end are cut: payments/0 0 to 2; kept in lost+found"


def test_messages_are_not_said_to_be_kept_where_that_failed(open_store, tmp_path):
    store = open_store()
    store.appender.put(message(body=b"kept"))
    torn = store.appender.put(message(body=b"torn" * 50))
    store.appender.put(message(body=b"whole"))
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    raw[torn.log_end - 100] ^= 1
    path.write_bytes(raw)

    class FullDisk(Disk):
        def copy_range(self, *_):
            raise StoreError("no space is left")

    refused = MessageStore(store.settings, disk=FullDisk())
    with pytest.raises(StoreError, match="no space"):
        refused.open()
    report = refused.report.as_dict()
    assert (report["cut"]["commitlog"]["bytes"], report["cut"]["messages"]["whole"]) == (0, 0)
    assert not any("kept in" in finding["what"] for finding in report["findings"])
    assert [step["detail"] for step in report["steps"] if step["name"].startswith("name the")] == [
        "1 whole message lies after the log's end: topic/0 2"
    ]
    assert any(
        "1 whole message after the log's end is cut: topic/0 2; kept in lost+found" in finding["what"]
        for finding in open_store().report.as_dict()["findings"]
    )


@pytest.mark.parametrize("most", [1, 2, 3])
def test_where_not_all_of_what_is_cut_was_looked_at_a_start_says_so(most, open_store, monkeypatch):
    """Records of deleted topics count too: where no other record was read, nothing was reported."""
    monkeypatch.setattr(log_end, "MAX_RECORDS_NAMED", most)
    store = open_store()
    store.appender.put(message(body=b"kept"))
    torn = store.appender.put(message(body=b"torn" * 50))
    store.appender.put(message(topic="gone"))
    store.delete_topic("gone")
    behind = [store.appender.put(message(body=b"whole")) for _ in range(2)]
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    raw[torn.log_end - 100] ^= 1
    path.write_bytes(raw)
    report = open_store().report.as_dict()
    cut = report["cut"]["messages"]
    assert (cut["whole"], cut["searched_to"]) == (most - 1, behind[most - 1].log_offset if most < 3 else None)
    (named,) = [finding["what"] for finding in report["findings"] if "whole message" in finding["what"]]
    assert ("or later was not read" in named) == (most < 3) and named.startswith(
        "no whole" if most == 1 else f"{most - 1} whole"
    )


def test_what_lies_between_whole_records_is_searched_once(open_store, monkeypatch):
    """Each gap cost a scan of all of the file after it: 8,000 records took 35 s."""
    store = open_store()
    kept = store.appender.put(message(body=b"kept"))
    places = [store.appender.put(message(body=b"%03d" % number)).log_offset for number in range(40)]
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    for place in places[::2]:
        raw[place + 4] ^= 1
    path.write_bytes(raw)
    asked = []
    monkeypatch.setattr(
        whole_records,
        "data_end_from",
        lambda region, at, ask=whole_records.data_end_from: asked.append(at) or ask(region, at),
    )
    report = open_store().report.as_dict()
    assert (report["log_end"], report["cut"]["messages"]["whole"]) == (kept.log_end, 20) and asked == [
        kept.log_end
    ]


def test_whole_messages_of_a_deleted_topic_are_not_named_when_they_are_cut(open_store):
    """No reader got them, and they took the rows of those that were lost."""
    store = open_store()
    store.appender.put(message(body=b"kept"))
    torn = store.appender.put(message(body=b"torn" * 50))
    store.appender.put(message(topic="gone", body=b"of the first life"))
    store.delete_topic("gone")
    second = store.appender.put(message(topic="gone", body=b"of the second life"))
    store.die()
    path = store.log.files[0].path
    raw = bytearray(path.read_bytes())
    raw[torn.log_end - 100] ^= 1
    path.write_bytes(raw)
    cut = open_store().report.as_dict()["cut"]["messages"]
    assert (cut["whole"], cut["queues"]) == (
        1,
        [
            {
                "topic": "gone",
                "queue_id": 0,
                "first": second.queue_offset,
                "last": second.queue_offset,
                "messages": 1,
            }
        ],
    )


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "none"),
        (1_764_000_000_007, "2025-11-24 16:00:00.007 UTC"),
        (-1, "-1 ms"),
        ((1 << 63) - 1, "9,223,372,036,854,775,807 ms"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999 UTC"),
    ],
)
def test_a_time_in_the_report_is_one_that_people_read_whatever_the_bytes_say(ms, text):
    assert time_text(ms) == text


def test_a_killed_recovery_is_done_again(open_store):
    store = open_store()
    stored = fill(store)
    store.die()
    shutil.rmtree(store.root / "consumequeue")
    for _ in range(3):
        store = open_store()
        store.die()
    all_there(open_store(), stored)


@pytest.mark.parametrize(
    ("name", "length", "says"),
    [(f"{16384:020d}", 100, "has 100 bytes"), ("core", 16384, "is no file of the store")],
)
def test_a_log_file_that_does_not_belong_refuses_the_start_and_nothing_changes(
    open_store, clock, name, length, says
):
    store = open_store()
    store.appender.put(message())
    store.close()
    (store.root / "commitlog" / name).write_bytes(bytes(length))
    with pytest.raises(DamagedStoreError, match=f"{name}.*{says}"):
        HandStore(small_settings(store.root), clock).open()
    assert not (store.root / "abort").exists()
    (store.root / "commitlog" / name).unlink()
    assert open_store().report.as_dict()["kind"] == "normal"


def test_a_missing_file_in_the_middle_refuses_the_start(open_store, clock):
    store = open_store()
    for _ in range(10):
        store.appender.put(message(body=b"x" * 6000))
    store.close()
    away = store.log.files[2].path
    content = away.read_bytes()
    away.unlink()
    with pytest.raises(DamagedStoreError, match="a file is missing"):
        HandStore(small_settings(store.root), clock).open()
    away.write_bytes(content)
    open_store()


def test_a_symbolic_link_in_place_of_a_file_refuses_the_start(open_store, clock):
    store = open_store()
    store.appender.put(message())
    store.close()
    path = store.log.files[0].path
    other = store.root.parent / "elsewhere"
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(DamagedStoreError, match="is no regular file"):
        HandStore(small_settings(store.root), clock).open()
    path.unlink()
    other.rename(path)
    open_store()


def test_a_log_that_lies_elsewhere_recovers_there(open_store, directory):
    store = open_store(store_path_commit_log=directory / "log")
    stored = fill(store, 60)
    store.prepare()
    store.die()
    (directory / "log" / f"{store.log.files[-1].end:020d}").write_bytes(b"x" * 16384)
    store = open_store(store_path_commit_log=directory / "log")
    all_there(store, stored)
    store.close()
    shutil.move(directory / "log", store.root / "commitlog")
    open_store()


def test_a_file_that_is_taken_away_onto_another_disk_is_copied_and_never_lost(open_store, directory):
    log = directory / "log"
    store = open_store(store_path_commit_log=log)
    stored = fill(store, 60)
    store.die()
    away = log / f"{store.log.files[-1].end:020d}"
    away.write_bytes(b"x" * 10000 + bytes(6384))
    copies = []

    def on_call(name):
        if name == "rename" and len(copies) < 2:
            raise OtherDiskError("injected: another file system")
        if name == "copy_range":
            copies.append(name)
            if len(copies) == 1:
                raise StoreError("injected: input/output error")

    disk = FailingDisk(on_call)
    with pytest.raises(StoreError, match="input/output error"):
        open_store(disk, store_path_commit_log=log)
    assert away.stat().st_size == 16384
    store = open_store(disk, store_path_commit_log=log)
    (kept,) = (directory / "lost+found").rglob("commitlog.*")
    assert kept.read_bytes().rstrip(b"\0") == b"x" * 10000 and not away.exists()
    report = store.report.as_dict()
    found = store.status.snapshot().lost_and_found
    assert report["lost_and_found"] == fields_of(found) == {"files": 1, "bytes": kept.stat().st_size}
    assert any("moved to lost+found/" in finding["what"] for finding in report["findings"])
    all_there(store, stored)
    store.close()
    shutil.move(log, store.root / "commitlog")
    open_store()


# Files that a power cut lost one by one -----------------------------------------------------------


def bodies_of(store, topic="topic"):
    found = []
    while (read := store.reads.get(GetRequest(topic, 0, len(found), 32))).body:
        found += [message.body for message in record.decode_all(read.body)]
    return found


def stopped_with_messages(open_store, clean, count=100):
    """A store with five files of a queue, and the bodies in it."""
    store = open_store()
    sent = [b"%d" % number for number in range(count)]
    for body in sent:
        assert store.appender.put(message(body=body)).ok
    store.flush(), store.round()
    if clean:
        store.close()
    else:
        store.die()
    return store.root, sent


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["unlink", "empty"])
@pytest.mark.parametrize("number", range(4))
def test_a_queue_of_which_a_file_is_lost_is_made_again_from_the_log(open_store, clean, damage, number):
    root, sent = stopped_with_messages(open_store, clean)
    path = root / "consumequeue/topic/0" / f"{400 * number:020d}"
    path.unlink() if damage == "unlink" else path.write_bytes(b"")
    store = open_store()
    assert bodies_of(store) == sent
    assert (store.reads.min_offset("topic", 0), store.appender.put(message()).queue_offset) == (0, len(sent))
    assert any("made again from the log" in finding["what"] for finding in store.report.as_dict()["findings"])
    store.close()
    assert findings(root) == []
    store = open_store()
    assert store.report.as_dict()["findings"] == []  # once is enough
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_log_files_of_length_0_at_the_end_were_never_used(open_store, clean):
    root, sent = stopped_with_messages(open_store, clean)
    for base in (16384, 32768, 49152):
        (root / "commitlog" / f"{base:020d}").write_bytes(b"")
    store = open_store()
    assert bodies_of(store) == sent and sorted(path.name for path in (root / "commitlog").iterdir()) == [
        "0" * 20
    ]
    store.close()


def test_an_empty_log_file_before_one_that_is_not_is_refused(open_store):
    root, _ = stopped_with_messages(open_store, True, count=300)
    path = root / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(DamagedStoreError, match="has 0 bytes, expected 16384"):
        open_store()
    path.write_bytes(whole)


def test_a_queue_that_retention_shortened_is_not_made_again(open_store, clock):
    store = open_store()
    for _ in range(400):
        assert store.appender.put(message(body=bytes(300))).ok
        store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=3) == 3
    first = min((store.root / "consumequeue/topic/0").iterdir())
    assert int(first.name) > 0
    minimum = store.reads.min_offset("topic", 0)
    # The unlinks of a cleaning that a power cut brings back, in part: the queue begins where the log does.
    (first.parent / f"{int(first.name) - 800:020d}").write_bytes(bytes(400))
    store.die()
    store = open_store()
    assert store.reads.min_offset("topic", 0) == minimum and store.report.as_dict()["findings"] == []
    assert min((store.root / "consumequeue/topic/0").iterdir()) == first
    store.close()


def test_a_deleted_topic_stays_deleted_when_the_first_of_the_files_that_a_power_cut_brings_back_is_torn(
    open_store,
):
    store = open_store()
    for _ in range(60):
        store.appender.put(message(body=b"x" * 250))
    store.flush()
    store.round()
    directory = store.root / "consumequeue/topic/0"
    first, _, third = (path.name for path in sorted(directory.iterdir()))
    units = (directory / third).read_bytes()
    assert (
        store.cleaning.delete_expired(any_age=True, most=1) == 1
        and 0 < queue_unit.decode(units).log_offset < store.log.minimum
    )
    store.delete_topic("topic")
    store.die()
    directory.mkdir(parents=True)
    (directory / first).write_bytes(bytes(len(units)))
    (directory / third).write_bytes(units)
    store = open_store()
    assert store.reads.min_offset("topic", 0) == store.reads.max_offset("topic", 0) == 0
    assert store.appender.put(message()).queue_offset == 0
