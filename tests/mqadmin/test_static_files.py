"""A checkout without collected static files: pages are answered all the same, with what they need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.template.loader import get_template

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
ASK = """
import asyncio, json, re, sys
from mqadmin.web.asgi import application
from tests.support.http_client import ask

async def main():
    page = await ask(application, "GET", "/login/")
    text = page.body.decode()
    found = {"/login/": page.status}
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
        found[address] = (await ask(application, "GET", address)).status
    style = await ask(application, "GET", re.findall(r'"(/static/[^"]+\\.css)"', text)[0])
    found["cache"] = [style.headers.get("cache-control", ""), page.headers.get("cache-control", "")]
    found["/static/none.css"] = (await ask(application, "GET", "/static/none.css")).status
    found["/static/../mqadmin/settings.py"] = (await ask(application, "GET", "/static/../mqadmin/settings.py")).status
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """What is served, as a clone has it: `staticfiles` is made later. The rest is imported from here, where
    its kernels are compiled."""
    root = tmp_path_factory.mktemp("clone") / "project"
    root.mkdir()
    for name in ("mqadmin", "templates", "static"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def run(checkout: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    environment |= {
        "BROKER_DATA_DIR": str(checkout.parent / "data"),
        "PYTHONPATH": f"{checkout}{os.pathsep}{PROJECT}",
        "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout


def test_pages_and_their_files_are_answered_without_collected_files_and_with_them(checkout):
    found = json.loads(run(checkout, "-c", ASK))
    assert (found.pop("/static/none.css"), found.pop("/static/../mqadmin/settings.py")) == (404, 404)
    style_cache, page_cache = found.pop("cache")
    assert "max-age" in style_cache and "no-store" not in style_cache and "no-store" in page_cache, (
        style_cache,
        page_cache,
    )
    assert len(found) >= 4 and set(found.values()) == {200}, found
    assert "/static/css/dashboard.css" in found
    code = (
        "import sys; sys.argv = ['manage.py', 'collectstatic', '-v', '0', '--noinput']; from "
        "django.core.management import execute_from_command_line as run; run(sys.argv)"
    )
    run(checkout, "-c", code)
    if not (checkout / "staticfiles" / "staticfiles.json").is_file():
        pytest.fail("collecting left no manifest")
    collected = json.loads(run(checkout, "-c", ASK))
    style_cache, page_cache = collected.pop("cache")
    assert (
        "max-age" in style_cache
        and "immutable" in style_cache
        and "no-store" not in style_cache
        and "no-store" in page_cache
    ), (style_cache, page_cache)
    assert {name for name, status in collected.items() if status != 200} == {
        "/static/none.css",
        "/static/../mqadmin/settings.py",
    }
    assert any(re.fullmatch(r"/static/css/dashboard\.[0-9a-f]+\.css", name) for name in collected)


def test_the_page_of_an_error_needs_nothing():
    source = get_template("500.html").template.source
    assert "{%" not in source and "{{" not in source and "<script" not in source
    assert re.findall(r"/static/[^\"]*", source) == ["/static/css/dashboard.css"], (
        "a name that is served with and without collected files"
    )
    assert "Something went wrong" in source
