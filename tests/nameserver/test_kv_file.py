"""The key-value table survives a torn file: it is taken from the copy beside it, with a note."""

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError
from broker_store.nameserver.kv_file import FILE_NAME, KeyValueFile

OLD = b'{"configTable":{"space":{"key":"old"}}}'
NEW = b'{"configTable":{"space":{"key":"new"}}}'


def kept(directory) -> KeyValueFile:
    return KeyValueFile(Disk(), directory)


def test_there_is_no_table_before_the_first_change(tmp_path):
    files = kept(tmp_path)
    assert (files.load(), files.note) == ({}, "")


def test_what_is_written_is_read_again_and_the_version_before_is_beside_it(tmp_path):
    files = kept(tmp_path)
    files.write(OLD)
    files.write(NEW)
    again = kept(tmp_path)
    assert (again.load(), again.note) == ({"space": {"key": "new"}}, "")
    assert (tmp_path / f"{FILE_NAME}.bak").read_bytes() == OLD


@pytest.mark.parametrize(
    "bad", [NEW[:20], b"", bytes(len(NEW)), b"[]", None], ids=["torn", "empty", "zeros", "another", "missing"]
)
def test_a_bad_file_is_taken_from_its_copy_with_a_note_and_never_becomes_the_copy(tmp_path, bad):
    files = kept(tmp_path)
    files.write(OLD)
    files.write(NEW)
    (tmp_path / FILE_NAME).unlink()
    if bad is not None:
        (tmp_path / FILE_NAME).write_bytes(bad)
    again = kept(tmp_path)
    assert again.load() == {"space": {"key": "old"}}
    assert "its .bak is taken" in again.note and FILE_NAME in again.note
    assert (tmp_path / FILE_NAME).read_bytes() == OLD
    if bad:
        assert (tmp_path / f"{FILE_NAME}.bad").read_bytes() == bad
    again.write(NEW)
    assert (tmp_path / f"{FILE_NAME}.bak").read_bytes() == OLD


def test_two_bad_files_stop_the_start_and_are_left_as_they_are(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"torn")
    (tmp_path / f"{FILE_NAME}.bak").write_bytes(b"")
    with pytest.raises(DamagedStoreError, match=r"no key-value table .*; and its \.bak is empty"):
        kept(tmp_path).load()
    assert (tmp_path / FILE_NAME).read_bytes() == b"torn"
