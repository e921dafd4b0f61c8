"""docs/OPERATIONS.md names commands, metrics, settings and files that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from broker_store.config.load import acting_settings
from tests.mqadmin.test_deploy_files import _names_of_metrics, options_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
BLOCKS = re.findall(r"^```\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
# Also those within sentences
SAID = re.findall(r"`(headpond [a-z][^`]*)`", PAGE)
OTHER_PROGRAMS = {"buildah", "systemctl", "useradd", "install", "python3"}
OF_DJANGO = {"changepassword", "createsuperuser"}


def words_after_the_program(line: str) -> list[str] | None:
    """Return the command and options of a line that calls the program; None for another program."""
    words = shlex.split(line)
    for program in ("/opt/headpond/bin/headpond", "headpond"):
        if program in words:
            return None if words[0] in OTHER_PROGRAMS else words[words.index(program) + 1 :]
    return None


CALLS = [words for line in [*LINES, *SAID] if (words := words_after_the_program(line))]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_each_command_exists_with_its_options(words):
    name, *rest = words
    assert name in get_commands()
    if name == "mqadmin":
        return  # its options are Apache's, and its own tests have them
    if "--help" in rest:
        command = load_command_class(get_commands()[name], name)
        with pytest.raises(SystemExit) as ended:
            command.create_parser("headpond", name).parse_args(rest)
        assert ended.value.code == 0
        return
    options_of(words)


def test_the_page_has_calls():
    names = {words[0] for words in CALLS}
    assert {
        "prepare",
        "config",
        "check_deploy",
        "backup",
        "restore",
        "store",
        "check_store",
        "token",
    } | OF_DJANGO <= names


async def test_each_metric_exists():
    named = set(re.findall(r"`(broker_[a-z_]+)`", PAGE))
    assert len(named) > 8 and named <= await _names_of_metrics()


def test_each_setting_exists_with_the_default_that_is_stated():
    known = {field.metadata["setting"].key: field.default for _, field in acting_settings()}
    named = {
        name for name in re.findall(r"`([a-z]+[A-Z]\w+)`", PAGE) if not name.endswith(("Exec", "NOFILE"))
    }
    assert named and named <= known.keys()
    for key, stated in (
        ("maxConnections", 12_000),
        ("maxPercentOfAddress", 50),
        ("maxPercentOfUser", 50),
        ("fileReservedTime", 72),
        ("diskMaxUsedSpaceRatio", 75),
        ("diskSpaceCleanForciblyRatio", 85),
        ("diskSpaceWarningLevelRatio", 90),
    ):
        assert known[key] == stated
    unit = (ROOT / "deploy" / "headpond.service").read_text()
    assert "LimitNOFILE=65536" in unit and "65,536" in PAGE


def test_each_file_and_heading_that_is_named_exists():
    for name in re.findall(r"\bdeploy/[\w./-]+\.(?:yml|yaml|json|py|service|example)\b", PAGE):
        assert (ROOT / name).is_file(), name
    headings = {
        re.sub(r"[^\w-]", "", text.lower().replace(" ", "-"))
        for text in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
    for link in re.findall(r"\]\(([\w./-]+\.md)\)", PAGE):
        assert (ROOT / "docs" / link).is_file(), link
