"""Logs, counts and describes failures of the store's files or the dashboard's database in a page or REST
request."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from django.db import DatabaseError, connection
from django.http import HttpRequest

from broker_store.errors import StoreError
from broker_store.repeated_log import RepeatedLog
from mqadmin.process.first_start import wrong_kind
from mqadmin.web.refusals import count_refusal

DATABASE_TITLE = "The dashboard's database does not answer"
DATABASE_ADVICE = (
    "Messages are not touched by that. Users, tokens and the audit trail are in {name} of the data "
    "directory: stop the broker, put the file back, and start it again."
)
_TABLE = "django_migrations"

_log = RepeatedLog(logging.getLogger(__name__))
_first_seen: dict[str, tuple[int, int]] = {}  # device and inode of the database's file, by path


def note_store_failure(request: HttpRequest, error: StoreError) -> None:
    """Count and log a request that failed because of a file of the store. Only the log names the file."""
    _log.write(
        logging.ERROR,
        "failed requests",
        time.monotonic(),
        "%s %s failed: %s",
        request.method,
        request.path,
        error,
    )
    count_refusal(error.cause, who=request.META.get("REMOTE_ADDR") or "local")


def note_database_failure(request: HttpRequest, error: DatabaseError) -> None:
    """Log a request that failed because of the database."""
    _log.write(
        logging.ERROR,
        "failures of the database",
        time.monotonic(),
        "%s %s failed: the database: %s",
        request.method,
        request.path,
        error,
    )


def database_sentence(error: Exception | str) -> str:
    """Return why the database does not answer, and what to do."""
    name = os.path.basename(str(connection.settings_dict["NAME"]))
    return f"{str(error).rstrip('.')[:300]}. {DATABASE_ADVICE.format(name=name)}"


def wrong_database_file(path: str | None = None) -> str:
    """Return what is in the place of the SQLite file at `path` (the dashboard's own by default) when that is
    no file, "" when it is one or is missing.

    Called before it is opened: where a link leads nowhere, SQLite creates the file that it names, outside of
    the data directory.
    """
    if path is None and connection.vendor != "sqlite":
        return ""
    path = str(path or connection.settings_dict["NAME"])
    if wrong := wrong_kind(Path(path)):
        return (
            f"{path} {wrong}: move it away and put the dashboard's database there; without one a start "
            f"of the broker creates an empty one"
        )
    return ""


def database_failure(path: str | None = None) -> str:
    """Return what is wrong with the SQLite file at `path` (the dashboard's own by default), "" when nothing
    is or the database is not SQLite. For a thread.

    Open connections go on with a file whose name was removed, and new ones create another without tables. So
    device and inode of the name are compared with those of the first call.
    """
    if path is None and connection.vendor != "sqlite":
        return ""
    path = str(path or connection.settings_dict["NAME"])
    try:
        found = os.stat(path)
        if _first_seen.setdefault(path, (found.st_dev, found.st_ino)) != (found.st_dev, found.st_ino):
            return f"{os.path.basename(path)} is another file than the one that was opened"
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=1)) as opened:
            opened.execute(f"SELECT 1 FROM {_TABLE} LIMIT 1").fetchone()
    except FileNotFoundError:
        return f"{os.path.basename(path)} was removed"
    except (OSError, sqlite3.Error) as error:
        return f"{os.path.basename(path)} cannot be read: {error}"
    return ""
