"""A command whose failure is one sentence on standard error, without the name of a class, and an exit
code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, DataError, IntegrityError
from redis.exceptions import RedisError

from mqadmin.process.program_name import with_program


def database_failed(error: DatabaseError) -> str:
    """Return a sentence: the dashboard's database cannot be used, and what to do; or it refused a value."""
    if isinstance(error, (IntegrityError, DataError)):
        return f"the dashboard's database refuses this: {error}"
    return (
        f"the dashboard's database cannot be used: {error}. It is in the data directory: put it back "
        f"there. A start of the broker, or `manage.py migrate`, creates an empty one."
    )


def failure_of(error: Exception) -> str | None:
    """Return the sentence for an error of a command of Django or of its applications; None for any other
    error."""
    if isinstance(error, DatabaseError):
        return database_failed(error)
    if isinstance(error, EOFError):
        return (
            "the input ended before the command had its answers. Run it in a terminal, or give each as a "
            "line of standard input: a new password twice"
        )
    if isinstance(error, RedisError):
        return (
            f"Redis, which holds the jobs, cannot be used: {str(error).rstrip('.')}. It runs while the "
            f"broker runs: manage.py runbroker"
        )
    return None


def add_data_option(parser: CommandParser) -> None:
    """Add --data, for a command that reads the data directory itself."""
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        default=settings.DATA_DIRECTORY,
        help=f"the broker's data directory (now {settings.DATA_DIRECTORY})",
    )


class PlainCommand(BaseCommand):
    """Run the command as Django does. A caller in Python (`call_command`) and `--traceback` get the
    CommandError."""

    def execute(self, *arguments: Any, **options: Any) -> Any:
        try:
            try:
                return super().execute(*arguments, **options)
            except DatabaseError as error:
                raise CommandError(database_failed(error)) from error
        except CommandError as error:
            if not self._called_from_command_line or options.get("traceback"):
                raise
            self.stderr.write(with_program(str(error)))
            sys.exit(error.returncode)
