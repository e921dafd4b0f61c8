"""Facts are typed values, not dicts with string keys."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Annotated

import pytest

from broker_store.facts.bytes.pieces import Jump
from broker_store.facts.pointers import EntryPointer, SlotPointer, to_log
from broker_store.facts.threads import ThreadTimes
from broker_store.formats.record import StoredMessage
from broker_store.units import FactError, Moment, Small, document_of, fact_of, fields_of, small_by_field
from mqadmin.facts import condition, groups, messages, overview, topics, waiting
from tests.support.syntax import drop_trees, nodes_of  # noqa: F401  (drop_trees is a fixture)

PROJECT = Path(__file__).resolve().parent.parent
# Where no fact is given or taken as a dict.
ROOMS = (
    "broker_store/check/doctor.py",
    "broker_store/check/repair/actions.py",
    "broker_store/check/report.py",
    "broker_store/check/results.py",
    "broker_store/engine/index",
    "broker_store/engine/status/file_facts.py",
    "broker_store/engine/status/store_state.py",
    "broker_store/facts",
    "broker_store/pipeline/results.py",
    "broker_store/rest/answers.py",
    "mqadmin",
)
# What is asked for by a name that is no fact's: headers, forms, sessions, the environment, settings, schemas.
# JSON that is passed on is a `Document` of broker_store/units.py.
NAMED = {
    "GET", "POST", "META", "headers", "environ", "session", "cleaned_data", "options", "DATABASES", "fields",
    "Literal", "form", "response", "schema", "environment", "TEMPLATES[0]", "settings_dict",
    "CONTENT_SECURITY_POLICY", "ADMIN_SECURITY_POLICY",
    "operation",  # of the OpenAPI document
    "scope",  # of a request, as ASGI has it
    "gc_info",  # what the interpreter gives a callback of the garbage collector
    "offset",  # where the fields of a format start (formats/layout.py)
    "entries", "units",  # columns of NumPy arrays
}  # fmt: skip


def _files(where: str) -> list[Path]:
    path = PROJECT / where
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def dict_functions(file: Path) -> list[str]:
    """The functions of a module whose annotation says that they return a dict, or some."""
    return [
        f"{file.relative_to(PROJECT)}:{node.lineno} {node.name}"
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns).removesuffix(" | None") in ("dict", "list[dict]", "dict[str, Any]")
    ]


def string_subscripts(file: Path) -> list[str]:
    """Where a module asks for a string key, but for those of NAMED."""
    return [
        f"{file.relative_to(PROJECT)}:{node.lineno} {ast.unparse(node)}"
        for node in nodes_of(file)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value).rpartition(".")[2] not in NAMED
    ]


@pytest.mark.parametrize("where", ROOMS)
def test_a_room_gives_and_takes_no_fact_as_a_dict(where):
    assert [line for file in _files(where) for line in dict_functions(file) + string_subscripts(file)] == []


# Function -> which of its arguments is the context of a template.
RENDERING = {"render": 2, "render_to_string": 1, "draw": 2, "drawn": 2}
# `draw` of mqadmin/views/page.py hands on the one that it is given
HANDED_ON = "context() if callable(context) else context"


def untyped_contexts(file: Path) -> list[str]:
    """Where a module gives a template other names than the fields of a type."""
    contexts = [
        call.args[RENDERING[ast.unparse(call.func)]]
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and len(call.args) > RENDERING.get(ast.unparse(call.func), 9)
    ]
    return [
        f"{file.relative_to(PROJECT)}:{context.lineno} {text}"
        for context in contexts
        if not (text := ast.unparse(context)).startswith(("fields_of(", "lambda: fields_of("))
        and text != HANDED_ON
    ]


def test_templates_of_views_show_the_fields_of_types():
    """A name that a template asks for and a dict does not have draws nothing, without an error."""
    assert [line for file in _files("mqadmin/views") for line in untyped_contexts(file)] == []


def test_a_context_that_is_a_dict_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PROJECT", tmp_path)
    page = tmp_path / "page.py"
    page.write_text(
        "render(request, 'a.html', {'b': 1})\ndraw(request, 'a.html', fields_of(Page(errors={})))\n"
    )
    assert untyped_contexts(page) == ["page.py:1 {'b': 1}"]


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    by: Annotated[str | None, "who made it"]
    at_ms: Annotated[Moment | None, "null: not yet"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    from_: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    place: _Begun | _Described


def test_one_of_several_types_is_found_by_its_names_in_json():
    stretch = _Stretch(place=_Begun(from_=1 << 40))
    assert fact_of(_Stretch, document_of(stretch)) == stretch
    # REST adds the text of a time to a fact
    assert fact_of(_Stretch, {"place": {"from": "7", "from_text": "then"}}) == _Stretch(place=_Begun(from_=7))


def test_what_fits_none_of_several_types_is_refused():
    with pytest.raises(FactError, match="no type has the fields of, another"):
        fact_of(_Stretch, {"place": {"of": 1, "another": 2}})


def test_what_may_be_none_may_be_missing_whether_it_is_described_or_not():
    assert fact_of(_Described, {}) == _Described(by=None, at_ms=None)


def test_facts_are_frozen_and_have_slots():
    kinds = [
        kind
        for module in (condition, groups, messages, overview, topics, waiting)
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not StoredMessage
    ]
    assert kinds and all(kind.__dataclass_params__.frozen and "__slots__" in vars(kind) for kind in kinds)
