"""What is refused is refused in one sentence, about what was asked."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import httptools
import pytest

from broker_store.errors import NameError_
from broker_store.formats import index_file
from mqadmin.management import hints
from mqadmin.management.commands.topic import Command
from mqadmin.views.query_parameters import whole
from mqadmin.web.bounded_http import _why_malformed


def test_a_failure_is_its_sentence_alone_and_exit_code_1(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "topic", "list", "--data", str(tmp_path)])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and said.strip() and "CommandError" not in said


@pytest.mark.parametrize("option", ["--queues", "--read-queues", "--write-queues"])
def test_a_number_of_queues_out_of_range_is_refused_by_the_name_of_its_option(
    option, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(Command, "broker", lambda self: nullcontext(SimpleNamespace(post=None)))
    with pytest.raises(SystemExit):
        Command().run_from_argv(["manage.py", "topic", "create", "Lat", option, "0"])
    assert capsys.readouterr().err == f"{option} 0: a topic has from 1 to 128 queues\n"


def test_the_hint_for_a_deletion_does_not_say_to_make_it():
    assert "topic create" in hints.of("topic_not_found", "", "show")
    assert hints.of("topic_not_found", "", "delete") == "manage.py topic list shows the topics that are there"


def test_the_name_of_an_index_file_is_refused_without_a_full_stop_of_its_own():
    with pytest.raises(NameError_, match="has 17 digits$"):
        index_file.check_name("x")


def test_a_number_below_the_least_is_refused_with_its_range():
    assert whole("1", None, 9, 1) == 1
    with pytest.raises(ValueError, match="not a number from 1 to 9"):
        whole("0", None, 9, 1)


def test_a_request_that_is_no_http_is_called_by_what_it_is():
    assert "TLS" in _why_malformed(
        b"\x16\x03\x01\x02", httptools.HttpParserInvalidMethodError("Invalid method encountered")
    )
    assert "CONNECT is for proxies" in _why_malformed(
        b"CONNECT localhost:80", httptools.HttpParserCallbackError("User callback error")
    )
    assert _why_malformed(b"?", httptools.HttpParserError("why")) == "why"
