"""Which stretches of a log are read: its files, up to where a running broker has dispatched."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import encode as encode_times
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.live_page import LivePage
from broker_store.errors import MisuseError, NotFoundError, StoreError
from broker_store.formats import record
from broker_store.messages import Message
from broker_store.pipeline import splits
from broker_store.pipeline.options import read_options
from broker_store.pipeline.splits import check_topics, splits_of
from tests.pipeline import plain
from tests.support import stores
from tests.support.hand_store import Clock, opened


@pytest.fixture
def store(tmp_path):
    return stores.unpack("golden-crash", tmp_path)


@pytest.fixture
def live(tmp_path):
    pages = []

    def publish(dispatched: int, state: str = "running") -> Path:
        page = LivePage(Disk(), tmp_path / "run" / "live")
        pages.append(page)
        page.publish(0, dispatched, dispatched, dispatched, dispatched, 0, state)
        return tmp_path / "run" / "live"

    yield publish
    for page in pages:
        page.close()


def test_each_file_with_records_is_a_stretch_and_the_last_is_known_as_such(store):
    splits = splits_of(store)
    files = sorted((store / "commitlog").iterdir())
    assert not any(files.pop().read_bytes()), "the broker had made it ready"
    assert [split.path for split in splits] == [str(file) for file in files]
    assert [split.begin for split in splits] == [int(file.name) for file in files]
    assert [split.is_last for split in splits] == [False] * (len(files) - 1) + [True]
    assert pickle.loads(pickle.dumps(splits)) == splits


def test_partitions_are_small_and_even_and_follow_one_another(tmp_path):
    with opened(tmp_path / "store", Clock(), mapped_file_size_commit_log=300_000) as store:
        for number in range(2_000):
            store.appender.put(Message(f"T{number % 3}", number % 2, bytes(100 + number % 400)))
    whole = splits_of(tmp_path / "store")
    splits = splits_of(tmp_path / "store", partition_bytes=40_000)
    assert (len(whole), len(splits) > 15) == (3, True)
    assert all(before.end == split.begin for before, split in zip(splits, splits[1:], strict=False))
    assert (splits[0].begin, splits[-1].end) == (whole[0].begin, whole[-1].end)
    lengths = [split.end - split.begin for split in splits]
    within = [
        length
        for split, length in zip(splits, lengths, strict=True)
        if split.end < split.file_end and not split.is_last
    ]
    assert 38_000 < min(within) and max(within) < 42_000
    assert max(lengths[:-1]) < 62_000, "the last of a file is what is left, at most half a partition more"
    assert max(len(pickle.dumps(split)) for split in splits) < 1_000


def test_a_partition_size_that_makes_too_many_stretches_is_refused_with_one_that_does_not(store, monkeypatch):
    monkeypatch.setattr(splits, "MAX_STRETCHES", 1_000)
    with pytest.raises(
        MisuseError, match=r"partition_bytes is 1: .* at most 1,000 partitions; give at least \d+"
    ) as refused:
        splits_of(store, partition_bytes=1)
    least = int(str(refused.value).rsplit(" ", 1)[1])
    assert least > 1 and 1 < len(splits_of(store, partition_bytes=least)) <= 1_000
    with pytest.raises(MisuseError):
        splits_of(store, partition_bytes=least - 1)


def test_what_was_made_ready_and_never_written_is_not_read(store):
    before = splits_of(store)
    last = Path(before[-1].path)
    written = last.stat().st_size
    os.truncate(last, written + (1 << 30))
    (*others, split) = splits_of(store)
    assert (others, split.begin, split.file_end) == (
        before[:-1],
        before[-1].begin,
        before[-1].file_end + (1 << 30),
    )
    assert before[-1].end <= split.end <= split.begin + written


HOUR = 3_600_000


@pytest.fixture
def went_back(tmp_path):
    """(store, its records) of 200 messages a minute apart; the hundred and first to the last but one state
    two hours less, as if a clock had been set back."""
    clock = Clock()
    with opened(tmp_path / "store", clock, mapped_file_size_commit_log=300_000) as store:
        for _ in range(200):
            clock.advance(60_000)
            store.appender.put(Message("T", 0, bytes(2_000)))
    for one in plain.records(tmp_path / "store")[100:-1]:
        state_time(tmp_path / "store", one.log_offset, one.store_timestamp - 2 * HOUR)
    return tmp_path / "store", plain.records(tmp_path / "store")


def state_time(store: Path, log_offset: int, time_ms: int) -> None:
    base = log_offset // 300_000 * 300_000
    with open(store / "commitlog" / f"{base:020d}", "r+b") as log:
        log.seek(log_offset - base + record.FIXED_IPV4.offset["store_timestamp"])
        log.write(time_ms.to_bytes(8, "big"))


def assert_nothing_is_passed_over(store: Path, records: list) -> int:
    """For every begin and end of a time: the stretches hold all records of it. Returns the bytes of the
    smallest choice but for the last stretch, which is always read."""
    least = 1 << 62
    for begin in range(0, 200, 19):
        for length_ms in (60_000, HOUR):
            first_ms = records[begin].store_timestamp
            tests = read_options(
                {"path": "x", "from_time": str(first_ms), "to_time": str(first_ms + length_ms)}
            ).tests
            splits = splits_of(store, None, tests, 20_000)
            wanted = [one for one in records if first_ms <= one.store_timestamp < first_ms + length_ms]
            assert [
                one.log_offset
                for one in wanted
                if not any(split.begin <= one.log_offset < split.end for split in splits)
            ] == []
            least = min(least, sum(split.end - split.begin for split in splits[:-1]))
    return least


def forget_steps(store: Path) -> None:
    (store / "config" / STORE_TIMES).unlink()
    (store / "ends").unlink()


def test_no_stretch_is_passed_over_where_the_clock_went_back_and_the_start_noted_it(went_back):
    store, records = went_back
    forget_steps(store)
    with opened(store, Clock(), mapped_file_size_commit_log=300_000) as again:
        assert [step.log_offset for step in again.times.steps] == [records[100].log_offset]
    assert assert_nothing_is_passed_over(store, records) < 100_000


def test_no_stretch_is_passed_over_where_nothing_is_known_of_steps_back(went_back):
    store, records = went_back
    forget_steps(store)
    whole = sum(split.end - split.begin for split in splits_of(store, None, (), 20_000)[:-1])
    assert assert_nothing_is_passed_over(store, records) == whole


def test_what_lies_beyond_the_note_and_the_record_of_ends_is_not_passed_over(went_back):
    """Another broker wrote it: the record of ends ends where this broker's own records do."""
    store, records = went_back
    forget_steps(store)
    with opened(store, Clock(), mapped_file_size_commit_log=300_000):
        pass
    ends = EndsFile(Disk(), store / "ends")
    ends.load()
    value = json.loads((store / "config" / STORE_TIMES).read_bytes())
    place = records[60].log_offset
    (store / "config" / STORE_TIMES).write_bytes(encode_times(value["from"], place, ()))
    ends.lower(place, 0)
    assert assert_nothing_is_passed_over(store, records) < sum(
        split.end - split.begin for split in splits_of(store, None, (), 20_000)[:-1]
    )


