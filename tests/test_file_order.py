"""The marks of what `make test` leaves out, and `takes(seconds)`: by these the longest files are started
first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import LONG, seconds_by_file


@dataclass
class Item:
    """What the estimate needs of an item of pytest."""

    path: Path
    marks: dict[str, pytest.Mark]

    def get_closest_marker(self, name):
        return self.marks.get(name)


def of_file(name: str, *marks: pytest.MarkDecorator) -> Item:
    return Item(Path(name), {mark.name: mark.mark for mark in marks})


def test_the_stated_time_of_a_test_replaces_the_usual_one_of_its_marks():
    items = [
        of_file("kill.py", pytest.mark.client, pytest.mark.takes(100)),
        of_file("java.py", pytest.mark.slow, pytest.mark.client),
        of_file("java.py", pytest.mark.browser),
        of_file("quick.py"),
    ]
    assert seconds_by_file(items) == {
        Path("kill.py"): 100, Path("java.py"): LONG["client"] + LONG["browser"], Path("quick.py"): 0,
    }  # fmt: skip
