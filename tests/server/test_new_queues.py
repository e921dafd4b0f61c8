"""First messages of many queues in one turn of the loop: messages of other queues do not wait for all the new
files."""

from __future__ import annotations

from broker_store.config.broker import BrokerSettings
from broker_store.messages import Message, PutStatus
from broker_store.server.parts import build_parts
from broker_store.server.send_group import MAX_FILES_S
from tests.support.broker_harness import turns
from tests.support.engine_data import encode_batch
from tests.support.hand_store import HandStore, message, small_settings


class Turns:
    """A group over a real store. Each reading of the clock takes half of the time that a turn may spend on
    new files."""

    def __init__(self, root):
        settings = small_settings(root)
        self.store = HandStore(settings).begin()
        self.now_s = 0.0
        self.store.write_path.seconds = self._seconds
        self.group = build_parts(BrokerSettings(), settings, self.store, self.store.clock).sends
        self.told: list[tuple[str, PutStatus, int]] = []

    def _seconds(self) -> float:
        self.now_s += MAX_FILES_S / 2
        return self.now_s

    def add(self, topic: str, *, batch: bool = False) -> None:
        put = (
            Message(topic, 0, encode_batch([(0, b"one", b""), (0, b"two", b"")])) if batch else message(topic)
        )
        self.group.add(
            put,
            lambda name, result: self.told.append((name, result.status, result.queue_offset)),
            topic,
            batch=batch,
            expires=True,
        )


async def test_a_message_of_a_queue_with_a_file_is_stored_before_new_queues_have_theirs(tmp_path):
    world = Turns(tmp_path)
    world.store.appender.put(message("old"))
    for number in range(20):
        world.add(f"new{number}")
    world.add("old")
    world.group.flush()
    assert ("old", PutStatus.PUT_OK, 1) in world.told
    assert 1 <= len(world.told) - 1 <= 3, "about as many files as there is time for"
    assert world.group.pending == 21 - len(world.told)
    await turns(30)
    assert sorted(world.told) == sorted(
        [(f"new{number}", PutStatus.PUT_OK, 0) for number in range(20)] + [("old", PutStatus.PUT_OK, 1)]
    )
    assert world.group.pending == 0 and world.store.appender.new_files.put_off > 0
    assert world.store.appender.refused == {}, "to put off is not to refuse"
    world.store.close()


async def test_the_messages_of_a_new_queue_stay_in_order(tmp_path):
    world = Turns(tmp_path)
    for _ in range(3):
        for name in ("a", "b", "c", "d"):
            world.add(name)
    world.group.flush()
    for name in ("d", "c"):
        world.add(name)
    await turns(30)
    for name, count in (("a", 3), ("b", 3), ("c", 4), ("d", 4)):
        assert [offset for told, _, offset in world.told if told == name] == list(range(count))
    world.store.close()


async def test_batches_are_put_off_whole(tmp_path):
    world = Turns(tmp_path)
    for number in range(6):
        world.add(f"new{number}", batch=True)
        world.add(f"more{number}")
    world.group.flush()
    assert 1 <= len(world.told) < 6
    await turns(30)
    assert len(world.told) == 12 and {status for _, status, _ in world.told} == {PutStatus.PUT_OK}
    assert [world.store.reads.max_offset(f"new{number}", 0) for number in range(6)] == [2] * 6
    world.store.close()


async def test_one_that_was_put_off_is_not_given_up_as_late(tmp_path):
    world = Turns(tmp_path)
    clock = [0.0]
    world.group._seconds = lambda: clock[0]
    for number in range(8):
        world.add(f"new{number}")
    world.group.flush()
    clock[0] = 60.0
    await turns(30)
    assert [status for _, status, _ in world.told] == [PutStatus.PUT_OK] * 8
    world.store.close()


async def test_what_no_group_puts_makes_its_files_at_once(tmp_path):
    world = Turns(tmp_path)
    results = list(world.store.appender.put_many([message(f"new{number}") for number in range(20)]))
    assert [result.status for result in results] == [PutStatus.PUT_OK] * 20
    world.store.close()
