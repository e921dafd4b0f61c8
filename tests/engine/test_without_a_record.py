"""The index of a store that was closed in order and has no record of ends, as Apache's broker leaves it: compared with the log once."""

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


def test_a_sound_index_keeps_every_byte(open_store):
    store = open_store()
    filled(store)
    store.close()
    (store.root / "ends").unlink()
    before = {path.name: path.read_bytes() for path in index_files(store.root)}
    again = open_store()
    assert {path.name: path.read_bytes() for path in index_files(store.root)} == before
    assert again.recovery_report()["cut"]["index"].get("entries", 0) == 0