def test_a_record_whose_time_changed_since_leaves_out_no_stretch_beside_it(went_back):
    store, records = went_back
    forget_steps(store)
    with opened(store, Clock(), mapped_file_size_commit_log=300_000):
        pass
    for cut in [split.begin for split in splits_of(store, None, (), 20_000)][4:-1:6]:
        (at,) = (one for one in records if one.log_offset == cut)
        for by in (-1000 * HOUR, 1000 * HOUR):
            state_time(store, cut, at.store_timestamp + by)
            assert_nothing_is_passed_over(store, [one for one in records if one is not at])
        state_time(store, cut, at.store_timestamp)


def test_a_topic_that_is_not_there_is_named_with_those_that_are(store):
    check_topics(store, ("Roll",), Disk())
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_text('{"topicConfigTable": {"TBW102": {}, "Roll": {}}}')
    with pytest.raises(NotFoundError, match="no topic nowhere.*Roll") as refused:
        check_topics(store, ("nowhere",), Disk())
    assert "TBW102" not in str(refused.value), "a topic without messages is no help"
    check_topics(store, ("TBW102",), Disk())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "needs a path"),
        ({"path": "x", "colums": "topic"}, "no option colums"),
        ({"path": "x", "table": "queue"}, "expected one of records"),
        ({"path": "x", "from_time": "yesterday"}, "option from_time: 'yesterday' is not a time"),
        ({"path": "x", "queue": "a"}, "queue is 'a'"),
        ({"path": "x", "from_offset": str(1 << 63)}, "expected an integer from 0 to 9223372036854775807"),
        ({"path": "x", "to_time": "9" * 17}, "is after the year 9999"),
    ],
)
def test_a_wrong_option_is_named(given, sentence):
    with pytest.raises(MisuseError, match=sentence):
        read_options(given)


def test_times_are_milliseconds_or_iso_text(tmp_path):
    for text in ("1763719200000", "2025-11-21T10:00:00Z", "2025-11-21T10:00:00", "2025-11-21T12:00:00+02:00"):
        assert read_options({"path": "x", "from_time": text}).tests == (
            ("store_time", ">=", 1_763_719_200_000_000),
        )


def test_an_empty_choice_and_the_tag_star_choose_everything():
    assert read_options({"path": "x", "tag": "", "queue": " "}).tests == ()
    assert read_options({"path": "x", "tag": "a || *"}).tests == ()
    assert read_options({"path": "x", "tag": "a||b"}).tests == (("tags", "in", ("a", "b")),)


def test_nothing_beyond_what_a_running_broker_has_dispatched_is_read(store, live):
    size = (store / "commitlog" / ("0" * 20)).stat().st_size
    splits = splits_of(store, live(size + 100))
    assert [(split.begin, split.end, split.is_last) for split in splits] == [
        (0, size, False),
        (size, size + 100, True),
    ]
    assert splits_of(store, live(0)) == []


def test_a_store_that_recovers_is_not_read(store, live):
    with pytest.raises(StoreError, match="recovered"):
        splits_of(store, live(0, "recovering"))


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no store"):
        splits_of(tmp_path)
