"""What a command is: its name, options and steps; what it prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_store.errors import MisuseError
from broker_store.tools.servers import Servers


class Line(NamedTuple):
    """A line that Apache's command prints, and the fact in it for programs; None: the line is a heading."""

    text: str
    fact: object = None


class Option(NamedTuple):
    """An option by Apache's names; without a short name it is ours. `takes_value` is false for a flag."""

    short: str
    name: str
    about: str
    is_required: bool = False
    takes_value: bool = True
    choices: tuple[str, ...] = ()


def option(short: str, name: str, about: str, *choices: str) -> Option:
    """Return an option that may be left out, with the values it may have; none: any."""
    return Option(short, name, about, choices=choices)


def needed(short: str, name: str, about: str, *choices: str) -> Option:
    """Return an option that must be given."""
    return Option(short, name, about, is_required=True, choices=choices)


def flag(short: str, name: str, about: str) -> Option:
    """Return an option without a value."""
    return Option(short, name, about, takes_value=False)


class Options:
    """The options that were given, by Apache's long names. A value that is not what is asked for raises
    MisuseError."""

    def __init__(self, given: Mapping[str, Any]):
        self._given = given

    def __contains__(self, name: str) -> bool:
        return self._given.get(name) not in (None, False)

    def text(self, name: str) -> str:
        """Return the value of an option that is required or was found to be given."""
        value = self._given[name]
        assert isinstance(value, str), name
        return value

    def get(self, name: str) -> str | None:
        return self._given.get(name)

    def number(self, name: str, default: int) -> int:
        value = self._given.get(name)
        if value is None:
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()):
            raise MisuseError(f"--{name} {value:.60}: expected a whole number")
        return int(value)

    def words(self, name: str) -> list[str]:
        """Return the words of an option, which are joined by commas; none if it was not given."""
        return [word for part in (self._given.get(name) or "").split(",") if (word := part.strip())]

    def yes(self, name: str, default: bool = False) -> bool:
        """Return whether an option has the value `true`, as Java's parseBoolean."""
        value = self._given.get(name)
        if isinstance(value, bool) or value is None:
            return bool(value) or default
        return str(value).strip().lower() == "true"


Steps = Callable[[Servers, Options], AsyncIterator[Line]]


@dataclass(frozen=True)
class Command:
    """A command of mqadmin. Of each group of `one_of` exactly one option must be given, as Apache's option
    groups ask for."""

    name: str
    about: str
    options: tuple[Option, ...]
    steps: Steps
    one_of: tuple[tuple[Option, ...], ...] = ()

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the options to a parser."""
        for each in self.options:
            _add(parser, each)
        for choices in self.one_of:
            group = parser.add_mutually_exclusive_group(required=True)
            for each in choices:
                _add(group, each)


def _add(parser: Any, each: Option) -> None:
    names = (f"-{each.short}", f"--{each.name}") if each.short else (f"--{each.name}",)
    about = each.about.replace("%", "%%")
    if each.takes_value:
        parser.add_argument(
            *names,
            dest=each.name,
            help=about,
            required=each.is_required,
            choices=each.choices or None,
            metavar=each.name.upper() if not each.choices else None,
        )
    else:
        parser.add_argument(*names, dest=each.name, help=about, action="store_true")


COMMANDS: dict[str, Command] = {}


def command(
    name: str, about: str, *options: Option, one_of: tuple[tuple[Option, ...], ...] = ()
) -> Callable[[Steps], Steps]:
    """Register the steps of a command under its name."""

    def register(steps: Steps) -> Steps:
        assert name not in COMMANDS, name
        COMMANDS[name] = Command(name, about, options, steps, one_of)
        return steps

    return register


BROKER = option("b", "brokerAddr", "address of a broker, host:port")
CLUSTER = option("c", "clusterName", "name of a cluster: each of its masters")
BROKER_OR_CLUSTER = (BROKER, CLUSTER)
