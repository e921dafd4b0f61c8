"""Facts are typed values: what is left of dicts with string keys becomes less, and comes back nowhere."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from broker_store.facts.bytes.look import Jump
from broker_store.facts.pointers import EntryPointer, SlotPointer, to_log
from broker_store.facts.threads import ThreadTimes
from broker_store.formats.record import StoredMessage
from broker_store.units import Moment, Small, document_of, fact_of, fields_of, small_by_field
from mqadmin.facts import condition, groups, messages, overview, topics, waiting

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = ("broker_store/facts", "mqadmin")
# Modules that give and take no fact as a dict.
DONE = (
    "broker_store/check/doctor.py",
    "broker_store/check/repair/actions.py",
    "broker_store/check/report.py",
    "broker_store/check/results.py",
    "broker_store/engine/index/hash_index.py",
    "broker_store/engine/status/file_facts.py",
    "broker_store/engine/status/store_facts.py",
    "broker_store/facts/body_view.py",
    "broker_store/facts/bytes",
    "broker_store/facts/deletion.py",
    "broker_store/facts/disk.py",
    "broker_store/facts/disk_scan.py",
    "broker_store/facts/explain.py",
    "broker_store/facts/growth.py",
    "broker_store/facts/journey",
    "broker_store/facts/knowing.py",
    "broker_store/facts/marks.py",
    "broker_store/facts/pointers.py",
    "broker_store/facts/recoveries.py",
    "broker_store/facts/references.py",
    "broker_store/facts/starts.py",
    "broker_store/facts/status.py",
    "broker_store/facts/timeline.py",
    "broker_store/facts/write_path.py",
    "mqadmin/cached_scans.py",
    "mqadmin/cluster/current.py",
    "mqadmin/cluster/embedded/condition.py",
    "mqadmin/cluster/embedded/dead_letters.py",
    "mqadmin/cluster/embedded/files.py",
    "mqadmin/cluster/embedded/forecasts.py",
    "mqadmin/cluster/embedded/groups.py",
    "mqadmin/cluster/embedded/host.py",
    "mqadmin/cluster/embedded/knowing.py",
    "mqadmin/cluster/embedded/listings.py",
    "mqadmin/cluster/embedded/pulls.py",
    "mqadmin/cluster/embedded/search.py",
    "mqadmin/cluster/embedded/topics.py",
    "mqadmin/cluster/embedded/write_routes.py",
    "mqadmin/facts",
    "mqadmin/jobs/cron.py",
    "mqadmin/jobs/facts.py",
    "mqadmin/jobs/left_out.py",
    "mqadmin/jobs/schedules.py",
    "mqadmin/jobs/worker.py",
    "mqadmin/store_models.py",
    "mqadmin/views/account",
    "mqadmin/views/asked.py",
    "mqadmin/views/bars.py",
    "mqadmin/views/dead_letters",
    "mqadmin/views/glossary",
    "mqadmin/views/groups",
    "mqadmin/views/jobs",
    "mqadmin/views/messages",
    "mqadmin/views/overview",
    "mqadmin/views/page.py",
    "mqadmin/views/pipeline/api.py",
    "mqadmin/views/registry.py",
    "mqadmin/views/sources.py",
    "mqadmin/views/store/bytes",
    "mqadmin/views/store/cache",
    "mqadmin/views/store/disk",
    "mqadmin/views/store/doctor/facts.py",
    "mqadmin/views/store/doctor/page.py",
    "mqadmin/views/store/doctor/stream.py",
    "mqadmin/views/store/facts.py",
    "mqadmin/views/store/index",
    "mqadmin/views/store/journey",
    "mqadmin/views/store/lab",
    "mqadmin/views/store/layout",
    "mqadmin/views/store/page.py",
    "mqadmin/views/store/recoveries",
    "mqadmin/views/store/stream.py",
    "mqadmin/views/store/threads",
    "mqadmin/views/store/verb.py",
    "mqadmin/views/store/write",
    "mqadmin/views/topics",
    "mqadmin/views/view.py",
    "mqadmin/views/waiting",
)
# What is left in ROOMS. A change that types facts lowers both.
MAX_DICT_FUNCTIONS = 63
MAX_STRING_SUBSCRIPTS = 350
# What is asked for by a name that is no fact's: headers, forms, sessions, the environment, settings, schemas.
NAMED = {
    "GET", "POST", "META", "headers", "environ", "session", "cleaned_data", "options", "DATABASES", "fields",
    "Literal", "form", "response", "schema", "environment",
}  # fmt: skip


def _files(where: str) -> list[Path]:
    path = PROJECT / where
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def dict_functions(file: Path) -> list[str]:
    """The functions of a module whose annotation says that they return a dict, or some."""
    return [
        f"{file.relative_to(PROJECT)}:{node.lineno} {node.name}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns).removesuffix(" | None") in ("dict", "list[dict]", "dict[str, Any]")
    ]


def string_subscripts(file: Path) -> list[str]:
    """Where a module asks for a string key, but for those of NAMED."""
    return [
        f"{file.relative_to(PROJECT)}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value).rpartition(".")[2] not in NAMED
    ]


@pytest.mark.parametrize("where", DONE)
def test_a_module_that_is_done_gives_and_takes_no_fact_as_a_dict(where):
    assert [line for file in _files(where) for line in dict_functions(file) + string_subscripts(file)] == []


def test_dicts_with_string_keys_become_fewer():
    files = [file for room in ROOMS for file in _files(room)]
    assert sum(len(dict_functions(file)) for file in files) <= MAX_DICT_FUNCTIONS
    assert sum(len(string_subscripts(file)) for file in files) <= MAX_STRING_SUBSCRIPTS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    name: str
    queue_id: Small | None
    sizes: list[Small]
    at_ms: Moment
    size: int


def test_a_number_is_small_where_its_annotation_says_so():
    assert small_by_field(_File) == {
        "name": False, "queue_id": True, "sizes": True, "at_ms": False, "size": False,
    }  # fmt: skip
    file = _File(name="0", queue_id=None, sizes=[], at_ms=1, size=2)
    assert fields_of(file) == dataclasses.asdict(file)


def test_a_fact_is_read_from_its_json():
    file = _File(name="0", queue_id=None, sizes=[1], at_ms=1 << 40, size=2)
    document = document_of(file)
    assert fact_of(_File, document | {"at_ms": str(1 << 40), "more": 1}) == file
    threads = ThreadTimes(lambda call: None, lambda: 0).facts()
    assert fact_of(type(threads), document_of(threads)) == threads
    for pointer in (to_log(1 << 40), SlotPointer(name="1", slot=2), EntryPointer(name="1", entry=2)):
        jump = Jump(title="there", pointer=pointer, why="")
        assert fact_of(Jump, document_of(jump)) == jump
    with pytest.raises(ValueError, match="no _File: KeyError"):
        fact_of(_File, {"name": "0"})


def test_facts_are_frozen_and_have_slots():
    kinds = [
        kind
        for module in (condition, groups, messages, overview, topics, waiting)
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not StoredMessage
    ]
    assert kinds and all(kind.__dataclass_params__.frozen and "__slots__" in vars(kind) for kind in kinds)


if __name__ == "__main__":
    for room in ROOMS:
        files = _files(room)
        print(room, sum(map(len, map(dict_functions, files))), sum(map(len, map(string_subscripts, files))))
