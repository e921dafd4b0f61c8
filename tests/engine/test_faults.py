"""Every call to the disk fails once, and from some moment on for ever: no lie, no crash, and all is well
afterwards."""

import random

import pytest

from broker_store.check.walk import check_store
from broker_store.engine.queue import consume_queues
from broker_store.errors import BrokerStoreError, DiskFullError, StoreError, SyncError
from broker_store.formats import record
from broker_store.messages import GetRequest, Message, PutStatus
from tests.support.failing_disk import FailingDisk
from tests.support.hand_store import Clock, HandStore, opened, small_settings

SYNCS = ("sync", "sync_directory")
WORKERS = ("log-flusher", "round-flusher", "preallocator")


class Life:
    """Opens a store, sends and syncs for a while and closes it; `confirmed` is what a producer heard to be
    stored."""

    def __init__(self, root, sync, on_call):
        self.root, self.clock = root, Clock()
        self.settings = small_settings(
            root, flush_disk_type="SYNC_FLUSH" if sync else "ASYNC_FLUSH", max_index_num=600
        )
        self.confirmed: dict[tuple[str, int], dict[int, bytes]] = {}
        self.store = HandStore(self.settings, self.clock, FailingDisk(on_call))

    def live(self, seed):
        choose, store = random.Random(seed), self.store
        try:
            store.begin()
        except BrokerStoreError:
            store.close()
            return
        for number in range(40):
            self.clock.advance(500)
            message = Message(
                choose.choice("AB"), 0, f"{number}".encode() * choose.choice((1, 100, 500)), b"KEYS\x01k\x02"
            )
            result = store.appender.put(message)
            if result.ok:
                store.confirmation.when_confirmed(
                    result.log_end, lambda status, m=message, r=result: self.hear(status, m, r)
                )
            else:
                assert result.status in (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED)
            for name in choose.sample(WORKERS, 2):
                store.worker(name).run(self.clock())
            store.tick()
        store.close()

    def hear(self, status, message, result):
        if status is PutStatus.PUT_OK:
            self.confirmed.setdefault((message.topic, message.queue_id), {})[result.queue_offset] = (
                message.body
            )

    def look_back(self):
        """With a disk that works again: everything confirmed is there, the store is sound and goes on."""
        with opened(self.root, self.clock, max_index_num=600) as store:
            for (topic, queue_id), bodies in self.confirmed.items():
                for offset, body in bodies.items():
                    (found,) = record.decode_all(store.reads.get(GetRequest(topic, queue_id, offset, 1)).body)
                    assert found.body == body
            assert store.appender.put(Message("A", 0, b"after")).ok
        report = check_store(self.root, self.settings)
        assert report.findings == [], "\n".join(map(str, report.findings[:5]))


def failing(at, error, names, for_ever):
    """Raise at the call number `at` of those names, and at all later ones when `for_ever`."""
    seen = 0

    def fails(name):
        nonlocal seen
        if name in names:
            seen += 1
            if seen == at or (for_ever and seen > at):
                raise error

    fails.count = lambda: seen
    return fails


def each_call(directory, sync, error, names, for_ever, step=1):
    """Let each call fail in turn until a whole life passes without reaching it; returns how many there
    were."""
    at = 1
    while True:
        fails = failing(at, error, names, for_ever)
        life = Life(directory / f"life-{at}", sync, fails)
        try:
            life.live(seed=at % 3)
            life.look_back()
        except BaseException as found:
            found.add_note(f"call {at} of {names}, sync {sync}, for ever {for_ever}")
            raise
        if fails.count() < at:
            return at
        at += step


@pytest.mark.quick(2)
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_sync_that_fails_is_final_and_what_it_covered_is_not_acknowledged(sync, for_ever, directory):
    assert each_call(directory, sync, SyncError("injected"), SYNCS, for_ever, step=3) > 20


@pytest.mark.quick(4)
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("name", ["create", "allocate", "write_file", "unlink"])
def test_a_full_disk_refuses_and_loses_nothing(name, for_ever, directory):
    assert each_call(directory, False, DiskFullError("injected"), (name,), for_ever) > 1


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
def test_a_sync_of_the_file_system_for_many_queues_that_fails_is_final(for_ever, directory, monkeypatch):
    monkeypatch.setattr(consume_queues, "MANY_UNSYNCED", 1)
    assert each_call(directory, True, SyncError("injected"), ("sync_file_system",), for_ever) > 1


