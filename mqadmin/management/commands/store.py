"""manage.py store: status, files, index, explain, hex; of the running broker, or of a directory with --store."""

import time
from pathlib import Path

from broker_store.errors import FormatError
from broker_store.formats import record
from broker_store.formats.index_file import IndexGeometry
from broker_store.formats.names import check_topic
from broker_store.server.documents import message_document
from mqadmin import run_file
from mqadmin.management.base import BrokerCommand, cell
from mqadmin.offline import MAX_HEX_BYTES, OfflineStore, hex_dump
from mqadmin.rest_client import NotRunningError

FAR_AWAY_MS = (1 << 63) - 1


class Command(BrokerCommand):
    help = "The inside of the store. Without --store the running broker is asked; without one the data directory's store is read."

    def verbs(self, add) -> None:
        def verb(name: str, help: str):
            parser = add(name, help)
            parser.add_argument("--store", type=Path, metavar="DIR", help="a store directory, read without its broker")
            return parser

        status = verb("status", "positions, flags, what is behind")
        status.add_argument("--watch", action="store_true", help="again each second, until stopped")
        files = verb("files", "the mapped files")
        files.add_argument("--kind", choices=("commitlog", "consumequeue", "index"))
        files.add_argument("--topic")
        geometry = [verb("index", "the index files and how full they are"), verb("explain", "each step of a lookup by key")]
        for parser in geometry:
            parser.add_argument("--slots", type=int, help="slots of an index file, when it is not a fourth of its entries")
            parser.add_argument("--entries", type=int, help="entries of an index file")
        geometry[1].add_argument("topic")
        geometry[1].add_argument("key")
        geometry[1].add_argument("--from-ms", type=int, default=0)
        geometry[1].add_argument("--to-ms", type=int, default=FAR_AWAY_MS)
        geometry[1].add_argument("--limit", type=int, default=32)
        hexed = verb("hex", "bytes of the commit log, and the message that begins there")
        hexed.add_argument("position", type=int, help="log offset")
        hexed.add_argument("--length", type=int, help=f"bytes, at most {MAX_HEX_BYTES}; the whole record when absent")

    def do_status(self, options) -> None:
        while True:
            self.show_facts(self._ask(options, lambda broker: broker.get("/store"), lambda store: store.status()))
            if not options["watch"]:
                return
            self.stdout.write("")
            time.sleep(1)

    def do_files(self, options) -> None:
        wanted = {"kind": options["kind"], "topic": options["topic"]}

        def offline(store: OfflineStore) -> list[dict]:
            return [file for file in store.files() if all(value in (None, file[name]) for name, value in wanted.items())]

        files = self._ask(options, lambda broker: list(broker.pages("/store/files", **wanted)), offline)
        columns = {
            "kind": "KIND",
            "topic": "TOPIC",
            "queue_id": "QUEUE",
            "name": "NAME",
            "size": "SIZE",
            "allocated": "ALLOCATED",
            "wrote": "WROTE",
            "state": "STATE",
        }
        self.show_table(files, columns, empty="There are no files.")

    def do_index(self, options) -> None:
        files = self._ask(options, lambda broker: broker.get("/store/index")["items"], lambda store: store.index(_geometry(options)))
        columns = {"name": "NAME", "entries": "ENTRIES", "max_entries": "OF", "slots_used": "SLOTS USED", "slots": "OF", "begin_ms": "FROM", "end_ms": "TO"}
        self.show_table(files, columns, empty="There are no index files.")

    def do_explain(self, options) -> None:
        topic, key, begin, end, limit = check_topic(options["topic"]), options["key"], options["from_ms"], options["to_ms"], options["limit"]
        asked = {"topic": topic, "key": key, "from_ms": str(begin), "to_ms": str(end), "limit": limit}
        steps = self._ask(
            options,
            lambda broker: broker.post("/store/index/explain", asked)["items"],
            lambda store: store.explain(topic, key, begin, end, limit, _geometry(options)),
        )
        self.show(steps, "\n".join(_words(step) for step in steps))

    def do_hex(self, options) -> None:
        store = OfflineStore(options["store"] or run_file.store_directory(self.data))
        position = options["position"]
        if options["length"]:
            raw = store.bytes_at(position, min(options["length"], MAX_HEX_BYTES))
        else:
            raw = store.record_at(position)
        try:
            message = message_document(record.decode(raw, log_offset=position))
        except FormatError as error:
            message = {"none": str(error)}
        if self.as_json:
            self.show({"position": position, "hex": raw.hex(), "message": message})
            return
        self.stdout.write("\n".join(hex_dump(raw[:MAX_HEX_BYTES], position)))
        self.stdout.write("")
        self.show_facts(message)

    def _ask(self, options, online, offline):
        if options["store"] is None:
            try:
                with self.broker() as broker:
                    return online(broker)
            except NotRunningError:
                if not self.as_json:
                    self.stderr.write("No broker is running; this is read from its files.")
        return offline(OfflineStore(options["store"] or run_file.store_directory(self.data)))


def _geometry(options) -> IndexGeometry | None:
    return IndexGeometry(options["slots"], options["entries"]) if options["slots"] and options["entries"] else None


def _words(step: dict) -> str:
    """One step of a lookup for people: its name, its numbers, and why."""
    numbers = ", ".join(f"{name.replace('_', ' ')} {cell(value, name)}" for name, value in step.items() if name not in ("step", "why"))
    return f"{step['step']:<6}{numbers}" + (f": {step['why']}" if numbers and "why" in step else step.get("why", ""))
