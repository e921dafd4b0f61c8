"""Apache's own DefaultMessageStore (5.5.0) opens a store that ours wrote: same messages, offsets and key
lookups."""

import shutil
from pathlib import Path

import pytest

from broker_store.config.load import load_settings
from broker_store.engine.store import MessageStore
from broker_store.formats import record
from broker_store.messages import GetRequest, Message
from tests.interop import clients
from tests.interop.apache_store import said_by_apache
from tests.interop.brokers import Broker
from tests.interop.lines import acknowledged, place
from tests.support.engine_data import encode_batch

TOPICS = ["moved-a", "moved-b"]
SIZES = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 2000,
    "maxIndexNum": 8000,
}


def open_in_apache(
    store: Path, home: Path, lookups: list[tuple[str, str]], more: dict | None = None
) -> tuple[dict, list[dict], dict[tuple[str, str], list[int]]]:
    """What Apache's store finds: its first line, all messages, and the log offsets of each key lookup."""
    lines = said_by_apache(
        [store], home, SIZES | (more or {}), "".join(f"{topic}\t{key}\n" for topic, key in lookups)
    )
    assert not [line for line in lines if "error" in line]
    return (
        lines[0],
        [line for line in lines if "body" in line],
        {(line["topic"], line["lookup"]): line["log_offsets"] for line in lines if "lookup" in line},
    )


