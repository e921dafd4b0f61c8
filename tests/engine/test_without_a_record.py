"""The index of a store that was written on since the record of ends, or has none, as Apache's broker leaves it: compared with the log."""

import pytest

from tests.engine.test_known_ends import assert_served, filled, flip, poke
from tests.support.hand_store import message

_ENTRIES_AT = 40 + 4 * 16  # of the small index files: behind header and slots


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
        store.put(message("T", 0, b"last"))
        store.flush(), store.round()
        store.die()
    else:
        store.close()
    (store.root / "ends").unlink()
    HURTS[hurt](store.root)
    assert_served(open_store(), stored)


def killed_after_a_round(store):
    """What was stored; the scan of the next start begins with the newest log file, and a message came after the record."""
    stored = filled(store)
    store.flush(), store.round()
    store.clock.advance(10_000)
    store.put(message("T", 0, b"last"))
    store.flush(), store.round()
    store.put(message("T", 0, b"after the record"))
    store.die()
    return stored


# After a kill the start refuses an index file of another length.
@pytest.mark.parametrize(("with_abort", "lost"), [(False, "removed"), (False, "empty"), (False, "too long"), (True, "removed"), (True, "empty")])
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


def test_after_a_kill_a_record_that_lost_its_last_blocks_is_not_believed_beyond_them(open_store):
    store = open_store()
    store.put(message("T", 0, b"before", keys=("before",)))
    store.flush(), store.round()
    sound = (store.root / "ends").stat().st_size
    stored = killed_after_a_round(store)
    poke(store.root / "ends", sound, b"torn")
    poke(index_files(store.root)[0], _ENTRIES_AT + 6 * 20, b"\1\2\3\4")
    store = open_store()
    assert store.recovery_report()["start"]["base"] > 0
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
            stored.append(("T", 0, store.put(sent).queue_offset, sent.body, f"k{number}"))
            store.clock.advance(3)

    put(20)
    store.flush(), store.round()
    put(10)
    store.die()
    poke(index_files(store.root)[0], _ENTRIES_AT + 8 * 20, bytes(100))  # the second of record 3, and two more records
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
    assert again.recovery_report()["cut"]["index"].get("entries", 0) == 0
