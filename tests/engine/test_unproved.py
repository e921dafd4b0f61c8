"""What a start after a stop in order does not read is compared with its sum before it is read, or by the
worker `prover`."""

import shutil
from unittest.mock import patch

import pytest

from broker_store.check.walk import StoreCheck
from broker_store.engine.index import rebuilding
from broker_store.engine.start import end_sums
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import record
from broker_store.kernels import context as c
from broker_store.messages import GetRequest, GetStatus
from tests.engine.test_known_ends import assert_next_is_new, assert_served, flip, poke, queue_file, tree
from tests.support.hand_store import HandStore, HandWorker, message, small_settings

COUNT = 180  # nine files of 20 units


@pytest.fixture
def filled(open_store):
    """(store root, stored) of a closed store whose queue T/0 has nine files, and whose index has several."""
    store = open_store()
    stored = []
    for number in range(COUNT):
        sent = message("T", 0, b"%d" % number, tag=f"t{number % 2}", keys=(f"k{number}",))
        stored.append(("T", 0, store.appender.put(sent).queue_offset, sent.body, f"k{number}"))
        store.clock.advance(3)
    store.flush(), store.round()
    store.close()
    assert len(list((store.root / "consumequeue/T/0").iterdir())) >= 9
    return store.root, stored


def prove(store):
    """The prover's turn; what it starts is run by hand too."""
    with patch.object(rebuilding, "Worker", HandWorker):
        store.worker("prover").run(store.clock())


def middle(root):
    return queue_file(root, 3)  # units 60 to 79


HURTS = {
    "20 zero bytes": lambda root: poke(middle(root), 5 * 20, bytes(20)),
    "the first unit zeroed": lambda root: poke(middle(root), 0, bytes(20)),
    "a bit of a log offset": lambda root: flip(middle(root), 5 * 20 + 6, 1),
    "a bit of a size": lambda root: flip(middle(root), 5 * 20 + 11, 2),
    "a bit of a tag hash": lambda root: flip(middle(root), 5 * 20 + 19, 0),
    "all zero": lambda root: poke(middle(root), 0, bytes(400)),
}


def read_all(store, tags=None):
    """(queue offset → body) as a consumer reads, and the offsets that were answered as damaged."""
    served, damaged, at = {}, [], 0
    while at < COUNT:
        result = store.reads.get(GetRequest("T", 0, at, 32, tag_codes=tags))
        if result.status is GetStatus.MESSAGE_DAMAGED:
            damaged.append(at)
        elif result.count:
            served |= {found.queue_offset: found.body for found in record.decode_all(bytes(result.body))}
        assert result.next_offset <= at or set(range(at, result.next_offset)) <= served.keys() | set(
            damaged
        ) | skipped(tags), (at, result)
        at = max(result.next_offset, at + 1)
    return served, damaged


def skipped(tags):
    """Offsets that a filter may pass over."""
    return set() if tags is None else {number for number in range(COUNT) if number % 2 == 0}


@pytest.mark.parametrize("by", ["reading", "the prover"])
@pytest.mark.parametrize("hurt", HURTS)
def test_damage_in_a_middle_file_is_found_and_made_again_by_the_next_start(open_store, filled, hurt, by):
    root, stored = filled
    HURTS[hurt](root)
    store = open_store()
    if by == "reading":
        served, damaged = read_all(store)
        assert all(body == stored[number][3] for number, body in served.items())
        assert served.keys() | set(damaged) == set(range(COUNT))
    else:
        prove(store)
    (flag,) = [flag for flag in store.status.snapshot().flags if flag.name == "damage_found"]
    assert "consumequeue/T/0" in flag.cause or "T/0" in flag.cause
    assert_next_is_new(store, stored)
    store.close()
    store = open_store()
    (finding,) = [
        finding for finding in store.report.as_dict()["findings"] if finding["severity"] == "warning"
    ]
    assert "made again from the log" in finding["what"]
    assert_served(store, stored)
    store.close()
    store = open_store()
    assert store.report.as_dict()["findings"] == []
    assert_served(store, stored)


