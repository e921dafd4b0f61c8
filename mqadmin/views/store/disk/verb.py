"""manage.py store disk, forecast: how full the disk is, and what goes next."""

from __future__ import annotations

from django.core.management.base import CommandError

from mqadmin.management.base import cell, table
from mqadmin.templatetags.units import bytes_text
from mqadmin.views.store.disk.facts import MOST_RETENTION_HOURS, disk_of

USE = {"kind": "KIND", "bytes": "BYTES"}
MARKS = {
    "percent": "ABOVE %",
    "what": "THEN",
    "at_ms": "EXPECTED",
    "earliest_ms": "EARLIEST",
    "latest_ms": "LATEST",
}


def add(verb) -> None:
    verb("disk", "what lies on the disk, how fast it fills, when each mark is reached")
    forecast = verb("forecast", "which log files go next, when, and which groups have not read them")
    forecast.add_argument(
        "--retention-hours",
        type=int,
        metavar="HOURS",
        help="as if files were kept for so long (without a broker: 72)",
    )


def disk(command, options) -> None:
    facts = command.ask(options, lambda broker: broker.get("/store/disk"), lambda store: disk_of(store))
    if command.as_json:
        command.show(facts)
        return
    command.stdout.write(
        table(list(USE.values()), ([row["kind"], f"{int(row['bytes']):,}"] for row in facts["use"]))
    )
    command.stdout.write("\n" + _rate(facts["rate"]))
    command.stdout.write(
        "\n"
        + table(
            list(MARKS.values()),
            (
                [
                    cell(mark[key], key) if not mark["is_reached"] or key in ("percent", "what") else "now"
                    for key in MARKS
                ]
                for mark in facts["marks"]
            ),
        )
    )


def forecast(command, options) -> None:
    hours = options["retention_hours"]
    if hours is not None and not 1 <= hours <= MOST_RETENTION_HOURS:
        raise CommandError(f"--retention-hours is from 1 to {MOST_RETENTION_HOURS}")

    facts = command.ask(
        options,
        lambda broker: broker.get("/store/disk/forecast", retention_hours=hours),
        lambda store: disk_of(store, hours),
    )
    if command.as_json:
        command.show(facts)
        return
    nobody = "nobody" if facts["knows_groups"] else "unknown"
    rows = [
        [
            file["name"],
            cell(file["modified_ms"], "modified_ms"),
            cell(file["goes_ms"], "goes_ms"),
            _losses(file) or nobody,
        ]
        for file in facts["files"]
    ]
    command.stdout.write(
        table(["FILE", "LAST WRITTEN", "GOES", "NOT READ BY"], rows) if rows else "No file can go yet."
    )
    if facts["forced"]["files"]:
        losses = _losses(facts["forced"])
        readers = (
            f"not read by {losses}"
            if losses
            else "read by all groups"
            if facts["knows_groups"]
            else "who has read them is unknown: there is no readable config/consumerOffset.json"
        )
        command.stdout.write(
            f"\nBy force, above {facts['settings']['forced_percent']} % of the disk: "
            f"{', '.join(facts['forced']['files'])}; {readers}."
        )


def _rate(rate: dict) -> str:
    if rate["bytes_per_s"] is None:
        return "How fast the log grows is not known: the store holds less than a minute of messages."
    band = (
        ""
        if rate["low_bytes_per_s"] is None
        else f", between {bytes_text(rate['low_bytes_per_s'])}/s and {bytes_text(rate['high_bytes_per_s'])}/s"
    )
    return (
        f"The log grows by {bytes_text(rate['bytes_per_s'])}/s{band}, until "
        f"{cell(rate['until_ms'], 'until_ms')}{'' if rate['doubt'] is None else '; ' + rate['doubt']}."
    )


def _losses(of: dict) -> str:
    """What groups lose by a file, or by the files that go by force; empty when no group does."""
    words = {True: "in time", False: "not in time", None: "unknown whether in time"}
    return "; ".join(
        f"{loss['group']} {int(loss['messages']):,} ({words[loss['is_read_in_time']]})"
        for loss in of["losses"]
    ) + (f"; and {left:,} more group{'s' * (left > 1)}" if (left := int(of["losses_left_out"])) else "")


VERBS = {"disk": disk, "forecast": forecast}
