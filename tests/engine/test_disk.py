"""The seam over a real file system: lengths, blocks, names, locks, and errors in words."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_store.engine.disk import disk as disk_module
from broker_store.engine.disk import system
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.inspect_disk import InspectDisk
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.disk.system import PAGE
from broker_store.errors import (
    DamagedStoreError,
    DiskFullError,
    MapLimitError,
    OtherDiskError,
    StoreError,
    StoreLockedError,
    SyncError,
)

pytestmark = pytest.mark.on_disk


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def region(disk, tmp_path):
    made = disk.create_region(tmp_path / "file", 3 * PAGE + 100)
    yield made
    made.close()


def test_a_new_region_has_its_length_but_no_blocks_until_they_are_given(disk, region):
    assert disk.size_of(region.path) == 3 * PAGE + 100
    assert disk.allocated_bytes(region.path) == 0
    region.allocate(0, PAGE)
    assert PAGE <= disk.allocated_bytes(region.path) < 3 * PAGE
    region.allocate(PAGE, 1 << 30)
    assert disk.size_of(region.path) == 3 * PAGE + 100


def test_what_is_written_is_in_the_file(disk, region):
    region.write(PAGE - 2, b"abcd")
    region.sync(PAGE - 2, 4)
    assert (region.read(PAGE - 2, 4), region.path.read_bytes()[PAGE - 2 : PAGE + 2]) == (b"abcd", b"abcd")
    with disk.open_reader(region.path) as reader:
        assert (reader.read(PAGE, 2), reader.read(3 * PAGE + 98, 10), reader.size) == (
            b"cd",
            b"\0\0",
            3 * PAGE + 100,
        )
        room = bytearray(b"x" * 4)
        assert (reader.read_into(memoryview(room), PAGE), bytes(room[:2])) == (4, b"cd")
        assert (reader.read_into(memoryview(room), 3 * PAGE + 98), bytes(room[:2])) == (2, b"\0\0")
    view = region.view(PAGE - 2, 4)
    view[0] = ord("x")
    view.release()
    assert region.read(PAGE - 2, 1) == b"x"


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (3 * PAGE + 100, 1), (0, 3 * PAGE + 101)])
def test_nothing_outside_a_region_is_touched(region, offset, length):
    with pytest.raises(IndexError):
        region.read(offset, length)
    with pytest.raises(IndexError):
        region.view(offset, length)
    if length >= 0:
        with pytest.raises(IndexError):
            region.write(offset, bytes(length))


@pytest.mark.parametrize("offset", [0, 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 99])
def test_punching_leaves_what_is_before_and_zero_after(region, offset):
    region.write(0, b"\xee" * region.size)
    region.sync(0, region.size)
    region.punch(offset)
    assert region.read(0, region.size) == b"\xee" * offset + bytes(region.size - offset)
    assert offset <= region.data_end() <= region.size


def test_populating_changes_no_byte(region):
    region.write(0, b"\xee" * region.size)
    region.populate(10, 2 * PAGE)
    assert region.read(0, region.size) == b"\xee" * region.size


def test_a_map_can_be_set_to_fault_page_by_page(region):
    region.fault_singly()
    maps = Path("/proc/self/smaps").read_text().split(f"{region.address:x}-", 1)[1]
    flags = next(line for line in maps.splitlines() if line.startswith("VmFlags:"))
    assert "rr" in flags.split()


def test_a_failed_sync_says_so(region, monkeypatch):
    monkeypatch.setattr(system.LIBC, "msync", lambda *_: -1)
    with pytest.raises(SyncError, match=r"file: sync of \[0, 5\) failed"):
        region.sync(0, 5)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EIO, StoreError),
        (errno.EMFILE, StoreError),
    ],
)
def test_errors_of_the_system_become_ours_with_the_file(disk, region, tmp_path, monkeypatch, number, kind):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    for name, call in {
        "posix_fallocate": lambda: region.allocate(0, PAGE),
        "ftruncate": lambda: disk.create_region(tmp_path / "other", PAGE),
        "mkdir": lambda: disk.make_directory(tmp_path / "new"),
        "replace": lambda: disk.rename(region.path, tmp_path / "moved"),
        "unlink": lambda: disk.unlink(region.path),
        "write": lambda: disk.write_file(tmp_path / "small", b"x"),
        "statvfs": lambda: disk.usage(tmp_path),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fails)
            with pytest.raises(StoreError, match=str(tmp_path)) as raised:
                call()
            assert type(raised.value) is kind


def test_a_disk_is_as_full_as_df_says_without_what_is_kept_back(disk, tmp_path, monkeypatch):
    found = os.statvfs_result((4096, 4096, 1000, 600, 200, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    usage = disk.usage(tmp_path)
    assert usage == (600 * 4096, 200 * 4096)
    assert usage.used_ratio == pytest.approx(400 / 600)


def test_a_directory_that_cannot_be_synced_is_a_failed_sync(disk, tmp_path):
    with pytest.raises(SyncError):
        disk.sync_directory(tmp_path / "none")


def test_replacing_leaves_the_new_bytes_the_old_beside_and_no_third(disk, tmp_path):
    path, kept = tmp_path / "a.json", tmp_path / "a.json.bak"
    for data in (b"1", b"2", b"3"):
        disk.replace_file(path, data, kept)
    assert (path.read_bytes(), kept.read_bytes(), disk.list_names(tmp_path)) == (
        b"3",
        b"2",
        ["a.json", "a.json.bak"],
    )


def test_a_replacement_is_on_the_disk_before_its_name_and_the_name_before_it_is_over(
    disk, tmp_path, monkeypatch
):
    path, kept, calls = tmp_path / "a.json", tmp_path / "a.json.bak", []
    disk.replace_file(path, b"1", kept)

    def told(name, real):
        def call(first, *more):
            opened = isinstance(first, int)
            calls.append((name, os.path.basename(os.readlink(f"/proc/self/fd/{first}") if opened else first)))
            return real(first, *more)

        return call

    for name in ("fsync", "link", "replace"):
        monkeypatch.setattr(os, name, told(name, getattr(os, name)))
    disk.replace_file(path, b"2", kept)
    assert calls == [
        ("fsync", "a.json.tmp"),
        ("link", "a.json"),
        ("replace", "a.json.tmp"),
        ("fsync", tmp_path.name),
    ]


def test_what_is_no_regular_file_is_refused(disk, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dir", "pipe"):
        with pytest.raises(DamagedStoreError, match="is no regular file"):
            disk.open_region(tmp_path / name)
        with pytest.raises(DamagedStoreError):
            disk.read_file(tmp_path / name)
    assert not disk.is_directory(tmp_path / "link")


def test_a_file_longer_than_allowed_is_not_read(disk, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(DamagedStoreError, match="is 11 bytes, at most 10"):
        disk.read_file(tmp_path / "big", 10)
    assert disk.read_file(tmp_path / "none") is None


def test_files_and_directories_are_for_their_owner_only(disk, tmp_path):
    disk.make_directory(tmp_path / "a/b")
    disk.write_file(tmp_path / "a/b/file", b"x")
    disk.create_region(tmp_path / "a/b/region", PAGE).close()
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": "0o700", "file": "0o600", "region": "0o600"}


def test_a_part_of_a_region_is_copied(disk, region, tmp_path):
    region.write(0, bytes(range(256)) * 40)
    disk.copy_range(region, 5, 9000, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (bytes(range(256)) * 40)[5:9005]


_TRY = (
    "import sys; from broker_store.engine.disk.disk import Disk; from pathlib import Path; "
    "Disk().lock(Path(sys.argv[1]))"
)


def test_one_process_and_one_store_of_it_hold_the_lock(disk, tmp_path):
    path = tmp_path / "lock"
    lock = disk.lock(path)
    with pytest.raises(StoreLockedError, match="this process"):
        disk.lock(path)
    other = subprocess.run([sys.executable, "-c", _TRY, str(path)], capture_output=True, text=True)
    assert other.returncode != 0 and "is locked by another process" in other.stderr
    lock.release()
    lock.release()
    assert subprocess.run([sys.executable, "-c", _TRY, str(path)], capture_output=True).returncode == 0
    disk.lock(path).release()


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("abort", path)], ids=["directory", "FIFO", "link"]
)
def test_what_is_no_file_is_not_written_to(tmp_path, make):
    make(path := tmp_path / "abort")
    with pytest.raises(DamagedStoreError, match=f"{path}: is no regular file. Move it out of the store."):
        Disk().write_file(path, b"1")


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("lock", path)], ids=["directory", "FIFO", "link"]
)
@pytest.mark.parametrize(
    "take",
    [lambda path: Disk().lock(path), lambda path: InspectDisk().lock(path)],
    ids=["start", "inspection"],
)
def test_what_is_no_file_in_the_place_of_the_lock_is_refused_by_its_name(tmp_path, make, take):
    path = tmp_path / "lock"
    make(path)
    with pytest.raises(StoreError, match=f"{path}: is no regular file. Move it out of the store."):
        take(path)
    assert os.path.lexists(path)


_ASK = (
    "import sys; from broker_store.engine.disk.lock import StoreLock; from pathlib import Path; "
    "print(StoreLock.is_held(Path(sys.argv[1])))"
)


def test_whether_somebody_has_the_lock_is_asked_without_taking_it(disk, tmp_path):
    path = tmp_path / "lock"

    def asked():
        other = subprocess.run(
            [sys.executable, "-c", _ASK, str(path)], capture_output=True, text=True, check=True
        )
        return StoreLock.is_held(path), other.stdout.strip()

    assert asked() == (False, "False") and not path.exists()
    lock = disk.lock(path)
    assert [asked(), asked()] == [(True, "True")] * 2
    lock.release()
    assert asked() == (False, "False")


def test_a_lock_that_was_released_is_not_taken_again(disk, tmp_path):
    """A worker may check the lock once more while the store closes; the file may be another process's by
    then."""
    lock = disk.lock(tmp_path / "lock")
    lock.release()
    (tmp_path / "lock").unlink()
    lock.require_in_place()
    assert not (tmp_path / "lock").exists()


def test_a_reader_is_closed_with_its_last_reference(disk, region):
    readers = [disk.open_reader(region.path) for _ in range(20)]
    held = len(os.listdir("/proc/self/fd"))
    readers.clear()
    assert len(os.listdir("/proc/self/fd")) == held - 20


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)], ids=["directory", "FIFO", "link"]
)
def test_what_is_no_file_is_not_moved_to_another_file_system_and_stays(disk, tmp_path, monkeypatch, make):
    def elsewhere(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    make(tmp_path / "odd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", elsewhere)
        with pytest.raises(
            StoreError,
            match=r"odd: is no regular file, and .* on another file system\. Move it out of the store by hand",
        ):
            disk.move(tmp_path / "odd", tmp_path / "other")
    assert disk.list_names(tmp_path) == ["odd"]


def test_a_file_is_moved_by_copying_it_where_a_rename_cannot_reach(disk, region, tmp_path, monkeypatch):
    def elsewhere(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    region.allocate(0, PAGE)
    region.write(5, b"data")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", elsewhere)
        with pytest.raises(OtherDiskError):
            disk.rename(region.path, tmp_path / "other")
        disk.move(region.path, tmp_path / "other")
    assert (tmp_path / "other").read_bytes().rstrip(b"\0") == bytes(5) + b"data" and not region.path.exists()
    disk.move(tmp_path / "other", tmp_path / "third")
    assert disk.list_names(tmp_path) == ["third"]


def test_a_map_that_the_system_refuses_says_what_to_raise(tmp_path, monkeypatch):
    disk = Disk()
    disk.create_region(tmp_path / "file", PAGE).close()

    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(disk_module, "mapped", refuse)
    with pytest.raises(StoreError, match="mapping failed: Cannot allocate memory$"):
        disk.open_region(tmp_path / "file")
    monkeypatch.setattr(system, "max_maps", lambda: 5_000)
    monkeypatch.setattr(system, "mapped_files", lambda: 4_570)
    with pytest.raises(
        MapLimitError,
        match=r"4,570 files are mapped, and the system allows a process 5,000 maps; raise it \(sysctl -w vm.max_map_count=20000\)",
    ):
        disk.open_region(tmp_path / "file")


@pytest.mark.parametrize("name", ["with\0nul", "n" * 300])
def test_a_name_that_no_file_can_have_is_no_directory(disk, tmp_path, name):
    assert not disk.is_directory(tmp_path / name)
