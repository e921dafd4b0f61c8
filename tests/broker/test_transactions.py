"""broker.transactions: half messages, their ends and checks, over a store in memory."""

import pytest

from broker_store.broker import half_message
from broker_store.broker.offsets import Offsets
from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.broker.transactions import GROUP, MAX_HALVES_PER_STEP, MAX_SKIPPED_PER_STEP, Transactions
from broker_store.formats import properties, record
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
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
            self.store,
            self.offsets,
            clock=lambda: self.now_ms,
            timeout_ms=6_000,
            interval_ms=30_000,
            max_checks=3,
            reserved_ms=72 * 60 * MINUTE,
        )
        self.asked = []
        self.reads = True  # True if the producers of the group read what they are sent
        self.transactions.can_ask = lambda group: self.reads or group != "PG"
        self.transactions.ask = lambda asked: self.asked.extend((copy, result) for _, copy, result in asked)
        self.transactions.start()

    def send(self, key: str = "K1", body: bytes = b"x", **pairs) -> record.StoredMessage:
        message = Message(
            "Orders",
            3,
            body,
            properties.encode({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": key, **pairs}),
            born_timestamp=self.now_ms,
        )
        message.sys_flag = record.TRANSACTION_PREPARED
        half_message.prepare(message)
        result = self.store.appender.put(message)
        return record.decode(self.store.reads.records.record_at(result.log_offset))

    def commit(self, half: record.StoredMessage) -> bool:
        if not self.transactions.begin_end(half):
            return False
        assert self.store.appender.put(half_message.committed(half)).ok
        self.transactions.end(half, committed=True)
        return True

    def roll_back(self, half: record.StoredMessage) -> None:
        assert self.transactions.begin_end(half)
        self.transactions.end(half, committed=False)

    def run(self) -> None:
        """Make every step that is due now."""
        while (again := self.transactions.step(self.now_ms)) is not None and again <= self.now_ms:
            pass

    def later(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.store.now_ms = self.now_ms
        self.run()

    def rest(self, milliseconds: int = 1_000) -> None:
        """Let a round over many half messages continue."""
        for _ in range(milliseconds // PAUSE_MS):
            self.later(PAUSE_MS)

    def keys(self) -> list[str]:
        """Return the keys of the half messages that were checked, in order."""
        return [properties.get(copy.properties, properties.UNIQUE_KEY) for copy, _ in self.asked]

    def restarted(self) -> "World":
        """Return another broker on the same store, with the saved offsets."""
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
    assert (told["REAL_TOPIC"], told["REAL_QID"], told["__transactionId__"], told["TRAN_MSG"]) == (
        "Orders",
        "3",
        "K1",
        "true",
    )
    assert world.store.messages("Orders", 3) == []


def test_a_commit_stores_the_message_at_its_place_and_notes_it(world):
    half = world.send(body=b"paid")
    assert world.commit(half)
    (message,) = world.store.messages("Orders", 3)
    assert (message.body, message.sys_flag, message.prepared_transaction_offset) == (
        b"paid",
        record.TRANSACTION_COMMIT,
        half.log_offset,
    )
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
    assert [half.properties.get("TRANSACTION_CHECK_TIMES") for half in world.store.messages(HALF_TOPIC)] == [
        None,
        "1",
    ]
    world.later(29_999)
    assert len(world.asked) == 1
    world.later(1)
    assert [properties.decode(half.properties)["TRANSACTION_CHECK_TIMES"] for half, _ in world.asked] == [
        "1",
        "2",
    ]


def test_a_young_half_is_left_in_peace(world):
    world.later(29_000)
    world.send()
    world.later(1_000)
    assert world.asked == [] and world.transactions.facts()["waiting"] == 1


def test_which_halves_wait_is_known_once_the_words_were_read(world):
    halves = [world.send(f"K{number}") for number in range(4)]
    world.commit(halves[1])
    assert world.transactions.waiting_offsets(10) == [0, 2, 3] and world.transactions.waiting_offsets(2) == [
        0,
        2,
    ]
    assert [world.transactions.waits(half.queue_offset) for half in halves] == [True, False, True, True]
    world.run()
    again = world.restarted()
    assert (
        again.transactions.facts()["waiting"]
        is again.transactions.waiting_offsets(10)
        is again.transactions.waits(0)
        is None
    )
    again.run()
    assert (again.transactions.facts()["waiting"], again.transactions.waiting_offsets(10)) == (3, [0, 2, 3])
    again.later(30_000)
    assert again.transactions.waiting_offsets(10) == [4, 5, 6], "each was asked about and stored again"


def test_a_half_may_name_its_own_time(world):
    own = world.send("K1", CHECK_IMMUNITY_TIME_IN_SECONDS="50")
    world.send("K2")
    world.later(30_000)
    assert [properties.decode(half.properties)["UNIQ_KEY"] for half, _ in world.asked] == ["K2"], (
        "the one behind it is not held up"
    )
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
    assert (
        given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
        and given_up.properties["REAL_TOPIC"] == "Orders"
    )
    assert (
        world.transactions.facts() | {"half_offset": 4, "waiting": 0, "given_up": 1}
        == world.transactions.facts()
    )


def test_one_that_was_given_up_may_begin_again(world):
    world.send()
    for _ in range(5):
        world.later(30_000)
    (given_up,) = world.store.messages(CHECK_MAX_TOPIC)
    world.store.appender.put(half_message.resumed(given_up))
    world.later(30_000)
    assert [properties.decode(half.properties)["TRANSACTION_CHECK_TIMES"] for half, _ in world.asked] == [
        "1",
        "2",
        "3",
        "1",
    ]


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
    again.rest()
    assert again.keys() == [f"K{number}" for number in range(1, 200, 2)]


def test_notes_of_4_9_without_commas_are_read(world):
    world.send("K1"), world.send("K2")
    world.store.appender.put(Message(OP_HALF_TOPIC, 0, b"0", properties.encode({"TAGS": "d"})))
    again = world.restarted()
    again.later(30_000)
    assert [properties.decode(half.properties)["UNIQ_KEY"] for half, _ in again.asked] == ["K2"]


def test_a_half_that_was_stored_again_is_asked_once_a_round_after_a_restart(world):
    world.send("K1")
    world.later(30_000)
    again = World(world.store, Offsets(clock=lambda: world.now_ms))  # nothing was saved
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
    get, status = world.store.reads.get, GetStatus.READ_FAILED
    damaged = {(HALF_TOPIC, 0)}
    world.store.get = lambda request, done: (
        GetResult(status, 0, 0, 2) if (request.topic, request.offset) in damaged else get(request, done)
    )
    world.later(MINUTE)
    assert world.asked == []
    status = GetStatus.MESSAGE_DAMAGED
    world.later(MINUTE)
    assert {properties.get(asked.properties, properties.UNIQUE_KEY) for asked, _ in world.asked} == {
        half.unique_key
    }


def test_cold_reads_are_waited_for(world):
    world.send()
    world.store.cold = True
    ready = []
    world.transactions.on_ready = lambda: ready.append(True)
    world.later(30_000)
    assert world.transactions.step(world.now_ms) is None and world.asked == []
    world.store.finish_cold_reads()
    assert len(world.asked) == 1 and ready == [True]


def test_a_step_asks_about_a_few_halves_and_rests_whatever_else_there_is_to_do(world):
    for number in range(3 * MAX_HALVES_PER_STEP):
        world.send(f"K{number}")
    word = world.send("word")
    world.later(30_000)
    assert len(world.asked) == MAX_HALVES_PER_STEP and world.store.put_calls[-1] == MAX_HALVES_PER_STEP, (
        "they are stored again by one call"
    )
    world.commit(word)
    world.run()
    assert world.notes() == [b"96,"] and len(world.asked) == MAX_HALVES_PER_STEP, (
        "a word is noted at once, and brings no questions forward"
    )
    assert world.transactions.step(world.now_ms) == world.now_ms + PAUSE_MS
    world.later(PAUSE_MS)
    assert len(world.asked) == 2 * MAX_HALVES_PER_STEP
    world.rest()
    assert world.keys() == [f"K{number}" for number in range(3 * MAX_HALVES_PER_STEP)]


def test_large_halves_are_fewer_a_step(world):
    for number in range(20):
        world.send(f"K{number}", body=bytes(100_000))
    world.later(30_000)
    assert len(world.asked) == 4
    world.rest()
    assert len(world.asked) == 20


def test_halves_nobody_reads_about_wait_for_the_next_round_and_come_first_there(world):
    world.send("K1"), world.send("K2")
    world.send("other", PGROUP="Q")
    world.reads = False
    world.later(30_000)
    assert world.keys() == ["other"] and world.transactions.facts()["waiting"] == 3
    assert world.positions()[0] == 0, "a restart would begin with them"
    world.reads = True
    world.send("K3")
    world.later(30_000)
    assert world.keys() == ["other", "K1", "K2", "other", "K3"]
    assert [half.properties.get("TRANSACTION_CHECK_TIMES") for half in world.store.messages(HALF_TOPIC)][
        3:
    ] == ["1", None, "1", "1", "2", "1"]


def test_who_never_reads_is_counted_as_asked_in_each_second_round_until_the_last(world):
    half = world.send()
    world.reads = False
    told = []
    for _ in range(8):
        world.later(30_000)
        told.append(len(world.store.messages(HALF_TOPIC)))
    assert told == [1, 2, 2, 3, 3, 4, 4, 4]
    assert [message.unique_key for message in world.store.messages(CHECK_MAX_TOPIC)] == [half.unique_key]


def test_a_half_that_waits_for_a_reader_is_ended_by_its_word(world):
    halves = [world.send(f"K{number}") for number in range(3)]
    world.reads = False
    world.later(30_000)
    world.commit(halves[1])
    world.reads = True
    world.store.cold = True
    world.later(30_000)
    world.roll_back(halves[0])
    world.store.finish_cold_reads()
    world.store.cold = False
    world.run()
    assert world.keys() == ["K2"], "one that ended while the halves were read is not asked about"
    assert len(world.store.messages("Orders", 3)) == 1 and world.transactions.facts()["waiting"] == 1


def test_halves_with_their_own_time_are_read_together_when_it_has_come(world):
    halves = [world.send(f"K{number}", CHECK_IMMUNITY_TIME_IN_SECONDS="50") for number in range(50)]
    world.later(30_000)
    world.commit(halves[10])
    reads = []
    get = world.store.reads.get
    world.store.get = lambda request, done: (
        reads.append((request.topic, request.offset, request.max_count)) or get(request, done)
    )
    world.later(30_000)
    world.rest()
    assert world.keys() == [f"K{number}" for number in range(50) if number != 10]
    assert [(offset, count) for topic, offset, count in reads if topic == HALF_TOPIC and offset < 50] == [
        (0, 10),
        (11, 32),
        (43, 7),
    ]


def test_what_ended_is_passed_over_by_so_many_a_step(world):
    for half in [world.send(f"K{number}") for number in range(2 * MAX_SKIPPED_PER_STEP + 10)]:
        world.transactions.begin_end(half)
        world.transactions.end(half, committed=False)
    world.send("last")
    world.now_ms += 30_000
    steps = []
    while not world.asked:
        world.transactions.step(world.now_ms)
        steps.append(world.transactions.facts()["half_offset"])
    assert steps[:2] == [MAX_SKIPPED_PER_STEP, 2 * MAX_SKIPPED_PER_STEP] and world.keys() == ["last"]


def test_a_half_that_is_refused_among_others_goes_on_waiting(world):
    room = record.MAX_PROPERTIES - len(world.send("K1", KEYS="k").raw_properties)
    world.send("K2", KEYS="k" * room), world.send("K3")
    world.later(30_000)
    assert world.keys() == ["K1", "K3"] and world.transactions.counts["failures"] == 1, (
        "its properties have no room for the count"
    )
    assert world.transactions.facts()["waiting"] == 3 and world.positions()[0] == 1
