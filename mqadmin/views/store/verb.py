"""manage.py store status, files."""

import time

from broker_store.engine.status.store_state import Snapshot, StoreFile
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.status import status_of
from broker_store.units import fact_of, fields_of
from mqadmin.management.base import with_integers

COLUMNS = {
    "kind": "KIND",
    "topic": "TOPIC",
    "queue_id": "QUEUE",
    "name": "NAME",
    "base": "BASE",
    "size": "SIZE",
    "allocated": "ALLOCATED",
    "wrote": "WROTE",
    "confirmed": "CONFIRMED",
    "flushed": "FLUSHED",
    "held": "HELD BY",
    "state": "STATE",
    "first_ms": "FROM",
    "last_ms": "TO",
}


def add(verb) -> None:
    verb("status", "positions, flags, what lags").add_argument(
        "--watch", action="store_true", help="again each second, until stopped"
    )
    files = verb("files", "the mapped files")
    files.add_argument("--kind", choices=("commitlog", "consumequeue", "index"))
    files.add_argument("--topic")


def status(command, options) -> None:
    def online(broker):
        found = broker.get("/store")
        return found if command.as_json else with_integers(Snapshot, found)

    while True:
        command.show_facts(command.ask(options, online, status_of))
        if not options["watch"]:
            return
        command.stdout.write("")
        time.sleep(1)


def files(command, options) -> None:
    wanted = {"kind": options["kind"], "topic": options["topic"]}

    def offline(store: StoreDirectory) -> list[StoreFile]:
        return store.with_times(
            [
                file
                for file in store.files()
                if all(value in (None, getattr(file, name)) for name, value in wanted.items())
            ]
        )

    found = command.ask(options, lambda broker: list(broker.pages("/store/files", **wanted)), offline)
    command.show_table(
        found if command.as_json else [_row(fact_of(StoreFile, file)) for file in found],
        COLUMNS,
        empty="There are no files.",
    )


def _row(file: StoreFile) -> dict[str, object]:
    return fields_of(file) | {"held": _held(file)}


def _held(file: StoreFile) -> str | None:
    """What of the writing process holds a file; None when that is not known."""
    if file.mapped is None:
        return None
    return " ".join(["map"] * file.mapped + ["reader"] * bool(file.readers)) or "nothing"


VERBS = {"status": status, "files": files}
