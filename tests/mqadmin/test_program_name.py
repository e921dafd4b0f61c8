"""Messages name the commands as the user calls them: an installed copy has no manage.py."""

import logging
import sys

import pytest
from django.conf import settings

from mqadmin.process.program_name import LogLines, with_program

ADVICE = "`manage.py check_store DIR` reports all damage"


@pytest.fixture(params=[("manage.py", "manage.py"), ("/opt/headpond/bin/headpond", "headpond")])
def called(request, monkeypatch):
    monkeypatch.setattr(sys, "argv", [request.param[0], "runbroker"])
    return request.param[1]


def test_messages_have_the_name_by_which_the_program_was_called(called):
    assert with_program(ADVICE) == f"`{called} check_store DIR` reports all damage"


def test_lines_of_the_log_have_it_too(called):
    plain = settings.LOGGING["formatters"]["plain"]
    assert plain["class"].endswith(f".{LogLines.__name__}")
    record = logging.LogRecord("a.b", logging.ERROR, "file", 1, "damage: %s", (ADVICE,), None)
    assert (
        LogLines(plain["format"])
        .format(record)
        .endswith(f" ERROR   a.b: damage: `{called} check_store DIR` reports all damage")
    )
