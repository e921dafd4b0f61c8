"""broker.half_message: a message as a half message, and its copies."""

from broker_store.broker import half_message
from broker_store.formats import properties, record
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC
from broker_store.messages import Message


def half_of(**pairs: str) -> record.StoredMessage:
    message = Message(
        "Orders",
        3,
        b"body",
        properties.encode({"TRAN_MSG": "true", "UNIQ_KEY": "K1", **pairs}),
        flag=7,
        sys_flag=record.TRANSACTION_PREPARED,
        born_timestamp=5,
    )
    half_message.prepare(message)
    assert (message.topic, message.queue_id, message.sys_flag) == (HALF_TOPIC, 0, 0)
    return record.decode(record.encode(message, 9, 1000, 6))


def test_a_half_becomes_the_message_that_was_sent():
    half = half_of()
    message = half_message.committed(half)
    assert (message.topic, message.queue_id, message.body, message.flag) == ("Orders", 3, b"body", 7)
    assert message.sys_flag & record.SYS_TRANSACTION_MASK == record.TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == 1000
    pairs = properties.decode(message.properties)
    assert pairs["TRAN_MSG"] == "true" and not {"REAL_TOPIC", "REAL_QID"} & pairs.keys()


def test_a_half_without_a_real_queue_becomes_no_message():
    half = record.decode(
        record.encode(Message(HALF_TOPIC, 0, b"x", b"REAL_TOPIC\1Orders\2REAL_QID\1-1\2"), 0, 0, 1)
    )
    assert half_message.committed(half) is None


def test_checks_are_counted_in_the_copies_of_a_half():
    half = half_of(TRANSACTION_CHECK_TIMES="4")
    assert half_message.checks(half) == 4 and half_message.checks(half_of(TRANSACTION_CHECK_TIMES="-1")) == 0
    asked = half_message.asked_copy(half)
    given_up = half_message.given_up_copy(half)
    again = half_message.resumed(half)
    assert [message.topic for message in (asked, given_up, again)] == [
        HALF_TOPIC,
        CHECK_MAX_TOPIC,
        HALF_TOPIC,
    ]
    assert [
        properties.decode(message.properties)["TRANSACTION_CHECK_TIMES"]
        for message in (asked, given_up, again)
    ] == ["5", "4", "0"]


def test_the_timeout_of_a_producer_is_in_seconds():
    assert half_message.own_timeout_ms(half_of(CHECK_IMMUNITY_TIME_IN_SECONDS="12")) == 12_000
    assert half_message.own_timeout_ms(half_of(CHECK_IMMUNITY_TIME_IN_SECONDS="1.5")) is None
    assert half_message.own_timeout_ms(half_of()) is None
