"""SQL92 filters in requests: checks, heartbeats, pulls and parked pulls, compared with a broker of Apache's."""

from __future__ import annotations

import json

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import properties, record
from broker_store.messages import Message
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription, encode_heartbeat
from tests.support.broker_harness import Harness, turns
from tests.support.stores import GOLDEN

ROWS = [json.loads(line) for line in (GOLDEN / "sql92-live.jsonl").read_text().splitlines()]
# Requests that are answered otherwise here. Apache gives every message for a bad expression in a pull, and reads
# the hashes of tags that a client sends.
DIFFERENT = {
    "flag pull bad expression": 23,
    "flag pull unknown type": 23,
    "pull tag without codeSet": 0,
}
SETTINGS = {"enablePropertyFilter": "enable_property_filter", "filterSupportRetry": "filter_support_retry"}
# What was sent before the request of that name.
SENT = {
    "pull, no heartbeat": [(f"m{n}", {"a": str(n), "TAGS": f"T{n % 2}"}) for n in range(6)]
    + [("no-prop", {}), ("text", {"a": "abc"}), ("float", {"a": "4.5"})],
    "pull new": [(f"n{n}", {"a": str(n)}) for n in range(4)],
    "heartbeat G8": [(f"r{n}", {"a": str(n), "RETRY_TOPIC": "S1"}) for n in range(6)],
}


def put(harness: Harness, name: str, values: dict[str, str], topic: str = "S1") -> None:
    pairs = {"MSG_REGION": "DefaultRegion", "UNIQ_KEY": name, "CLUSTER": "DefaultCluster", **values}
    harness.store.appender.put(Message(topic, 0, name.encode(), properties.encode(pairs)))


def bodies(answer) -> list[str]:
    return [stored.body.decode() for stored in record.decode_all(answer.body)]


async def test_requests_are_answered_as_by_apaches_broker():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("S1", 1, 1))
    wrong = []
    for row in ROWS:
        name, wanted = row["name"], row["response"]
        for body, values in SENT.get(name, ()):
            put(harness, body, values, "%RETRY%G8" if body.startswith("r") else "S1")
        if row["code"] == 25:
            key, _, value = row["body"].strip().partition("=")
            if key in SETTINGS:
                object.__setattr__(harness.parts.settings, SETTINGS[key], value == "true")
            continue
        if row["code"] == 321:
            found = json.loads((await harness.ask(321, **row["ext"])).body)
            fields = json.loads(found["filterData"])
            assert (fields["expression"], fields["bloomFilterData"]) == (
                "a < 2",
                {"bitNum": 112, "bitPos": [8, 60, 14]},
            )
        if row["code"] not in (11, 34, 35, 46, 361):
            continue
        body = b"" if row["body"] is None else json.dumps(row["body"]).encode()
        answer = await harness.ask(row["code"], body, **row["ext"])
        if name in DIFFERENT:
            assert answer.code == DIFFERENT[name]
            continue
        first = (wanted["remark"] or "").split("\n")[0]
        found = answer.code, (answer.remark or "").split("\n")[0]
        if found != (wanted["code"], first) and name != "check unknown type":
            wrong.append((name, found, wanted["code"], first))
        if row["code"] in (11, 361):
            end = (wanted["ext"] or {}).get("nextBeginOffset")
            if bodies(answer) != wanted["messages"] or (end and answer.fields["nextBeginOffset"] != end):
                wrong.append((name, bodies(answer), answer.fields, wanted["messages"], end))
    assert wrong == []


def stocked(count: int = 0, **settings) -> Harness:
    harness = Harness(**settings)
    harness.parts.topics.put(TopicConfig("S1", 1, 1))
    for number in range(count):
        put(harness, f"m{number}", {"a": str(number)})
    return harness


async def beat(harness: Harness, *expressions: str, version: int = 1, group: str = "G") -> None:
    subscriptions = [
        Subscription(f"S{number}", text, "SQL92", version) for number, text in enumerate(expressions, 1)
    ]
    data = ConsumerData(group, subscriptions=tuple(subscriptions))
    assert (await harness.ask(34, encode_heartbeat(Heartbeat("c1", (), (data,))))).code == 0


async def pull(harness: Harness, offset: int = 0, **fields):
    return await harness.ask(
        11,
        **{
            "consumerGroup": "G", "topic": "S1", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1, **fields,
        },
    )  # fmt: skip


