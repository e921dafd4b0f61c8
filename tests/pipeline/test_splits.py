"""Which stretches of a log are read: its files, up to where a running broker has dispatched."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from broker_store.engine.disk import Disk
from broker_store.engine.live_page import LivePage
from broker_store.errors import MisuseError, NotFoundError, StoreError
from broker_store.messages import Message
from broker_store.pipeline.options import read_options
from broker_store.pipeline.splits import check_topics, splits_of
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
            store.put(Message(f"T{number % 3}", number % 2, bytes(100 + number % 400)))
    whole = splits_of(tmp_path / "store")
    splits = splits_of(tmp_path / "store", partition_bytes=40_000)
    assert (len(whole), len(splits) > 15) == (3, True)
    assert all(before.end == split.begin for before, split in zip(splits, splits[1:], strict=False))
    assert (splits[0].begin, splits[-1].end) == (whole[0].begin, whole[-1].end)
    lengths = [split.end - split.begin for split in splits]
    within = [length for split, length in zip(splits, lengths, strict=True) if split.end < split.file_end and not split.is_last]
    assert 38_000 < min(within) and max(within) < 42_000
    assert max(lengths[:-1]) < 62_000, "the last of a file is what is left, at most half a partition more"
    assert max(len(pickle.dumps(split)) for split in splits) < 1_000


def test_a_partition_size_that_makes_too_many_stretches_is_refused_with_one_that_does_not(store):
    with pytest.raises(MisuseError, match=r"partition_bytes is 1: .* at most 100,000 partitions; give at least \d+") as refused:
        splits_of(store, partition_bytes=1)
    least = int(str(refused.value).rsplit(" ", 1)[1])
    assert least > 1 and 1 < len(splits_of(store, partition_bytes=least)) <= 100_000
    with pytest.raises(MisuseError):
        splits_of(store, partition_bytes=least - 1)


def test_what_was_made_ready_and_never_written_is_not_read(store):
    before = splits_of(store)
    last = Path(before[-1].path)
    written = last.stat().st_size
    os.truncate(last, written + (1 << 30))
    (*others, split) = splits_of(store)
    assert (others, split.begin, split.file_end) == (before[:-1], before[-1].begin, before[-1].file_end + (1 << 30))
    assert before[-1].end <= split.end <= split.begin + written


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
        ({"path": "x", "table": "queue"}, "want one of records"),
        ({"path": "x", "from_time": "yesterday"}, "option from_time: 'yesterday' is not a time"),
        ({"path": "x", "queue": "a"}, "queue is 'a'"),
        ({"path": "x", "from_offset": str(1 << 63)}, "want an integer from 0 to 9223372036854775807"),
        ({"path": "x", "to_time": "9" * 17}, "is after the year 9999"),
    ],
)
def test_a_wrong_option_is_named(given, sentence):
    with pytest.raises(MisuseError, match=sentence):
        read_options(given)


def test_times_are_milliseconds_or_iso_text(tmp_path):
    for text in ("1763719200000", "2025-11-21T10:00:00Z", "2025-11-21T10:00:00", "2025-11-21T12:00:00+02:00"):
        assert read_options({"path": "x", "from_time": text}).tests == (("store_time", ">=", 1_763_719_200_000_000),)


def test_an_empty_choice_and_the_tag_star_choose_everything():
    assert read_options({"path": "x", "tag": "", "queue": " "}).tests == ()
    assert read_options({"path": "x", "tag": "a || *"}).tests == ()
    assert read_options({"path": "x", "tag": "a||b"}).tests == (("tags", "in", ("a", "b")),)


def test_nothing_beyond_what_a_running_broker_has_dispatched_is_read(store, live):
    size = (store / "commitlog" / ("0" * 20)).stat().st_size
    splits = splits_of(store, live(size + 100))
    assert [(split.begin, split.end, split.is_last) for split in splits] == [(0, size, False), (size, size + 100, True)]
    assert splits_of(store, live(0)) == []


def test_a_store_that_recovers_is_not_read(store, live):
    with pytest.raises(StoreError, match="recovered"):
        splits_of(store, live(0, "recovering"))


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no store"):
        splits_of(tmp_path)
