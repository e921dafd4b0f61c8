"""The base of the commands: the connection to the broker, and the output of its answers.

A command uses REST over the Unix socket of the data directory, as the user who runs it, without a token.
`--json` prints the answer for programs; without it a command prints a table. An error ends with exit code 1
and two sentences: what is wrong, and what to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from broker_store.errors import BrokerStoreError, NameError_
from broker_store.formats import moment
from broker_store.formats.names import check_group, check_topic, in_words
from broker_store.rest.problems import Problem
from broker_store.units import Document, FactError, document_of, fact_of
from mqadmin.management import hints
from mqadmin.management.plain import PlainCommand
from mqadmin.process.rest_client import NotRunningError, RestClient, RestError

UNKNOWN = "–"
MAX_CELL = 80  # characters; a topic of 255 would move the other columns off the screen
# Ends of the names of 64-bit numbers, which come as strings; other digits are text and stay as they are.
NUMBERS = (
    "offset",
    "offsets",
    "messages",
    "lag",
    "bytes",
    "size",
    "_file",
    "position",
    "lag_ms",
    "wrote",
    "flushed",
    "confirmed",
    "dispatched",
    "min",
    "base",
    "allocated",
    "before",
    "after",
    "puts",
    "gets",
    "entries",
)


def moment_option(text: str) -> int:
    """Return an option's time as milliseconds since 1970."""
    try:
        return moment.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


TIME_HELP = "milliseconds since 1970, or a time such as 2026-11-21T10:00:00Z; without a zone UTC"


class BrokerCommand(PlainCommand):
    """A command with verbs. `verbs` adds their parsers; the method `do_list(options)` runs the verb
    `list`."""

    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        # These options may be before or after the verb. After it they have no default, which would replace a
        # value given before the verb.
        common = CommandParser(add_help=False)
        for one, json_default, data_default in (
            (parser, False, None),
            (common, argparse.SUPPRESS, argparse.SUPPRESS),
        ):
            one.add_argument("--json", action="store_true", default=json_default, help="print JSON")
            one.add_argument(
                "--data",
                metavar="DIR",
                default=data_default,
                help=f"the broker's data directory (now {settings.DATA_DIRECTORY})",
            )
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        self.verbs(lambda name, help, **more: verbs.add_parser(name, help=help, parents=[common], **more))

    def verbs(self, add) -> None:
        """Add the verbs: `add(name, help)` returns the parser of one."""
        raise NotImplementedError

    def handle(self, *arguments: str, **options: Any) -> None:
        self.as_json = options["json"]
        self.data = Path(options["data"] or settings.DATA_DIRECTORY)
        # A store is read without a broker and its data directory
        if not self.data.is_dir() and options.get("store") is None:
            raise CommandError(
                f"there is no data directory {self.data}; a start of the broker creates it: manage.py "
                f"runbroker --data {self.data}"
            )
        try:
            for name, check in (("topic", check_topic), ("group", check_group)):
                if options.get(name) is not None:
                    check(options[name])
            self.run(options)
        except RestError as error:
            raise CommandError(
                f"{error.detail.rstrip('.')} ({error.code}). "
                f"{hints.of(error.code, error.hint, options['verb'])}"
            ) from None
        except NameError_ as error:
            raise CommandError(f"{in_words(error)}.") from None
        except (NotRunningError, BrokerStoreError) as error:
            raise CommandError(str(error)) from None
        except Problem as problem:
            raise CommandError(f"{problem} ({problem.code})") from None
        except FactError as error:
            raise CommandError(
                f"the answer is of another version ({error}): use the manage.py that started the broker"
            ) from None
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            raise CommandError("stopped", returncode=130) from None

    def broker(self) -> RestClient:
        """Return a connection to the running broker; use it with `with`."""
        return RestClient.of_data_directory(self.data)

    def run(self, options: dict[str, Any]) -> None:
        """Run the verb."""
        getattr(self, "do_" + options["verb"].replace("-", "_"))(options)

    def show(self, value: Any, text: str | None = None) -> None:
        """Print the value as JSON with --json, else the text."""
        self.stdout.write(
            json.dumps(value, ensure_ascii=False, indent=2) if self.as_json or text is None else text
        )

    def show_line(self, value: Any, text: str) -> None:
        """Print one of many values at once: a line of JSON with --json, else of text."""
        self.stdout.write(json.dumps(value, ensure_ascii=False) if self.as_json else text)
        self.stdout.flush()

    def show_table(self, items: Sequence[dict], columns: dict[str, str], *, empty: str) -> None:
        """Print a table; `columns` is {key: heading}."""
        if self.as_json:
            self.show(list(items))
        elif not items:
            self.stdout.write(empty)
        else:
            self.stdout.write(
                table(
                    list(columns.values()), ([cell(item.get(key), key) for key in columns] for item in items)
                )
            )

    def show_facts(self, facts: dict, names: Iterable[str] | None = None) -> None:
        """Print names and values, one a line."""
        if self.as_json:
            self.show(facts)
            return
        rows = flat(facts) if names is None else [(name, facts.get(name)) for name in names]
        width = max((len(name) for name, _ in rows), default=0)
        self.stdout.write("\n".join(f"{name:<{width}}  {cell(value, name)}" for name, value in rows))


def table(headings: list[str], rows: Iterable[list[str]]) -> str:
    """Return aligned columns, numbers to the right."""
    all_rows = [
        headings,
        *([text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…" for text in row] for row in rows),
    ]
    widths = [max(len(row[at]) for row in all_rows) for at in range(len(headings))]
    numeric = [all(_is_number(row[at]) for row in all_rows[1:]) for at in range(len(headings))]
    lines = (
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in all_rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _is_number(text: str) -> bool:
    return text == UNKNOWN or text.replace(",", "").replace(".", "").removeprefix("-").isdigit()


def with_integers(kind: type, document: Document) -> Document:
    """Return an answer of REST whose integers, which REST gives as strings, are integers again. So they are
    printed like those that are read from a store's files."""
    return document | document_of(fact_of(kind, document))


def cell(value: object, name: str = "") -> str:
    """Return a value as text: a dash for unknown, a local time with its zone, the items of a list."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "none"
    if (
        name.endswith("_ms")
        and not name.endswith(("duration_ms", "lag_ms", "unflushed_ms"))
        and str(value).isdigit()
        and int(str(value)) > 10**11
    ):
        return datetime.fromtimestamp(int(str(value)) / 1000).astimezone().isoformat(" ", "milliseconds")
    if (
        isinstance(value, str)
        and value.removeprefix("-").isdigit()
        and len(value) < 20
        and name.endswith(NUMBERS)
    ):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def printable(text: str) -> str:
    """Return text of a message for a terminal, without characters that control it."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def flat(value: dict, before: str = "") -> list[tuple[str, object]]:
    """Return nested facts as rows of (dotted name, value)."""
    rows: list[tuple[str, object]] = []
    for name, item in value.items():
        if isinstance(item, dict):
            rows += flat(item, f"{before}{name}.") or [(before + name, "none")]
        elif isinstance(item, list) and any(isinstance(part, dict) for part in item):
            for at, part in enumerate(item):
                rows += (
                    flat(part, f"{before}{name}.{at}.")
                    if isinstance(part, dict)
                    else [(f"{before}{name}.{at}", part)]
                )
        else:
            rows.append((before + name, item))
    return rows
