"""The index built again beside the old one, exchanged in one turn, and given up without a trace."""

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.index import rebuilding
from broker_store.errors import MisuseError, StoreClosedError, StoreError, SyncError
from tests.support.hand_store import HandStore, HandWorker, message, small_settings


@pytest.fixture
def store(open_store, monkeypatch):
    monkeypatch.setattr(rebuilding, "Worker", HandWorker)
    made = open_store()
    for number in range(150):
        made.appender.put(message(body=b"x" * 300, keys=(f"k{number}",)))
    return made


def found(store):
    return [number for number in range(200) if store.reads.query_keys("topic", f"k{number}", 9).records]


def work(store):
    store.rebuilding.worker.run(store.clock())
    store.tick()


def test_the_new_index_finds_what_the_old_one_found_and_what_came_meanwhile(store):
    store.rebuilding.begin()
    store.appender.put(message(keys=("k150",)))
    work(store)
    assert store.rebuilding.progress().state == "done"
    store.appender.put(message(keys=("k151",)))
    assert found(store) == list(range(152))
    assert set(store.disk.list_names(store.root)) >= {"index"} and not {
        "index.old",
        "index.rebuilding",
    } & set(store.disk.list_names(store.root))


def test_a_rebuild_that_is_cancelled_or_interrupted_leaves_the_index_as_it_was(store, open_store):
    store.rebuilding.begin()
    store.rebuilding.cancel()
    work(store)
    assert store.rebuilding.progress().state == "cancelled" and found(store) == list(range(150))
    store.rebuilding.begin()
    store.die()
    store = open_store()
    assert found(store) == list(range(150)) and "index.rebuilding" not in store.disk.list_names(store.root)


def test_a_file_made_ahead_by_the_old_index_takes_none_of_the_new_that_has_its_name(store, open_store, clock):
    """Both are named by the time when they were made, and the clock may stand where it did, or be put
    back."""
    store.index._add_spare()
    name = store.index.spares[0].name
    clock.advance(int(name) - int(store.index.files[0].name))
    store.rebuilding.begin()
    work(store)
    assert store.index.files[0].name == name
    store.close()
    assert found(open_store()) == list(range(150))


@pytest.mark.parametrize("at", [1, 2])
def test_when_an_exchange_fails_the_old_index_stays_in_its_place(store, open_store, monkeypatch, at):
    store.rebuilding.begin()
    calls, real = [], Disk.rename

    def rename(disk, source, target):
        calls.append(source)
        if len(calls) == at:
            raise StoreError("input/output error")
        real(disk, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "rename", rename)
        work(store)
    assert store.rebuilding.progress().state == "failed" and store.is_writable
    store.appender.put(message(keys=("k150",)))
    assert found(store) == list(range(151))
    store.close()
    assert found(open_store()) == list(range(151))


def test_a_failed_sync_in_a_rebuild_is_final_too(store, monkeypatch):
    store.rebuilding.begin()
    with monkeypatch.context() as patch:

        def fails(*_):
            raise SyncError("input/output error")

        patch.setattr(Disk, "sync_directory", fails)
        work(store)
    assert store.rebuilding.progress().state == "failed" and not store.is_writable
    store.close()
    assert (store.root / "abort").exists()


def test_it_is_refused_where_there_is_no_index_or_nothing_may_be_written(store, open_store):
    store.close()
    with pytest.raises(StoreClosedError):
        store.rebuilding.begin()
    store = open_store(message_index_enable=False)
    with pytest.raises(MisuseError):
        store.rebuilding.begin()


@pytest.mark.parametrize(("at", "raw"), [("head", bytes(8)), ("topic", b"\xff")])
def test_a_log_that_cannot_be_read_fails_the_rebuild_alone_and_lookups_say_so(
    directory, clock, monkeypatch, at, raw
):
    monkeypatch.setattr(rebuilding, "Worker", HandWorker)
    store = HandStore(small_settings(directory / "store"), clock).begin()
    places = [
        store.appender.put(message(body=b"x" * 300, keys=(f"k{number}",))).log_offset for number in range(20)
    ]
    path, place = store.log.files[0].path, places[7]
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(place if at == "head" else content.index(b"topic", place))
        file.write(raw)
    name = store.index.files[0].name
    store.rebuilding.file_differs(name)
    assert "is being built again" in store.index_doubt
    work(store)
    state = store.rebuilding.progress()
    assert state.state == "failed" and f"{path} at {place}: no good record begins here" in state.error, state
    assert f"index/{name}" in store.index_doubt and f"was not built again: {state.error}" in store.index_doubt
    assert store.is_writable and store.appender.put(message()).ok
    store.close()
