"""Schemas of the REST interface that several views share, and facts as JSON. 64-bit numbers are strings; null
is unknown and never stands for 0."""

from __future__ import annotations

import dataclasses
import time
import typing
from collections.abc import Mapping
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union

from ninja import Schema
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from broker_store.formats import moment
from broker_store.rest import answers
from broker_store.rest.documents import time_text
from broker_store.units import MOMENT, SMALL, Document, fields_of, json_name, small_by_field
from mqadmin.api.field_errors import WrongField
from mqadmin.facts import groups, sends, topics
from mqadmin.jobs import facts as jobs
from mqadmin.views.sources import SOURCES
from mqadmin.web import tokens


def _whole(value: object) -> object:
    """Return the integer of a number or of a string of digits. Raises ValueError, also for `true` and 1.0."""
    if (
        isinstance(value, str)
        and len(value) < 21
        and value.removeprefix("-").isascii()
        and value.removeprefix("-").isdigit()
    ):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected an integer, as a number or as a string of digits")
    return value


Int64 = Annotated[
    int,
    BeforeValidator(_whole),
    Field(ge=-(1 << 63), le=(1 << 63) - 1),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^-?[0-9]{1,19}$", "examples": ["123"]}),
]
# For bodies only, where JSON has types: the values of a query string are always text.
Count = Annotated[int, Field(strict=True, ge=0, le=(1 << 31) - 1)]
QueueCount = Annotated[int, Field(strict=True, ge=1, le=128)]
Tries = Annotated[int, Field(strict=True, ge=-1, le=10_000)]
Flag = Annotated[bool, Field(strict=True)]
TopicName = Annotated[str, Field(min_length=1, max_length=255, description="letters, digits and % | - _")]
GroupName = Annotated[str, Field(min_length=1, max_length=255, description="letters, digits and % | - _")]
Time = Annotated[Int64, Field(description="milliseconds since 1970")]


def _moment(value: object) -> object:
    """Return milliseconds since 1970, of a number, its digits, or an ISO 8601 time. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"expected milliseconds since 1970, or a time such as {moment.EXAMPLE}")
    return moment.read(str(value))


Moment = Annotated[
    int,
    BeforeValidator(_moment),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "description": "milliseconds since 1970, or ISO 8601; a time without a zone is UTC",
            "examples": ["1763719200000", moment.EXAMPLE],
        }
    ),
]
Role = tokens.Role


class In(Schema):
    """A body of a request: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


_schemas: dict[tuple[type, bool], type[Schema]] = {}  # by the type of facts, and whether it is timed


class Measured(Schema):
    at_ms: Time
    source: str = Field(description="where these numbers come from")


def schema_of(
    fact: type,
    *,
    given: Mapping[str, Any] = MappingProxyType({}),
    is_described: bool = False,
    timed: bool = False,
) -> type[Schema]:
    """Return the schema of a type of facts, made once, with the schemas of the facts in its fields.

    `given` has the types of fields whose type in REST differs from that of the fact. `is_described`
    takes the description from the docstring. `timed` is for what `facts` returns with `timed`.
    """
    if (fact, timed) not in _schemas:
        doc = fact.__doc__ if is_described else None
        made = _made(f"{'Timed' * timed}{fact.__name__}", fact, Schema, doc, given, timed)
        _schemas[fact, timed] = made
    return _schemas[fact, timed]


def measured_schema_of(fact: type, *, timed: bool = False) -> type[Schema]:
    """Return the schema of what `measured_facts` returns for a type of facts."""
    return _made(f"Measured{fact.__name__}", fact, Measured, None, {}, timed)


def unchecked(schema: Any) -> Any:
    """Return the type of an answer that has this schema and is not checked against it.

    It is for large values that `facts` has made: Ninja would check each of them, on the broker's loop for an
    async route.
    """
    return Annotated[Any, _Unchecked(schema)]


class _Unchecked:
    """A value that is not checked, and that the contract describes by a schema."""

    def __init__(self, schema: Any):
        # Inside another definition a schema is named and referred to, as the schema of a field is
        self._described = core_schema.definitions_schema(TypeAdapter(schema).core_schema, [])

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self._described)


