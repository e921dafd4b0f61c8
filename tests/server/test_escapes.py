"""Messages as an acting slave sends them to another master: what is due, and what was only rolled."""

import pytest

from broker_store.broker.loaded_slots import WaitingMessage
from broker_store.broker.pop.revive_log import LOG_END, NEXT_OFFSET
from broker_store.broker.timer_request import is_timed, requested_ms
from broker_store.formats import pop_records, properties, record
from broker_store.formats.pop_records import PopCheckpoint, PopKey
from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.messages import Message
from broker_store.server.escapes import _timed
from tests.broker.test_timer import World

NOW_MS = 1_800_000_090_000
LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"


def stored(**given):
    """Return the record of a timer message as it lies in the timer topic."""
    world = World()
    world.send(b"body", key="K", **given)
    return world.store.record_at(0)


def waiting(*, rolls):
    return WaitingMessage(NOW_MS, 0, 100, NOW_MS - 5_000, rolls, 0)


def pairs_of(message: Message):
    return properties.decode(message.properties)


def test_a_message_that_is_due_has_the_times_of_its_wait_and_is_not_delayed_again():
    message = _timed(waiting(rolls=False), stored(TIMER_DELAY_SEC=60), NOW_MS, LOG)
    found = pairs_of(message)
    assert message.topic == "Orders" and message.body == b"body"
    assert (found["TIMER_ENQUEUE_MS"], found["TIMER_DEQUEUE_MS"]) == (str(NOW_MS - 5_000), str(NOW_MS))
    assert "REAL_TOPIC" not in found and "REAL_QID" not in found and found["UNIQ_KEY"] == "K"
    assert not is_timed(found)


@pytest.mark.parametrize("asked", [{"TIMER_DELAY_SEC": 90_000}, {"TIMER_DELIVER_MS": 1_800_090_000_300}])
def test_a_rolled_message_waits_for_the_rest_of_its_time(asked):
    message = _timed(waiting(rolls=True), stored(**asked), NOW_MS, LOG)
    found = pairs_of(message)
    assert message.topic == "Orders" and is_timed(found)
    assert 0 <= requested_ms(found, NOW_MS) - 1_800_090_000_300 <= 1_000
    assert "REAL_TOPIC" not in found and "TIMER_OUT_MS" not in found


def test_a_message_for_a_topic_that_takes_none_is_not_sent():
    assert (
        _timed(waiting(rolls=False), stored(topic="SCHEDULE_TOPIC_XXXX", TIMER_DELAY_SEC=60), NOW_MS, LOG)
        is None
    )


def of_a_pop(name, **given):
    """Return a pop checkpoint as it lies in the timer topic."""
    key = PopKey("Orders", "CG", 3, 7, NOW_MS - 60_000, name)
    body = pop_records.encode_checkpoint(PopCheckpoint(key, 60_000, (0, 1))).replace(b'"bn":"",', b"")
    message = Message(
        TIMER_TOPIC,
        0,
        body,
        properties.encode(
            {"TAGS": "ck", "REAL_TOPIC": LOG, "REAL_QID": "5", "TIMER_DELIVER_MS": str(NOW_MS), LOG_END: "9"}
            | {NEXT_OFFSET: "9"}
        ),
    )
    return record.encode(message, 0, 0, NOW_MS - 60_000)


def test_a_record_of_a_pop_keeps_its_queue_and_loses_what_counts_at_its_broker_alone():
    message = _timed(waiting(rolls=False), of_a_pop("pair"), NOW_MS, LOG)
    assert (message.topic, message.queue_id) == (LOG, 5)
    assert not pairs_of(message).keys() & {LOG_END, NEXT_OFFSET, "REAL_QID"}


def test_a_record_of_a_pop_without_a_name_is_not_sent():
    assert _timed(waiting(rolls=False), of_a_pop(""), NOW_MS, LOG) is None
