"""What holds for every test: nothing is skipped in silence, and no process or temporary file outlives the
run."""

import functools
import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import left_behind
from tests.support.costs import Costs

# On a developer's machine a client or a browser may be missing; where CI is set `make deps` has fetched them,
# and a skip hides a failure.
SKIPS_FAIL = bool(os.environ.get("CI"))

# Inputs of each test of Hypothesis, others in each run: `EXAMPLES=1000 make test` tries more. No deadline: the
# first call of a kernel loads or compiles it.
settings.register_profile("tests", max_examples=int(os.environ.get("EXAMPLES", "50")), deadline=None)
settings.load_profile("tests")

# Markers of what `make test` leaves out, and about how many seconds a test with it takes.
LONG = {"client": 8, "browser": 3, "slow": 3}

SIGNS_OF_LONG = ("mark.client", "mark.browser", "mark.slow", "mark.quick", "spark")

# Above 85 per cent a broker deletes its oldest files early (diskSpaceCleanForciblyRatio), those of the tests
# too.
DISK_LIMIT = 0.84


def pytest_addoption(parser):
    parser.addoption("--costs", action="store_true", help="show processor time by test and by file")
    parser.addoption("--long", action="store_true", help="collect only files that may have long tests")


@functools.cache
def may_have_long(file: Path) -> bool:
    """Return False for a file whose text names nothing that makes a test a long one: a mark of LONG, cases of
    which most are long, Spark; or a folder whose conftest marks all."""
    return "interop" in file.parts or any(sign in file.read_text() for sign in SIGNS_OF_LONG)


def pytest_ignore_collect(collection_path: Path, config) -> bool | None:
    """With --long most files are not imported, which takes each process that runs tests 10 s."""
    is_test = collection_path.is_file() and collection_path.name.startswith("test_")
    return True if config.getoption("--long") and is_test and not may_have_long(collection_path) else None


def pytest_configure(config):
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs())


def pytest_sessionstart():
    """A disk that is full for reasons of its own is reported at once, not as messages that are gone."""
    directory = tempfile.gettempdir()
    _, used, free = shutil.disk_usage(directory)
    if used > DISK_LIMIT * (used + free):
        pytest.exit(
            f"the disk of {directory} is {used / (used + free):.0%} full: brokers delete early from "
            f"85 % on, so the tests need room",
            returncode=1,
        )


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set up before and ended after all other fixtures, in each process that runs tests.

    pytest keeps the directories of the last runs' tests itself. All else gets a temporary directory of this
    run, which must be empty at its end.
    """
    tmp_path_factory.getbasetemp()  # pytest's own is chosen before ours is the temporary directory
    temporary = Path(tempfile.mkdtemp(prefix="broker-tests-"))
    mark = left_behind.mark_of_this_process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(left_behind.MARK, mark)
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", str(temporary))
        yield
    left_behind.AT_END.close()
    processes, files = left_behind.left_processes(mark), left_behind.left_files(temporary)
    shutil.rmtree(temporary, ignore_errors=True)
    assert not processes, "processes were left running and are ended now:\n" + "\n".join(map(str, processes))
    assert not files, f"files were left in the temporary directory: {', '.join(files[:20])}"


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection():
    """Set the modules and the tests apart from the garbage collector: nearly all that collecting makes stays,
    and each full collection during a test would walk it."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Mark what needs Spark and most cases of long parametrisations. Where processes share the files, put the
    longest files first, so that the processes end together.

    Tests with a database stay first, in the order that pytest-django gave them.
    """
    for item in items:
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.slow)
    for item in items:
        is_long = any(item.get_closest_marker(name) for name in LONG)
        assert not is_long or may_have_long(item.path), f"--long would leave out {item.nodeid}: SIGNS_OF_LONG"
    # Before most cases are marked: a file with many cheap cases is none of the long ones.
    seconds = seconds_by_file(items)
    mark_other_cases_slow(items)
    if not hasattr(config, "workerinput"):
        return  # one process: the order of the command, in which `make watch` has the nearest files first

    def place(item: pytest.Item) -> tuple[int, int, str]:
        if item.get_closest_marker("django_db") or "db" in item.fixturenames:
            return 0, 0, ""
        return (1, -seconds[item.path], str(item.path)) if seconds[item.path] else (2, 0, "")

    items.sort(key=place)


def seconds_by_file(items) -> Counter[Path]:
    """Estimate how long each file takes, by the marks of its tests; 0 where all are quick."""
    seconds: Counter[Path] = Counter()
    for item in items:
        takes = item.get_closest_marker("takes")
        usual = max((LONG[name] for name in LONG if item.get_closest_marker(name)), default=0)
        seconds[item.path] += takes.args[0] if takes else usual
    return seconds


def mark_other_cases_slow(items):
    """Mark as slow all cases of a test with the mark `quick(n)`, except `n` that are spread evenly over those
    that are not slow by themselves."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_test in cases.values():
        (number,) = of_test[0].get_closest_marker("quick").args
        number, last = min(number, len(of_test)), len(of_test) - 1
        kept = {round(n * last / max(number - 1, 1)) for n in range(number)}
        for place, item in enumerate(of_test):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if SKIPS_FAIL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {_reason(report)}"


def pytest_terminal_summary(terminalreporter):
    """Name what was skipped and why, a line a reason, and at the very end what failed, a line a test.

    pytest's own list (turned off by -rN) has whole messages where CI is set. The end of CI's output, which is
    all that is kept of it, was then one test's bytes.
    """
    tests_of: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if not hasattr(report, "wasxfail"):
            tests_of.setdefault(_reason(report), []).append(report.nodeid)
    if tests_of:
        terminalreporter.section("skipped, and why")
    for reason, tests in sorted(tests_of.items()):
        shown = ", ".join(sorted({test.split("::")[0] for test in tests}))
        terminalreporter.line(f"{len(tests)} x {reason}  ({shown})")
    failed = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    if failed:
        terminalreporter.section("failed")
    for report in failed:
        terminalreporter.line(f"{report.nodeid} ({report.when}): {_first_line(report)}")


def _first_line(report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).splitlines()
    return lines[0][:200] if lines else ""


def _reason(report) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