def _made(
    name: str,
    fact: type,
    base: type[Schema],
    doc: str | None,
    given: Mapping[str, Any],
    timed: bool,
) -> type[Schema]:
    hints = typing.get_type_hints(fact, include_extras=True)
    fields = dataclasses.fields(fact)
    members: dict[str, Any] = {
        json_name(field.name): (
            given.get(field.name) or _value_of(hints[field.name], timed),
            _default_of(field),
        )
        for field in fields
    }
    if timed:
        members |= {
            moment_name: (_TimeText, None)
            for field in fields
            if (moment_name := field.name.removesuffix("_ms")) not in members
            and _is_moment(hints[field.name])
        }
    return create_model(name, __base__=base, __module__=__name__, __doc__=doc, **members)


_TimeText = Annotated[str | None, Field(description="the same as ISO 8601; absent where it is unknown")]


def _is_moment(hint: Any) -> bool:
    return MOMENT in getattr(hint, "__metadata__", ()) or any(map(_is_moment, typing.get_args(hint)))


def _default_of(field: dataclasses.Field) -> Any:
    """Return the default of a field; `...` (none) for a field that holds a fact, which REST always gives."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING or dataclasses.is_dataclass(field.default):
        return ...
    return field.default


def _value_of(hint: Any, timed: bool = False) -> Any:
    """Return the type that a schema's field has for the type of a field of facts."""
    if hint is int:
        return Int64
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return schema_of(hint, timed=timed)
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        value, *notes = parts
        value = int if SMALL in notes else _value_of(value, timed)
        text = next((note for note in notes if isinstance(note, str)), None)
        return value if text is None else Annotated[value, Field(description=text)]
    if kind in (Union, UnionType):
        return Union[tuple(_value_of(part, timed) for part in parts)]  # noqa: UP007 - of parts that are known only here
    if kind in (list, dict, tuple):
        return kind[tuple(part if part is ... else _value_of(part, timed) for part in parts)]
    return hint


