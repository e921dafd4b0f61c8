"""server.query: queries of stored messages."""

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import record
from broker_store.messages import Message
from tests.support.broker_harness import Harness
from tests.support.wire_samples import sample


@pytest.fixture
async def harness():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    for number in range(3):
        harness.store.appender.put(
            Message(
                "TopicX", 1, b"%d" % number, f"KEYS\x01k{number} shared\x02UNIQ_KEY\x01U{number}\x02".encode()
            )
        )
        harness.now_ms += 1_000
    return harness


QUEUE = {"topic": "TopicX", "queueId": 1}


async def test_lowest_and_highest_offset(harness):
    assert (await harness.ask(30, **QUEUE)).fields == {"offset": "3"}
    assert (await harness.ask(31, **QUEUE)).fields == {"offset": "0"}
    assert (await harness.ask(30, topic="Nope", queueId=0)).fields == {"offset": "0"}


async def test_offset_by_time_with_both_boundaries(harness):
    middle = harness.now_ms - 1_500
    assert (await harness.ask(29, timestamp=middle, **QUEUE)).fields == {"offset": "2"}
    assert (await harness.ask(29, timestamp=middle, boundaryType="upper", **QUEUE)).fields == {"offset": "1"}


async def test_earliest_store_time(harness):
    assert (await harness.ask(32, **QUEUE)).fields == {"timestamp": str(harness.now_ms - 3_000)}
    assert (await harness.ask(32, topic="TopicX", queueId=0)).fields == {"timestamp": "-1"}


async def test_a_message_by_its_place_in_the_log(harness):
    stored = harness.store.messages("TopicX", 1)[1]
    answer = await harness.ask(33, offset=stored.log_offset)
    assert record.decode(answer.body).body == b"1"
    golden = sample("view bad").values
    for offset in (99999999, -1):
        missing = await harness.ask(33, offset=offset)
        assert (missing.code, missing.remark) == (
            golden["code"],
            golden["remark"].replace("99999999", str(offset)),
        )


async def test_messages_by_key(harness):
    ask = dict(topic="TopicX", key="shared", maxNum=2, beginTimestamp=0, endTimestamp=harness.now_ms)
    answer = await harness.ask(12, **ask)
    assert [stored.body for stored in record.decode_all(answer.body)] == [b"1", b"2"]
    assert set(answer.fields) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    unique = await harness.ask(12, **(ask | {"key": "U0", "maxNum": 1, "_UNIQUE_KEY_QUERY": "true"}))
    assert record.decode(unique.body).body == b"0"
    golden = sample("query none").values
    none = await harness.ask(12, **(ask | {"key": "nobody"}))
    assert (none.code, none.remark, none.fields) == (golden["code"], golden["remark"], golden["extFields"])
    assert (await harness.ask(12, **(ask | {"topic": "../x"}))).code == 29


async def test_a_lookup_while_the_index_is_in_doubt_says_so(harness):
    ask = dict(topic="TopicX", key="shared", maxNum=2, beginTimestamp=0, endTimestamp=harness.now_ms)
    harness.store.index_doubt = "the index is being built again"
    found, none = await harness.ask(12, **ask), await harness.ask(12, **(ask | {"key": "nobody"}))
    assert (found.code, found.remark) == (0, "the index is being built again")
    assert none.remark == "can not find message: the index is being built again"


async def test_a_damaged_message_that_is_asked_for_by_its_id_is_said_to_be_damaged(harness):
    harness.store.record_by_id = lambda log_offset: "the body's CRC is wrong"
    answer = await harness.ask(33, offset=12)
    assert (answer.code, answer.remark) == (
        1,
        "the message at 12 of the log is damaged: the body's CRC is wrong",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "TopicX"},
        {"topic": "TopicX", "queueId": "x"},
        {"topic": "TopicX", "queueId": str(1 << 40)},
    ],
)
async def test_missing_and_wrong_fields_are_named(harness, fields):
    answer = await harness.ask(30, **fields)
    assert answer.code == 29 and answer.remark.startswith("field ")
