"""In a real browser: recovery is watched while it runs, and an experiment of the crash lab from the form to
what was lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mqadmin.test_browser import browser  # noqa: F401
from tests.mqadmin.test_whole import Running

pytestmark = pytest.mark.browser
PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def page(browser):  # noqa: F811
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.complaints = []
    page.on(
        "console",
        lambda message: (
            page.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    context.close()


def log_in(page, address: str, password: str) -> None:
    page.goto(f"{address}/login/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", password)
    page.click("button[type=submit]")


def test_recovery_is_watched_while_it_runs(page, tmp_path):
    environment = os.environ | {
        "BROKER_DATA_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "tests.support.dashboard_settings",
    }
    command = [sys.executable, "-m", "tests.support.run_slow_start"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as process:
        try:
            address = process.stdout.readline().split()[1]

            def go_on() -> str:
                process.stdin.write("\n")
                process.stdin.flush()
                return process.stdout.readline().strip()

            log_in(page, address, "admin-password")
            said = go_on()
            page.goto(f"{address}/store/recovery/")
            loads = []
            page.on("load", lambda loaded: loads.append(loaded.url))
            seen = []
            while said != "DONE":
                step = said.removeprefix("WAITS ")
                page.wait_for_function(
                    "step => { const last = [...document.querySelectorAll('.timeline tbody "
                    "tr')].pop(); return last && last.cells[0].textContent.startsWith(step) && "
                    "/running/.test(last.textContent); }",
                    arg=step,
                    timeout=10_000,
                )
                if not seen or seen[-1] != step:
                    seen.append(step)
                assert len(loads) <= 1  # when the store goes from opening to recovering
                said = go_on()
            assert {
                "choose the file to scan from",
                "scan the log",
                "dispatch again",
                "sync what was repaired",
            } <= set(seen)
            page.wait_for_selector("text=between the steps", timeout=10_000)  # the start is over
            page.reload()
            assert "done" in page.inner_text("table:has(td a[href^='/store/recovery/']) .pill.good")
            assert page.complaints == []
            page.click("td a[href^='/store/recovery/']")
            page.wait_for_selector(".timeline")
            rows = page.locator(".timeline tbody tr").count()
            assert rows > 10 and page.locator(".timeline rect").count() == rows - 1
        finally:
            process.kill()


def test_an_experiment_of_the_crash_lab_from_the_form_to_what_was_lost(page, tmp_path):
    running = Running(tmp_path / "data")
    try:
        running.until(lambda: "READY" in running.said(), "it did not get ready")
        first = re.search(r"password (\S+)", running.said())[1]
        address = f"http://127.0.0.1:{running.web_port}"
        log_in(page, address, first)
        page.fill("#id_new_password1", "a-good-long-one-of-mine")
        page.fill("#id_new_password2", "a-good-long-one-of-mine")
        page.click("main button[type=submit], .login button[type=submit], button[type=submit]")
        page.goto(f"{address}/store/lab/")
        page.select_option("#point", "before-flush")
        page.select_option("#power_cut", "all")
        page.fill("#messages", "60")
        page.click("text=Kill it there")
        page.wait_for_url("**/store/lab/*-*/")
        page.wait_for_function(
            "() => /starting again: /.test(document.querySelector('#lab-progress').textContent)",
            timeout=60_000,
        )
        page.wait_for_selector(".timeline", timeout=30_000)  # the film, while it runs
        page.wait_for_selector("#lab-sentence", timeout=60_000)
        number = lambda id: int(re.match(r"[\d,]+", page.inner_text(id))[0].replace(",", ""))  # noqa: E731
        assert number("#lab-lost") > 0 and number("#lab-acknowledged") == number("#lab-there") + number(
            "#lab-lost"
        )
        assert "the store kept what it acknowledged" in page.inner_text("#lab-lost")
        assert page.complaints == []
        page.goto(f"{address}/store/recovery/")
        assert (
            page.locator("td:text-is('lab')").count() == 1
            and page.locator("td:text-is('start')").count() == 1
        )
        assert {path.name for path in (running.data / "lab").iterdir()} != set()
        assert running.stop() == 0
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running.output.close()
