"""A store that was written on since the record of ends, or has none, as Apache's broker leaves it: queues and
index are compared with the log."""

from dataclasses import asdict

import pytest

from broker_store.formats import checkpoint, record
from broker_store.messages import GetRequest, GetStatus
from tests.engine.test_known_ends import assert_next_is_new, assert_served, filled, flip, poke, queue_file
from tests.support import stores
from tests.support.hand_store import HandStore, message, small_settings

_ENTRIES_AT = 40 + 4 * 16  # of the small index files: after header and slots


def index_files(root):
    return sorted((root / "index").iterdir())


def copied_over(root):
    first, second = index_files(root)[:2]
    second.write_bytes(first.read_bytes())


HURTS = {
    "an entry": lambda root: flip(index_files(root)[1], _ENTRIES_AT + 5 * 20 + 2, 3),
    "the last entry": lambda root: poke(index_files(root)[0], _ENTRIES_AT + 63 * 20, bytes(20)),
    "a slot": lambda root: poke(index_files(root)[1], 40 + 12, b"\0\0\0\1"),
    "a link": lambda root: flip(index_files(root)[1], _ENTRIES_AT + 40 * 20 + 19, 1),
    "a file is removed": lambda root: index_files(root)[1].unlink(),
    "a file has the content of another": copied_over,
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("hurt", HURTS)
def test_a_damaged_index_is_made_again(open_store, hurt, killed):
    store = open_store()
    stored = filled(store)
    if killed:
        store.clock.advance(10_000)  # the scan begins with the newest log file
        store.appender.put(message("T", 0, b"last"))
        store.flush(), store.round()
        store.die()
    else:
        store.close()
    (store.root / "ends").unlink()
    HURTS[hurt](store.root)
    assert_served(open_store(), stored)


def killed_after_a_round(store):
    """What was stored; the scan of the next start begins with the newest log file, and a message came after
    the record."""
    stored = filled(store)
    store.flush(), store.round()
    store.clock.advance(10_000)
    store.appender.put(message("T", 0, b"last"))
    store.flush(), store.round()
    store.appender.put(message("T", 0, b"after the record"))
    store.die()
    return stored


# After a kill the start refuses an index file of another length.
@pytest.mark.parametrize(
    ("with_abort", "lost"),
    [(False, "removed"), (False, "empty"), (False, "too long"), (True, "removed"), (True, "empty")],
)
def test_a_recorded_index_file_that_is_not_there_is_noticed_after_a_kill(open_store, with_abort, lost):
    store = open_store()
    stored = killed_after_a_round(store)
    first = index_files(store.root)[0]
    if lost == "removed":
        first.unlink()
    else:
        first.write_bytes(b"" if lost == "empty" else first.read_bytes() + bytes(20))
    if not with_abort:
        (store.root / "abort").unlink()
    assert_served(open_store(), stored)


def test_after_a_kill_a_record_that_lost_its_last_blocks_is_not_used_beyond_them(open_store):
    store = open_store()
    store.appender.put(message("T", 0, b"before", keys=("before",)))
    store.flush(), store.round()
    sound = (store.root / "ends").stat().st_size
    stored = killed_after_a_round(store)
    poke(store.root / "ends", sound, b"torn")
    poke(index_files(store.root)[0], _ENTRIES_AT + 6 * 20, b"\1\2\3\4")
    store = open_store()
    assert store.report.as_dict()["start"]["base"] > 0
    assert_served(store, stored)


@pytest.mark.parametrize("with_abort", [False, True])
def test_of_a_record_whose_last_entries_are_zero_all_keys_are_found(open_store, with_abort):
    """The file is not full when it is recorded, so its sums say nothing of it as it was left."""
    store = open_store()
    stored = []

    def put(count):
        for _ in range(count):
            number = len(stored)
            sent = message("T", 0, b"%d" % number, keys=(f"first{number}", f"k{number}"))
            stored.append(("T", 0, store.appender.put(sent).queue_offset, sent.body, f"k{number}"))
            store.clock.advance(3)

    put(20)
    store.flush(), store.round()
    put(10)
    store.die()
    # The second of record 3, and two more records
    poke(index_files(store.root)[0], _ENTRIES_AT + 8 * 20, bytes(100))
    if not with_abort:
        (store.root / "abort").unlink()
    assert_served(open_store(), stored)


def test_a_sound_index_keeps_every_byte(open_store):
    store = open_store()
    filled(store)
    store.close()
    (store.root / "ends").unlink()
    before = {path.name: path.read_bytes() for path in index_files(store.root)}
    again = open_store()
    assert {path.name: path.read_bytes() for path in index_files(store.root)} == before
    assert again.report.as_dict()["cut"]["index"].get("entries", 0) == 0


def unit_of(root, topic, queue_id, number):
    poke(queue_file(root, number // 20, topic, queue_id), number % 20 * 20, bytes(20))


BEHIND_A_BAD_RECORD = {
    "a unit": lambda root: unit_of(root, "T", 0, 30),
    "two units": lambda root: (unit_of(root, "T", 0, 30), unit_of(root, "T", 0, 32)),
    "the last units": lambda root: (root / "consumequeue/T/0/00000000000000000800").unlink(),
    "entries of the index": lambda root: poke(index_files(root)[1], _ENTRIES_AT + 50 * 20, bytes(60)),
}


@pytest.mark.parametrize("hurt", BEHIND_A_BAD_RECORD)
@pytest.mark.parametrize("bad", [range(40, 41), range(40, 44)])
def test_what_lies_behind_a_bad_record_of_the_log_is_compared_and_made_again(directory, clock, bad, hurt):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    stored = filled(store, 110)
    places = [
        store.reads.read_units(topic, queue_id, offset, 1)[0].log_offset
        for topic, queue_id, offset, *_ in stored
    ]
    store.close()
    (store.root / "ends").unlink()
    for number in bad:
        poke(store.root / "commitlog/00000000000000000000", places[number] + 4, bytes(8))
    BEHIND_A_BAD_RECORD[hurt](store.root)
    store = HandStore(small_settings(store.root), clock).begin()
    assert_served(store, [one for number, one in enumerate(stored) if number not in bad])
    assert_next_is_new(store, stored)
    errors = [
        (finding["file"], finding["offset"])
        for finding in store.report.as_dict()["findings"]
        if finding["severity"] == "error"
    ]
    assert errors == [("00000000000000000000", places[40])]
    for number in bad:
        topic, queue_id, offset, *_ = stored[number]
        assert store.reads.get(GetRequest(topic, queue_id, offset, 1)).status is GetStatus.MESSAGE_DAMAGED
    store.die()


@pytest.mark.parametrize("lost", ["removed", "zero", "empty"])
def test_accepting_that_the_end_of_the_log_is_lost_gives_no_offset_twice(directory, clock, lost):
    store = HandStore(small_settings(directory / "store"), clock).begin()
    stored = filled(store)
    at = (
        max(
            store.reads.read_units(topic, queue_id, offset, 1)[0].log_offset
            for topic, queue_id, offset, *_ in stored
        )
        // 16384
        * 16384
    )
    is_lost = {one[:3] for one in stored if store.reads.read_units(*one[:3], 1)[0].log_offset >= at}
    store.close()
    (store.root / "ends").unlink()
    for path in sorted((store.root / "commitlog").iterdir()):
        if int(path.name) == at and lost != "removed":
            path.write_bytes(bytes(16384 if lost == "zero" else 0))
        elif int(path.name) >= at:
            path.unlink()
    store = HandStore(small_settings(store.root, accept_damage=True), clock).begin()
    for _ in range(2):
        assert_served(store, [one for one in stored if one[:3] not in is_lost])
        for place in is_lost:
            (placeholder,) = record.decode_all(store.reads.get(GetRequest(*place, 1)).body)
            assert b"REPAIRED\x01" in placeholder.raw_properties, place
        store.close()
        store = HandStore(small_settings(store.root), clock).begin()
        assert store.report.as_dict()["kind"] == "normal"
    assert_next_is_new(store, stored)
    store.close()


def test_a_stamp_of_the_queues_beyond_the_last_record_alone_stops_no_start(tmp_path, clock):
    """Times of a log go back where the clock was set back, and Apache's broker keeps the stamp of before; a
    bit of the stamp may be damaged too."""
    root = stores.unpack("clean-small", tmp_path)
    path = root / "checkpoint"
    stamps = checkpoint.decode(path.read_bytes())
    path.write_bytes(
        checkpoint.encode(stamps._replace(logics_msg_timestamp=stamps.logics_msg_timestamp + 600_000))
    )
    clock.advance(10**9)
    store = HandStore(small_settings(root, **asdict(stores.SIZES["clean-small"])), clock).begin()
    assert (
        store.report.as_dict()["kind"] == "normal"
        and store.report.as_dict()["cut"]["consumequeue"]["units"] == 0
    )
    store.close()
