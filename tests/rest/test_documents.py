"""Stored messages as JSON: what a record says, text or base64, and compressed bodies that stay within
bounds."""

from __future__ import annotations

import random
import threading
import zlib

import orjson

from broker_store.formats import properties, record
from broker_store.messages import Message
from broker_store.rest import documents


def stored(body: bytes, sys_flag: int = 0) -> record.StoredMessage:
    pairs = properties.encode({"TAGS": "T", "KEYS": "a b", "UNIQ_KEY": "U" * 32})
    message = Message("orders", 3, body, pairs, sys_flag=sys_flag, born_timestamp=1_700_000_000_123)
    return record.decode(record.encode(message, 1 << 60, 4096, 1_700_000_000_456))


def test_a_message_says_all_that_its_record_does_with_64_bit_numbers_as_strings():
    document = documents.message_document(stored(b"hello"))
    assert (document["topic"], document["queue_id"], document["queue_offset"], document["log_offset"]) == (
        "orders",
        3,
        str(1 << 60),
        "4096",
    )
    assert (document["tag"], document["keys"], document["message_id"]) == ("T", ["a", "b"], "U" * 32)
    assert (document["body"], document["body_encoding"], document["body_bytes"]) == ("hello", "utf-8", 5)
    assert (document["store_time_ms"], document["store_time"]) == (
        "1700000000456",
        "2023-11-14T22:13:20.456Z",
    )
    assert document["born_host"] == "127.0.0.1:0"


def test_a_body_that_is_no_text_is_base64():
    document = documents.message_document(stored(b"\xff\x00"))
    assert (document["body"], document["body_encoding"]) == ("/wA=", "base64")


def test_a_compressed_body_is_inflated_when_it_stays_small():
    document = documents.message_document(stored(zlib.compress(b"hello " * 500), record.SYS_COMPRESSED))
    assert (document["body"], document["body_compressed"]) == ("hello " * 500, False)


def test_a_bomb_other_compressions_and_nonsense_stay_as_they_arestored():
    bomb = zlib.compress(b"\0" * (100 << 20), 9)
    for body, flag in (
        (bomb, 0x1),
        (b"\x28\xb5\x2f\xfd", 0x201),
        (b"no zlib", 0x1),
        (zlib.compress(b"x" * 5000)[:-4], 0x1),
    ):
        document = documents.message_document(stored(body, flag))
        assert document["body_compressed"] is True
        assert document["body_bytes"] == len(body)


async def test_all_that_is_inflated_for_one_answer_has_a_bound():
    large = zlib.compress(random.Random(1).randbytes(1_000_000))
    assert documents.inflate(large, 0x1) is not None
    made = orjson.loads(b"".join(await documents.messages_json({}, [stored(large, 0x1)] * 8)))["messages"]
    inflated = [document for document in made if not document["body_compressed"]]
    assert 0 < len(inflated) < 8


def test_times_that_no_calendar_has_are_not_known():
    assert documents.time_text(0) is None
    assert documents.time_text(-1) is None
    assert documents.time_text(1 << 62) is None


def test_an_ipv6_host_stands_in_brackets():
    assert documents.host_text((b"\0" * 15 + b"\1", 10911)) == "[::1]:10911"


async def test_large_messages_become_json_in_a_thread_in_short_pieces_and_say_the_same(monkeypatch):
    whole = ("ü中\U0001f600" * 50_000).encode()
    kinds = (
        b"plain",
        b'"' * 300_000,
        b"\x01" * 100_000,
        whole,
        whole[:-1],
        b"x" + whole[1:],
        b"\xff" * 100_000,
        b"",
    )
    messages = [stored(body) for body in kinds] + [
        stored(zlib.compress(b"a" * 70_000), record.SYS_COMPRESSED)
    ]
    wanted = {"complete": True, "messages": [documents.message_document(message) for message in messages]}
    longest, threads = [], set()
    dumps = orjson.dumps

    def noted(value, *options):
        if isinstance(value, str):
            longest.append(len(value))
        threads.add(threading.get_ident())
        return dumps(value, *options)

    monkeypatch.setattr(documents.orjson, "dumps", noted)
    pieces = await documents.messages_json({"complete": True}, messages)
    assert orjson.loads(b"".join(pieces)) == wanted
    assert 0 < max(longest) <= documents.PIECE_BYTES * 4 // 3 and threading.get_ident() not in threads
    assert (
        max(map(len, pieces)) <= documents.JOINED_BYTES
        and len(pieces) < 2 + 2 * sum(map(len, pieces)) // documents.JOINED_BYTES
    )
    threads.clear()
    assert (
        orjson.loads(b"".join(await documents.message_json(messages[0], {"damage": None})))
        == {"damage": None} | wanted["messages"][0]
    )
    assert len(await documents.messages_json({}, messages[:1])) == 1 and threads == {threading.get_ident()}


async def test_no_messages_are_an_empty_list():
    assert orjson.loads(b"".join(await documents.messages_json({"next_offset": "0"}, []))) == {
        "next_offset": "0",
        "messages": [],
    }
    assert orjson.loads(b"".join(await documents.messages_json({}, []))) == {"messages": []}
