"""manage.py store: the inside of the running broker's store, or of a directory with --store."""

from pathlib import Path

from django.utils.text import capfirst

from broker_store.errors import StoreClosedError
from broker_store.facts.directory import StoreDirectory
from broker_store.formats.index_file import IndexGeometry
from broker_store.units import document_of
from mqadmin.management.base import BrokerCommand
from mqadmin.process import run_file
from mqadmin.process.rest_client import NotRunningError
from mqadmin.views import registry

ONLY_RUNNING = "only a running broker has these facts: leave --store out, and start the broker"


class Command(BrokerCommand):
    help = (
        "The inside of the store. With --store the files of a store are read. Without it the running broker "
        "answers; if none runs, the files of the data directory's store are read."
    )

    def verbs(self, add) -> None:
        def verb(name: str, help: str):
            parser = add(name, help)
            parser.add_argument(
                "--store", type=Path, metavar="DIR", help="a store directory, read without its broker"
            )
            parser.add_argument(
                "--slots", type=int, help="slots of an index file, if they are not a fourth of its entries"
            )
            parser.add_argument("--entries", type=int, help="entries of an index file")
            return parser

        for module in registry.verbs():
            module.add(verb)

    def run(self, options) -> None:
        verbs = {name: function for module in registry.verbs() for name, function in module.VERBS.items()}
        verbs[options["verb"]](self, options)

    def directory(self, options) -> StoreDirectory:
        """Return the store's files: those of --store, else of the data directory."""
        geometry = (
            IndexGeometry(options["slots"], options["entries"])
            if options["slots"] and options["entries"]
            else None
        )
        return StoreDirectory(options["store"] or run_file.store_directory(self.data), geometry=geometry)

    def ask(self, options, online, offline=None):
        """Return `online(RestClient)` of the running broker; `offline(StoreDirectory)` with --store, or when
        no broker runs. Raises StoreClosedError without `offline`, for facts that files do not have."""
        if options["store"] is None:
            try:
                with self.broker() as broker:
                    return online(broker)
            except NotRunningError as error:
                if offline is not None and not self.as_json:
                    self.stderr.write(f"{capfirst(str(error))}. This is read from the files of the store.")
        if offline is None:
            raise StoreClosedError(ONLY_RUNNING)
        return document_of(offline(self.directory(options)))
