"""The parameters of each kind of job, and their checks. A check returns the arguments of the job's function,
in a type of the kind, or raises Problem or NameError_.

The process that starts a job checks the parameters, and the worker that runs it checks them again, since they
may have been changed in Redis.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from broker_store.errors import MisuseError
from broker_store.formats import moment, names
from broker_store.lab.experiment import MAX_MESSAGES, Experiment
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.jobs import backups, dead_letters, exports, pipeline
from mqadmin.jobs.backups import BackupArguments

EXPORT_TAKES = ("topic", "begin_ms", "end_ms", "form", "limit")
RESEND_TAKES = ("group", "to", "limit")
LAB_TAKES = ("point", "flush", "power_cut", "messages", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoArguments:
    """The arguments of a job that takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunArguments:
    """The arguments of the dry run of a start."""

    accept_damage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportArguments:
    """The arguments of an export of messages."""

    topic: str
    begin_ms: int | None  # stored from then on; None: from the first
    end_ms: int | None  # stored up to then; None: to the last
    form: str  # one of exports.FORMS
    limit: int  # messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendArguments:
    """The arguments of sending dead letters again."""

    group: str
    to: str  # one of dead_letters.TO
    limit: int  # messages


Arguments: TypeAlias = (
    NoArguments
    | DryRunArguments
    | ExportArguments
    | ResendArguments
    | BackupArguments
    | Experiment
    | pipeline.RunArguments
)


def keywords_of(arguments: Arguments) -> dict[str, object]:
    """Return arguments as keywords of the job's function; Redis keeps them as JSON."""
    given: dict[str, object] = fields_of(arguments)
    if isinstance(arguments, pipeline.RunArguments):
        return {name: value for name, value in given.items() if value is not None}
    return given


def check_nothing(parameters: dict[str, Any]) -> NoArguments:
    pipeline.refuse_unknown("this job", parameters, ())
    return NoArguments()


def check_dry_run(parameters: dict[str, Any]) -> DryRunArguments:
    accept = parameters.get("accept_damage", False)
    if parameters.keys() - {"accept_damage"} or not isinstance(accept, bool):
        raise Problem("invalid", "this job has one parameter, accept_damage, which is true or false")
    return DryRunArguments(accept_damage=accept)


def check_lab(parameters: dict[str, Any]) -> Experiment:
    pipeline.refuse_unknown("this job", parameters, LAB_TAKES)
    words = {name: parameters[name] for name in ("point", "flush", "power_cut") if name in parameters}
    messages = _bounded(parameters.get("messages", 200), "messages", 1, MAX_MESSAGES)
    seed = _bounded(parameters.get("seed", 1), "seed", 0, 1 << 31)
    try:
        return Experiment(**{"point": "after-copy", **words}, messages=messages, seed=seed)
    except MisuseError as error:
        raise Problem("invalid", str(error)) from None


def check_backup(parameters: dict[str, Any]) -> BackupArguments:
    pipeline.refuse_unknown("this job", parameters, backups.TAKES)
    copy = parameters.get("copy_log", False)
    if not isinstance(copy, bool) and copy not in ("true", "false"):  # as a form gives it
        raise Problem("invalid", f"copy_log is {copy!r:.30}, expected true or false")
    return BackupArguments(
        keep=_bounded(parameters.get("keep", 0), "keep", 0, backups.MAX_KEPT),
        max_mb_s=_bounded(parameters.get("max_mb_s", 0), "max_mb_s", 0, backups.MAX_MB_S),
        copy_log=copy in (True, "true"),
    )


def check_export(parameters: dict[str, Any]) -> ExportArguments:
    pipeline.refuse_unknown("this job", parameters, EXPORT_TAKES)
    form = parameters.get("form", "jsonl")
    if form not in exports.FORMS:
        raise Problem("invalid", f"form is {form!r:.30}, expected one of {', '.join(exports.FORMS)}")
    topic = parameters.get("topic")
    if not isinstance(topic, str):
        raise Problem("invalid", "topic is missing")
    return ExportArguments(
        topic=names.check_topic(topic),
        begin_ms=_time(parameters, "begin_ms"),
        end_ms=_time(parameters, "end_ms"),
        form=form,
        limit=_bounded(parameters.get("limit", exports.DEFAULT_LIMIT), "limit", 1, exports.MAX_MESSAGES),
    )


def check_resend(parameters: dict[str, Any]) -> ResendArguments:
    pipeline.refuse_unknown("this job", parameters, RESEND_TAKES)
    group, to = parameters.get("group"), parameters.get("to", "group")
    if not isinstance(group, str):
        raise Problem("invalid", "group is missing")
    if to not in dead_letters.TO:
        raise Problem("invalid", f"to is {to!r:.30}, expected one of {', '.join(dead_letters.TO)}")
    limit = _bounded(
        parameters.get("limit", dead_letters.MAX_MESSAGES), "limit", 1, dead_letters.MAX_MESSAGES
    )
    return ResendArguments(group=names.check_group(group), to=to, limit=limit)


def _time(parameters: dict[str, Any], name: str) -> int | None:
    value = parameters.get(name)
    try:
        return None if value in (None, "") else moment.read(str(value))
    except ValueError as error:
        raise Problem("invalid", f"{name}: {error}") from None


def _bounded(value: object, name: str, least: int, most: int) -> int:
    number = whole(value)
    if number is None or not least <= number <= most:
        raise Problem("invalid", f"{name} is {value!r:.30}, expected an integer from {least} to {most}")
    return number


def whole(value: object) -> int | None:
    """Return an integer, also from a string of digits, as a 64-bit number is in JSON; None for anything
    else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value) else None
