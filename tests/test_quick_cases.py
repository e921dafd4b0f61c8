"""The mark `quick(n)`: which cases of a long parametrisation stay in `make test`."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.conftest import mark_other_cases_slow


@dataclass
class Case:
    """What the marking needs of an item of pytest."""

    nodeid: str
    marks: dict[str, pytest.Mark] = field(default_factory=dict)

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, mark):
        self.marks[mark.name] = mark.mark


def quick_cases(number: int, cases: int, slow: tuple[int, ...] = ()) -> list[int]:
    """Return the numbers of the cases that stay quick, of a test with `quick(number)`."""
    items = [
        Case(f"test_x.py::test[{case}]", {"quick": pytest.mark.quick(number).mark}) for case in range(cases)
    ]
    for case in slow:
        items[case].add_marker(pytest.mark.slow)
    mark_other_cases_slow(items)
    return [case for case, item in enumerate(items) if "slow" not in item.marks]


@pytest.mark.parametrize(
    ("number", "cases", "kept"),
    [
        (4, 10, [0, 3, 6, 9]),
        (1, 3, [0]),
        (2, 2, [0, 1]),
        (5, 3, [0, 1, 2]),
        (3, 101, [0, 50, 100]),
        (2, 1, [0]),
    ],
)
def test_so_many_cases_are_kept_from_the_first_to_the_last(number, cases, kept):
    assert quick_cases(number, cases) == kept


def test_a_case_that_is_slow_by_itself_is_not_counted():
    assert quick_cases(2, 6, slow=(4, 5)) == [0, 3]


def test_tests_without_the_mark_and_other_tests_are_left_alone():
    items = [Case("a.py::test_one[1]"), Case("a.py::test_two[1]", {"quick": pytest.mark.quick(1).mark})]
    mark_other_cases_slow(items)
    assert not any("slow" in item.marks for item in items)
