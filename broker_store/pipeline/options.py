"""The options of a reader of the source, checked once, as small values that are sent to the workers.

    path        the store directory; also the argument of load(path)
    live        the live page of the broker that runs on it; `run/live` beside the store is found without it
    table       records (default), units, entries, slots, index_files
    columns     names of the wanted columns, with commas; without it all except `body_plain`
    topic, tag  one name, or several with commas; `||` between tags also works, and `*` is every tag
    queue       a queue id, or several with commas
    from_time, to_time       store time: milliseconds since 1970, or ISO text (UTC without a zone); to is not
                             included
    from_offset, to_offset   log offsets; to is not included
    damage      fail (default), skip, or report: a row with `problem` for each part without a valid record
    partition_bytes          about how much of the log is a partition
    delay_levels             messageDelayLevel of the broker that wrote the store; without it Apache's default
    plain_bytes, plain_ratio limits of `body_plain`, in bytes and as a multiple of the stored body

A test is (column, operator, value), where the operator is one of >=, >, <, <=, in. The tests of several
options must all be true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from broker_store.config.store import delay_levels_ms
from broker_store.engine.disk.disk import Disk
from broker_store.errors import MisuseError
from broker_store.formats import moment
from broker_store.formats.queue_unit import DEFAULT_DELAY_LEVELS_MS

TABLES = ("records", "units", "entries", "slots", "index_files")
DAMAGE = ("fail", "skip", "report")
# Read in a tenth of a second or so: tasks are balanced, and a repeated task loses little
PARTITION_BYTES = 64 << 20
PLAIN_BYTES = 16 << 20
PLAIN_RATIO = 1000

Test = tuple[str, str, Any]


@dataclass(frozen=True)
class Options:
    """Checked options; times are microseconds since 1970, as in Arrow."""

    path: Path
    live: Path | None = None
    table: str = "records"
    columns: tuple[str, ...] | None = None
    tests: tuple[Test, ...] = ()
    damage: str = "fail"
    partition_bytes: int = PARTITION_BYTES
    plain_bytes: int = PLAIN_BYTES
    plain_ratio: int = PLAIN_RATIO
    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    topics: tuple[str, ...] = field(default=())  # requested by name, so they must exist


_KNOWN = {
    "path", "live", "table", "columns", "topic", "tag", "queue", "from_time", "to_time", "from_offset",
    "to_offset", "damage", "partition_bytes", "plain_bytes", "plain_ratio", "delay_levels",
}  # fmt: skip


def read_options(given: Mapping[str, str]) -> Options:
    """Check the options. Raises MisuseError with the name of the wrong option."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = options.keys() - _KNOWN
    if unknown:
        raise MisuseError(
            f"the source rocketmq has no option {min(unknown)}; there are {', '.join(sorted(_KNOWN))}"
        )
    if not options.get("path"):
        raise MisuseError("the source rocketmq needs a path: the store directory")
    path = Path(options["path"].removeprefix("file:")).absolute()
    topics = _names(options, "topic")
    tests: list[Test] = []
    if topics:
        tests.append(("topic", "in", topics))
    if queues := _names(options, "queue"):
        tests.append(("queue_id", "in", tuple(_whole("queue", value) for value in queues)))
    tags = _names({"tag": options.get("tag", "").replace("||", ",")}, "tag")
    if tags and "*" not in tags:
        tests.append(("tags", "in", tags))
    for name, operator in (("from_time", ">="), ("to_time", "<")):
        if name in options:
            tests.append(("store_time", operator, _time(name, options[name])))
    for name, operator in (("from_offset", ">="), ("to_offset", "<")):
        if name in options:
            tests.append(("log_offset", operator, _whole(name, options[name])))
    return Options(
        path,
        Path(options["live"]).absolute() if options.get("live") else _live_beside(path),
        _one_of(options, "table", TABLES),
        _names(options, "columns") or None,
        tuple(tests),
        _one_of(options, "damage", DAMAGE),
        max(1, _whole("partition_bytes", options.get("partition_bytes", PARTITION_BYTES))),
        _whole("plain_bytes", options.get("plain_bytes", PLAIN_BYTES)),
        _whole("plain_ratio", options.get("plain_ratio", PLAIN_RATIO)),
        delay_levels_ms(options["delay_levels"]) if options.get("delay_levels") else DEFAULT_DELAY_LEVELS_MS,
        topics,
    )


def _live_beside(path: Path) -> Path | None:
    live = path.parent / "run" / "live"
    return live if Disk().exists(live) else None


def _one_of(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise MisuseError(f"option {name} is {value!r:.60}, expected one of {', '.join(choices)}")
    return value


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


def _whole(name: str, value: object, most: int = (1 << 63) - 1) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise MisuseError(f"option {name} is {value!r:.60}, expected an integer from 0 to {most}")
    return number


def _time(name: str, value: str) -> int:
    try:
        return moment.read_microseconds(value)
    except ValueError as error:
        raise MisuseError(f"option {name}: {error}") from None


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970; a time without a zone is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def bounds(tests: tuple[Test, ...], column: str) -> tuple[int, int]:
    """Return (least, most) that the tests allow for an integer column, both included."""
    least, most = -(1 << 63), (1 << 63) - 1
    for name, operator, value in tests:
        if name != column:
            continue
        if operator == "in":
            least, most = max(least, min(value, default=most)), min(most, max(value, default=least))
        elif operator in (">=", ">"):
            least = max(least, value + (operator == ">"))
        else:
            most = min(most, value - (operator == "<"))
    return least, most
