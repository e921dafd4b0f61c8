"""docs/REST.md, made from the OpenAPI document of mqadmin/api:
`python -m tests.support.rest_page > docs/REST.md`."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from typing import Any

HEAD = """# REST reference

All routes of the REST interface, with their parameters, bodies and answers.
A running broker serves the same document at `/api/v1/openapi.json`, and a page to try it at `/api/v1/docs`.

64-bit numbers are strings.
`null` means that a value is not known.
An error is a [`ProblemDocument`](#problemdocument) with a code and a hint.

A request needs a token (`Authorization: Bearer TOKEN`) or the session of a browser.
Requests over the local socket `run/web.sock` need nothing else.

This page is made from `mqadmin/api` by `python -m tests.support.rest_page > docs/REST.md`.
A test checks that it is current.
"""
WIDTH = 110


def page() -> str:
    """The whole page."""
    from mqadmin.api.contract import api

    document = api.get_openapi_schema()
    by_tag: dict[str, list[tuple[str, str, dict]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append((method, path, operation))
    lines = HEAD.splitlines()
    for tag, routes in by_tag.items():
        lines += ["", f"## {tag}"]
        for method, path, operation in routes:
            lines += ["", f"### {method.upper()} {path}", "", *_route(operation)]
    lines += ["", "## Shapes", "", "The objects of bodies and answers."]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += ["", f"### `{name}`", "", *_shape(schema)]
    return "\n".join(lines) + "\n"


def _route(operation: dict) -> Iterator[str]:
    yield from _wrapped(operation.get("description") or operation["summary"])
    yield ""
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        needed = ", required" if parameter.get("required") and parameter["in"] != "path" else ""
        said = parameter.get("description") or schema.get("description") or ""
        yield from _item(f"`{parameter['name']}` ({parameter['in']}{needed}): {_type(schema)}", said)
    for body in operation.get("requestBody", {}).get("content", {}).values():
        yield from _item(f"body: {_type(body['schema'])}")
    for status, answer in operation["responses"].items():
        if answer.get("description") == "Problem":
            continue
        shapes = [_type(content.get("schema", {})) for content in answer.get("content", {}).values()]
        yield from _item(f"answer {status}: {' or '.join(shapes) or 'no body'}")


def _shape(schema: dict) -> Iterator[str]:
    if said := schema.get("description"):
        yield from _wrapped(said)
        yield ""
    if "properties" not in schema:
        yield from _item(_type(schema))
    for name, value in schema.get("properties", {}).items():
        needed = ", required" if name in schema.get("required", ()) else ""
        yield from _item(f"`{name}`: {_type(value)}{needed}", value.get("description", ""))


def _type(schema: dict[str, Any]) -> str:
    """A schema in words: `integer, 1 to 100, default 100`."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if several := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        shown = " or ".join(dict.fromkeys(_type(one) for one in several))
    elif "enum" in schema:
        shown = "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    elif "const" in schema:
        shown = f"`{schema['const']}`"
    elif schema.get("type") == "array":
        shown = f"list of {_type(schema.get('items', {}))}"
    else:
        shown = schema.get("type") or "any value"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        shown += f", {low} to {high}"
    elif low is not None or high is not None:
        shown += f", at least {low}" if low is not None else f", at most {high}"
    if "maxLength" in schema:
        shown += f", at most {schema['maxLength']} characters"
    if schema.get("default") is not None:
        shown += f", default `{schema['default']}`"
    return shown


def _item(text: str, said: str = "") -> list[str]:
    """A line of a list, wrapped."""
    return _wrapped(f"{text}. {said}" if said else text, first="- ", rest="  ")


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    text = " ".join(text.split()).replace("<", "&lt;").replace("|", "&#124;")
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.mqadmin.settings")
    import django

    django.setup()
    print(page(), end="")