@pytest.mark.parametrize("hurt", HURTS)
def test_a_consumer_that_filters_by_tag_misses_no_message(open_store, filled, hurt):
    root, stored = filled
    store = open_store()
    codes = frozenset([store.reads.read_units("T", 0, 65, 1)[0].tags_code])
    store.close()
    HURTS[hurt](root)
    store = open_store()
    served, damaged = read_all(store, codes)
    assert {number for number in range(COUNT) if number % 2 == 1} <= served.keys() | set(damaged)
    assert all(body == stored[number][3] for number, body in served.items())
    store.close()
    open_store()


@pytest.mark.parametrize("hurt", HURTS)
def test_check_store_finds_it(open_store, filled, hurt):
    root, _ = filled
    HURTS[hurt](root)
    before = tree(root)
    check = StoreCheck(root)
    check.run()
    assert ("T", 0) in check.report.bad_queues
    assert tree(root) == before
    store = open_store()
    prove(store)
    store.close()
    open_store()


@pytest.mark.parametrize("hurt", ["gone", "empty", "short"])
def test_a_middle_file_that_is_not_whole_is_found_at_the_start(open_store, clock, filled, hurt):
    root, stored = filled
    path = middle(root)
    raw = path.read_bytes()
    if hurt == "gone":
        path.unlink()
    else:
        path.write_bytes(raw[: 0 if hurt == "empty" else 120])
    if hurt == "short":
        with pytest.raises(StoreError, match="120 bytes"):
            HandStore(small_settings(root), clock).open()
        path.write_bytes(raw)
    store = open_store()
    assert hurt == "short" or store.report.as_dict()["findings"]
    assert_served(store, stored)
    assert_next_is_new(store, stored)


def test_retention_leaves_a_queue_whose_file_is_damaged(open_store, filled):
    """The first unit of the second file says when the first may go: a zero there says nothing."""
    root, stored = filled
    poke(queue_file(root, 1), 0, bytes(20))
    store = open_store()
    store.cleaning.delete_expired(any_age=True, most=1)
    minimum = store.reads.min_offset("T", 0)
    places = {
        number: store.reads.read_units("T", 0, number, 1)[0].log_offset
        for number in range(minimum, COUNT)
        if number != 20
    }
    assert min(places.values()) >= store.log.minimum and all(
        number >= minimum for number in range(COUNT) if places.get(number, -1) >= store.log.minimum
    )
    prove(store)
    store.close()
    store = open_store()
    assert_served(store, [one for one in stored if one[2] >= store.reads.min_offset("T", 0)])


def index_files(root):
    return sorted((root / "index").iterdir())


ENTRIES_AT = 40 + 16 * 4
INDEX_HURTS = {
    "an entry": lambda path: flip(path, ENTRIES_AT + 20 * 9 + 1, 2),
    "entries zeroed": lambda path: poke(path, ENTRIES_AT + 20 * 3, bytes(60)),
    "slots zeroed": lambda path: poke(path, 40, bytes(16 * 4)),
}


@pytest.mark.parametrize("hurt", INDEX_HURTS)
def test_old_index_files_that_changed_before_a_kill_are_built_again(open_store, hurt):
    """After a kill the start compares the newest entries with the log, and does not read older files."""
    store = open_store()
    stored = []
    for number in range(COUNT):
        sent = message("T", 0, b"x" * 300, keys=(f"k{number}",))
        stored.append(("T", 0, store.appender.put(sent).queue_offset, sent.body, f"k{number}"))
        store.clock.advance(1000)
        if number % 20 == 19:
            store.flush(), store.round()
    store.flush(), store.round()
    store.die()
    INDEX_HURTS[hurt](index_files(store.root)[0])
    store = open_store()
    assert store.index_doubt is not None
    prove(store)
    (flag,) = [flag for flag in store.status.snapshot().flags if flag.name == "index_damaged"]
    assert index_files(store.root)[0].name in flag.cause and "built again" in store.index_doubt
    store.rebuilding.worker.run(store.clock())
    store.tick()
    assert store.index_doubt is None and "index_damaged" not in {
        flag.name for flag in store.status.snapshot().flags
    }
    assert_served(store, stored)