def test_after_a_failed_sync_nothing_more_is_taken(directory):
    failure = failing(1 << 30, SyncError("injected"), ("sync",), False)
    life = Life(directory / "store", True, lambda name: failure(name))
    store = life.store.begin()
    statuses = []
    store.confirmation.when_confirmed(store.appender.put(Message("A", 0, b"x")).log_end, statuses.append)
    failure = failing(1, SyncError("injected"), ("sync",), False)
    store.flush()
    assert statuses == [PutStatus.SERVICE_NOT_AVAILABLE]
    for again in (store.tick, store.look_at_disk, store.flush, store.round):
        again()
        assert store.appender.put(Message("A", 0, b"y")).status is PutStatus.SERVICE_NOT_AVAILABLE
    (flag,) = store.status.snapshot().flags
    assert flag.name == "sync_failed" and flag.cause == "log-flusher: injected"
    assert store.reads.max_offset("A", 0) == 0
    store.close()
    assert (life.root / "abort").exists()


class LongLife(Life):
    """Opens a store that a crash left, reads, deletes a topic, cleans up, and is closed."""

    def live(self, seed):
        if not self.root.exists():
            self.leave_a_crash()
        choose, store = random.Random(seed), self.store
        try:
            store.begin()
        except BrokerStoreError:
            store.close()
            return
        for number in range(30):
            self.clock.advance(900)
            result = store.appender.put(
                message := Message(choose.choice("ABC"), 0, b"%d" % number * 400, b"KEYS\x01k\x02")
            )
            if result.ok:
                store.confirmation.when_confirmed(
                    result.log_end, lambda status, m=message, r=result: self.hear(status, m, r)
                )
            for name in choose.sample(WORKERS, 2):
                store.worker(name).run(self.clock())
            store.tick()
            for deed in (self.read, self.look_up, self.expire):
                if choose.random() < 0.3:
                    self.dare(deed)
            if number == 20:
                self.confirmed.pop(("C", 0), None)
                self.dare(lambda: store.delete_topic("C"))
                self.confirmed.pop(("C", 0), None)
        store.close()

    def hear(self, status, message, result):
        if message.topic != "C":  # whose numbers begin again
            super().hear(status, message, result)

    def leave_a_crash(self):
        with opened(self.root, self.clock, max_index_num=600) as store:
            for number in range(25):
                self.hear(
                    PutStatus.PUT_OK,
                    m := Message("AB"[number % 2], 0, b"%d" % number * 300, b"KEYS\x01k\x02"),
                    store.appender.put(m),
                )
            store.flush()
            (self.root / "kept-abort").write_bytes(b"")
        (self.root / "kept-abort").rename(self.root / "abort")
        with open(store.log.files[-1].path, "r+b") as file:
            file.seek(store.log.wrote - store.log.files[-1].base)
            file.write(b"torn")

    def dare(self, deed):
        try:
            deed()
        except BrokerStoreError:
            pass  # said in words, which is all that is asked of a disk that fails

    def read(self):
        for (topic, queue_id), bodies in self.confirmed.items():
            offset = max(bodies)
            result = self.store.reads.get(GetRequest(topic, queue_id, offset, 1))
            assert not result.body or record.decode(result.body).body == bodies[offset]

    def look_up(self):
        assert all(b"KEYS" in raw for raw in self.store.reads.query_keys("A", "k", 5).records)

    def expire(self):
        try:
            self.store.cleaning.delete_expired(any_age=True, most=1)
        finally:
            for topic in "AB":
                bodies = self.confirmed.get((topic, 0), {})
                for offset in [offset for offset in bodies if offset < self.store.reads.min_offset(topic, 0)]:
                    del bodies[offset]


@pytest.mark.quick(5)
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize(
    "name",
    [
        "make_directory",
        "remove_directory",
        "copy_range",
        "open_region",
        "open_reader",
        "list_names",
        "size_of",
        "modified_ms",
        "usage",
        "rename",
        "unlink",
    ],
)
def test_whatever_call_fails_the_answer_is_defined_and_nothing_is_lost(name, for_ever, directory):
    at = 1
    while True:
        fails = failing(at, StoreError("input/output error"), (name,), for_ever)
        life = LongLife(directory / f"{name}-{at}", False, fails)
        try:
            life.live(seed=at % 3)
            life.look_back()
        except BaseException as found:
            found.add_note(f"call {at} of {name}, for ever {for_ever}")
            raise
        if fails.count() < at:
            break
        at += 1 + at // 8
