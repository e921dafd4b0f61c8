"""Journeys on stores that the real broker wrote, without a broker: what each stop says is what a plain reader
finds."""

from __future__ import annotations

import io
import json
import struct

import pytest
from django.core.management import CommandError, call_command

from broker_store.errors import NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.journey import own
from broker_store.facts.journey.journey import journey
from broker_store.facts.journey.search import find
from broker_store.facts.journey.stop import Journey, Stop
from broker_store.facts.store_facts import FileFacts
from broker_store.formats import record
from broker_store.formats.index_file import IndexGeometry
from broker_store.formats.java_hash import java_hash
from tests.support import plain_bytes, stores


def plain_messages(root) -> list[dict]:
    """Every record: place, size, topic, queue, queue offset and properties."""
    found = []
    for base, data in stores.log_bytes(root):
        for at, size in plain_bytes.record_places(data, base):
            fields = {
                name: (place - base, length, number)
                for name, place, length, number in plain_bytes.record(data, at - base, base)
            }
            topic, pairs = (
                data[place : place + length].decode()
                for place, length, _ in (fields["topic"], fields["properties"])
            )
            read = dict(pair.split("\x01", 1) for pair in pairs.split("\x02") if pair)
            found.append(
                {
                    "at": at,
                    "size": size,
                    "topic": topic,
                    "queue": fields["queue_id"][2],
                    "offset": fields["queue_offset"][2],
                    "pairs": read,
                    "queued": fields["sys_flag"][2] & 12 in (0, 8),
                }
            )
    return found


def of(found: Journey, kind: str) -> list[Stop]:
    return [one for one in found.stops if one.stop == kind]


@pytest.mark.parametrize("name, every", [("golden-clean", 1), ("golden-crash", 301), ("crash", 97)])
def test_each_stop_says_what_a_plain_reader_finds(name, every, tmp_path):
    root, sizes = stores.unpack(name, tmp_path), stores.SIZES[name]
    directory = StoreDirectory(root, geometry=IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num))
    messages, facts = plain_messages(root), FileFacts(directory)
    closed = not (root / "abort").exists()
    indexes = (
        {path.name: path.read_bytes() for path in (root / "index").iterdir()}
        if (root / "index").is_dir()
        else {}
    )
    for message in messages[::every]:
        found = journey(directory, facts, message["at"])
        assert of(found, "stored")[0].state == "done" and found.message.queue_offset == message["offset"]
        assert of(found, "disk")[0].state == ("done" if closed else "unknown")
        (queue,) = of(found, "queue")
        place = message["offset"] * 20
        files = (
            [
                path
                for path in sorted(
                    (root / "consumequeue" / message["topic"] / str(message["queue"])).glob("*")
                )
                if 0 <= place - int(path.name) < path.stat().st_size
            ]
            if message["queued"]
            else []
        )
        unit = struct.unpack_from(">qi", files[0].read_bytes(), place - int(files[0].name)) if files else None
        assert (queue.state == "done") == (unit == (message["at"], message["size"])), message
        wanted = (
            [("message id", message["pairs"]["UNIQ_KEY"])] if "UNIQ_KEY" in message["pairs"] else []
        ) + [("key", key) for key in message["pairs"].get("KEYS", "").split(" ") if key]
        found_by = [
            one for one in of(found, "index") if "tag" not in one.title and one.title != "In the index"
        ]
        assert len(found_by) == len(wanted)
        for (_, text), one in zip(wanted, found_by, strict=True):
            hashed = abs(java_hash(f"{message['topic']}#{text}"))
            places = {
                (file, entry)
                for file, data in indexes.items()
                for entry in plain_bytes.chain(
                    data, sizes.max_hash_slot_num, hashed % sizes.max_hash_slot_num
                )
                # fmt: skip
                if struct.unpack_from(">iq", data, 40 + sizes.max_hash_slot_num * 4 + entry * 20)
                == (hashed, message["at"])
            }
            assert (one.state == "done") == bool(places), (message, one)
            assert not places or (one.pointer.name, one.pointer.entry) in places
        if closed and indexes and "UNIQ_KEY" in message["pairs"]:
            same = {
                other["at"]
                for other in messages
                if other["pairs"].get("UNIQ_KEY") == message["pairs"]["UNIQ_KEY"]
            } - {message["at"]}
            known = {
                one.log_offset for one in found.stops if one.log_offset is not None and one.stop != "pop"
            }
            # In the names of the retry topics of a group that pops, group and topic cannot be separated: from
            # there the way back is not known.
            assert known <= same and (known == same or message["topic"].startswith("%RETRY%")), message


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    return stores.unpack("golden-clean", tmp_path_factory.mktemp("store"))


def command(*arguments) -> str:
    output = io.StringIO()
    call_command("store", "journey", *map(str, arguments), stdout=output, stderr=io.StringIO())
    return output.getvalue()


def test_a_message_is_found_by_either_id_by_its_place_in_the_queue_and_in_the_log(closed):
    by_log = json.loads(command("--log-offset", 0, "--store", closed, "--json"))
    ids = by_log["message"]["message_id"], by_log["message"]["offset_message_id"]
    for place in (
        (ids[0],),
        (ids[1],),
        ("TopicX", 1, 0),
        ("TopicX", "01", "000"),
        (ids[0], "--topic", "TopicX"),
    ):
        found = json.loads(command(*place, "--store", closed, "--json"))
        assert [one["sentence"] for one in found["stops"]] == [one["sentence"] for one in by_log["stops"]]
    text = command(*("TopicX", 1, 0), "--store", closed)
    assert (
        "TopicX, queue 1, offset 0 (read from the store's files)" in text
        and "Unit 0 of queue 1 of TopicX; it names this record, its size and its tag." in text
    )
    assert "brokers before 5.4.0 do not index tags" in text


