"""manage.py store dispatch, flush, write-path, exposure: the way of a send, and what a crash would take of
it."""

from __future__ import annotations

from broker_store.facts import exposure
from broker_store.facts.dispatch import Race, of_files
from broker_store.facts.distributions import Distribution
from broker_store.units import fact_of, fields_of
from mqadmin.facts.sends import PathOfSends
from mqadmin.management.base import with_integers

STAGES = ("gather", "append", "dispatch", "flush", "answer")


def add(verb) -> None:
    verb("dispatch", "how far each step after the append has come")
    verb("flush", "how the log gets to the disk")
    verb("write-path", "where the time of sends goes, by stage, and what was refused")
    verb("exposure", "if it crashed now: what would be lost, and what the start after it would do")


def dispatch(command, options) -> None:
    found = command.ask(options, lambda broker: broker.get("/store/dispatch"), of_files)
    if command.as_json:
        command.show(found)
        return
    race = fact_of(Race, found)
    command.stdout.write(race.sentence + "\n")
    rows = [{"sink": name, **fields_of(sink)} for name, sink in race.sinks.items()]
    command.show_table(
        rows,
        {"sink": "STEP", "position": "STANDS AT", "lag_bytes": "LAG, BYTES", "lag_ms": "LAG, MS"},
        empty="",
    )


def flush(command, options) -> None:
    command.show_facts(command.ask(options, lambda broker: broker.get("/store/flush")))


def write_path(command, options) -> None:
    found = command.ask(options, lambda broker: broker.get("/store/write-path"))
    if command.as_json:
        command.show(found)
        return
    path = fact_of(PathOfSends, found)
    rows = [_row(name, stage) for name in STAGES if (stage := path.stages.get(name))]
    rows.append(_row("all in all", path.whole))
    command.stdout.write(
        f"{path.flush_type}, {path.groups:,} groups since the start; microseconds of the last minute\n"
    )
    command.show_table(
        rows,
        {
            "stage": "STAGE",
            "mean": "MEAN",
            "p50": "HALF",
            "p99": "99 %",
            "p999": "99.9 %",
            "longest": "LONGEST EVER",
        },
        empty="",
    )
    if path.refusals:
        command.stdout.write("")
        command.show_table(
            [fields_of(refused) for refused in path.refusals],
            {
                "cause": "REFUSED",
                "count": "TIMES",
                "value": "FOUND",
                "limit": "LIMIT",
                "at_ms": "LAST",
                "who": "WHO",
            },
            empty="",
        )


def _row(stage: str, times: Distribution) -> dict[str, object]:
    return {"stage": stage, **fields_of(times.lately), "longest": times.since_start.longest}


def show_exposure(command, options) -> None:
    def offline(store) -> exposure.Exposure:
        return exposure.of_files(store, exposure.scan_rate(exposure.reports(command.data / "recoveries")))

    def online(broker):
        found = broker.get("/store/exposure")
        return found if command.as_json else with_integers(exposure.Exposure, found)

    command.show_facts(command.ask(options, online, offline))


VERBS = {"dispatch": dispatch, "flush": flush, "write-path": write_path, "exposure": show_exposure}