@pytest.mark.parametrize("end", ["clean stop", "kill -9"])
def test_apache_finds_every_message_at_its_offset_and_by_its_key(end, tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    broker = Broker(tmp_path / "data", SIZES).start()
    java = clients.JavaProgram(clients.JAVA_5, broker.nameserver, tmp_path)
    try:
        sent = acknowledged(
            java.run("send", topics=",".join(TOPICS), n=6000, threads=4, mode="async", size=400)
        )
        sent += acknowledged(java.run("send", topics=TOPICS[0], n=320, mode="batch", per=32, run="batch"))
        stored = [line for line in java.run("pull", topics=",".join(TOPICS)) if "key" in line]
        broker.stop() if end == "clean stop" else broker.kill9()
    finally:
        broker.kill9()
    assert len(list((broker.store / "commitlog").iterdir())) > 2
    assert len(list((broker.store / "index").iterdir())) > 1

    asked = [(line["topic"], line["key"]) for line in stored[::13]]
    first, messages, found = open_in_apache(broker.store, tmp_path, asked)
    assert first["loaded"]
    ours = {
        place(line): (line["key"], line["tag"], line["body"], line["log_offset"], line["store_time"])
        for line in stored
    }
    theirs = {
        place(line): (line["key"], line["tag"], line["body"], line["log_offset"], line["store_time"])
        for line in messages
        if line["topic"] in TOPICS
    }
    assert theirs == ours
    assert {place(line) for line in sent} == set(theirs)
    by_key: dict[tuple[str, str], set[int]] = {}
    for line in stored:
        by_key.setdefault((line["topic"], line["key"]), set()).add(line["log_offset"])
    if end == "clean stop":
        assert {where: set(offsets) for where, offsets in found.items()} == {
            where: by_key[where] for where in asked
        }
    else:
        # after an unclean end Apache itself throws its newest index file away, and keeps what it finds for
        # the messages it dispatches again
        assert all(set(offsets) <= by_key[where] for where, offsets in found.items())
        assert any(found.values())


LONG_TOPIC = "%RETRY%" + "g" * 150  # needs version 2 of the record
BORN, STORED = (bytes(range(16)), 5), (b"\xfe\x80" + bytes(13) + b"\x01", 10911)
PREPARED, COMMIT, ROLLBACK = 4, 8, 12


@pytest.mark.parametrize("record_crc", [False, True], ids=["body CRC", "record CRC"])
@pytest.mark.parametrize("end", ["clean stop", "kill -9"])
def test_apache_finds_long_topics_hosts_of_ipv6_and_every_kind_of_message(end, record_crc, tmp_path):
    """What no Java client of this test sends, put straight into the engine. With a CRC of each record Apache
    is set to check it."""
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    root = tmp_path / "store"
    crc = {"enabledAppendPropCRC": "true"} if record_crc else {}
    settings = load_settings(
        overrides={key: str(value) for key, value in SIZES.items()} | crc, store_root=root
    ).store
    keys: dict[tuple[str, str], set[int]] = {}
    with MessageStore(settings) as store:
        for number in range(600):
            topic, kind = (
                (LONG_TOPIC, "plain", "other")[number % 3],
                (0, 0, PREPARED, COMMIT, ROLLBACK)[number % 5],
            )
            properties = (
                f"KEYS\x01k{number} all\x02TAGS\x01Tag{number % 4}\x02UNIQ_KEY\x01u{number}\x02".encode()
            )
            born, stored = BORN if number % 2 else (b"\x7f\0\0\1", 7), STORED if number % 7 == 0 else None
            result = store.appender.put(
                Message(
                    topic,
                    number % 4,
                    b"%d-" % number * 40,
                    properties,
                    number,
                    kind,
                    1_700_000_000_000,
                    born,
                    stored,
                )
            )
            assert result.ok
            keys[topic, f"k{number}"] = set() if kind == ROLLBACK else {result.log_offset}
        inner = [(0, b"one", b"KEYS\x01b1\x02TAGS\x01T\x02"), (0, b"two", b"KEYS\x01b2\x02TAGS\x01T\x02")]
        batch = store.appender.put_batch(Message(LONG_TOPIC, 0, encode_batch(inner), b"CLUSTER\x01c\x02"))
        keys |= {(LONG_TOPIC, key): {at} for key, at in zip(("b1", "b2"), batch.log_offsets, strict=True)}
        ours = {}
        for topic, queue in store.queues():
            offset = 0
            while (result := store.reads.get(GetRequest(topic, queue, offset))).count:
                ours |= {
                    (topic, queue, one.queue_offset): (
                        " ".join(one.keys),
                        one.tags,
                        one.body.decode(),
                        one.log_offset,
                        one.store_timestamp,
                    )
                    for one in record.decode_all(result.body)
                }
                offset = result.next_offset
        if end == "kill -9":
            shutil.copytree(root, tmp_path / "killed")
            root = tmp_path / "killed"
    assert len(ours) == 600 * 3 // 5 + 2 and len(list((root / "commitlog").iterdir())) == 1

    first, messages, found = open_in_apache(
        root, tmp_path, list(keys), crc and crc | {"forceVerifyPropCRC": "true"}
    )
    assert first["loaded"]
    assert {
        place(line): (line["key"], line["tag"], line["body"], line["log_offset"], line["store_time"])
        for line in messages
    } == ours
    assert {asked: set(offsets) for asked, offsets in found.items()} == keys


def test_a_store_that_apache_went_on_writing_opens_in_ours_again(tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    broker = Broker(tmp_path / "data", SIZES).start()
    try:
        java = clients.JavaProgram(clients.JAVA_5, broker.nameserver, tmp_path)
        sent = acknowledged(java.run("send", topics=TOPICS[0], n=200, run="ours"))
        broker.stop()
        # opens, recovers and shuts down: checkpoint, abort and lock are its own now
        open_in_apache(broker.store, tmp_path, [])
        broker.start()
        sent += acknowledged(java.run("send", topics=TOPICS[0], n=200, run="more"))
        stored = [line for line in java.run("pull", topics=TOPICS[0]) if "key" in line]
        assert {place(line): line["key"] for line in stored} == {place(line): line["key"] for line in sent}
        assert broker.stop() == 0
    finally:
        broker.kill9()


def test_the_java_process_is_refused_while_ours_holds_the_store(tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    broker = Broker(tmp_path / "data", SIZES).start()
    try:
        with pytest.raises(AssertionError, match="Lock failed"):
            open_in_apache(broker.store, tmp_path, [])
    finally:
        broker.stop()
