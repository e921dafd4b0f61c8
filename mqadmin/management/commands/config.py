"""manage.py config check: would a broker start with these settings? It starts nothing and changes nothing."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from broker_store import launch, memory_parts
from broker_store.config.examine import Given, examined, given_of
from broker_store.config.load import Settings
from broker_store.config.properties import read_properties
from broker_store.config.tls import DISABLED
from broker_store.errors import BrokerStoreError, ConfigError
from broker_store.memory_limit import memory_limit
from broker_store.server.certificate import left_out
from broker_store.server.tls_setup import own_names, wanted_names
from mqadmin.management.base import table
from mqadmin.management.deploy import gather
from mqadmin.management.plain import PlainCommand
from mqadmin.process.program_name import with_program

NOT_EXAMINED = (
    "whether the store can be opened (manage.py store dry-run), whether ports are free, and what is open to "
    "whom (manage.py check_deploy)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A setting or an option that stops a start."""

    key: str  # "" if it is about no single one
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """What a start would make of its settings."""

    would_start: bool
    errors: list[Wrong]
    notes: list[str]
    acting: list[Given] = field(default_factory=list)
    not_examined: str = NOT_EXAMINED


class Command(PlainCommand):
    help = (
        "Examines settings without a start: unknown keys, wrong values, keys without effect, and the given "
        "keys that act. Options are those of runbroker. Exits with 1 if a start would refuse them."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("verb", choices=("check",))
        launch.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def handle(self, *arguments: str, **options: Any) -> None:
        found = report_of(Namespace(**options))
        self.stdout.write(with_program(json.dumps(asdict(found)) if options["json"] else text_of(found)))
        if not found.would_start:
            raise SystemExit(1)


def report_of(arguments: Namespace) -> ConfigReport:
    """Return the report on a start with these options."""
    data = Path(arguments.data or settings.DATA_DIRECTORY).absolute()
    loaded, refused = examined(lambda without: launch.settings_of(arguments, data, without))
    errors = [Wrong(key=error.key, value=str(error.value), reason=error.reason) for error in refused]
    if loaded is None:
        return ConfigReport(would_start=False, errors=errors, notes=[])
    errors += _refused_beside(arguments, loaded, data)
    notes = list(loaded.notes)
    if loaded.changed:
        notes.append(
            f"settings that were changed while it ran win over the file: {', '.join(loaded.changed)}"
        )
    notes += _unnamed(arguments, loaded, data)
    notes += _too_much_memory(arguments, loaded)
    of_file = read_properties(Path(arguments.config)).keys() if arguments.config else frozenset()
    in_force = (loaded.name_server, loaded.store, loaded.broker)
    acting = given_of(of_file, loaded.changed.keys(), loaded.fixed, in_force)
    wrong = {error.key for error in refused}
    return ConfigReport(
        would_start=not errors,
        errors=errors,
        notes=notes,
        acting=[one for one in acting if one.key not in wrong],
    )


def _refused_beside(arguments: Namespace, loaded: Settings, data: Path) -> list[Wrong]:
    """Return what a start refuses although each setting is valid."""
    found = []
    try:
        if not arguments.no_broker and not loaded.store.inspect:
            launch.check_bind(arguments.bind, arguments.insecure, loaded.broker)
    except ConfigError as error:
        found.append(Wrong(key=error.key, value=str(error.value), reason=error.reason))
    try:
        launch.check_places(loaded, data)
    except ConfigError as error:
        found.append(Wrong(key=error.key, value=str(error.value), reason=error.reason))
    except BrokerStoreError as error:
        found.append(Wrong(key="", value="", reason=str(error)))
    if loaded.broker.tls_server_mode != DISABLED:
        certificate = gather.certificate_of(launch.exposure_of(arguments, loaded, data))
        if certificate.failure and not certificate.is_own:
            found.append(Wrong(key="tlsCertPath", value=certificate.file, reason=certificate.failure))
    return found


def _too_much_memory(arguments: Namespace, loaded: Settings) -> list[str]:
    """Return a note if the bounds of a broker's parts are more than the memory that it may use."""
    if arguments.no_broker or loaded.store.inspect:
        return []
    ports = ["broker port", "fast port"]
    if launch.has_name_server(arguments):
        ports.append("name server")
    warning = memory_parts.warning_of(loaded, memory_limit(), ports)
    return [] if warning is None else [f"memory: {warning}"]


def _unnamed(arguments: Namespace, loaded: Settings, data: Path) -> list[str]:
    """Return a note if a certificate that a broker made for itself lacks names of this start."""
    exposure = launch.exposure_of(arguments, loaded, data)
    certificate = gather.certificate_of(exposure)
    if loaded.broker.tls_server_mode == DISABLED or not (exposure.is_own_certificate and certificate.names):
        return []
    given = (loaded.broker.broker_ip1, exposure.bind, exposure.web_bind or "", *settings.WEB_HOSTS)
    missing = left_out(certificate.names, sorted(wanted_names(own_names(given))))
    if not missing:
        return []
    return [
        f"the certificate {certificate.file} does not state {', '.join(missing)}: clients that check names "
        "refuse it there. Without self-signed.pem beside it a start makes another one"
    ]


def text_of(found: ConfigReport) -> str:
    """Return the report as text."""
    lines = []
    for error in found.errors:
        named = f"{error.key}={error.value}: " if error.value else f"{error.key}: " if error.key else ""
        lines.append(f"error  {named}{error.reason}")
    lines += [f"note   {note}" for note in found.notes]
    if found.acting:
        rows = [[one.key, one.value, one.default or "-", one.source] for one in found.acting]
        lines += ["", table(["Key", "Value", "Default", "From"], rows), ""]
    lines.append(
        "A broker would start with these settings."
        if found.would_start
        else f"A broker would not start: {len(found.errors)} error{'s' * (len(found.errors) != 1)}."
    )
    lines.append(f"Not examined: {found.not_examined}.")
    return "\n".join(lines)
