"""docs/PYTHON.md: its programs run, and print what their comments after `print` say."""

import ast
import asyncio
import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

from tests.client.conftest import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "PYTHON.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
NEEDS_TIMERS = [program for program in PROGRAMS if "recall(" in program]  # run beside Apache's broker too


def said(program: str) -> list[str]:
    return re.findall(r"^ *print\(.*\) {2,}# (.*)$", program, re.MULTILINE)


async def run(program: str, nameservers: str) -> list[str]:
    """What a program prints that is run as `python -m asyncio` does."""
    code = compile(
        program.replace("127.0.0.1:9876", nameservers),
        str(PAGE),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, names)
        else:
            await asyncio.to_thread(exec, code, names)
    return printed.getvalue().splitlines()


@pytest.fixture
async def cluster():
    cluster = Cluster(recall_message_enable=True)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def time_flies(cluster):
    """Broker seconds pass in hundredths, so nothing waits for a delay."""

    async def pass_time():
        while True:
            await asyncio.sleep(0.01)
            cluster.advance(1_000)

    task = asyncio.create_task(pass_time())
    yield
    task.cancel()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_prints_what_the_page_says(cluster, time_flies, tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    async with asyncio.timeout(20):
        assert await run(program, cluster.nameservers) == said(program) != []


def test_there_are_programs():
    assert len(PROGRAMS) > 10 and len(NEEDS_TIMERS) == 1
