"""A file of the log that a backup shares by a second name gets bytes of its own before it is written."""

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.formats import record
from tests.support.hand_store import HandStore, message, opened, small_settings


def filled(root):
    """A closed store of three log files; return the log offset of a record in the second."""
    with opened(root) as store:
        places = [
            store.appender.put(message(queue_id=number % 2, body=b"x" * 400, unique=f"u{number}")).log_offset
            for number in range(70)
        ]
        assert len(store.log.files) == 3
    return next(place for place in places if place > 20_000)


def linked(root, directory):
    """Give the log files a second name each; return their bytes by it."""
    directory.mkdir()
    for path in (root / "commitlog").iterdir():
        (directory / path.name).hardlink_to(path)
    return {path: path.read_bytes() for path in directory.iterdir()}


def damage(root, at):
    path = root / "commitlog" / f"{16384:020d}"
    raw = bytearray(path.read_bytes())
    raw[at - 16384 + record.HEAD.size + 90] ^= 1
    path.write_bytes(raw)


def test_a_cut_in_a_shared_file_leaves_its_other_name_as_it_is(directory, tmp_path):
    root = directory / "store"
    at = filled(root)
    (root / "commitlog" / f"{32768:020d}").unlink()
    path = root / "commitlog" / f"{16384:020d}"
    path.write_bytes(path.read_bytes()[: at - 16384].ljust(16384, b"?"))
    before = linked(root, tmp_path / "backup")
    with opened(root, accept_damage=True) as store:
        for number in range(70):
            assert store.appender.put(message(body=b"y" * 400, unique=f"v{number}")).ok
    assert before == {path: path.read_bytes() for path in before}


def test_a_store_that_goes_on_writes_to_no_other_name(directory, tmp_path):
    root = directory / "store"
    filled(root)
    before = linked(root, tmp_path / "backup")
    with opened(root) as store:
        assert store.appender.put(message(body=b"y" * 400)).ok
    assert before == {path: path.read_bytes() for path in before}
    assert (root / "commitlog" / f"{0:020d}").stat().st_nlink == 2  # it was not written


def test_a_repair_leaves_the_other_name_as_it_is(directory, tmp_path):
    root = directory / "store"
    damage(root, filled(root))
    before = linked(root, tmp_path / "backup")
    check = StoreCheck(root)
    check.run()
    Repair(make_plan(check, small_settings(root))).run()
    assert before == {path: path.read_bytes() for path in before}
    store = HandStore(small_settings(root)).begin()
    store.close()
    assert before == {path: path.read_bytes() for path in before}
