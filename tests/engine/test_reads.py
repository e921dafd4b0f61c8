"""Reading: what may be touched on the loop and what not, records across borders, limits by distance, keys of
any text."""

import ctypes
import random
import sys
import threading
import time

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.region import Region
from broker_store.errors import StoreError
from broker_store.formats import index_file, queue_unit, record
from broker_store.formats.java_hash import java_hash
from broker_store.kernels import context as c
from broker_store.kernels.lookup import find_records, read_record
from broker_store.kernels.read import read_queue
from broker_store.messages import GetRequest, GetStatus
from tests.support.hand_store import message

PAGE = 4096


class Memory:
    """Says which pages are in memory, and counts how often it was asked."""

    def __init__(self, monkeypatch):
        self.asked = 0
        self.asked_of_index = 0
        self.is_there = lambda name, page: True

        def ask_pages(region, offset, length, answers):
            self.asked += 1
            self.asked_of_index += region.path.parent.name == "index"
            pages = -(-min(length, region.size - offset) // PAGE)
            told = bytes(
                self.is_there(region.path.parent.name, offset // PAGE + page) for page in range(pages)
            )
            ctypes.memmove(answers, told, pages)
            return True

        monkeypatch.setattr(Region, "ask_pages", ask_pages)


@pytest.fixture
def memory(monkeypatch):
    return Memory(monkeypatch)


def reopened(open_store, messages, **changes):
    """A store in which nothing was written in this run."""
    store = open_store(**changes)
    for each in messages:
        assert store.appender.put(each).ok
    store.close()
    return open_store(**changes)


def read(store, offset, queue_id=0, **more):
    result = store.reads.get(GetRequest("topic", queue_id, offset, **more))
    assert (
        sum(len(raw) for raw in split(result.body)) == len(result.body)
        and len(split(result.body)) == result.count
    )
    return result


def split(body):
    """The records, by the size that each begins with."""
    records = []
    while body:
        size, _ = record.read_head(body)
        records.append(body[:size])
        body = body[size:]
    return records


def bodies(result):
    return [found.body for found in record.decode_all(result.body)]


def cold_gets(store):
    return store.status.snapshot().totals.cold_gets


# What is in memory --------------------------------------------------------------------------------


def test_of_what_this_run_wrote_only_the_index_is_asked_about(open_store, memory):
    store = open_store()
    for number in range(60):
        store.appender.put(message(body=b"%d" % number * 100, keys=(f"k{number}",)))
    assert all(read(store, offset).count for offset in range(41, 60))
    assert (memory.asked, cold_gets(store)) == (0, 0)
    assert store.reads.query_keys("topic", "k59", 9).records
    assert memory.asked == memory.asked_of_index > 0


def test_older_pages_are_asked_about_once_a_second(open_store, memory, clock):
    store = reopened(open_store, [message(body=b"%d" % number, keys=(f"k{number}",)) for number in range(10)])
    store.tick()
    for asked in (3, 6):  # of the queue's units, the log and the index
        for _ in range(3):
            assert bodies(read(store, 2, max_count=2)) == [b"2", b"3"]
            assert len(store.reads.query_keys("topic", "k7", 9).records) == 1
            store.tick()
        assert (memory.asked, cold_gets(store)) == (asked, 0)
        clock.advance(1001)
        store.tick()


def test_a_page_that_is_not_in_memory_is_not_touched_and_is_asked_about_again(open_store, memory):
    store = reopened(
        open_store, [message(body=b"%d" % number * 1000, keys=(f"k{number}",)) for number in range(10)]
    )
    places = [store.reads.query_keys("topic", f"k{number}", 1).offsets[0] for number in range(10)]
    memory.is_there = lambda name, page: not (name == "commitlog" and page == places[5] // PAGE)
    store.reads.tick(1 << 40)
    before = places[5] // PAGE * PAGE
    whole = [number for number in range(9) if places[number + 1] <= before]
    assert whole and bodies(read(store, 0, max_count=len(whole))) == [
        b"%d" % number * 1000 for number in whole
    ]
    assert cold_gets(store) == 0
    # What needs the page is read as a whole by position, a key's record too.
    assert len(bodies(read(store, 0))) == 10 and cold_gets(store) == 1
    assert record.decode(store.reads.query_keys("topic", "k5", 9).records[0]).body == b"5" * 1000
    asked = memory.asked
    assert len(bodies(read(store, 0))) == 10 and (memory.asked, cold_gets(store)) == (asked + 1, 2)
    memory.is_there = lambda name, page: True
    assert len(bodies(read(store, 0))) == 10 and cold_gets(store) == 2


def test_units_that_are_not_in_memory_are_read_in_a_thread(open_store, memory):
    store = reopened(open_store, [message() for _ in range(10)])
    memory.is_there = lambda name, page: name == "commitlog"
    assert read(store, 3).count == 7 and cold_gets(store) == 1


def test_with_a_system_that_does_not_say_everything_older_is_cold(open_store, monkeypatch):
    store = reopened(open_store, [message(keys=("k",)) for _ in range(5)])
    monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    assert read(store, 0).count == 5 and cold_gets(store) == 1
    assert len(store.reads.query_keys("topic", "k", 9).records) == 5


def test_what_was_heard_goes_with_the_map(open_store, memory):
    store = reopened(open_store, [message(body=b"x" * 3000, keys=(f"k{number}",)) for number in range(30)])
    assert [read(store, 0, max_count=4).count, len(store.reads.query_keys("topic", "k1", 1).records)] == [
        4,
        1,
    ]
    first = store.log.files[0]
    known = first.residency
    store.log.unmap_before(first.end)
    assert first.region is None
    asked = memory.asked
    # Mapped again, for a read by offset and for one by key, and asked about again.
    assert read(store, 0, max_count=4).count == 4 and first.residency is not known
    assert memory.asked == asked + 1
    store.log.unmap_before(first.end)
    assert len(store.reads.query_keys("topic", "k1", 1).records) == 1 and memory.asked == asked + 2
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=1) == 1
    assert (
        store.reads.query_keys("topic", "k1", 1).records == []
        and read(store, 0).status is GetStatus.OFFSET_TOO_SMALL
    )
    assert cold_gets(store) == 0


def test_a_queue_file_that_was_unmapped_is_entered_again(open_store):
    store = open_store()
    for number in range(45):
        store.appender.put(message(body=b"%d" % number))
    queue = store.queue_table.find("topic", 0)
    assert bodies(read(store, 3, max_count=1)) == [b"3"] and queue.read_file is queue.files[0]
    store.flush(), store.round()
    queue.unmap_full()
    assert queue.read_file is None and queue.files[0].region is None
    assert bodies(read(store, 3, max_count=1)) == [b"3"]


# Across borders -----------------------------------------------------------------------------------


def test_records_across_blocks_and_log_files_are_read_whole(open_store, memory):
    changes = {"mapped_file_size_commit_log": 1 << 20, "max_index_num": 400}
    sizes = [70_000 + 977 * number for number in range(40)]
    store = reopened(
        open_store,
        [message(body=bytes([number]) * size, queue_id=number % 2) for number, size in enumerate(sizes)],
        **changes,
    )
    assert len(store.log.files) > 3
    for queue_id in (0, 1):
        wanted = [(number, size) for number, size in enumerate(sizes) if number % 2 == queue_id]
        seen, offset = [], 0
        while (result := read(store, offset, queue_id)).count:
            seen += [(found[0], len(found)) for found in bodies(result)]
            offset = result.next_offset
        assert seen == wanted
    # Record 3 lies in two blocks of 256 KiB: when a page of the second is away, the record is not touched.
    memory.is_there = lambda name, page: name != "commitlog" or page != (256 << 10) // PAGE
    store.reads.tick(1 << 40)
    assert read(store, 0, 1, max_count=1).count == 1 and cold_gets(store) == 0
    assert bodies(read(store, 1, 1, max_count=1)) == [bytes([3]) * sizes[3]] and cold_gets(store) == 1


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_record_is_given_when_it_ends_at_the_limit_and_not_when_a_byte_is_missing(open_store, is_reopened):
    store = open_store()
    # Neighbours in the log are copied together; those of two queues are not neighbours.
    ends = [
        store.appender.put(message(body=b"x" * (100 + number), queue_id=number % 3 // 2)).log_end
        for number in range(12)
    ]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    own = [size for number, size in enumerate(sizes) if number % 3 < 2]
    if is_reopened:
        store.close()
        store = open_store()
    for count in range(1, len(own)):
        assert read(store, 0, max_bytes=sum(own[:count])).count == count
        assert read(store, 0, max_bytes=sum(own[: count + 1]) - 1).count == count


@pytest.mark.parametrize("is_cold", [False, True])
def test_far_from_the_end_an_answer_has_the_limits_of_what_is_on_disk(open_store, monkeypatch, is_cold):
    changes = {"max_transfer_count_on_message_in_disk": 3, "max_transfer_bytes_on_message_in_disk": 1024}
    store = reopened(open_store, [message(body=b"x" * 100) for _ in range(20)], **changes)
    if is_cold:
        monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    size = store.log.wrote // 20
    store.reads._words[c.R_DISTANT] = 10 * size
    assert [read(store, offset).count for offset in (0, 9, 10, 15)] == [3, 3, 10, 5]
    assert cold_gets(store) == 4 * is_cold
    store.reads._words[c.R_DISTANT] = 20 * size
    assert read(store, 0).count == 20


def test_nothing_of_a_cold_read_is_read_on_the_loop(open_store, monkeypatch):
    changes = {"max_transfer_count_on_message_in_disk": 3}
    store = reopened(open_store, [message(body=b"x" * 100) for _ in range(20)], **changes)
    store.reads._words[c.R_DISTANT] = 1
    monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    readers = set()
    open_reader = Disk.open_reader
    monkeypatch.setattr(
        Disk, "open_reader", lambda *call: readers.add(threading.current_thread()) or open_reader(*call)
    )
    given = []
    assert store.reads.get(GetRequest("topic", 0, 0), given.append) is None
    store.reads.close()
    assert [result.count for result in given] == [3]
    assert readers and threading.main_thread() not in readers


def test_tags_are_found_in_older_log_as_well(open_store, memory):
    store = reopened(open_store, [message(body=b"%d" % number, tag="ab"[number % 2]) for number in range(20)])
    codes = frozenset({97})
    assert bodies(read(store, 1, tag_codes=codes)) == [b"%d" % number for number in range(2, 20, 2)]
    assert cold_gets(store) == 0 and memory.asked


def test_a_read_from_another_thread_is_answered_by_position_and_touches_no_map(open_store, memory):
    store = reopened(open_store, [message(body=b"%d" % number) for number in range(10)])
    given = [store.reads.get_blocking(GetRequest("topic", 0, offset)) for offset in (-1, 4, 10, 11)]
    assert [(result.status, result.next_offset, result.count) for result in given] == [
        (GetStatus.OFFSET_TOO_SMALL, 0, 0),
        (GetStatus.FOUND, 10, 6),
        (GetStatus.OFFSET_OVERFLOW_ONE, 10, 0),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 10, 0),
    ]
    assert store.reads.get_blocking(GetRequest("other", 0, 0)).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert memory.asked == 0


# Keys ---------------------------------------------------------------------------------------------

TEXTS = ("k", "ключ", "鍵", "k\u00e9y", "😀" * 5, "a" * 300, "Ä")


def test_keys_of_any_text_are_found(open_store):
    store = open_store()
    for number, text in enumerate(TEXTS):
        store.appender.put(message(body=b"%d" % number, keys=(text,)))
    for number, text in enumerate(TEXTS):
        assert [record.decode(raw).body for raw in store.reads.query_keys("topic", text, 9).records] == [
            b"%d" % number
        ]
        assert store.reads.query_keys("tópico", text, 9).records == []
    assert store.reads.query_keys("topic", "", 9).records == []
    with pytest.raises(UnicodeEncodeError):
        store.reads.query_keys("topic", "\ud800", 9)


def test_a_lookup_by_map_gives_what_one_by_position_gives(open_store, monkeypatch):
    store = reopened(
        open_store,
        [message(body=b"x" * (number * 37 % 900), keys=(f"g{number % 7}",)) for number in range(150)],
    )
    store.flush(), store.round()
    assert store.cleaning.delete_expired(any_age=True, most=2) == 2
    questions = [
        (f"g{number}", most, begin, begin + 1000)
        for number in range(8)
        for most in (1, 5, 64)
        for begin in (0, 1_700_000_000_000)
    ]
    by_map = [store.reads.query_keys("topic", *question) for question in questions]
    monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    store.reads.tick(1 << 40)
    assert by_map == [store.reads.query_keys("topic", *question) for question in questions]
    assert all(result.offsets == sorted(result.offsets) for result in by_map)
    assert max(len(result.records) for result in by_map) > 10


@pytest.mark.parametrize(
    ("at", "damage"), [(0, b"\0\0\0\5"), (0, b"\x7f\0\0\0"), (4, b"\0"), (28, b"\1"), (35, b"\1")]
)
def test_an_entry_whose_record_is_not_sound_is_left_out_and_named(open_store, at, damage):
    store = open_store()
    places = [store.appender.put(message(body=b"x" * 50, keys=("k",))).log_offset for _ in range(3)]
    region = store.log.files[0].region
    sound = region.read(places[1] + at, len(damage))
    region.write(places[1] + at, damage)
    found = store.reads.query_keys("topic", "k", 9)
    assert found.offsets == [places[0], places[2]]
    assert found.damaged == ((places[1], "no record begins there, but an entry of the index leads to it"),)
    assert store.reads.records.record_at(places[1]) is None
    region.write(places[1] + at, sound)
    assert store.reads.query_keys("topic", "k", 9).offsets == places


def test_index_files_that_come_and_go_are_noticed(open_store):
    store = open_store()
    for number in range(400):
        store.appender.put(message(body=b"x" * 200, unique=f"u{number}"))
        assert len(store.reads.query_keys("topic", f"u{number}", 9).records) == 1
        if number % 100 == 99:
            store.flush(), store.round()
            assert store.cleaning.delete_expired(any_age=True, most=1) == 1
            assert store.reads.query_keys("topic", "u0", 9).records == []


# Damage -------------------------------------------------------------------------------------------


def change(store, at, bit):
    """Change a bit of the log's first file on the disk; once more, and it is as it was."""
    with open(store.log.files[0].path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def flags(store):
    return [flag.name for flag in store.status.snapshot().flags]


@pytest.fixture(params=["in memory", "cold"])
def old(request, open_store, monkeypatch):
    """A store of which the first of three files was written by an earlier run; recovery reads the last
    only."""
    store = reopened(
        open_store, [message(body=b"%03d" % number * 100, keys=(f"k{number}",)) for number in range(100)]
    )
    assert len(store.log.files) == 3
    if request.param == "cold":
        monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    store.places = [
        place
        for number in range(30)
        for place in store.index.walk("topic", f"k{number}", 1, 0, 1 << 62).find()[0]
    ]
    return store


@pytest.mark.parametrize("seed", range(12))
def test_a_record_that_changed_on_the_disk_is_given_to_no_reader(old, seed):
    rng = random.Random(seed)
    number = rng.randrange(30)
    # size, magic, CRC, its own place, body and the lengths around
    watched = [*range(12), *range(28, 36), *range(84, 84 + 4 + 300 + 1)]
    at, bit = old.places[number] + rng.choice(watched), rng.randrange(8)
    change(old, at, bit)
    seen, offset = [], 0
    while offset < number:
        result = read(old, offset)
        seen += bodies(result)
        offset = result.next_offset
    assert (seen, offset) == ([b"%03d" % before * 100 for before in range(number)], number)
    for result in (
        old.reads.get(GetRequest("topic", 0, number)),
        old.reads.get_blocking(GetRequest("topic", 0, number)),
    ):
        assert (result.status, result.next_offset, result.body) == (GetStatus.MESSAGE_DAMAGED, number, b"")
    found = old.reads.query_keys("topic", f"k{number}", 9)
    assert (found.records, [one.log_offset for one in found.damaged]) == (
        [],
        [old.places[number]],
    ) and old.reads.records.record_at(old.places[number]) is None
    assert bodies(read(old, number + 1))[0] == b"%03d" % (number + 1) * 100
    assert flags(old) == ["damage_found"] and str(old.places[number]) in old.status.snapshot().flags[0].cause
    assert old.appender.put(message(body=b"goes on")).ok
    change(old, at, bit)
    assert bodies(read(old, number))[0] == b"%03d" % number * 100


def tagged(open_store, count=60):
    """A store of which the first files were written by an earlier run; odd messages have another tag."""
    return reopened(
        open_store,
        [
            message(body=b"%03d" % number * 200, tag="odd" if number % 2 else "even", keys=(f"k{number}",))
            for number in range(count)
        ],
    )


@pytest.fixture(params=["in memory", "cold"])
def tags(request, open_store, monkeypatch):
    store = tagged(open_store)
    if request.param == "cold":
        monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    return store


def changed_places(raw):
    """Bytes of a record that its body's CRC does not cover and its unit contradicts: (name, position,
    bit)."""
    end, fields = len(raw), record.FIXED_IPV4.offset
    properties_at = end - len(record.decode(raw).raw_properties)
    return [
        ("queue", fields["queue_id"] + 3, 0),
        ("queue offset", fields["queue_offset"] + 7, 5),
        ("topic", properties_at - 3, 1),
        ("tag", raw.index(b"TAGS\1", properties_at) + 5, 1),
    ]


@pytest.mark.parametrize("which", range(4))
def test_a_record_that_contradicts_its_unit_is_given_to_no_reader(tags, which):
    place = tags.reads.read_units("topic", 0, 7, 1)[0].log_offset
    name, at, bit = changed_places(tags.reads.records.record_at(place))[which]
    change(tags, place + at, bit)
    for result in (
        tags.reads.get(GetRequest("topic", 0, 7)),
        tags.reads.get(GetRequest("topic", 0, 7)),
        tags.reads.get_blocking(GetRequest("topic", 0, 7)),
    ):
        assert (result.status, result.next_offset) == (GetStatus.MESSAGE_DAMAGED, 7), name
    assert flags(tags) == ["damage_found"] and str(place) in tags.status.snapshot().flags[0].cause
    assert bodies(read(tags, 8))[0] == b"008" * 200
    change(tags, place + at, bit)
    assert bodies(read(tags, 7))[0] == b"007" * 200


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize(
    ("which", "said"),
    list(
        enumerate(
            (
                "it states offset 7 of topic/1, which is not there",
                "it states offset 39 of topic/0, whose unit leads to",
                "its topic or its keys are not those of the index entry",
                "its tag is not that of its unit, offset 7 of topic/0",
            )
        )
    ),
)
def test_a_lookup_by_key_compares_a_record_with_its_unit_and_its_entry(tags, which, said, reads_first):
    place = tags.reads.read_units("topic", 0, 7, 1)[0].log_offset
    name, at, bit = changed_places(tags.reads.records.record_at(place))[which]
    change(tags, place + at, bit)
    if reads_first:  # then the file of its unit is entered
        read(tags, 6)
    for key, wanted in (("k7", []), ("k7", []), ("k8", [b"008" * 200])):
        found = tags.reads.query_keys("topic", key, 9)
        assert [record.decode(raw).body for raw in found.records] == wanted, name
        assert [(one.log_offset, one.damage.startswith(said)) for one in found.damaged] == [(place, True)] * (
            not wanted
        ), found.damaged
    assert flags(tags) == ["damage_found"] and str(place) in tags.status.snapshot().flags[0].cause
    assert tags.reads.get(GetRequest("topic", 0, 7)).status is GetStatus.MESSAGE_DAMAGED, (
        "the lookup had it taken for sound"
    )
    change(tags, place + at, bit)
    found = tags.reads.query_keys("topic", "k7", 9)
    assert [record.decode(raw).body for raw in found.records] == [b"007" * 200] and found.damaged == ()


def test_a_record_whose_key_has_changed_is_named_by_a_lookup_that_compares_keys(tags):
    place = tags.reads.read_units("topic", 0, 7, 1)[0].log_offset
    raw = tags.reads.records.record_at(place)
    at = place + raw.index(b"KEYS\1k7") + 6
    change(tags, at, 0)
    # Who asks sees that, and asks again
    assert all(b"k7" not in raw for raw in tags.reads.query_keys("topic", "k7", 9).records)
    found = tags.reads.query_compared("topic", "k7", 9).result(10)
    change(tags, at, 0)
    assert (found.records, found.damaged) == (
        [],
        ((place, "its topic or its keys are not those of the index entry that leads to it"),),
    )
    assert tags.reads.query_compared("topic", "k8", 9).result(10).damaged == ()


def test_records_of_a_deleted_topic_are_found_by_key(tags):
    place = tags.reads.read_units("topic", 0, 7, 1)[0].log_offset
    tags.delete_topic("topic")
    found = tags.reads.query_compared("topic", "k7", 9).result(10)
    assert (
        found.offsets == [place]
        and found.damaged == ()
        and tags.reads.query_keys("topic", "k7", 9).offsets == [place]
    )


@pytest.mark.parametrize("which", range(4))
def test_a_record_that_is_asked_for_by_its_place_is_held_against_its_unit(tags, which):
    place = tags.reads.read_units("topic", 0, 7, 1)[0].log_offset
    sound = tags.reads.records.record_by_id(place).result(10)
    assert record.decode(sound).body == b"007" * 200 and tags.reads.records.damage_at(place) is None
    _, at, bit = changed_places(sound)[which]
    change(tags, place + at, bit)
    said = (
        "it states offset 7 of topic/1, which is not there",
        "it states offset 39 of topic/0, whose unit leads to",
        "it states offset 7 of",
        "its tag is not that of its unit, offset 7 of topic/0",
    )
    damage = tags.reads.records.record_by_id(place).result(10)
    assert damage.startswith(said[which]) and tags.reads.records.damage_at(place) == damage
    tags.tick()
    assert flags(tags) == ["damage_found"] and str(place) in tags.status.snapshot().flags[0].cause
    change(tags, place + at, bit)
    assert tags.reads.records.record_by_id(place).result(10) == sound


def test_how_a_record_that_is_asked_for_by_its_place_is_broken_is_said(tags):
    place = tags.reads.read_units("topic", 0, 7, 1)[0].log_offset
    for at, said in ((100, "CRC"), (84, "length")):  # the body, the highest byte of its length
        change(tags, place + at, 6)
        assert said in tags.reads.records.record_by_id(place).result(10)
        change(tags, place + at, 6)
    assert tags.reads.records.record_by_id(place + 4).result(10) is None
    new = tags.appender.put(message(body=b"new")).log_offset
    assert record.decode(tags.reads.records.record_by_id(new)).body == b"new"


def test_a_changed_tag_in_a_unit_does_not_give_the_message_to_whom_it_is_not_for(tags):
    path = tags.queue_table.find("topic", 0).files[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[: 7 * 20 + 12] + whole[6 * 20 + 12 : 7 * 20] + whole[8 * 20 :])
    result = tags.reads.get(GetRequest("topic", 0, 7, tag_codes=frozenset({java_hash("even")})))
    path.write_bytes(whole)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_DAMAGED, 7)


def test_a_message_that_a_changed_tag_hides_is_damage_where_its_record_is_in_memory(open_store):
    """The pages of a message that the filter passes over are not asked for; those beside what was read are
    known."""
    store = tagged(open_store)
    path = store.queue_table.find("topic", 0).files[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[: 7 * 20 + 12] + whole[6 * 20 + 12 : 7 * 20] + whole[8 * 20 :])
    codes = frozenset({java_hash("odd")})
    seen, offset = [], 0
    while (
        result := store.reads.get(GetRequest("topic", 0, offset, tag_codes=codes))
    ).status is GetStatus.FOUND:
        seen += [found.queue_offset for found in record.decode_all(result.body)]
        offset = result.next_offset
    path.write_bytes(whole)
    assert (seen, result.status, result.next_offset) == ([1, 3, 5], GetStatus.MESSAGE_DAMAGED, 7)


def test_units_of_a_light_queue_may_lead_to_records_of_other_topics(open_store):
    store = tagged(open_store)
    root, units = store.root, store.reads.read_units("topic", 0, 0, 3)
    store.close()
    light = root / "consumequeue" / "%LMQ%a" / "0"
    light.mkdir(parents=True)
    size = (root / "consumequeue/topic/0/00000000000000000000").stat().st_size
    (light / f"{0:020}").write_bytes(b"".join(queue_unit.encode(*unit) for unit in units).ljust(size, b"\0"))
    again = open_store()
    for _ in range(2):
        assert [
            found.queue_offset
            for found in record.decode_all(again.reads.get(GetRequest("%LMQ%a", 0, 0)).body)
        ] == [0, 1, 2]
    (light / f"{0:020}").write_bytes(bytes(size))


def test_a_record_with_a_crc_of_all_of_it_is_checked_with_that(open_store):
    """A changed key: no length, body, topic, place or tag is another then."""
    store = reopened(
        open_store,
        [message(body=b"%03d" % number * 200, keys=("key",)) for number in range(60)],
        enabled_append_prop_crc=True,
    )
    place = store.reads.read_units("topic", 0, 7, 1)[0].log_offset
    raw = store.reads.records.record_at(place)
    change(store, place + raw.index(b"KEYS") + 6, 1)
    assert (read(store, 7).status, store.reads.records.record_at(place)) == (GetStatus.MESSAGE_DAMAGED, None)
    change(store, place + raw.index(b"KEYS") + 6, 1)


def test_the_flag_of_damage_goes_with_the_file_it_was_found_in(old):
    change(old, old.places[5] + 200, 3)
    assert read(old, 5).status is GetStatus.MESSAGE_DAMAGED
    assert (
        old.reads.records.record_at(old.places[5], check_crc=False) is not None
    )  # who shows damage may see it
    old.appender.put(message())
    old.flush(), old.round()
    assert old.cleaning.delete_expired(any_age=True, most=1) == 1
    assert flags(old) == ["deleted_early"]


def test_a_unit_that_leads_nowhere_is_not_passed_over(old):
    path = old.queue_table.find("topic", 0).files[0].path
    whole = path.read_bytes()
    for unit in (bytes(20), whole[140:148] + b"\x7f\xff\xff\xff" + whole[152:160], b"\x7f" + whole[141:160]):
        path.write_bytes(whole[:140] + unit + whole[160:])
        assert [found.body[:3] for found in record.decode_all(read(old, 5).body)] == [b"005", b"006"]
        assert (read(old, 7).status, read(old, 7).next_offset) == (GetStatus.MESSAGE_DAMAGED, 7)
    path.write_bytes(whole)
    assert bodies(read(old, 7))[0] == b"007" * 100


def test_a_disk_that_does_not_give_what_is_read_is_an_error_and_a_flag(open_store, monkeypatch):
    store = reopened(open_store, [message() for _ in range(3)])
    monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
    given = []
    with monkeypatch.context() as patch:

        def fails(*_):
            raise StoreError("input/output error")

        patch.setattr(Disk, "open_reader", fails)
        assert store.reads.get(GetRequest("topic", 0, 1), given.append) is None
        store.reads.close()
    assert [(result.status, result.next_offset) for result in given] == [(GetStatus.READ_FAILED, 1)]
    assert flags(store) == ["damage_found"] and "input/output error" in store.status.snapshot().flags[0].cause


# Keys that are cold -------------------------------------------------------------------------------


@pytest.fixture
def disk_turns(monkeypatch):
    """What the readers' pool reads waits while the test has cleared this."""
    goes_on = threading.Event()
    goes_on.set()
    read_by_position = Reader.read

    def read(reader, offset, length):
        if threading.current_thread().name.startswith("cold-read"):
            assert goes_on.wait(10)
        return read_by_position(reader, offset, length)

    monkeypatch.setattr(Reader, "read", read)
    yield goes_on
    goes_on.set()


def keyed(count, **more):
    return [message(body=b"%d" % number, keys=(f"k{number}",), **more) for number in range(count)]


@pytest.mark.parametrize("cold", ["index", "commitlog"])
def test_a_lookup_of_cold_pages_does_not_hold_up_the_loop(open_store, memory, disk_turns, cold):
    store = reopened(open_store, keyed(40))
    memory.is_there = lambda name, page: name != cold
    disk_turns.clear()
    looked_up = store.reads.query_keys("topic", "k3", 9, wait=False)
    # The disk stands still; the loop has gone on to this line.
    assert not looked_up.done()
    disk_turns.set()
    found = looked_up.result(10)
    assert [record.decode(raw).body for raw in found.records] == [b"3"]
    assert store.reads.cold_lookups == 1
    memory.is_there = lambda name, page: True
    assert store.reads.query_keys("topic", "k3", 9, wait=False) == found
    assert store.reads.cold_lookups == 1


def test_a_record_is_given_at_once_when_it_is_in_memory(open_store, memory, disk_turns):
    store = reopened(open_store, keyed(40))
    places = store.reads.query_keys("topic", "k39", 9).offsets
    disk_turns.clear()
    assert record.decode(store.reads.records.record_now(places[0])).body == b"39"
    assert [store.reads.records.record_now(place) for place in (-1, places[0] + 4, 1 << 60)] == [None] * 3
    memory.is_there = lambda name, page: False
    store.reads.tick(1 << 40)
    coming, nothing = store.reads.records.record_now(places[0]), store.reads.records.record_now(places[0] + 4)
    assert not coming.done()
    disk_turns.set()
    assert record.decode(coming.result(10)).body == b"39" and nothing.result(10) is None
    new = store.appender.put(message(body=b"new")).log_offset
    assert record.decode(store.reads.records.record_now(new)).body == b"new"


def test_records_of_many_places_come_at_once_or_all_later(open_store, memory, monkeypatch):
    store = reopened(open_store, keyed(40))
    places = [store.reads.query_keys("topic", f"k{number}", 9).offsets[0] for number in (3, 39)]
    given = []

    def bodies(records):
        return [raw and record.decode(raw).body for raw in records]

    def until_given():
        deadline = time.monotonic() + 10
        while not given and time.monotonic() < deadline:
            store.tick()
        return given.pop()

    assert (
        bodies(store.reads.records.get_records([*places, places[0] + 4], given.append)) == [b"3", b"39", None]
        and given == []
    )
    memory.is_there = lambda name, page: False
    store.reads.tick(1 << 40)
    assert store.reads.records.get_records([*places, places[0] + 4], given.append) is None
    assert bodies(until_given()) == [b"3", b"39", None]

    def fails(reader, offset, length):
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "read", fails)
        assert store.reads.records.get_records(places, given.append) is None
        assert until_given() is None
    assert "the disk is gone" in next(
        flag.cause for flag in store.status.snapshot().flags if flag.name == "damage_found"
    )


def test_what_the_disk_refuses_a_cold_lookup_reaches_the_caller(open_store, memory, monkeypatch):
    store = reopened(open_store, keyed(3))
    memory.is_there = lambda name, page: name != "index"

    def fails(reader, offset, length):
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="the disk is gone"):
        patch.setattr(Reader, "read", fails)
        store.reads.query_keys("topic", "k1", 9, wait=False).result(10)


def test_index_files_may_go_while_a_cold_lookup_is_under_way(open_store, memory, disk_turns):
    store = reopened(open_store, [message(body=b"x" * 900, unique=f"u{number}") for number in range(100)])
    memory.is_there = lambda name, page: name != "index"
    files = len(store.index.files)
    disk_turns.clear()
    old, new = (store.reads.query_keys("topic", f"u{number}", 9, wait=False) for number in (0, 99))
    store.flush(), store.round()
    while store.cleaning.delete_expired(any_age=True, most=1):
        pass
    assert len(store.index.files) < files
    disk_turns.set()
    assert old.result(10).records == [] and len(new.result(10).records) == 1


def test_entries_that_come_while_a_cold_lookup_is_under_way_do_not_hide_those_that_were_there(
    open_store, memory, monkeypatch
):
    store = reopened(open_store, [message(body=b"old", keys=("k",))])
    memory.is_there = lambda name, page: name != "index"
    read_by_position = Reader.read

    def read(reader, offset, length):
        found = read_by_position(reader, offset, length)
        if length == index_file.HEADER.size:
            store.appender.put(message(body=b"new", keys=("k",)))
        return found

    monkeypatch.setattr(Reader, "read", read)
    found = store.reads.query_keys("topic", "k", 9)
    assert [record.decode(raw).body for raw in found.records] == [b"old", b"new"]


# The doors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), (1, 2), (1, "a", 3, 4, 5, 6, 7), (1, 2.5, 3, 4, 5, 6, 7)])
def test_a_door_refuses_what_it_cannot_read(arguments):
    for door in (read_queue, find_records):
        with pytest.raises(TypeError):
            door(*arguments)
    with pytest.raises(TypeError):
        read_record("a", *arguments[1:])


def test_numbers_beyond_64_bits_are_refused(open_store):
    store = open_store()
    store.appender.put(message(keys=("k",)))
    with pytest.raises(OverflowError):
        read(store, 1 << 64)
    with pytest.raises(OverflowError):
        store.reads.query_keys("topic", "k", 9, 0, 1 << 64)


def test_doors_keep_and_drop_as_many_references_as_they_should(open_store):
    store = open_store()
    for number in range(9):
        store.appender.put(message(body=b"%d" % number * 300, keys=(f"k{number}", "all")))
    known = (*range(-5, 257), b"", None, True, "topic", "all", "none")

    def ask():
        for offset in (0, 5, 9):
            store.reads.get(GetRequest("topic", 0, offset, max_bytes=1000))
        for key in ("all", "none", "k3"):
            store.reads.query_keys("topic", key, 9)
        for place in (0, 4):
            store.reads.records.record_now(place)

    ask()
    before = [sys.getrefcount(each) for each in known]
    for _ in range(100):
        ask()
    after = [sys.getrefcount(each) for each in known]
    assert max(abs(now - then) for then, now in zip(before, after, strict=True)) < 50


def test_one_record_with_a_wrong_time_leads_no_search_elsewhere(open_store, clock):
    store = open_store()
    times = []
    for number in range(64):
        clock.advance(1000)
        times.append(clock.now_ms)
        store.appender.put(message(body=b"%03d" % number * 100))
    store.close()
    store = open_store()
    place = (
        store.reads.read_units("topic", 0, 32, 1)[0].log_offset + record.FIXED_IPV4.offset["store_timestamp"]
    )
    for bit in (0, 6):
        change(store, place + 2, bit)  # years back or ahead
        assert [
            store.reads.times.offset_by_time("topic", 0, times[number]) for number in (3, 20, 30, 40, 60)
        ] == [
            3,
            20,
            30,
            40,
            60,
        ]
        change(store, place + 2, bit)
