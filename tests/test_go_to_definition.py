"""A message can be followed from the socket to the kernel with an editor's "go to definition".

An untyped attribute or a bound copy of a method would end the way. jedi is the index that editors use.
"""

from __future__ import annotations

import re
from pathlib import Path

import jedi
import pytest

PROJECT = Path(__file__).resolve().parent.parent
ROOM = PROJECT / "broker_store"

# (file, text in it that ends with the name asked for, where that name is defined)
A_SENT_MESSAGE = [
    ("server/broker.py", "self.router.handle", "server/router.py"),
    ("server/router.py", "self.produce.send", "server/produce.py"),
    ("server/produce.py", "self._group.add", "server/send_group.py"),
    ("server/send_group.py", "self._store.appender.put_many", "engine/log/appender.py"),
    ("engine/log/appender.py", "\n            append_group", "kernels/append.py"),
]
A_PULL = [
    ("server/router.py", "self.consume.pull", "server/consume.py"),
    ("server/consume.py", "pull = check_pull", "server/pull_checks.py"),
    ("server/consume.py", "self._store.reads.get", "engine/read/reads.py"),
    ("engine/read/reads.py", "= read_queue", "kernels/read.py"),
]
A_MESSAGE_BY_ITS_PLACE = [
    ("server/query.py", "self._store.reads.records.record_by_id", "engine/read/records.py"),
    ("server/query.py", "self._store.reads.times.time_order", "engine/read/time_search.py"),
]
A_RECOVERY = [
    ("assembly.py", "self.store.open", "engine/store.py"),
    ("engine/store.py", "opening.run", "engine/start/opening.py"),
    ("engine/start/opening.py", "recovery.run", "engine/start/recovery.py"),
    ("engine/start/recovery.py", " = scan_log", "engine/start/log_scan.py"),
    ("engine/start/log_scan.py", "stopped = scan", "kernels/scan.py"),
]
A_PAGE_OF_THE_DASHBOARD = [
    ("../mqadmin/views/topics/page.py", "cluster.topics.page", "../mqadmin/cluster/protocol.py"),
    ("../mqadmin/views/messages/page.py", "cluster.search.by_key", "../mqadmin/cluster/protocol.py"),
    (
        "../mqadmin/cluster/embedded/topics.py",
        "listings.topic_names",
        "../mqadmin/cluster/embedded/listings.py",
    ),
    ("../mqadmin/cluster/embedded/search.py", "store.reads.get_blocking", "engine/read/reads.py"),
]


@pytest.fixture(scope="module")
def index() -> dict:
    """What each jedi.Script takes: this project, in this process (another environment starts one)."""
    return {
        "project": jedi.Project(PROJECT, smart_sys_path=False),
        "environment": jedi.InterpreterEnvironment(),
    }


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("file", "text", "defined_in"),
    [*A_SENT_MESSAGE, *A_PULL, *A_MESSAGE_BY_ITS_PLACE, *A_RECOVERY, *A_PAGE_OF_THE_DASHBOARD],
)
def test_an_editor_finds_the_definition(index, file, text, defined_in):
    path = (ROOM / file).resolve()
    code = path.read_text()
    end = code.index(text) + len(text)
    before = code[:end]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 2
    found = jedi.Script(code, path=path, **index).goto(line, column, follow_imports=True)
    assert [(name.name, name.module_path) for name in found] == [
        (re.findall(r"\w+", text)[-1], (ROOM / defined_in).resolve())
    ]
