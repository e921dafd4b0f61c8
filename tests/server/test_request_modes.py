"""server.request_modes: the mode of a group, and the queues of a client."""

import pytest

from broker_store.broker.pop import request_modes
from broker_store.broker.pop.request_modes import RequestMode, RequestModes
from broker_store.broker.topics import TopicConfig
from broker_store.errors import DamagedStoreError
from broker_store.protocol import fastjson
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription, encode_heartbeat
from tests.support import stores
from tests.support.broker_harness import FakeChannel, Harness
from tests.support.wire_samples import sample


def harness_of(*clients: str, queues: int = 4, **settings) -> Harness:
    """Return a broker with a topic, and connected clients of one group."""
    harness = Harness(**settings)
    harness.parts.topics.put(TopicConfig("TopicX", queues, queues))
    for number, client in enumerate(clients):
        data = ConsumerData("CG", subscriptions=(Subscription("TopicX", "*", version=5),))
        channel = FakeChannel(50_001 + number)
        harness.request(34, encode_heartbeat(Heartbeat(client, (), (data,))), channel=channel)
    return harness


async def set_mode(harness, mode="POP", share=0, topic="TopicX", group="CG", **more):
    body = {"consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": topic}
    return await harness.ask(401, fastjson.dumps(body | more))


async def assigned(harness, client="a", *, topic="TopicX", strategy="AVG", model="CLUSTERING"):
    """The mode and the queue ids in the answer; None if it has none."""
    body = dict(topic=topic, consumerGroup="CG", clientId=client, strategyName=strategy, messageModel=model)
    answer = await harness.ask(400, fastjson.dumps(body))
    assert answer.code == 0
    rows = fastjson.loads(answer.body).get("messageQueueAssignments")
    if rows is None:
        return None
    assert {row["messageQueue"]["brokerName"] for row in rows} == {"broker-a"}
    return {row["mode"] for row in rows}, [row["messageQueue"]["queueId"] for row in rows]


async def test_a_mode_is_set_answered_and_kept_as_apache_keeps_it(tmp_path):
    harness = harness_of()
    assert (await harness.ask(402)).body == sample("msgmode all").body
    assert (await set_mode(harness)).code == 0
    root = stores.unpack("golden-clean", tmp_path)
    text = (root / "config" / request_modes.FILE_NAME).read_text()
    assert harness.parts.request_modes.picture()().decode() == text
    modes = RequestModes(RequestMode())
    modes.load(text)
    assert modes.get("TopicX", "CG") == RequestMode("POP", 0) and modes.of_group("CG") == {
        "TopicX": RequestMode("POP", 0)
    }
    assert fastjson.loads((await harness.ask(402)).body) == modes.to_json()


async def test_a_group_without_a_mode_pulls():
    harness = harness_of("a", "b")
    assert await assigned(harness) == ({"PULL"}, [0, 1])
    assert await assigned(harness, "b", strategy="AVG_BY_CIRCLE") == ({"PULL"}, [1, 3])
    assert await assigned(harness, "nobody") is None
    assert await assigned(harness, model="BROADCASTING") == ({"PULL"}, [0, 1, 2, 3])


async def test_clients_that_pop_get_all_queues_as_one():
    harness = harness_of("a", "b", "c")
    await set_mode(harness)
    assert await assigned(harness) == ({"POP"}, [-1])
    await set_mode(harness, share=2)
    assert await assigned(harness) == ({"POP"}, [-1])
    await set_mode(harness, "PULL")
    assert await assigned(harness) == ({"PULL"}, [0, 1])


async def test_clients_share_the_queues_of_their_neighbours():
    harness = harness_of("a", "b", "c", "d")
    await set_mode(harness, share=1)
    assert [await assigned(harness, client) for client in "abcd"] == [
        ({"POP"}, [0, 1]),
        ({"POP"}, [1, 2]),
        ({"POP"}, [2, 3]),
        ({"POP"}, [3, 0]),
    ]


async def test_with_more_clients_than_queues_each_gets_one():
    harness = harness_of("a", "b", "c", "d", queues=2)
    await set_mode(harness, share=1)
    assert [(await assigned(harness, client))[1] for client in "abcd"] == [[0], [1], [0], [1]]


async def test_defaults():
    harness = harness_of("a", "b", "c", default_message_request_mode="POP", default_pop_share_queue_num=1)
    harness.parts.topics.ensure_retry("CG")
    assert await assigned(harness) == ({"POP"}, [0, 1, 2])
    assert await assigned(harness, topic="%RETRY%CG") == ({"PULL"}, [0])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "%RETRY%CG"}, 16),
        ({"topic": "Nope"}, 17),
        ({"topic": "../x"}, 29),
        ({"group": "bad name"}, 29),
        ({"mode": "PUSH"}, 29),
        ({"share": "1"}, 29),
        ({"share": 1 << 31}, 29),
    ],
)
async def test_wrong_modes_change_nothing(change, code):
    harness = harness_of()
    answer = await set_mode(harness, **change)
    assert answer.code == code and answer.remark
    assert (await harness.ask(402)).body == sample("msgmode all").body


async def test_modes_are_bounded(monkeypatch):
    monkeypatch.setattr(request_modes, "MAX_ENTRIES", 1)
    harness = harness_of()
    assert (await set_mode(harness)).code == 0
    assert (await set_mode(harness, group="CG2")).code == 29
    assert (await set_mode(harness, share=3)).code == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"messageRequestModeMap":5}',
        '{"messageRequestModeMap":{"T":5}}',
        '{"messageRequestModeMap":{"T":{"g":5}}}',
        '{"messageRequestModeMap":{"T":{"g":{"mode":"X"}}}}',
        '{"messageRequestModeMap":{"T":{"g":{"mode":"POP","popShareQueueNum":"1"}}}}',
    ],
)
def test_a_damaged_file_is_refused(text):
    with pytest.raises(DamagedStoreError):
        RequestModes(RequestMode()).load(text)
