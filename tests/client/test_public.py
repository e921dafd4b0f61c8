"""What the package promises to who uses it: types and words for everything public."""

import inspect
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import broker_store
from broker_store import client
from broker_store.client import blocking

ROOT = Path(__file__).resolve().parents[2]
OURS = "broker_store.client"
CLASSES = [getattr(client, name) for name in client.__all__] + [
    member
    for _, member in inspect.getmembers(blocking, inspect.isclass)
    if member.__module__ == blocking.__name__ and not member.__name__.startswith("_")
]


def public_functions() -> Iterator[tuple[str, FunctionType]]:
    """(its name, function) for all public classes; what a dataclass makes of itself is not ours."""
    for one in CLASSES:
        for name, member in vars(one).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if (
                not inspect.isfunction(function)
                or not function.__module__.startswith(OURS)
                or (name.startswith("_") and name != "__init__")
            ):
                continue
            if name != "__init__" or "__dataclass_fields__" not in vars(one):
                yield f"{one.__module__}.{one.__name__}.{name}", function


def test_every_public_function_has_types():
    untyped = []
    for name, function in public_functions():
        _, *parameters = inspect.signature(function).parameters.values()
        returns = inspect.signature(function).return_annotation
        if any(parameter.annotation is inspect.Parameter.empty for parameter in parameters) or (
            returns is inspect.Signature.empty and not name.endswith("__init__")
        ):
            untyped.append(name)
    assert untyped == []


def test_every_public_function_says_what_it_does():
    assert [
        name
        for name, function in public_functions()
        if not name.endswith("__init__") and not function.__doc__
    ] == []
    assert len(list(public_functions())) > 100


def test_every_public_class_says_what_it_is():
    assert [one.__name__ for one in CLASSES if not (one.__doc__ or "").strip()] == []


def test_type_checkers_are_told_that_there_are_types():
    assert Path(broker_store.__file__).with_name("py.typed").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["broker_store"]


def test_annotations_name_what_there_is():
    for function in (
        client.Producer.send,
        client.PushConsumer.start,
        client.TransactionProducer.begin,
        client.Producer.recall,
        client.Outgoing,
    ):
        assert typing.get_type_hints(function)
