"""A command whose failure is one sentence on standard error, without the name of a class, and an exit code."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError


class PlainCommand(BaseCommand):
    """As Django's; a caller in Python (`call_command`) and `--traceback` still get the CommandError."""

    def execute(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().execute(*arguments, **options)
        except CommandError as error:
            if not self._called_from_command_line or options.get("traceback"):
                raise
            self.stderr.write(str(error))
            sys.exit(error.returncode)