def test_a_sound_index_is_known_to_be_whole_when_it_was_compared(open_store, filled):
    store = open_store()
    assert "index files are not compared" in store.index_doubt
    prove(store)
    assert store.index_doubt is None and store.status.snapshot().flags == []
    assert store._parts.context.view[c.STORED_COUNT] == 0


def test_entries_in_the_middle_of_a_file_are_compared_after_a_stop_in_order(open_store, filled, monkeypatch):
    monkeypatch.setattr(end_sums, "_MAX_ENTRIES", 8)
    root, stored = filled
    store = open_store()
    store.appender.put(message("T", 0, b"more", keys=("k",)))
    store.close()  # the record has sums of the last eight entries now
    flip(index_files(root)[-1], ENTRIES_AT + 20 * 3 + 1, 2)
    store = open_store()
    assert store.report.as_dict()["findings"] == []
    prove(store)
    assert "built again" in store.index_doubt
    store.rebuilding.worker.run(store.clock())
    store.tick()
    assert_served(store, stored)


def test_after_a_kill_the_recorded_entries_of_the_newest_index_file_are_compared_too(open_store):
    store = open_store()
    stored = []

    def put():
        number = len(stored)
        sent = message("T", 0, b"%d" % number, keys=(f"k{number}",))
        stored.append(("T", 0, store.appender.put(sent).queue_offset, sent.body, f"k{number}"))

    while len(store.log.files) < 2:
        put()
    while store.index.newest().count < 5:
        put()
    store.flush(), store.round()
    store.clock.advance(10_000)  # the scan begins with the newest log file
    put()
    store.flush(), store.round()
    newest = store.index.files[-1].path
    assert store.index.files[-1].entry(2).log_offset < store.log.files[-1].base
    store.die()
    flip(newest, 40 + 16 * 4 + 2 * 20 + 2, 3)
    store = open_store()
    prove(store)
    assert store.index_doubt is not None
    store.rebuilding.worker.run(store.clock())
    store.tick()
    assert_served(store, stored)


def test_an_index_that_a_damaged_log_cannot_make_again_is_doubted_and_the_next_start_is_refused(
    directory, clock, monkeypatch
):
    monkeypatch.setattr(end_sums, "_MAX_ENTRIES", 8)
    store = HandStore(small_settings(directory / "store"), clock).begin()
    places = [
        store.appender.put(message("T", 0, b"%d" % number * 40, keys=(f"k{number}",))).log_offset
        for number in range(200)
    ]
    assert len(store.index.files) > 3 and len(store.log.files) > 1
    store.close()
    flip(index_files(store.root)[0], 40 + 16 * 4 + 20 * 20 + 2, 3)
    log = store.root / "commitlog/00000000000000000000"
    raw = bytearray(log.read_bytes())
    raw[places[30] + 4 : places[30] + 8] = bytes(4)
    log.write_bytes(raw)
    store = HandStore(small_settings(store.root), clock).begin()
    prove(store)
    store.rebuilding.worker.run(store.clock())
    store.tick()
    assert store.rebuilding.progress().state == "failed" and "damaged" in store.index_doubt
    assert store.reads.get(GetRequest("T", 0, 100, 1)).status is GetStatus.FOUND
    store.close()
    again = HandStore(small_settings(store.root), clock)
    with pytest.raises(DamagedStoreError, match=f"{log.name} at {places[30]:,}".replace(",", "")):
        again.begin()
    again.die()
    shutil.rmtree(store.root)
