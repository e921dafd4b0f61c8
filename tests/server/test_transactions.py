"""server.transactions: half messages, their end, and the check at the producer."""

import pytest

from broker_store.formats import record
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from broker_store.messages import PutStatus
from broker_store.protocol import client_bodies
from broker_store.server.transactions import MAX_UNSENT_TO_ASK_BYTES
from tests.support.broker_harness import FakeChannel, Harness, turns

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02TAGS\x01TagB\x02"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Transactions(Harness):
    async def half(self, properties: str = HALF):
        answer = await self.send("TopicX", 3, b"paid", properties, sys_flag=4)
        assert answer.code == 0
        return answer

    def word(self, kind: int, **fields) -> dict:
        half = self.store.messages(HALF_TOPIC)[0]
        known = {
            "producerGroup": "PG",
            "tranStateTableOffset": 0,
            "commitLogOffset": half.log_offset,
            "commitOrRollback": kind,
            "msgId": "U1",
            "transactionId": "U1",
        }
        return known | fields

    async def end(self, kind: int, **fields):
        return await self.ask(37, **self.word(kind, **fields))

    def beat(self, channel=None, group: str = "PG"):
        self.request(
            34, client_bodies.encode_heartbeat(client_bodies.Heartbeat("c", (group,), ())), channel=channel
        )

    def pass_ms(self, milliseconds: int):
        self.now_ms += milliseconds
        while (again := self.parts.transactions.step(self.now_ms)) is not None and again <= self.now_ms:
            pass


async def harness_of(**settings):
    harness = Transactions(**settings)
    harness.parts.transactions.start()
    return harness


async def test_a_half_is_answered_as_apache_answers_it():
    harness = await harness_of()
    answer = await harness.half()
    assert answer.fields["transactionId"] == "U1" and answer.fields["queueOffset"] == "0"
    (half,) = harness.store.messages(HALF_TOPIC)
    assert (half.sys_flag, half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == (0, "TopicX", "3")
    assert harness.store.messages("TopicX", 3) == []


async def test_a_broker_may_take_no_transactions():
    harness = await harness_of(reject_transaction_message=True)
    answer = await harness.send("TopicX", 3, b"paid", HALF, sys_flag=4)
    assert answer.code == 16 and "transaction message is forbidden" in answer.remark
    assert harness.store.queues() == []


async def test_a_commit_shows_the_message_and_a_rollback_does_not():
    harness = await harness_of()
    await harness.half()
    assert (await harness.end(COMMIT)).code == 0
    (message,) = harness.store.messages("TopicX", 3)
    assert (message.body, message.tags, message.sys_flag) == (b"paid", "TagB", COMMIT)

    other = await harness_of()
    await other.half()
    answer = await other.end(ROLLBACK)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    other.pass_ms(60_000)
    assert other.store.messages("TopicX", 3) == [] and len(other.store.messages(OP_HALF_TOPIC)) == 1


async def test_a_committed_message_waits_for_its_time_and_one_the_wheel_does_not_take_stays_a_half():
    harness = await harness_of()
    harness.parts.timer.start()
    await harness.half(HALF + "TIMER_DELAY_SEC\x015\x02")
    assert (await harness.end(COMMIT)).code == 0
    (waiting,) = harness.store.messages(TIMER_TOPIC)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("TopicX", "3")
    while harness.parts.timer.step(harness.now_ms) is not None and not harness.store.messages("TopicX", 3):
        harness.now_ms += 100
    assert harness.store.messages("TopicX", 3)[0].body == b"paid"

    other = await harness_of(timer_max_delay_sec=4)
    await other.half(HALF + "TIMER_DELAY_SEC\x015\x02")
    answer = await other.end(COMMIT)
    assert answer.code == 13 and answer.remark.startswith("timer message illegal")
    assert other.parts.transactions.facts()["waiting"] == 1


async def test_a_oneway_word_is_enough_and_nobody_is_answered():
    harness = await harness_of()
    await harness.half()
    harness.request(37, oneway=True, **harness.word(COMMIT))
    await turns()
    assert len(harness.store.messages("TopicX", 3)) == 1 and harness.channel.answers == []


async def test_not_knowing_yet_changes_nothing():
    harness = await harness_of()
    await harness.half()
    harness.request(37, **harness.word(UNKNOWN))
    await turns()
    assert harness.channel.answers == [] and harness.parts.transactions.facts()["waiting"] == 1


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"producerGroup": "other"}, 1, "The producer group wrong"),
        ({"commitLogOffset": 77}, 1, "The transaction state table offset wrong"),
        ({"tranStateTableOffset": 5}, 1, "Find prepared transaction message failed"),
        ({"tranStateTableOffset": -1}, 1, "Find prepared transaction message failed"),
        ({"tranStateTableOffset": 1 << 62}, 1, "Find prepared transaction message failed"),
        ({"commitOrRollback": 5}, 29, "commitOrRollback"),
        ({"commitLogOffset": "x"}, 29, "commitLogOffset"),
    ],
)
async def test_a_word_that_fits_no_half_changes_nothing(fields, code, remark):
    harness = await harness_of()
    await harness.half()
    answer = await harness.end(COMMIT, **fields)
    assert answer.code == code and remark in answer.remark
    assert harness.store.messages("TopicX", 3) == [] and harness.parts.transactions.facts()["waiting"] == 1


