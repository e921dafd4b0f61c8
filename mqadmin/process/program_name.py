"""The name by which this program was called: `manage.py` of a checkout, `headpond` of an installed copy.

Messages name its commands as those of a checkout; `with_program` changes them for the user of this process.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

PROGRAM = "headpond"
FROM_CHECKOUT = "manage.py"  # as messages call the program


def program() -> str:
    """Return the name by which this program was called, for messages."""
    return PROGRAM if Path(sys.argv[0]).name == PROGRAM else FROM_CHECKOUT


def with_program(text: str) -> str:
    """Return a message with the commands in it as the user of this process calls them."""
    return text.replace(f"{FROM_CHECKOUT} ", f"{program()} ")


class LogLines(logging.Formatter):
    """Lines of the log, with the commands in them as the user of this process calls them."""

    def format(self, record: logging.LogRecord) -> str:
        return with_program(super().format(record))
