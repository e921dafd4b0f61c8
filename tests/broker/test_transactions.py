"""broker.transactions: halves, words and questions over a store in memory."""

import pytest

from broker_store.broker.offsets import Offsets
from broker_store.broker.topics import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from broker_store.broker.transactions import GROUP, Transactions
from broker_store.formats import properties, record
from broker_store.messages import GetResult, GetStatus, Message, PutStatus
from tests.support.memory_store import MemoryStore

MINUTE = 60_000


class World:
    def __init__(self, store: MemoryStore | None = None, offsets: Offsets | None = None, **options):
        self.now_ms = store.now_ms if store else 10_000_000
        self.store = store or MemoryStore(lambda: self.store.now_ms, **options)
        self.store.now_ms = self.now_ms
        self.offsets = offsets or Offsets(clock=lambda: self.now_ms)
        self.transactions = Transactions(
            self.store, self.offsets, clock=lambda: self.now_ms, timeout_ms=6_000, interval_ms=30_000, most_checks=3, reserved_ms=72 * 60 * MINUTE
        )
        self.asked = []
        self.transactions.ask = lambda half, result: self.asked.append((half, result))
        self.transactions.start()

    def send(self, key: str = "K1", body: bytes = b"x", **pairs) -> record.StoredMessage:
        message = Message("Orders", 3, body, properties.encode({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": key, **pairs}), born_timestamp=self.now_ms)
        message.sys_flag = record.TRANSACTION_PREPARED
        self.transactions.prepare(message)
        result = self.store.put(message)
        return record.decode(self.store.record_at(result.log_offset))

    def commit(self, half: record.StoredMessage) -> bool:
        if not self.transactions.begin_end(half):
            return False
        assert self.store.put(self.transactions.committed_message(half)).ok
        self.transactions.end(half, committed=True)
        return True

    def roll_back(self, half: record.StoredMessage) -> None:
        assert self.transactions.begin_end(half)
        self.transactions.end(half, committed=False)

    def run(self) -> None:
        """Every step that is due at this moment."""
        while (again := self.transactions.step(self.now_ms)) is not None and again <= self.now_ms:
            pass

    def later(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.store.now_ms = self.now_ms
        self.run()

    def restarted(self) -> "World":
        """Another broker on the same store, with the offsets that were saved."""
        self.transactions.settle(self.store.confirmed)
        return World(self.store, self.offsets)

    def notes(self) -> list[bytes]:
        return [message.body for message in self.store.messages(OP_HALF_TOPIC)]

    def positions(self) -> tuple[int | None, int | None]:
        self.transactions.settle(self.store.confirmed)
        return self.offsets.query(GROUP, HALF_TOPIC, 0), self.offsets.query(GROUP, OP_HALF_TOPIC, 0)


@pytest.fixture
def world():
    return World()


def test_a_half_is_stored_where_no_consumer_looks(world):
    half = world.send(KEYS="k")
    assert (half.topic, half.queue_id, half.sys_flag) == (HALF_TOPIC, 0, 0)
    told = half.properties
    assert (told["REAL_TOPIC"], told["REAL_QID"], told["__transactionId__"], told["TRAN_MSG"]) == ("Orders", "3", "K1", "true")
    assert world.store.messages("Orders", 3) == []


def test_a_commit_stores_the_message_at_its_place_and_notes_it(world):
    half = world.send(body=b"paid")
    assert world.commit(half)
    (message,) = world.store.messages("Orders", 3)
    assert (message.body, message.sys_flag, message.prepared_transaction_offset) == (b"paid", record.TRANSACTION_COMMIT, half.log_offset)
    assert "REAL_TOPIC" not in message.properties and message.properties["TRAN_MSG"] == "true"
    world.run()
    (note,) = world.store.messages(OP_HALF_TOPIC)
    assert (note.body, note.tags, note.properties["WAIT"]) == (b"0,", "d", "true")


def test_words_of_one_turn_stand_in_one_note(world):
    halves = [world.send(f"K{number}") for number in range(3)]
    world.commit(halves[0])
    world.roll_back(halves[2])
    world.run()
    assert world.notes() == [b"0,2,"]
    assert len(world.store.messages("Orders", 3)) == 1


def test_the_same_word_twice_stores_one_message(world):
    half = world.send()
    assert world.commit(half) and not world.commit(half)
    world.later(MINUTE)
    assert not world.commit(half), "also when it is long done"
    assert len(world.store.messages("Orders", 3)) == 1 and world.asked == []


def test_a_half_without_a_word_is_asked_about_after_its_time(world):
    world.send()
    world.later(30_000)
    ((again, result),) = world.asked
    assert result.queue_offset == 1 and properties.decode(again.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert [half.properties.get("TRANSACTION_CHECK_TIMES") for half in world.store.messages(HALF_TOPIC)] == [None, "1"]
    world.later(29_999)
    assert len(world.asked) == 1
    world.later(1)
    assert [properties.decode(half.properties)["TRANSACTION_CHECK_TIMES"] for half, _ in world.asked] == ["1", "2"]


def test_a_young_half_is_left_in_peace(world):
    world.later(29_000)
    world.send()
    world.later(1_000)
    assert world.asked == [] and world.transactions.facts()["waiting"] == 1


def test_which_halves_wait_is_known_once_the_words_were_read(world):
    halves = [world.send(f"K{number}") for number in range(4)]
    world.commit(halves[1])
    assert world.transactions.waiting_offsets(10) == [0, 2, 3] and world.transactions.waiting_offsets(2) == [0, 2]
    assert [world.transactions.waits(half.queue_offset) for half in halves] == [True, False, True, True]
    world.run()
    again = world.restarted()
    assert again.transactions.facts()["waiting"] is again.transactions.waiting_offsets(10) is again.transactions.waits(0) is None
    again.run()
    assert (again.transactions.facts()["waiting"], again.transactions.waiting_offsets(10)) == (3, [0, 2, 3])
    again.later(30_000)
    assert again.transactions.waiting_offsets(10) == [4, 5, 6], "each was asked about and stored again"


def test_a_half_may_name_its_own_time(world):
    own = world.send("K1", CHECK_IMMUNITY_TIME_IN_SECONDS="50")
    world.send("K2")
    world.later(30_000)
    assert [properties.decode(half.properties)["UNIQ_KEY"] for half, _ in world.asked] == ["K2"], "the one behind it is not held up"
    assert world.transactions.lateness(own) is None
    world.later(30_000)
    assert {properties.decode(half.properties)["UNIQ_KEY"] for half, _ in world.asked} == {"K1", "K2"}
    assert world.transactions.lateness(own) == (60_000, 50_000)


def test_a_word_that_names_the_first_copy_settles_the_newest(world):
    half = world.send()
    world.later(30_000)
    world.commit(half)
    world.later(MINUTE)
    assert len(world.asked) == 1 and world.notes() == [b"1,"]
    assert len(world.store.messages("Orders", 3)) == 1


def test_after_the_last_question_a_half_is_given_up(world):
    world.send()
    for _ in range(5):
        world.later(30_000)
    assert len(world.asked) == 3
    (given_up,) = world.store.messages(CHECK_MAX_TOPIC)
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3" and given_up.properties["REAL_TOPIC"] == "Orders"
    assert world.transactions.facts() | {"half_offset": 4, "waiting": 0, "given_up": 1} == world.transactions.facts()


def test_one_that_was_given_up_may_begin_again(world):
    world.send()
    for _ in range(5):
        world.later(30_000)
    (given_up,) = world.store.messages(CHECK_MAX_TOPIC)
    world.store.put(world.transactions.resumed(given_up))
    world.later(30_000)
    assert [properties.decode(half.properties)["TRANSACTION_CHECK_TIMES"] for half, _ in world.asked] == ["1", "2", "3", "1"]


def test_positions_move_over_what_is_settled_and_no_further(world):
    first, second = world.send("K1"), world.send("K2")
    world.commit(second)
    assert world.positions() == (None, None)
    world.later(3_000)
    world.commit(first)
    world.later(30_000)
    assert world.positions() == (2, 2)


def test_a_restart_knows_what_ended_from_the_notes(world):
    halves = [world.send(f"K{number}") for number in range(200)]
    for half in halves[::2]:
        world.commit(half)
    world.run()
    again = world.restarted()
    again.later(30_000)
    assert [properties.decode(half.properties)["UNIQ_KEY"] for half, _ in again.asked] == [f"K{number}" for number in range(1, 200, 2)]


def test_notes_of_4_9_without_commas_are_read(world):
    world.send("K1"), world.send("K2")
    world.store.put(Message(OP_HALF_TOPIC, 0, b"0", properties.encode({"TAGS": "d"})))
    again = world.restarted()
    again.later(30_000)
    assert [properties.decode(half.properties)["UNIQ_KEY"] for half, _ in again.asked] == ["K2"]


def test_a_half_that_was_stored_again_is_asked_once_a_round_after_a_restart(world):
    world.send("K1")
    world.later(30_000)
    again = World(world.store, Offsets(clock=lambda: world.now_ms))   # nothing was saved
    again.later(30_000)
    again.later(30_000)
    assert len(again.asked) == 2


def test_positions_are_saved_only_as_far_as_the_log_is_synced():
    world = World(sync_flush=True)
    world.send()
    world.store.sync()
    world.later(30_000)
    world.transactions.settle(world.store.confirmed)
    assert world.offsets.query(GROUP, HALF_TOPIC, 0) is None
    world.store.sync()
    world.later(30_000)
    assert world.positions()[0] == 1


def test_what_the_store_refuses_is_tried_again(world):
    world.send()
    world.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    world.later(30_000)
    assert world.asked == [] and world.transactions.counts["failures"] == 1
    world.store.refuse = None
    world.later(30_000)
    assert len(world.asked) == 1


def test_a_note_that_the_store_refuses_is_written_later(world):
    half = world.send()
    world.commit(half)
    world.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    world.run()
    assert world.notes() == []
    world.store.refuse = None
    world.later(1_000)
    assert world.notes() == [b"0,"]


def test_a_word_that_could_not_be_stored_leaves_the_half_waiting(world):
    half = world.send()
    assert world.transactions.begin_end(half) and not world.transactions.begin_end(half)
    world.transactions.abandon_end(half)
    world.later(30_000)
    assert len(world.asked) == 1


def test_a_half_that_changed_on_the_disk_does_not_keep_back_those_behind_it(world):
    world.send("K1")
    half = world.send("K2")
    get, status = world.store.get, GetStatus.READ_FAILED
    damaged = {(HALF_TOPIC, 0)}
    world.store.get = lambda request, done: GetResult(status, 0, 0, 2) if (request.topic, request.offset) in damaged else get(request, done)
    world.later(MINUTE)
    assert world.asked == []
    status = GetStatus.MESSAGE_DAMAGED
    world.later(MINUTE)
    assert {properties.get(asked.properties, properties.UNIQUE_KEY) for asked, _ in world.asked} == {half.unique_key}


def test_cold_reads_are_waited_for(world):
    world.send()
    world.store.cold = True
    ready = []
    world.transactions.on_ready = lambda: ready.append(True)
    world.later(30_000)
    assert world.transactions.step(world.now_ms) is None and world.asked == []
    world.store.finish_cold_reads()
    assert len(world.asked) == 1 and ready == [True]


def test_many_halves_take_several_steps(world):
    for number in range(300):
        world.send(f"K{number}")
    world.now_ms += 30_000
    world.store.now_ms = world.now_ms
    before = len(world.store.put_calls)
    world.transactions.step(world.now_ms)
    assert len(world.store.put_calls) - before <= 64
    world.run()
    assert len(world.asked) == 300
