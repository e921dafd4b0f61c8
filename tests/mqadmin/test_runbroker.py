"""What `runbroker` says of its data directory before it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from mqadmin.management.commands import runbroker
from mqadmin.web.failures import wrong_database_file

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_bytes(b""), os.mkfifo, lambda path: path.symlink_to("nowhere")],
    ids=["file", "FIFO", "link"],
)
def test_records_that_cannot_be_read_do_not_keep_a_new_database_from_being_made(tmp_path, make):
    """With the tables made already the start went on, and without it was refused."""
    assert not runbroker._has_run(tmp_path)
    make(tmp_path / "recoveries")
    assert not runbroker._has_run(tmp_path)
    (tmp_path / "recoveries").unlink()
    (tmp_path / "recoveries").mkdir()
    (tmp_path / "recoveries" / "recovery-1.json").write_text("{}")
    assert runbroker._has_run(tmp_path)


def test_what_a_start_says_names_the_commands_as_it_was_called(monkeypatch):
    """The sentence about damage named a file that an installed copy does not have."""
    said = StringIO()
    command = runbroker.Command(stderr=said)
    command._complain("all of it: `manage.py check_store DIR`")
    monkeypatch.setattr(sys, "argv", ["/opt/headpond/bin/headpond", "runbroker"])
    command._complain("all of it: `manage.py check_store DIR`")
    assert said.getvalue().splitlines() == [
        "all of it: `manage.py check_store DIR`",
        "all of it: `headpond check_store DIR`",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "is a FIFO, no regular file"),
        (os.mkdir, "is a directory, no regular file"),
        (lambda path: path.symlink_to("made-elsewhere"), "is a link that leads nowhere"),
    ],
    ids=["FIFO", "directory", "link"],
)
def test_a_database_of_another_kind_ends_the_start_before_it_is_opened(tmp_path, make, kind):
    """A database was made where the link led, and of the others the text of SQLite named no file."""
    database = tmp_path / "mqadmin.sqlite3"
    make(database)
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "mqadmin.settings"}
    command = [
        sys.executable,
        "manage.py",
        "runbroker",
        "--data",
        str(tmp_path),
        "--no-broker",
        "--web-port",
        "0",
    ]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (
        1,
        f"runbroker: {database} {kind}: move it away and put the dashboard's database there; without "
        f"one a start of the broker creates an empty one\n",
    )
    assert not (tmp_path / "made-elsewhere").exists()


def test_a_database_may_be_a_link_to_a_file_or_be_missing(tmp_path):
    database = tmp_path / "mqadmin.sqlite3"
    assert wrong_database_file(str(database)) == ""
    (tmp_path / "elsewhere").write_bytes(b"")
    database.symlink_to("elsewhere")
    assert wrong_database_file(str(database)) == ""