def test_who_read_and_who_sent_back_is_known_from_the_files_of_a_closed_store(closed):
    directory = StoreDirectory(closed)
    (retry,) = [message for message in plain_messages(closed) if message["topic"] == "%RETRY%CG"][:1]
    found = journey(directory, FileFacts(directory), retry["at"])
    origin = [one for one in found.stops if one.log_offset is not None]
    assert origin[0].log_offset == 0 and origin[0].stop == "real"
    forth = journey(directory, FileFacts(directory), 0)
    assert "By CG, for the 1st time. Offset 0 of queue 0 of %RETRY%CG." in of(forth, "retry")[0].sentence
    assert of(forth, "delayed")[0].sentence == "Put aside for %RETRY%CG by delay level 3. That is over."
    assert {(one.state, one.offset) for one in of(forth, "group") if one.title == "Read by CG"} == {
        ("done", 3)
    }


@pytest.mark.parametrize("table", [None, "", '{"offsetTable": 1}'])
def test_who_reads_a_topic_is_unknown_of_a_store_that_came_without_positions(table, tmp_path):
    root = stores.unpack("golden-clean", tmp_path)
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    if table is not None:
        (root / "config" / "consumerOffset.json").write_text(table)
    directory = StoreDirectory(root)
    (step,) = of(journey(directory, FileFacts(directory), 0), "group")
    assert (step.state, step.title) == (
        "unknown",
        "Read",
    ) and "no readable config/consumerOffset.json" in step.sentence
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable": {}}')
    (step,) = of(journey(directory, FileFacts(directory), 0), "group")
    assert step.state == "absent"


def test_a_half_that_nobody_settled_is_followed_to_where_it_was_given_up(closed):
    directory = StoreDirectory(closed)
    all_halves = [
        message for message in plain_messages(closed) if message["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    ]
    halves = [
        message["at"]
        for message in all_halves
        if message["pairs"]["UNIQ_KEY"] == all_halves[0]["pairs"]["UNIQ_KEY"]
    ]
    found = journey(directory, FileFacts(directory), halves[0])
    assert [one.log_offset for one in of(found, "prepared")] == halves[
        1:
    ] and "for the 2nd time. That is over" in of(found, "prepared")[1].sentence
    assert found.stops[-1].sentence == "Its producer was asked too often what became of it, and did not say."


def test_what_names_no_message_is_refused_with_what_would(closed):
    for place in ((), ("a", "b"), ("TopicX", "one", 0), ("x", "--log-offset", 5)):
        with pytest.raises(CommandError, match="TOPIC QUEUE OFFSET"):
            command(*place, "--store", closed)
    with pytest.raises(CommandError, match="no message has the id nobody"):
        command("nobody", "--store", closed)
    with pytest.raises(CommandError, match="no message at offset 4"):
        command("TopicX", 1, 4, "--store", closed)
    with pytest.raises(CommandError, match="no message begins at position 5"):
        command("--log-offset", 5, "--store", closed)


def test_an_index_of_unknown_shape_is_said_to_be_not_known(closed):
    directory = StoreDirectory(closed)
    directory.index_files = lambda: [
        (name, header, None) for name, header, _ in StoreDirectory(closed).index_files()
    ]
    found = journey(directory, FileFacts(directory), 0)
    assert {one.state for one in of(found, "index")} == {"unknown"} and not found.complete
    with pytest.raises(NotFoundError):
        find(directory, "nobody")


def test_the_pops_of_a_message_that_apaches_broker_stored(tmp_path):
    root, sizes = stores.unpack("golden-clean", tmp_path), stores.SIZES["golden-clean"]
    directory = StoreDirectory(root, geometry=IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num))

    def steps(log_offset: int) -> list[tuple[str, str, int | None]]:
        found = journey(directory, FileFacts(directory), log_offset)
        return [(one.title, one.state, one.log_offset) for one in found.stops if one.stop in ("pop", "retry")]

    whole = [
        ("Popped by CG2", "done", 1_156),
        ("Sent back", "done", 2_564),
        ("Came again", "done", 4_478),
        ("Popped by CGP", "done", 11_412),
        ("Came again", "done", 14_554),
    ]
    assert steps(0) == whole
    assert steps(4_478) == [row for row in whole if row[2] != 4_478]  # the record itself is no copy
    assert steps(7_266) == [("Popped by CGP", "done", 10_992)]
    sentences = [
        one.sentence
        for at in (0, 7_266)
        for one in journey(directory, FileFacts(directory), at).stops
        if one.stop == "pop"
    ]
    assert sentences == [
        "It was given out for 60 s. It was not acknowledged by 2026-11-21 07:02:08.000 UTC, so it came again: "
        "offset 0 of %RETRY%CG2_TopicX.",
        "It was given out for 15 s, together with 2 others of queue 1. It was not acknowledged by "
        "2026-11-21 07:21:55.807 UTC, so it came again: offset 0 of %RETRY%CGP_TopicX.",
        "It was given out for 15 s. Acknowledged after 12 ms.",
    ]


def test_a_message_without_a_born_time_was_not_born_in_1970(tmp_path):
    root = stores.unpack("golden-clean", tmp_path)
    directory = StoreDirectory(root)
    at = plain_messages(root)[0]["at"]
    message = record.decode(directory.record_at(at), check_crc=True)
    message.born_timestamp = 0
    born, stored = own.born(message), own.stored(directory, message)
    assert (born.state, born.at_ms) == ("unknown", None) and "gave no time" in born.sentence
    assert "its producer gave no time" in stored.sentence
