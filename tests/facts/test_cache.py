"""Which pages are in memory: those that the test itself has read, and no others; and where groups stand."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_store.engine.disk import disk as engine_disk
from broker_store.engine.disk import system
from broker_store.engine.disk.disk import Disk
from broker_store.facts import cache as inside
from broker_store.facts.cache import few_files, read_positions, residency
from broker_store.facts.directory import StoreDirectory
from broker_store.units import fields_of
from tests.support import plain_layout, stores

pytestmark = pytest.mark.on_disk
PAGE = 4096


def make_cold(path: Path) -> None:
    """Bring the file to the disk and out of memory; skips where the file system keeps it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    answers = Disk().pages_in_memory(path)
    if answers is None:
        pytest.skip(f"the system does not say which pages of {path} are in memory")
    if any(answer & 1 for answer in answers):
        pytest.skip(f"the file system of {path} keeps what it was told to let go; it may be one in memory")


def read_pages(path: Path, pages) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # or the neighbours would come along
        for page in pages:
            os.pread(descriptor, PAGE, page * PAGE)
    finally:
        os.close(descriptor)


@pytest.fixture
def root(tmp_path) -> Path:
    return stores.unpack("crash", tmp_path)


def test_what_was_read_is_in_memory_and_what_was_let_go_is_not(root):
    path = root / "commitlog" / f"{262_144:020d}"
    make_cold(path)
    cold = _file(root, path)
    assert (cold.resident_bytes, cold.share, cold.cells) == (0, 0.0, [0.0] * 64)
    hot = {0, 1, 17, 40, 63}
    read_pages(path, hot)
    found = _file(root, path)
    assert found.cells == [1.0 if page in hot else 0.0 for page in range(64)]
    assert (found.resident_bytes, found.share) == (len(hot) * PAGE, len(hot) / 64)


def test_pages_are_folded_into_cells_and_a_last_page_counts_with_the_bytes_it_has(root, monkeypatch):
    path = root / "commitlog" / f"{262_144:020d}"
    monkeypatch.setattr(inside, "CELLS", inside.CELLS | {"commitlog": 7})
    with open(path, "r+b") as file:
        file.truncate(10 * PAGE + 100)
    make_cold(path)
    hot = {0, 3, 4, 10}
    read_pages(path, hot)
    found = _file(root, path)
    parts = [range(cell * 11 // 7, (cell + 1) * 11 // 7) for cell in range(7)]
    assert found.cells == [round(sum(page in hot for page in part) / len(part), 4) for part in parts]
    assert (found.resident_bytes, found.size) == (3 * PAGE + 100, 10 * PAGE + 100)


def _file(root: Path, path: Path) -> dict:
    return next(
        file
        for file in residency(StoreDirectory(root)).files
        if file.name == path.name and file.kind == "commitlog"
    )


def test_every_file_is_told_of_and_the_totals_are_their_sums(root):
    picture = residency(StoreDirectory(root))
    paths = [
        path
        for kind in ("commitlog", "index", "consumequeue")
        for path in (root / kind).rglob("*")
        if path.is_file()
    ]
    assert len(picture.files) == len(paths) == picture.totals["all"].files
    for kind in ("commitlog", "index", "consumequeue"):
        files = [file for file in picture.files if file.kind == kind]
        assert picture.totals[kind].bytes == sum(
            path.stat().st_size for path in (root / kind).rglob("*") if path.is_file()
        )
        assert picture.totals[kind].resident_bytes == sum(file.resident_bytes for file in files)
    assert picture.log.wrote == plain_layout.log_of(root)[2] and picture.complete
    said = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert picture.memory.total_bytes == int(said["MemTotal"].split()[0]) << 10
    assert 0 < picture.memory.available_bytes < picture.memory.total_bytes
    few = few_files(picture, 2, "FixA")
    assert few.queue_files == sum(file.topic == "FixA" for file in picture.files) > 2
    assert [file.topic for file in few.files if file.kind == "consumequeue"] == ["FixA", "FixA"]


def test_an_answer_that_cannot_be_true_is_taken_for_none(root, monkeypatch):
    """As Linux answers who may not write a file: every page is in memory, also those that there are not."""

    libc = system.LIBC

    def mincore(address, length, answers):
        ctypes.memset(answers, 1, -(-length // PAGE))
        return 0

    answering = SimpleNamespace(mmap=libc.mmap, munmap=libc.munmap, mincore=mincore)
    for module in (system, engine_disk):
        monkeypatch.setattr(module, "LIBC", answering)
    picture = residency(StoreDirectory(root))
    assert {file.resident_bytes for file in picture.files} == {file.cells for file in picture.files} == {None}
    assert picture.totals["all"].resident_bytes is None and picture.totals["all"].bytes > 0


def test_what_is_left_out_is_said(root, monkeypatch):
    monkeypatch.setattr(inside, "MAX_QUEUE_FILES", 3)
    picture = residency(StoreDirectory(root))
    assert sum(file.kind == "consumequeue" for file in picture.files) == 3
    assert not picture.complete and "files of queues were left out" in picture.reason
    monkeypatch.setattr(inside, "MAX_GROUP_QUEUES", 1)
    assert read_positions(StoreDirectory(root), {"g": {"FixA": {0: 0, 1: 0}}}, 0)[1] is False


def test_a_group_stands_at_the_message_it_reads_next_the_furthest_behind_of_its_queues(root):
    end = plain_layout.log_of(root)[2]
    units = {queue: plain_layout.units_of(root, "FixA", queue) for queue in (0, 1)}
    offsets = {
        "behind": {"FixA": {0: len(units[0]) - 3, 1: 10}},
        "at the end": {"FixA": {0: len(units[0])}, "FixC": {7: 5}},
        "reset too far": {"FixA": {0: 1 << 40}},
        "of nothing": {"Nowhere": {0: 3}},
    }
    places, complete = read_positions(StoreDirectory(root), offsets, end)
    found = {place.group: place for place in places}
    assert complete and places[0].group == "behind" and found.keys() == offsets.keys() - {"of nothing"}
    place = units[1][10][1]
    expected = {
        "log_offset": place,
        "lag_bytes": end - place,
        "lag_messages": 3 + len(units[1]) - 10,
        "topic": "FixA",
        "queue_id": 1,
    }
    assert fields_of(found["behind"]) == {"group": "behind"} | expected
    for name in ("at the end", "reset too far"):
        assert (found[name].log_offset, found[name].lag_bytes, found[name].lag_messages) == (
            end,
            0,
            0,
        )


def test_the_offsets_of_a_store_of_apaches_are_read_from_its_file(tmp_path):
    root = stores.unpack("golden-crash", tmp_path)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Roll@readers":{0:7,1:9}}}')
    assert StoreDirectory(root).group_offsets() == {"readers": {"Roll": {0: 7, 1: 9}}}
    (root / "config" / "consumerOffset.json").unlink()
    (root / "config" / "consumerOffset.json.bak").write_text("")
    assert StoreDirectory(root).group_offsets() == {}
