"""The example of docs/PIPELINE.md, as it stands there: its messages, its table, its program, its output."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")

from broker_store.formats import properties
from broker_store.messages import Message
from tests.pipeline.conftest import LIGHT
from tests.support.hand_store import Clock, opened

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "PIPELINE.md"


def blocks() -> dict[str, str]:
    """The code of the section, by its language."""
    section = PAGE.read_text().split("## An example")[1].split("\n## ")[0]
    return dict(re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL))


def message(line: str) -> Message:
    """What `manage.py message send TOPIC BODY --tag TAG --key KEY --create` sends; a topic that is missing is
    made by the store."""
    _, command, verb, topic, body, *options = shlex.split(line)
    assert (command, verb) == ("message", "send") and json.loads(body)
    options = [word for word in options if word != "--create"]
    given = dict(zip(options[::2], options[1::2], strict=True))
    named = {"KEYS": given["--key"], **({"TAGS": given["--tag"]} if "--tag" in given else {})}
    return Message(topic, 0, body.encode(), properties.encode(named))


@pytest.mark.takes(50)
def test_the_example_prints_what_the_page_says(tmp_path):
    found = blocks()
    with opened(tmp_path / "data" / "store", Clock()) as store:
        for line in found["sh"].splitlines():
            store.appender.put(message(line))
    (tmp_path / "customers.csv").write_text(found["csv"])
    (tmp_path / "join.py").write_text(found["python"])
    (tmp_path / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in LIGHT.items())
    )
    environment = os.environ | {"PYTHONPATH": str(PAGE.parents[1]), "SPARK_CONF_DIR": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "join.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert re.sub(r"\n{2,}", "\n\n", told.stdout).strip() == found["text"].strip()
