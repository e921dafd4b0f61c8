"""What `runbroker` says of its data directory before it serves."""

from __future__ import annotations

import os

import pytest

from mqadmin.management.commands import runbroker


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b""), os.mkfifo, lambda path: path.symlink_to("nowhere")], ids=["file", "FIFO", "link"])
def test_records_that_cannot_be_read_do_not_keep_a_new_database_from_being_made(tmp_path, make):
    """With the tables made already the start went on, and without it was refused."""
    assert not runbroker._has_run(tmp_path)
    make(tmp_path / "recoveries")
    assert not runbroker._has_run(tmp_path)
    (tmp_path / "recoveries").unlink()
    (tmp_path / "recoveries").mkdir()
    (tmp_path / "recoveries" / "recovery-1.json").write_text("{}")
    assert runbroker._has_run(tmp_path)
