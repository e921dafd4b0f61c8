"""manage.py restore BACKUP DATA: make a data directory of a backup."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from django.core.management.base import CommandError

from broker_store.config.load import properties_of
from broker_store.config.store import StoreSettings
from broker_store.errors import BrokerStoreError
from broker_store.units import document_of
from mqadmin.management.base import TIME_HELP, moment_option
from mqadmin.management.commands.backup import add_output_options, copier_of, require_apart
from mqadmin.management.plain import PlainCommand
from mqadmin.process.program_name import program


class Command(PlainCommand):
    help = (
        "Makes a data directory of a backup, in an empty or new directory alone. Each file is compared with "
        "the sums of the backup. See docs/BACKUP.md."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        parser.add_argument("backup", type=Path, metavar="BACKUP", help="the directory of a whole backup")
        parser.add_argument(
            "directory", type=Path, metavar="DATA", help="the new data directory, empty or absent"
        )
        parser.add_argument(
            "--until",
            type=moment_option,
            metavar="TIME",
            help=f"leave out all messages that were stored after this time: {TIME_HELP}",
        )
        add_output_options(parser)

    def handle(self, *arguments, **options) -> None:
        # These imports load NumPy and the kernels
        from broker_store.backup import manifest
        from broker_store.backup.restore import Restore, settings_of
        from broker_store.engine.disk.disk import Disk

        backup, data, disk = options["backup"].absolute(), options["directory"].absolute(), Disk()
        try:
            require_apart(data, backup, "the backup")
            settings = _settings_to_give(settings_of(manifest.read(disk, backup)))
            copier = copier_of(self, disk, options)
            restored = Restore(backup, data, disk, copier, options["until"]).run()
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            raise CommandError(f"stopped: {data} has no store, remove it", returncode=130) from None
        start = f"{program()} runbroker --data {data}" + "".join(
            f" --set {shlex.quote(each)}" for each in settings
        )
        if options["json"]:
            self.stdout.write(json.dumps({"result": document_of(restored) | {"start": start}}))
            return
        self.stdout.write(
            f"{data} has the store of {backup}: the log from {restored.log_begin:,} to "
            f"{restored.log_end:,}"
            + ("" if restored.cut_at is None else ", without what was stored later")
            + f". Start it with the settings of its broker: {start}"
        )


def _settings_to_give(used: StoreSettings) -> list[str]:
    """Return the settings without which the store would not open: those that are not the default, as
    key=value."""
    default = properties_of(StoreSettings())
    return [f"{key}={value!s}" for key, value in properties_of(used).items() if value != default[key]]
