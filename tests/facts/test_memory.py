"""The memory of a process by part: parts add up, and what is in none is named."""

from __future__ import annotations

import pytest

from broker_store.facts import memory
from broker_store.facts.memory import Growing, MemoryWatch, bounds_warning
from broker_store.memory_limit import MemoryLimit

KIB = 1024
SMAPS = """\
7f0000000000-7f0000600000 rw-s 00000000 fe:00 11 {store}/consumequeue/a/0/00000000000000000000
Size:               6144 kB
Rss:                   8 kB
Anonymous:             0 kB
7f0000600000-7f0040600000 rw-s 00000000 fe:00 12 {store}/commitlog/00000000000000000000
Size:            1048576 kB
Rss:                 400 kB
Anonymous:             0 kB
7f0040600000-7f0040700000 r-xp 00000000 00:00 0
Size:               1024 kB
Rss:                 100 kB
Anonymous:           100 kB
7f0040700000-7f0040800000 r-xp 00000000 fe:00 13 /usr/lib/libc.so.6
Size:               1024 kB
Rss:                 500 kB
Anonymous:             4 kB
7f0040800000-7f0040900000 rw-p 00000000 00:00 0 [heap]
Size:               1024 kB
Rss:                 900 kB
Anonymous:           900 kB
"""


@pytest.fixture
def proc(tmp_path):
    """/proc/self of a process with 5 maps: 1,004 KiB anonymous, 904 KiB of files."""
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd" / "0").touch()
    (tmp_path / "limits").write_text(
        "Max open files            1024                 4096                 files\n"
    )
    (tmp_path / "smaps").write_text(SMAPS.format(store="/store"))
    status(tmp_path, 1004)
    return tmp_path


def status(proc, anonymous_kib: int) -> None:
    (proc / "status").write_text(
        f"VmPTE:\t 40 kB\nRssAnon:\t {anonymous_kib} kB\nRssFile:\t 904 kB\nRssShmem:\t 16 kB\n"
    )


def growing(name: str, size: int, bound: int | None = None) -> Growing:
    return Growing(name, lambda: size, memory.ESTIMATED, bound, "maxThings" if bound else None, None)


@pytest.fixture
def watch(proc):
    made = MemoryWatch("/store", [growing("queues", 300 * KIB), growing("pulls", 0, 700 * KIB)], proc=proc)
    made.start()
    yield made
    made.stop()


def of_kind(facts, kind: str) -> dict[str, int]:
    return {part.name: part.bytes for part in facts.parts if part.kind == kind}


def test_the_parts_of_each_kind_add_up_to_it_and_the_kinds_to_all(watch, proc):
    status(proc, 1504)
    facts = memory.of_process()
    for kind, total in (
        (memory.ANONYMOUS, facts.anonymous_bytes),
        (memory.FILE, facts.file_bytes),
        (memory.SHARED, facts.shared_bytes),
    ):
        assert sum(of_kind(facts, kind).values()) == total
    assert sum(part.bytes for part in facts.parts) == facts.rss_bytes == (1504 + 904 + 16) * KIB
    assert of_kind(facts, memory.ANONYMOUS) == {
        memory.AT_START: 904 * KIB,
        "queues": 300 * KIB,
        memory.CODE: 100 * KIB,
        "pulls": 0,
        memory.NOT_ASSIGNED: 200 * KIB,
    }


def test_pages_of_files_are_those_of_the_store_and_the_others(watch):
    assert of_kind(memory.of_process(), memory.FILE) == {
        "pages of the log": 400 * KIB,
        "pages of queues": 8 * KIB,
        memory.OTHER_FILES: 496 * KIB,
    }


def test_estimates_that_are_too_high_leave_less_than_nothing(watch):
    assert of_kind(memory.of_process(), memory.ANONYMOUS)[memory.NOT_ASSIGNED] == -300 * KIB


def test_maps_and_descriptors_have_their_limits(watch):
    facts = memory.of_process()
    assert (facts.maps, facts.descriptors, facts.max_descriptors) == (5, 1, 1024)
    assert facts.page_table_bytes == 40 * KIB and facts.max_maps > 0
    assert facts.bounds_bytes == (1004 + 700) * KIB


def test_a_piece_of_the_file_may_end_anywhere(watch, monkeypatch):
    whole = memory.of_process().parts
    monkeypatch.setattr(memory, "_CHUNK", 7)
    monkeypatch.setattr(memory, "_FRESH_S", -1)
    assert memory.of_process().parts == whole


def test_bounds_beyond_the_limit_are_a_warning_with_both():
    limit = MemoryLimit(512 << 20, "/sys/fs/cgroup/memory.max", is_of_group=True)
    assert bounds_warning(512 << 20, limit) is None
    warning = bounds_warning(600 << 20, limit)
    assert warning is not None and "600 MiB" in warning and "/sys/fs/cgroup/memory.max has 512" in warning


def test_without_a_broker_nothing_is_measured():
    assert memory.of_process() is None and memory.latest() is None


def test_the_loop_gets_what_was_measured_last(watch):
    assert memory.latest() is None  # a thread measures it
    facts = memory.of_process()
    assert memory.latest() is facts


def test_this_process_adds_up_too(tmp_path):
    watch = MemoryWatch(tmp_path, [])
    watch.start()
    try:
        facts = watch.facts()
    finally:
        watch.stop()
    assert sum(part.bytes for part in facts.parts) == facts.rss_bytes > 0 < facts.maps
