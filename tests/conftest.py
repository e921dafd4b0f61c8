"""What holds for every test: nothing is skipped in silence."""

import os
import shutil
import tempfile

import pytest

# On a developer's machine a client or a browser may be missing; where CI is set `make deps` has fetched them, and a skip hides a failure.
SKIPS_FAIL = bool(os.environ.get("CI"))


# Above 85 per cent a broker deletes its oldest files early (diskSpaceCleanForciblyRatio), those of the tests too.
DISK_LIMIT = 0.84


def pytest_sessionstart():
    """A disk that is full for reasons of its own is told at once, not as messages that are gone."""
    directory = tempfile.gettempdir()
    _, used, free = shutil.disk_usage(directory)
    if used > DISK_LIMIT * (used + free):
        pytest.exit(f"the disk of {directory} is {used / (used + free):.0%} full: brokers delete early from 85 % on, so the tests need room", returncode=1)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if SKIPS_FAIL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {_reason(report)}"


def pytest_terminal_summary(terminalreporter):
    """Names what was skipped and why, one line a reason."""
    tests_of: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if not hasattr(report, "wasxfail"):
            tests_of.setdefault(_reason(report), []).append(report.nodeid)
    if tests_of:
        terminalreporter.section("skipped, and why")
    for reason, tests in sorted(tests_of.items()):
        shown = ", ".join(sorted({test.split("::")[0] for test in tests}))
        terminalreporter.line(f"{len(tests)} x {reason}  ({shown})")


def _reason(report) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