async def test_a_commit_that_the_store_refuses_is_told_and_the_half_goes_on_waiting():
    harness = await harness_of()
    await harness.half()
    harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    assert (await harness.end(COMMIT)).code == 14
    harness.store.refuse = None
    assert (await harness.end(COMMIT)).code == 0
    assert len(harness.store.messages("TopicX", 3)) == 1


async def test_a_refused_commit_states_the_limit_as_a_number():
    harness = await harness_of()
    await harness.half()
    harness.store.refuse = PutStatus.MESSAGE_ILLEGAL
    refused = await harness.end(COMMIT)
    assert refused.code == 13 and f"limit {4 << 20}B" in refused.remark


async def test_a_producers_own_time_makes_a_late_word_void():
    harness = await harness_of()
    await harness.half(HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02")
    harness.now_ms += 10_001
    late = await harness.end(COMMIT)
    assert late.code == 604
    assert (await harness.end(COMMIT, fromTransactionCheck=True)).code == 0


async def test_a_committed_message_may_wait_for_a_delay_level():
    harness = await harness_of()
    await harness.half(HALF + "DELAY\x012\x02")
    assert (await harness.end(COMMIT)).code == 0
    (waiting,) = harness.store.messages(SCHEDULE_TOPIC, 1)
    assert waiting.properties["REAL_TOPIC"] == "TopicX" and harness.store.messages("TopicX", 3) == []


async def test_one_producer_of_the_group_is_asked_and_its_answer_counts():
    harness = await harness_of()
    producer, stranger = FakeChannel(1), FakeChannel(2)
    harness.beat(producer), harness.beat(stranger, "other")
    await harness.half()
    producer.answers.clear(), stranger.answers.clear()
    harness.pass_ms(30_000)
    (question,) = producer.answers
    assert stranger.answers == []
    newest = harness.store.messages(HALF_TOPIC)[-1]
    assert question.code == 39 and question.is_oneway
    assert question.fields == {
        "topic": HALF_TOPIC, "bname": "broker-a", "msgId": "U1", "transactionId": "U1", "offsetMsgId": newest.offset_id,
        "commitLogOffset": str(newest.log_offset), "tranStateTableOffset": "1",
    }  # fmt: skip
    asked = record.decode(question.body)
    assert (asked.topic, asked.queue_id, asked.body, asked.queue_offset) == ("TopicX", 3, b"paid", 1)
    answer = await harness.end(
        COMMIT, tranStateTableOffset=1, commitLogOffset=newest.log_offset, fromTransactionCheck=True
    )
    assert answer.code == 0 and len(harness.store.messages("TopicX", 3)) == 1


async def test_producers_of_a_group_take_turns():
    harness = await harness_of()
    producers = [FakeChannel(number) for number in range(2)]
    for producer in producers:
        harness.beat(producer)
        producer.answers.clear()
    await harness.half()
    for _ in range(4):
        harness.pass_ms(30_000)
    assert [len(producer.answers) for producer in producers] == [2, 2]


async def test_a_producer_that_does_not_read_is_asked_nothing_more_and_another_instead():
    harness = await harness_of()
    deaf, other = FakeChannel(1), FakeChannel(2)
    harness.beat(deaf)
    for number in range(4):
        await harness.half(HALF.replace("U1", f"U{number}"))
    deaf.answers.clear()
    deaf.unsent = MAX_UNSENT_TO_ASK_BYTES
    for _ in range(2):
        harness.pass_ms(30_000)
    assert deaf.answers == [] and len(harness.store.messages(HALF_TOPIC)) == 8, (
        "in the second round they count as asked"
    )
    harness.beat(other)
    other.answers.clear()
    harness.pass_ms(30_000)
    assert deaf.answers == [] and len(other.answers) == 4
    deaf.unsent = 0
    harness.pass_ms(30_000)
    assert len(deaf.answers) == 2 and len(other.answers) == 6


async def test_questions_of_a_step_to_one_producer_go_out_together():
    harness = await harness_of()
    producer = FakeChannel(1)
    harness.beat(producer)
    for number in range(10):
        await harness.half(HALF.replace("U1", f"U{number}"))
    producer.answers.clear()
    writes = []
    write = producer.write_bytes
    producer.write_bytes = lambda *pieces: writes.append(len(pieces)) or write(*pieces)
    harness.pass_ms(30_000)
    assert writes == [10] and [question.fields["msgId"] for question in producer.answers] == [
        f"U{number}" for number in range(10)
    ]


async def test_a_half_that_was_given_up_is_resumed_by_its_id():
    harness = await harness_of(transaction_check_max=1)
    await harness.half()
    for _ in range(3):
        harness.pass_ms(30_000)
    (given_up,) = harness.store.messages(CHECK_MAX_TOPIC)
    assert (await harness.ask(323, topic=CHECK_MAX_TOPIC, msgId=given_up.offset_id)).code == 0
    assert harness.store.messages(HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    half = harness.store.messages(HALF_TOPIC)[0]
    for wrong, code in ((half.offset_id, 1), ("7F00000100002A9F00000000000F0000", 1), ("nonsense", 1)):
        assert (await harness.ask(323, topic=CHECK_MAX_TOPIC, msgId=wrong)).code == code


async def test_halves_are_counted_by_topic_until_they_end():
    harness = await harness_of(transaction_check_max=1)
    count = lambda topic="TopicX": harness.parts.transactions.metrics.count(topic)  # noqa: E731
    await harness.half()
    await harness.half(HALF.replace("U1", "U2"))
    harness.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    assert (await harness.send("TopicX", 3, b"paid", HALF.replace("U1", "U3"), sys_flag=4)).code == 14
    harness.store.refuse = None
    assert (count(), count(HALF_TOPIC)) == (2, 0)
    await harness.end(COMMIT), await harness.end(COMMIT)
    assert count() == 1, "a word that comes twice ends one"
    harness.pass_ms(30_000)
    assert count() == 1, "one that is stored again is the same"
    harness.pass_ms(30_000)
    (given_up,) = harness.store.messages(CHECK_MAX_TOPIC)
    assert count() == 0
    await harness.ask(323, topic=CHECK_MAX_TOPIC, msgId=given_up.offset_id)
    assert count() == 1
    half = harness.store.messages(HALF_TOPIC)[-1]
    await harness.end(ROLLBACK, tranStateTableOffset=half.queue_offset, commitLogOffset=half.log_offset)
    assert count() == 0


async def test_a_cold_half_is_waited_for():
    harness = await harness_of()
    await harness.half()
    word = harness.word(COMMIT)
    harness.store.cold = True
    harness.request(37, **word)
    await turns()
    assert harness.channel.held == 1
    harness.store.finish_cold_reads()
    await turns()
    assert harness.channel.held == 0 and [answer.code for answer in harness.channel.answers] == [0]
