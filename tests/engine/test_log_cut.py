"""A cut of the log that was decided before a start."""

import contextlib

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.start import log_cut
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError
from tests.engine.test_log_copy import log_of
from tests.support.hand_store import message, small_settings


def records(root):
    """With records of starts a start relies on what the last run wrote."""
    return StartRecords(root.parent / "recoveries", root)


@contextlib.contextmanager
def reopened(root):
    store = MessageStore(small_settings(root), records=records(root))
    store.open()
    store.start()
    try:
        yield store
    finally:
        store.close()


def filled(root, count=700):
    """A closed store; (end of the log, its bytes, end of each record of queue 0)."""
    with reopened(root) as store:
        for number in range(count):
            body = bytes([number % 251]) * (number % 90)
            assert store.appender.put(message(queue_id=number % 3, body=body, keys=(f"key{number}",))).ok
        return store.log.wrote, log_of(store), list(ends_of(store, "topic", 0))


def ends_of(store, topic, queue_id):
    """The log offset after each record of a queue."""
    for number in range(store.reads.max_offset(topic, queue_id)):
        (unit,) = store.reads.read_units(topic, queue_id, number, 1)
        yield unit[0] + unit[1]


def require_cut(root, data, end):
    """The store ends at `end`, takes messages, and its queues lead nowhere else."""
    with reopened(root) as store:
        assert store.log.wrote == end and log_of(store)[:end] == data[:end]
        assert store.report.state == "done" and not (root / log_cut.FILE_NAME).exists()
        for topic, queue_id in store.queues():
            assert all(one <= end for one in ends_of(store, topic, queue_id))
        result = store.appender.put(message("topic", queue_id=0))
        assert result.ok and result.log_offset == end
    with reopened(root) as store:
        assert store.log.wrote > end and store.report.kind == "normal"


@pytest.mark.parametrize("place", [3, -2, -40])
def test_the_log_is_cut_and_all_follows(tmp_path, place):
    root = tmp_path / "store"
    end, data, ends = filled(root)
    log_cut.note_cut(Disk(), root, ends[place])
    require_cut(root, data, ends[place])
    kept = b"".join(
        path.read_bytes()
        for path in sorted((tmp_path / "lost+found").rglob("commitlog.*"))
        if "from" in path.name
    )
    assert data[ends[place] : end].startswith(kept) and kept


def test_a_cut_at_the_end_or_after_it_changes_nothing(tmp_path):
    root = tmp_path / "store"
    end, data, _ = filled(root)
    log_cut.note_cut(Disk(), root, end)
    require_cut(root, data, end)


def test_a_cut_within_a_record_takes_it_away(tmp_path):
    root = tmp_path / "store"
    _, data, ends = filled(root)
    log_cut.note_cut(Disk(), root, ends[9] - 5)
    with reopened(root) as store:
        assert ends[8] <= store.log.wrote < ends[9]
        assert log_of(store)[: store.log.wrote] == data[: store.log.wrote]


def test_a_cut_after_a_crash_is_the_same(tmp_path):
    root = tmp_path / "store"
    _, data, ends = filled(root)
    (root / "abort").write_bytes(b"1")
    log_cut.note_cut(Disk(), root, ends[-5])
    require_cut(root, data, ends[-5])


@pytest.mark.parametrize("calls", range(12))
def test_a_crash_at_any_step_of_the_cut_leaves_it_to_the_next_start(tmp_path, calls, monkeypatch):
    root = tmp_path / "store"
    _, data, ends = filled(root)
    log_cut.note_cut(Disk(), root, ends[-200])

    class Crash(BaseException):
        pass

    left = [calls]

    def counted(name):
        real = getattr(Disk, name)

        def call(self, *arguments, **named):
            left[0] -= 1
            if left[0] == -1:
                raise Crash
            return real(self, *arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for name in ("write_file", "unlink", "move", "sync_directory", "open_region", "copy_range"):
            patched.setattr(Disk, name, counted(name))
        store = MessageStore(small_settings(root), records=records(root))
        with pytest.raises(Crash):
            store.open()
    require_cut(root, data, ends[-200])


def test_a_note_that_is_no_offset_stops_the_start(tmp_path):
    root = tmp_path / "store"
    filled(root, 5)
    (root / log_cut.FILE_NAME).write_bytes(b"-3\n")
    with pytest.raises(DamagedStoreError, match="no log offset"), reopened(root):
        pass
