"""Messages of a topic as a file: JSON lines, or CSV for a spreadsheet.

A cell of a CSV file that begins like a formula would be run by the spreadsheet that opens it, so it gets an
apostrophe in front (docs/durability.md S16). The file is written under a temporary name and renamed when it
is whole; the free space of the disk is checked while writing, so that an export leaves room for the store.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from broker_store.rest.answers import Pulled
from broker_store.rest.http import MAX_LIMIT
from broker_store.units import Document, Small, fact_of
from mqadmin.jobs.facts import Exported
from mqadmin.process.rest_client import RestClient

FORMS = ("jsonl", "csv")
DEFAULT_LIMIT = 1_000_000
MAX_MESSAGES = 10_000_000
MIN_FREE_RATIO = 0.15  # of the disk; the store begins to refuse messages at 10 % free
CSV_FIELDS = (
    "topic", "queue_id", "queue_offset", "log_offset", "message_id", "offset_message_id", "tag", "keys",
    "store_time", "born_time", "born_host", "reconsume_times", "body_bytes", "body_encoding", "body",
)  # fmt: skip
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class NoRoomError(Exception):
    """The disk is too full to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    queue_id: Small
    min_offset: int
    max_offset: int  # of the next message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    queues: list[_Queue]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The first offset at a time, and why it is uncertain."""

    offset: int
    doubt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of a message in its queue, and its store time."""

    queue_offset: int
    store_time_ms: int


def messages_of_topic(
    broker: RestClient, topic: str, begin_ms: int | None, end_ms: int | None, limit: int
) -> Iterator[Document]:
    """Yield up to `limit` messages of a topic that were stored in [begin_ms, end_ms], queue after queue, by
    offset, as REST gives them.

    Each queue is read up to its end at the time when its reading began, so an export ends while messages
    come.
    """
    left = limit
    for queue in fact_of(_Topic, broker.get(f"/topics/{topic}")).queues:
        path = f"/topics/{topic}/queues/{queue.queue_id}"
        offset, end = queue.min_offset, queue.max_offset
        found = {
            time_ms: fact_of(_Found, broker.get(f"{path}/offset", time_ms=time_ms))
            for time_ms in (begin_ms, end_ms)
            if time_ms is not None
        }
        is_in_order = not any(answer.doubt for answer in found.values())  # if not, the whole queue is read
        if begin_ms is not None and is_in_order:
            offset = max(offset, found[begin_ms].offset)
        while offset < end and left > 0:
            asked = min(MAX_LIMIT, left, end - offset)
            page = fact_of(Pulled, broker.get(f"{path}/messages", offset=offset, limit=asked))
            for message in page.messages:
                place = fact_of(_Place, message)
                stored_ms = place.store_time_ms
                if is_in_order and end_ms is not None and stored_ms > end_ms:
                    offset = end
                    break
                if place.queue_offset >= end:
                    break
                if (begin_ms is None or begin_ms <= stored_ms) and (end_ms is None or stored_ms <= end_ms):
                    left -= 1
                    yield message
            else:
                if page.next_offset <= offset:
                    break
                offset = page.next_offset
                continue
            break


def write(
    directory: Path,
    name: str,
    form: str,
    messages: Iterator[Document],
    progress: Callable[..., None],
    limit: int,
) -> Exported:
    """Write `messages` to `directory/name.form`. Raises NoRoomError."""
    assert form in FORMS
    path = directory / f"{name}.{form}"
    unfinished = _unfinished(directory, name)
    count = 0
    try:
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600),
            "w",
            encoding="utf-8",
            newline="",
        ) as output:
            add = _csv_writer(output) if form == "csv" else _json_writer(output)
            for message in messages:
                if count % 1000 == 0:
                    _check_room(directory)
                add(message)
                count += 1
                progress("writing messages", count, None, "messages")
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    progress("written", count, count, "messages", last=True)
    return Exported(file=path.name, messages=count, bytes=path.stat().st_size, complete=count < limit)


def _unfinished(directory: Path, name: str) -> Path:
    return directory / f"{name}.part"


def remove_unfinished(directory: Path, name: str) -> None:
    """Remove what an export that was killed had written. Its process may still run: it then writes to a file
    without a name."""
    _unfinished(directory, name).unlink(missing_ok=True)


def remove_old(directory: Path, before: float) -> None:
    """Remove files last written before a time (seconds since 1970): results of jobs whose records are gone,
    and parts of exports that were killed."""
    for path in directory.iterdir():
        if path.suffix in (".part", *(f".{form}" for form in FORMS)) and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)


def _check_room(directory: Path) -> None:
    usage = shutil.disk_usage(directory)
    total = usage.used + usage.free  # without what the file system keeps back for the superuser
    if usage.free < total * MIN_FREE_RATIO:
        raise NoRoomError(
            f"the disk has {usage.free >> 20} of {total >> 20} MiB left; an export stops below "
            f"{MIN_FREE_RATIO:.0%}. Free some room, or export fewer messages"
        )


def _json_writer(output: IO[str]) -> Callable[[Document], object]:
    return lambda message: output.write(json.dumps(message, ensure_ascii=False) + "\n")


def _csv_writer(output: IO[str]) -> Callable[[Document], object]:
    rows = csv.writer(output)
    rows.writerow(CSV_FIELDS)
    return lambda message: rows.writerow([cell(message.get(name)) for name in CSV_FIELDS])


def cell(value: object) -> object:
    """Return a value for a spreadsheet: a list as words, and an apostrophe before what looks like a
    formula."""
    text = " ".join(value) if isinstance(value, list) else value
    return "'" + text if isinstance(text, str) and text.startswith(FORMULA_STARTS) else text
