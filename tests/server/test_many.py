"""What one request may make or ask for is bounded, and what is beyond is refused with the number and the bound."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker_store.nameserver.handlers import NameServer
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import MAX_FRAME_BYTES
from broker_store.server import router
from broker_store.server.admin import MAX_MADE_AT_ONCE
from broker_store.server.broker import NameServerPort
from broker_store.server.transport import connect
from tests.support.broker_harness import Harness

INVALID = int(ResponseCode.INVALID_PARAMETER)


def topic(name: str, **more) -> dict:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} | more


async def ask(harness: Harness, code: int, value: object = b"", **fields):
    """The one answer, also to what is worked on in turns or in a thread."""
    harness.request(code, value if isinstance(value, bytes) else json.dumps(value).encode(), **fields)
    for _ in range(20_000):
        if harness.channel.answers:
            break
        await asyncio.sleep(0.001)
    (answer,) = harness.channel.answers
    harness.channel.answers.clear()
    return answer


async def refused(harness: Harness, code: int, value: object, *numbers: int, **fields) -> None:
    """The request is refused with these numbers, and nothing came into being."""
    before = len(harness.parts.topics), len(harness.parts.groups)
    answer = await ask(harness, code, value, **fields)
    assert answer.code == INVALID and all(str(number) in answer.remark for number in numbers), answer
    assert (len(harness.parts.topics), len(harness.parts.groups)) == before


async def test_one_request_makes_so_many_and_no_more():
    harness = Harness()
    many = [topic(f"t{number}") for number in range(MAX_MADE_AT_ONCE + 1)]
    await refused(harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": many}, len(many), MAX_MADE_AT_ONCE)
    assert (await ask(harness, R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": many[:-1]})).code == 0
    assert harness.parts.topics.get("t999") is not None
    made = [{"groupName": f"g{number}"} for number in range(MAX_MADE_AT_ONCE + 1)]
    await refused(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": made}, len(made), MAX_MADE_AT_ONCE)
    assert (await ask(harness, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": made[:-1]})).code == 0
    refusals = {case["cause"]: case for case in harness.parts.statistics.refusals.facts()}
    assert (refusals["too many at once"]["value"], refusals["too many at once"]["limit"]) == (MAX_MADE_AT_ONCE + 1, MAX_MADE_AT_ONCE)


@pytest.mark.parametrize(("code", "value", "numbers"), [
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("t", readQueueNums=129)]}, (129, 128)),
    (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g", "retryQueueNums": 129}, (129, 128)),
    (R.HEART_BEAT, b" " * (router.MAX_BODY_BYTES + 1), (router.MAX_BODY_BYTES + 1, router.MAX_BODY_BYTES)),
    (R.HEART_BEAT, {"clientID": "c", "consumerDataSet": [{"groupName": f"g{n}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere":
     "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [], "unitMode": False} for n in range(201)], "producerDataSet": []}, (201, 200)),
    (R.HEART_BEAT, {"clientID": "c", "consumerDataSet": [{"groupName": f"g{n}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere":
     "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [{"topic": f"t{m}", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1} for m in range(501)],
     "unitMode": False} for n in range(2)], "producerDataSet": []}, (1_002, 1_000)),
])  # fmt: skip
async def test_what_is_made_is_bounded_in_itself(code, value, numbers):
    await refused(Harness(), code, value, *numbers)


async def test_an_answer_larger_than_a_frame_says_so():
    """It ended the connection without a word."""
    port = NameServerPort(NameServer(lambda: 1), lambda: 1)
    await port.start("127.0.0.1", 0)
    port.listener.handle = lambda command, channel: command.answer(body=bytes(MAX_FRAME_BYTES))
    channel = await connect("127.0.0.1", port.listener.port, 5)
    try:
        answer = await channel.request(Command.request(10), 20)
        assert answer.code == ResponseCode.SYSTEM_ERROR and str(MAX_FRAME_BYTES) in answer.remark and not channel.closed
    finally:
        channel.close()
        await port.stop()