async def test_a_parked_pull_wakes_only_for_what_it_wants():
    harness = stocked(3)
    await beat(harness, "a >= 100")
    harness.request(
        11, consumerGroup="G", topic="S1", queueId=0, queueOffset=3, maxMsgNums=32, sysFlag=2, commitOffset=0,
        suspendTimeoutMillis=15_000, subVersion=1,
    )  # fmt: skip
    await turns()
    assert harness.parts.parked.count == 1
    answers = len(harness.channel.answers)
    for number in (4, 5):
        put(harness, f"m{number}", {"a": str(number)})
        await turns()
    assert (len(harness.channel.answers), harness.parts.parked.count) == (answers, 1)
    put(harness, "wanted", {"a": "100"})
    await turns()
    answer = harness.channel.answers[-1]
    assert (len(harness.channel.answers), harness.parts.parked.count) == (answers + 1, 0)
    assert (answer.code, bodies(answer), answer.fields["nextBeginOffset"]) == (0, ["wanted"], "6")


async def test_an_expression_that_is_too_long_makes_no_filter():
    harness = stocked(1)
    await beat(harness, "a = 1" + " " * 9_000)
    assert (await pull(harness)).code == 27
    answer = await pull(harness, sysFlag=4, subscription="a = 1" + " " * 9_000, expressionType="SQL92")
    assert answer.code == 23


async def test_a_heartbeat_compiles_a_bounded_number_of_characters():
    harness = stocked(1)
    texts = [f"a = {number}" + " " * 4_000 for number in range(20)]
    await beat(harness, *texts)
    made = len(harness.parts.property_filters.all())
    assert 0 < made < 20
    await beat(harness, *texts)
    assert made < len(harness.parts.property_filters.all()) <= 2 * made + 1


@pytest.mark.parametrize("length", [10, 20])
async def test_expressions_of_all_groups_together_are_bounded(length):
    harness = stocked(1)
    harness.parts.property_filters._max_characters = 30
    await beat(harness, "a = 1".ljust(length), group="G0")
    await beat(harness, "a = 1".ljust(length), group="G")
    assert (await pull(harness)).code == (20 if length == 10 else 27)


async def test_the_filter_of_a_group_that_has_gone_is_kept_for_a_while():
    harness = stocked(5, filter_data_clean_time_span=1_000)
    filters = harness.parts.property_filters
    await beat(harness, "a > 3")
    entry = filters.get("S1", "G")
    await harness.ask(35, clientID="c1", consumerGroup="G")
    assert entry.is_dead and filters.get("S1", "G") is entry
    harness.now_ms += 500
    filters.clean()
    await beat(harness, "a > 3")
    assert filters.get("S1", "G") is entry and not entry.is_dead
    await harness.ask(35, clientID="c1", consumerGroup="G")
    harness.now_ms += 1_000
    filters.clean()
    assert filters.get("S1", "G") is None and filters._characters == 0


async def parked_with_another_subscription(old: str, new: str) -> Harness:
    """A harness with a pull parked at 3, whose group then changes its subscription from `old` to `new`."""
    harness = stocked(3)
    await beat(harness, old)
    harness.request(
        11, consumerGroup="G", topic="S1", queueId=0, queueOffset=3, maxMsgNums=32, sysFlag=2, commitOffset=0,
        suspendTimeoutMillis=15_000, subVersion=1,
    )  # fmt: skip
    await turns()
    put(harness, "early", {"a": "2"})  # before the change, and rejected by the old subscription
    await turns()
    assert harness.parts.parked.count == 1
    await beat(harness, new, version=2)
    harness.channel.answers.clear()
    return harness


async def test_a_parked_pull_filters_by_the_subscription_that_its_group_has_now():
    harness = await parked_with_another_subscription("a > 18", "a < 3")
    put(harness, "late", {"a": "1"})
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.code, bodies(answer), answer.fields["nextBeginOffset"]) == (0, ["early", "late"], "5")


async def test_a_parked_pull_whose_time_ends_gives_what_the_new_subscription_wants():
    harness = await parked_with_another_subscription("a > 18", "a < 3")
    harness.now_ms += 15_000
    harness.router.consume._expire()
    harness.router.consume._timer.cancel()
    (answer,) = harness.channel.answers
    assert (answer.code, bodies(answer)) == (0, ["early"])


async def test_a_parked_pull_that_is_not_allowed_any_more_passes_no_message():
    harness = await parked_with_another_subscription("a > 18", "a < 3")
    object.__setattr__(harness.parts.settings, "enable_property_filter", False)
    put(harness, "late", {"a": "1"})
    await turns()
    (answer,) = harness.channel.answers
    assert (answer.code, answer.fields["nextBeginOffset"], harness.parts.parked.count) == (19, "3", 0)
