"""`manage.py mqadmin NAME ..`: the commands of Apache's mqadmin, without Java."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from broker_store.tools.run import run
from mqadmin.management.plain import PlainCommand


class Command(PlainCommand):
    help = "The commands of Apache's mqadmin, without Java, for brokers of either kind."
    requires_system_checks = ()
    requires_migrations_checks = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand all words after the name on: the options are those of Apache's commands."""
        sys.exit(self.handle(argv[2:]))

    def handle(self, words: list[str] | tuple[str, ...] = (), *_arguments: Any, **_options: Any) -> int:
        try:
            return asyncio.run(run(words, self._print, self.stderr.write))
        except KeyboardInterrupt:
            return 130

    def _print(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
