"""Takes the pictures of docs/: a broker of its own with the demo's life, one message followed through its
store, a crash.

    python -m tests.support.take_pictures docs/pictures

Chromium is what `make deps` installs. It takes two minutes, of which the charts need most to fill.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.brokers import OurBroker
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.ports import free_port

PROJECT = Path(__file__).resolve().parents[2]
PASSWORD = "picture-of-a-broker"
TOPIC, KEY, TEXT = "lessons", "lesson-1", "A message on its way through the store."
FILL_MS = 45_000  # until the charts of the last two minutes show something
CHECK_MS = 120_000
SETTLE_MS = 3_000  # for the first values of a page's streams
THEMES = ("light", "dark")


class Studio:
    """A broker, a demo and a browser; `shoot` makes NAME-light.png and NAME-dark.png."""

    def __init__(self, work: Path, target: Path):
        self.target, self.data = target, work / "data"
        self.environment = os.environ | {
            "BROKER_DATA_DIR": str(self.data),
            "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
            "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
        }
        web = free_port()
        self.address = f"http://127.0.0.1:{web}"
        self.broker = OurBroker(self.data, {}, ("--web-port", str(web)))
        self.demo: subprocess.Popen | None = None

    def manage(self, *arguments: str) -> str:
        line = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            line, cwd=PROJECT, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def begin(self) -> None:
        self.data.mkdir(parents=True)
        self.manage("collectstatic", "-v", "0", "--noinput")
        self.manage("migrate", "-v", "0")
        self.manage("createsuperuser", "--noinput", "--username", "admin", "--email", "admin@localhost")
        self.live()

    def live(self) -> None:
        self.broker.start()
        line = [sys.executable, "manage.py", "demo", "--data", str(self.data)]
        self.demo = subprocess.Popen(
            line, cwd=PROJECT, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def end_demo(self) -> None:
        if self.demo is not None:
            self.demo.terminate()
            self.demo.wait()
            self.demo = None

    def log_in(self, browser) -> None:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{self.address}/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_selector("#log-position")
        self.state = context.storage_state()
        context.close()

    def check(self, browser) -> None:
        """Start the doctor's check of the store, and wait for its result."""
        context = browser.new_context(storage_state=self.state)
        page = context.new_page()
        page.goto(f"{self.address}/store/doctor/")
        page.click("main form button[type=submit]")
        page.wait_for_selector("#check .notice", timeout=CHECK_MS)
        context.close()

    def shoot(
        self,
        browser,
        name: str,
        path: str,
        height: int = 900,
        wait_ms: int = SETTLE_MS,
        at: str | None = None,
    ) -> None:
        """`at` is a selector to scroll to."""
        for theme in THEMES:
            context = browser.new_context(
                viewport={"width": 1280, "height": height}, storage_state=self.state, color_scheme=theme
            )
            page = context.new_page()
            page.goto(self.address + path)
            page.wait_for_load_state("load")
            page.wait_for_timeout(wait_ms)
            page.wait_for_function(
                "() => ['', 'live'].includes((document.querySelector('[data-live]:not([hidden])') ?? "
                "{textContent: ''}).textContent)"
            )
            if at:
                page.locator(at).first.evaluate("element => element.scrollIntoView({block: 'start'})")
            page.screenshot(path=self.target / f"{name}-{theme}.png")
            context.close()


def take(target: Path) -> None:
    from playwright.sync_api import sync_playwright

    work = Path(tempfile.mkdtemp(prefix="pictures-"))
    studio = Studio(work, target)
    try:
        studio.begin()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            studio.log_in(browser)
            studio.shoot(browser, "overview", "/", 880, FILL_MS)
            sent = json.loads(
                studio.manage(
                    "message",
                    "--data",
                    str(studio.data),
                    "send",
                    TOPIC,
                    TEXT,
                    "--key",
                    KEY,
                    "--tag",
                    "first",
                    "--create",
                    "--json",
                )
            )
            place = json.loads(
                studio.manage(
                    "message",
                    "--data",
                    str(studio.data),
                    "get",
                    sent["message_id"],
                    "--topic",
                    TOPIC,
                    "--json",
                )
            )
            follow(studio, browser, place)
            browser.close()
    finally:
        studio.end_demo()
        studio.broker.stop()
        shutil.rmtree(work)


def follow(studio: Studio, browser, message: dict) -> None:
    """The pictures of docs/FOLLOW.md, in its order."""
    log, queue, number = message["log_offset"], message["queue_id"], message["queue_offset"]
    studio.shoot(browser, "store", "/store/", 960)
    studio.shoot(browser, "follow-bytes", f"/store/bytes/?kind=commitlog&offset={log}", 840)
    studio.shoot(
        browser,
        "follow-unit",
        f"/store/bytes/?kind=consumequeue&topic={TOPIC}&queue={queue}&unit={number}",
        480,
    )
    studio.shoot(browser, "follow-slots", "/store/index/", 1000)
    studio.shoot(browser, "follow-explain", f"/store/index/?topic={TOPIC}&key={KEY}", 620, at="ol.steps")
    studio.shoot(browser, "follow-journey", f"/messages/{log}/", 760, at="[data-stream=message]")
    studio.shoot(browser, "follow-race", "/store/dispatch/", 1000, FILL_MS)
    studio.shoot(browser, "follow-write", "/store/write/", 860)
    studio.shoot(browser, "follow-cache", "/store/cache/", 760)
    studio.shoot(browser, "follow-layout", "/store/layout/?topic=demo-orders", 760)
    studio.shoot(browser, "follow-disk", "/store/disk/", 860)
    studio.shoot(
        browser, "follow-timeline", "/groups/demo-reports/", 760, at="[data-stream='group.timeline']"
    )
    studio.end_demo()
    studio.broker.kill9()
    studio.live()
    studio.log_in(browser)
    studio.shoot(browser, "follow-recovery", "/store/recovery/", 960)
    studio.end_demo()
    studio.check(browser)
    studio.shoot(browser, "follow-doctor", "/store/doctor/", 620)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
