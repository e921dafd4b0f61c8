"""The option `--costs`: what each test costs, in processor time and by the clock (make test ARGS=--costs).

On a machine that does other work the clock says little about a test; processor time stays nearly the same. A
test whose time by the clock is far above its processor time waits: for a disk, a process, a timeout.
`build/costs.tsv` has a line for each test: seconds of this process, of child processes that ended, by the
clock, and the clock's share that setup and teardown took.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import prepared

SHOWN = 30
FILE = Path("build/costs.tsv")
_SETUP, _TEARDOWN = "setup", "teardown"


def _used() -> tuple[float, float, float]:
    """Seconds that this process used, that its ended children used, and of the clock."""
    times = os.times()
    return (
        times.user + times.system,
        times.children_user + times.children_system + prepared.used_seconds,
        time.perf_counter(),
    )


class Costs:
    """Measures in each process that runs tests; the one that gets the reports writes the table."""

    def __init__(self) -> None:
        self._began = _used()
        self._of_test: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self):
        self._began = _used()
        yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self):
        """The end of a phase is the beginning of the next."""
        report = (yield).get_result()
        ended = _used()
        report.costs = [now - then for now, then in zip(ended, self._began, strict=True)]
        self._began = ended

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        own, children, clock = report.costs
        of_test = self._of_test[report.nodeid]
        of_test[0] += own
        of_test[1] += children
        of_test[2] += clock
        if report.when in (_SETUP, _TEARDOWN):
            of_test[3] += clock

    def pytest_terminal_summary(self, terminalreporter) -> None:
        FILE.parent.mkdir(exist_ok=True)
        rows = sorted(self._of_test.items(), key=lambda row: -row[1][0] - row[1][1])
        FILE.write_text(
            "".join(f"{name}\t" + "\t".join(f"{value:.3f}" for value in row) + "\n" for name, row in rows)
        )
        of_file: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        for name, row in rows:
            together = of_file[name.partition("::")[0]]
            together[:] = [one + other for one, other in zip(together, row, strict=True)]
        terminalreporter.section(f"seconds: own, of children, by the clock, of it setup ({FILE} has all)")
        files = sorted(of_file.items(), key=lambda row: -row[1][0] - row[1][1])
        for table in (files, rows):
            for name, row in table[:SHOWN]:
                terminalreporter.line("".join(f"{value:8.1f}" for value in row) + f"  {name}")
            terminalreporter.line("")