class ProblemDocument(Schema):
    """An error (RFC 9457), as application/problem+json."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="for programs; its meaning does not change")
    hint: str = Field(description="what to do")
    errors: list[schema_of(WrongField)] | None = None  # type: ignore[valid-type]  # made from a type


Refused = schema_of(sends.Refused)
_schemas[answers.Reason, False] = ProblemDocument  # commands read two fields of it

Topic = schema_of(topics.Topic)
Queue = schema_of(topics.Queue)
Reader = schema_of(topics.Reader)
TopicDetail = schema_of(topics.TopicDetail)


class Page(Schema):
    next: str | None = Field(description="cursor of the rest, null at the end")
    total: int


class Topics(Page):
    items: list[Topic]  # type: ignore[valid-type]  # made from a type


class Queues(Page):
    items: list[Queue]  # type: ignore[valid-type]  # made from a type


class Readers(Page):
    items: list[Reader]  # type: ignore[valid-type]  # made from a type


# MIXED needs the setting enableMixedMessageType
MessageTypeName = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]


class NewTopic(In):
    name: TopicName
    read_queues: QueueCount = 8
    write_queues: QueueCount = 8
    perm: Literal[2, 4, 6] = 6
    order: Flag = False
    message_type: MessageTypeName = "NORMAL"


class TopicChange(In):
    read_queues: QueueCount | None = None
    write_queues: QueueCount | None = None
    perm: Literal[2, 4, 6] | None = None
    order: Flag | None = None
    message_type: MessageTypeName | None = None


Group = schema_of(groups.Group)
schema_of(groups.Retrying, is_described=True)
GroupDetail = schema_of(groups.GroupDetail)


class Groups(Page):
    items: list[Group]  # type: ignore[valid-type]  # made from a type


class NewGroup(In):
    name: GroupName
    consume_enable: Flag = True
    broadcast: Flag = True
    orderly: Flag = False
    retry_queues: QueueCount = 1
    retry_max_times: Tries = 16


class GroupChange(In):
    consume_enable: Flag | None = None
    broadcast: Flag | None = None
    orderly: Flag | None = None
    retry_queues: QueueCount | None = None
    retry_max_times: Tries | None = None


class OffsetReset(In):
    topic: TopicName
    to: Literal["earliest", "latest", "time", "offset"]
    value: Annotated[int, Field(strict=True)] | str | None = Field(
        None,
        description="for time: milliseconds since 1970, or ISO 8601 (without a zone UTC); for offset: the "
        "queue offset",
    )
    queue_id: Count | None = Field(None, description="null: every queue of the topic")
    dry_run: Flag = Field(True, description="true: only return what would change")
    confirm: str | None = Field(None, description="the group's name, when dry_run is false")


OffsetMoves = schema_of(groups.OffsetMoves)


class NewMessage(In):
    """A message to be stored. The path of the request has its topic, the body all else."""

    body: str
    body_encoding: Literal["utf-8", "base64"] = "utf-8"
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    queue_id: Count | None = Field(None, description="null: the broker chooses")
    flag: Annotated[int, Field(strict=True)] = 0


FoundMessage = schema_of(answers.FoundMessage)
Found = schema_of(answers.Found, is_described=True)


class TraceEvent(Schema):
    kind: Literal["sent", "handed", "consumed", "ended", "recalled"]
    at_ms: Time | None
    group: str = Field(description="the group of the producer or consumer that wrote it")
    took_ms: Int64 | None
    success: bool | None
    request_id: str = Field(
        description="the same for the delivery of a message to a consumer and for the consumer's report of it"
    )
    words: str = Field(description="what the group did, as the predicate of a sentence: was given it")


class Traces(Schema):
    """Traces of a message. `complete` false: more may exist, and `reason` states why the search stopped."""

    topic: str = Field(description="the topic into which clients write their traces")
    events: list[TraceEvent]
    complete: bool
    reason: str


QueueOffset = schema_of(answers.QueueOffset)


class Explain(In):
    topic: TopicName
    key: Annotated[str, Field(min_length=1, max_length=1_024)]
    from_ms: Moment | None = None
    to_ms: Moment | None = None
    limit: Annotated[int, Field(strict=True, ge=1, le=64)] = 64


class DryRun(In):
    accept_damage: Flag = False  # as a start with --accept-damage


Job = schema_of(jobs.Job)


class Jobs(Page):
    items: list[Job]  # type: ignore[valid-type]  # made from a type


MIN_MOMENT_MS = 100_000_000_000  # a moment in 1973; no duration here is longer than three years
SMALL_NUMBERS = frozenset({"queue_id", "queues", "slots", "slots_used"})  # in counts and results of jobs
# Numbers whose names are not declared in a type
Counts = Annotated[
    dict[str, Int64 | int],
    Field(description=f"a number for the names {', '.join(sorted(SMALL_NUMBERS))}, a string for others"),
]


def facts(value: Any, *, timed: bool = False) -> Any:
    """Return facts for JSON: integers as strings, except those that stay below 2^31 by their type
    (`Small`) or, in dicts, by their name (SMALL_NUMBERS).

    `timed` adds an ISO time for each moment: `from` for `from_ms`. Lengths of time, which are small, have
    none.
    """
    return _facts(value, False, timed)


def measured_facts(view: str, value: Any, *, timed: bool = False) -> Document:
    """Return facts for JSON, with the time of measurement (now, unless they have one) and their source."""
    head = {"at_ms": str(time.time_ns() // 1_000_000), "source": SOURCES[view]}
    return head | facts(value, timed=timed)


def _facts(value: Any, is_small: bool, timed: bool) -> Any:
    if isinstance(value, dict):
        found = {str(key): _facts(item, str(key) in SMALL_NUMBERS, timed) for key, item in value.items()}
        return found | _times(value) if timed else found
    if dataclasses.is_dataclass(value):
        small = small_by_field(type(value))  # type: ignore[arg-type]  # mypy sees the hash of an object of it
        found = {json_name(name): _facts(getattr(value, name), small[name], timed) for name in small}
        return found | _times(fields_of(value)) if timed else found
    if isinstance(value, list | tuple):
        return [_facts(item, is_small, timed) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not is_small:
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value


def _times(values: dict) -> dict[str, str | None]:
    return {
        name: time_text(item)
        for key, item in values.items()
        if f"{key}".endswith("_ms")
        and (name := key.removesuffix("_ms")) not in values
        and isinstance(item, int)
        and item >= MIN_MOMENT_MS
    }


def binary(what: str) -> dict[str, object]:
    """Return the entry of the contract for an answer of bytes; `what` describes it."""
    return {"responses": {200: {"description": what, "content": {"application/octet-stream": {}}}}}
