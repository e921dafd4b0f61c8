"""What holds for every test: nothing is skipped in silence."""

import os

import pytest

# On a developer's machine a client or a browser may be missing; where CI is set `make deps` has fetched them, and a skip hides a failure.
SKIPS_FAIL = bool(os.environ.get("CI"))


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
