"""Which tests a change reaches, over a small tree and over this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import affected


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository: a test of a page that draws a template of another, a test of a helper, a conftest."""
    monkeypatch.setattr(affected, "ROOT", tmp_path)
    monkeypatch.setattr(affected, "CACHE", tmp_path / "build" / "imports.json")
    for name, text in {
        "broker_store/__init__.py": "",
        "broker_store/low.py": "VALUE = 1\n",
        "broker_store/high.py": "from . import low\n",
        "mqadmin/page.py": 'def page(): return render("noun/page.html")\n',
        "templates/noun/page.html": '{% extends "base.html" %}',
        "templates/base.html": "",
        "tests/room/conftest.py": "",
        "tests/room/test_high.py": "from broker_store.high import low\n",
        "tests/room/test_low.py": "def test(): import broker_store.low\n",
        "tests/room/test_page.py": 'PATCHED = "mqadmin.page.page"\n',
        "tests/test_wrong.py": "def (\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("broker_store/low.py", ["tests/room/test_low.py", "tests/room/test_high.py"]),
        ("broker_store/high.py", ["tests/room/test_high.py"]),
        ("templates/base.html", ["tests/room/test_page.py"]),
        ("tests/room/test_low.py", ["tests/room/test_low.py"]),
        (
            "tests/room/conftest.py",
            ["tests/room/test_high.py", "tests/room/test_low.py", "tests/room/test_page.py"],
        ),
        ("tests/test_wrong.py", ["tests/test_wrong.py"]),
        ("README.md", []),
    ],
)
def test_a_change_reaches_what_names_it_the_nearest_first(tree, changed, tests):
    for _ in range(2):  # from the files, and from what was kept of them
        assert affected.affected([changed], affected.graph(affected.names_of_all(affected.files()))) == tests


def test_a_file_that_changes_is_read_again(tree):
    affected.names_of_all(affected.files())
    (tree / "tests/room/test_page.py").write_text("import broker_store.low, broker_store.low\n")
    reached = affected.affected(
        ["broker_store/low.py"], affected.graph(affected.names_of_all(affected.files()))
    )
    assert "tests/room/test_page.py" in reached


def test_files_come_from_the_watcher_or_the_command(tree, monkeypatch):
    monkeypatch.setenv(
        "WATCHFILES_CHANGES", f'[["modified", "{tree}/broker_store/low.py"], ["added", "/x.py"]]'
    )
    assert affected.changed_files([]) == ["broker_store/low.py"]
    assert affected.changed_files([str(tree / "mqadmin/page.py")]) == ["mqadmin/page.py"]


def test_each_test_of_this_repository_that_imports_a_module_is_reached_by_it():
    named_by = affected.graph(affected.names_of_all(Path(name) for name in affected.files()))
    reached = affected.affected(["broker_store/formats/record.py"], named_by)
    assert "tests/formats/test_record.py" in reached[:40] and "tests/kernels/test_append.py" in reached
