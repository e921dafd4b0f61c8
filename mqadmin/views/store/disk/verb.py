"""manage.py store disk, forecast: the use of the disk, and the files that are deleted next."""

from __future__ import annotations

from django.core.management.base import CommandError

from broker_store.facts.deletion import DeletedFile, ForcedDeletion
from broker_store.facts.disk import DiskFacts, DiskForecast
from broker_store.facts.disk_scan import MAX_RETENTION_HOURS, disk_of
from broker_store.facts.growth import GrowthRate
from broker_store.units import fact_of
from mqadmin.management.base import cell, table
from mqadmin.templatetags.units import bytes_text

USE = {"kind": "KIND", "bytes": "BYTES"}
MARKS = {
    "percent": "ABOVE %",
    "what": "THEN",
    "at_ms": "EXPECTED",
    "earliest_ms": "EARLIEST",
    "latest_ms": "LATEST",
}


def add(verb) -> None:
    verb("disk", "the use of the disk, its growth, and the times at which marks are reached")
    forecast = verb(
        "forecast", "the log files that are deleted next, the times, and the groups that have not read them"
    )
    forecast.add_argument(
        "--retention-hours",
        type=int,
        metavar="HOURS",
        help="forecast as if files were kept for this time (default: the setting; without a broker 72)",
    )


def disk(command, options) -> None:
    found = command.ask(options, lambda broker: broker.get("/store/disk"), disk_of)
    if command.as_json:
        command.show(found)
        return
    facts = fact_of(DiskFacts, found)
    marks = [
        ["now" if mark.is_reached and key.endswith("_ms") else cell(getattr(mark, key), key) for key in MARKS]
        for mark in facts.marks
    ]
    command.stdout.write(table(list(USE.values()), ([row.kind, f"{row.bytes:,}"] for row in facts.use)))
    command.stdout.write("\n" + _rate(facts.rate))
    command.stdout.write("\n" + table(list(MARKS.values()), marks))


def forecast(command, options) -> None:
    hours = options["retention_hours"]
    if hours is not None and not 1 <= hours <= MAX_RETENTION_HOURS:
        raise CommandError(f"--retention-hours {hours}: expected 1 to {MAX_RETENTION_HOURS}")
    found = command.ask(
        options,
        lambda broker: broker.get("/store/disk/forecast", retention_hours=hours),
        lambda store: disk_of(store, hours),
    )
    if command.as_json:
        command.show(found)
        return
    facts = fact_of(DiskForecast, found)
    no_reader = "no group" if facts.knows_groups else "unknown"
    rows = [
        [
            file.name,
            cell(file.modified_ms, "modified_ms"),
            cell(file.goes_ms, "goes_ms"),
            _losses(file) or no_reader,
        ]
        for file in facts.files
    ]
    command.stdout.write(
        table(["FILE", "LAST WRITTEN", "GOES", "NOT READ BY"], rows)
        if rows
        else "No file can be deleted yet."
    )
    if facts.forced.files:
        losses = _losses(facts.forced)
        readers = (
            f"not read by {losses}"
            if losses
            else "read by all groups"
            if facts.knows_groups
            else "their readers are unknown: there is no readable config/consumerOffset.json"
        )
        command.stdout.write(
            f"\nBy force, above {facts.settings.forced_percent} % of the disk: "
            f"{', '.join(facts.forced.files)}; {readers}."
        )


def _rate(rate: GrowthRate) -> str:
    if rate.bytes_per_s is None:
        return "The growth of the log is unknown: the store holds less than a minute of messages."
    band = ""
    if rate.low_bytes_per_s is not None and rate.high_bytes_per_s is not None:
        band = f", between {bytes_text(rate.low_bytes_per_s)}/s and {bytes_text(rate.high_bytes_per_s)}/s"
    return (
        f"The log grows by {bytes_text(rate.bytes_per_s)}/s{band}, until "
        f"{cell(rate.until_ms, 'until_ms')}{'' if rate.doubt is None else '; ' + rate.doubt}."
    )


def _losses(deletion: DeletedFile | ForcedDeletion) -> str:
    """Return the messages that groups lose by a deletion, as text; empty when no group loses any."""
    words = {True: "in time", False: "not in time", None: "unknown whether in time"}
    said = "; ".join(
        f"{loss.group} {loss.messages:,} ({words[loss.is_read_in_time]})" for loss in deletion.losses
    )
    left = deletion.losses_left_out
    return said + (f"; and {left:,} more group{'s' * (left > 1)}" if left else "")


VERBS = {"disk": disk, "forecast": forecast}
