"""Numbers over time: what was written is read, what was not measured stays a gap, and the room is bounded."""

from __future__ import annotations

import json
import random

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.status import samples
from broker_store.engine.status.samples import Sample, SampleFiles
from broker_store.errors import DiskFullError, StoreError
from tests.support.failing_disk import FailingDisk

MINUTE_MS = 60_000
START_MS = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "samples"


def every(name: str) -> bool:
    return True


def minutes(count: int, seed: int = 7, names: int = 5) -> list[Sample]:
    """Samples a minute apart whose names come and go."""
    chance = random.Random(seed)
    values = {f"n{number}": chance.randrange(-(1 << 62), 1 << 62) for number in range(names)}
    found = []
    for number in range(count):
        values = {
            name: value + chance.randrange(1000) for name, value in values.items() if chance.random() > 0.02
        } | {f"later{number // 20}": number}
        found.append(Sample(START_MS + number * MINUTE_MS, MINUTE_MS, values))
    return found


def test_what_was_written_is_read_by_another_and_after_a_restart(directory):
    wrote = minutes(150)
    first = SampleFiles(Disk(), directory)
    for sample in wrote[:70]:
        first.append(sample)
    again = SampleFiles(Disk(), directory)
    for sample in wrote[70:]:
        again.append(sample)
    assert SampleFiles(Disk(), directory).read(every) == wrote
    assert len(list(directory.iterdir())) == 4  # 60 and 10, then 60 and 20
    since = START_MS + 65 * MINUTE_MS
    assert again.read(lambda name: name == "n1", since) == [
        Sample(at, step, {"n1": values["n1"]} if "n1" in values else {})
        for at, step, values in wrote
        if at >= since
    ]


def test_a_torn_end_and_a_foreign_file_hide_nothing_else(directory):
    wrote = minutes(100)
    writer = SampleFiles(Disk(), directory)
    for sample in wrote:
        writer.append(sample)
    first, second = sorted(directory.iterdir())
    (directory / "notes.txt").write_text("somebody's own")
    whole = second.read_bytes()
    for cut in range(len(whole) - 60, len(whole)):
        second.write_bytes(whole[:cut])
        read = SampleFiles(Disk(), directory).read(every)
        assert read == wrote[: len(read)] and 95 <= len(read) < 100
    second.write_bytes(whole[:-10] + b"\xff" * 10)
    assert SampleFiles(Disk(), directory).read(every) == wrote[:99]
    first.write_bytes(b"")
    assert SampleFiles(Disk(), directory).read(every) == wrote[60:99]


def test_what_is_older_loses_every_second_sample_first_and_the_room_is_bounded(directory):
    most = 30_000
    writer = SampleFiles(Disk(), directory, most)
    wrote = minutes(1_500, names=40)
    for sample in wrote:
        writer.append(sample)
    assert sum(path.stat().st_size for path in directory.iterdir()) < most + samples.FILE_BYTES
    read = SampleFiles(Disk(), directory).read(every)
    known = {sample.at_ms: sample.values for sample in wrote}
    assert all(known[sample.at_ms] == sample.values for sample in read) and read[-60:] == wrote[-60:]
    ages = [(wrote[-1].at_ms - sample.at_ms, sample.step_ms) for sample in read]
    old, young = (
        [step for age, step in ages if age > 1_000 * MINUTE_MS],
        [step for age, step in ages if age < 100 * MINUTE_MS],
    )
    assert set(young) == {MINUTE_MS} and min(old, default=1 << 40) > MINUTE_MS
    assert all(later.at_ms > earlier.at_ms for earlier, later in zip(read, read[1:], strict=False))
    writer.thin(wrote[-1].at_ms + samples.MAX_AGE_MS + MINUTE_MS)
    assert len(SampleFiles(Disk(), directory).read(every)) <= 60


def test_a_disk_that_refuses_costs_a_sample_and_not_the_next(directory):
    refused = {"append"}

    def on_call(name):
        if name in refused:
            raise DiskFullError("no room")

    writer = SampleFiles(FailingDisk(on_call), directory)
    first, second = minutes(2)
    with pytest.raises(StoreError):
        writer.append(first)
    refused.clear()
    writer.append(second)
    assert writer.read(every) == [second]


def test_events_are_read_by_group_and_the_older_half_goes_when_they_are_many(directory, monkeypatch):
    monkeypatch.setattr(samples, "EVENT_BYTES", 4_000)
    files = SampleFiles(Disk(), directory)
    for number in range(200):
        files.append_events(
            [
                {"at_ms": number, "group": group, "kind": "rebalance", "clients": number}
                for group in ("a", "b")
            ]
        )
    found = files.events("a", 190)
    assert [event["at_ms"] for event in found] == list(range(190, 200)) and {
        event["group"] for event in found
    } == {"a"}
    path = directory / "events"
    assert path.stat().st_size < 4_200 and files.events("a")[0]["at_ms"] > 0
    path.write_bytes(path.read_bytes() + b'{"at_ms": 7, "gro')
    assert files.events("a")[-1] == json.loads(
        b'{"at_ms": 199, "group": "a", "kind": "rebalance", "clients": 199}'
    )
