"""server.replies: replies to requests."""

import pytest

from broker_store.protocol import client_bodies
from broker_store.server.channel import RequestTimeout
from tests.support.broker_harness import FakeChannel, Harness

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1\x02MSG_TYPE\x01reply\x02UNIQ_KEY\x01U1\x02"


def harness_with_asker(**settings):
    harness, asker = Harness(**settings), FakeChannel(7)
    asker.reply = lambda command: command.answer()
    harness.request(
        34, client_bodies.encode_heartbeat(client_bodies.Heartbeat("asker", ("PG",), ())), channel=asker
    )
    asker.answers.clear()
    return harness, asker


async def reply(harness, properties=PROPERTIES, topic=TOPIC, body=b"171.3", code=325):
    return await harness.send(topic, 0, body, properties, code=code)


@pytest.mark.parametrize("code", [324, 325])
async def test_a_reply_is_handed_to_who_asked_and_stored(code):
    harness, asker = harness_with_asker()
    answer = await reply(harness, code=code)
    (push,) = asker.asked
    assert (push.code, push.body) == (326, b"171.3")
    assert {
        "topic": TOPIC,
        "producerGroup": "PG",
        "bornHost": "127.0.0.1:50000",
        "storeHost": "127.0.0.1:10911",
        "queueId": "0",
    }.items() <= push.fields.items()
    assert (
        "CORRELATION_ID\x01c1\x02" in push.fields["properties"]
        and f"PUSH_REPLY_TIME\x01{harness.now_ms}\x02" in push.fields["properties"]
    )
    (stored,) = harness.store.messages(TOPIC)
    assert stored.body == b"171.3" and answer.code == 0
    assert (answer.fields["msgId"], answer.fields["queueOffset"]) == (stored.offset_id, "0")


async def test_a_broker_may_leave_replies_unstored():
    harness, asker = harness_with_asker(store_reply_message_enable=False)
    answer = await reply(harness)
    assert (answer.code, answer.fields["msgId"], len(asker.asked)) == (0, "0", 1)
    assert harness.store.queues() == []


async def test_a_reply_without_a_body_arrives_and_is_not_stored():
    harness, asker = harness_with_asker()
    answer = await reply(harness, body=b"")
    assert (answer.code, answer.fields["msgId"], [push.body for push in asker.asked]) == (0, "0", [b""])
    assert harness.store.queues() == []


async def test_who_is_gone_or_does_not_answer_is_told_to_the_replier():
    harness, asker = harness_with_asker()
    answer = await reply(harness, PROPERTIES.replace("asker", "nobody"))
    assert answer.code == 1 and answer.remark == "push reply message fail, channel of <nobody> not found."
    assert (
        await reply(harness, "UNIQ_KEY\x01U1\x02")
    ).remark == "reply message properties[REPLY_TO_CLIENT] is null"

    def silent(command):
        raise RequestTimeout("silent")

    asker.reply = silent
    assert (await reply(harness)).code == 1


@pytest.mark.parametrize(
    ("topic", "body", "code"), [("Orders", b"x", 29), ("SCHEDULE_TOPIC_XXXX", b"x", 29), ("../x", b"x", 29)]
)
async def test_a_reply_goes_nowhere_else(topic, body, code):
    harness, asker = harness_with_asker()
    assert (await reply(harness, topic=topic, body=body)).code == code
    assert asker.asked == [] and harness.store.queues() == []
