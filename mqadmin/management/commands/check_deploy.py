"""manage.py check_deploy: what is open to whom, and what is wrong with that. It changes nothing."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.management.base import CommandError, CommandParser

from broker_store import launch, processes
from broker_store.config.broker import BrokerSettings
from broker_store.config.exposure import Exposure
from broker_store.config.load import Settings
from broker_store.config.tls import DISABLED
from broker_store.errors import BrokerStoreError
from mqadmin.management.deploy import findings, gather
from mqadmin.management.deploy.facts import SEVERITIES, Deployment, Finding
from mqadmin.management.plain import PlainCommand
from mqadmin.process import run_file
from mqadmin.process.program_name import with_program
from mqadmin.process.run_file import RunFile

OURS = "mqadmin.W001"  # about TLS, which `findings` judges by how the broker was started


class Command(PlainCommand):
    help = (
        "Reports what a broker opens to whom: ports, TLS, users, files; and what is wrong. It is about the "
        "broker that runs on the data directory; with options of runbroker, about a start with these. Exits "
        "with 1 if there are errors."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        launch.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument(
            "--fail-level",
            choices=SEVERITIES,
            default="error",
            help="the least severity of a finding with which the command exits with 1 (default: error)",
        )

    def handle(self, *arguments: str, **options: Any) -> None:
        found = deployment_of(self._given(options))
        if options["json"]:
            self.stdout.write(with_program(json.dumps(asdict(found) | {"worst": found.worst})))
        else:
            self.stdout.write(with_program(text_of(found)))
        worst = found.worst
        if worst is not None and SEVERITIES.index(worst) <= SEVERITIES.index(options["fail_level"]):
            raise SystemExit(1)

    def _given(self, options: dict[str, Any]) -> Namespace:
        parser = CommandParser()
        launch.add_arguments(parser)
        defaults = vars(parser.parse_args([]))
        given = {name: options.get(name, default) for name, default in defaults.items()}
        return Namespace(**given, has_options=any(
            value != defaults[name] for name, value in given.items() if name != "data"
        ))  # fmt: skip


def deployment_of(arguments: Namespace) -> Deployment:
    """Return the report about the broker that runs on the data directory, or about a start with the given
    options. Raises CommandError."""
    data = Path(arguments.data or settings.DATA_DIRECTORY).absolute()
    run = run_file.read(data)
    is_running = run is not None and processes.exists(run.pid)
    if arguments.web_host:
        os.environ["BROKER_WEB_HOST"] = ",".join(arguments.web_host)
    if run is not None and is_running and not arguments.has_options:
        if run.exposure is None:
            raise CommandError(
                f"the broker of {data} (process {run.pid}) is of another version and does not record what it "
                "opens: check a start with its options, or start it again"
            )
        exposure, of = run.exposure, f"the running broker (process {run.pid})"
        uid, made = _user_of(run.pid), None
    else:
        try:
            loaded = launch.settings_of(arguments, data)
        except BrokerStoreError as error:
            raise CommandError(str(error)) from None
        exposure = launch.exposure_of(arguments, loaded, data)
        run = _would_run(arguments, loaded, exposure)
        of, uid, made = "a start with these options", os.geteuid(), loaded.broker
    return _report(data, exposure, run, of, uid, made)


def _report(
    data: Path, exposure: Exposure, run: RunFile, of: str, uid: int | None, made: BrokerSettings | None
) -> Deployment:
    """Return the report. `made` are the settings of a start that makes its first users."""
    store = Path(run.store) if run.store is not None else data / "store"
    has_tls = exposure.tls_mode != DISABLED
    certificate = gather.certificate_of(exposure) if has_tls else None
    access = gather.access_users_of(store, made) if exposure.authenticates and exposure.has_broker else None
    dashboard = None if exposure.web_bind is None else gather.dashboard_users_of()
    open_files = gather.open_files_of(data, store, exposure.secret_files)
    all_found = [
        *(findings.broker_findings(exposure, access) if exposure.has_broker else ()),
        *findings.tls_findings(exposure, certificate, int(time.time() * 1_000)),
        *findings.dashboard_findings(exposure, dashboard),
        *(_of_django() if dashboard is not None else ()),
        *findings.file_findings(open_files),
        *findings.process_findings(uid),
    ]
    all_found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Deployment(
        data=str(data),
        of=of,
        ports=gather.ports_of(exposure, run, access, dashboard),
        open_without_login=[] if dashboard is None else list(gather.OPEN_WITHOUT_LOGIN),
        certificate=certificate,
        access=access,
        dashboard=dashboard,
        open_files=open_files,
        findings=all_found,
    )


def _of_django() -> list[Finding]:
    """Return what Django's own check of a deployment finds, with the settings of this process."""
    found = checks.run_checks(tags=[checks.Tags.security], include_deployment_checks=True)
    return [
        Finding(
            id=str(message.id),
            severity="error" if message.level >= checks.ERROR else "warning",
            what=str(message.msg),
            hint=str(message.hint or ""),
        )
        for message in found
        if message.id != OURS and not message.is_silenced()
    ]


def _would_run(arguments: Namespace, loaded: Settings, exposure: Exposure) -> RunFile:
    """Return the run file that a start with these options would write."""
    broker, bind = loaded.broker, exposure.bind
    web = None if exposure.web_bind is None else f"{exposure.web_bind}:{arguments.web_port}"
    root = str(Path(loaded.store.store_path_root_dir).absolute())
    if not exposure.has_broker:
        return RunFile(store=root, web=web)
    has_name_server = launch.has_name_server(arguments)
    return RunFile(
        store=root,
        broker=f"{bind}:{broker.listen_port}",
        grpc=f"{bind}:{broker.grpc_server_port}" if broker.grpc_server_port else None,
        nameserver=f"{bind}:{loaded.name_server.listen_port}" if has_name_server else None,
        web=web,
    )


def _user_of(pid: int | None) -> int | None:
    """Return the number of the user of a process, None if it is unknown."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def text_of(found: Deployment) -> str:
    """Return the report as text."""
    lines = [f"What is open to whom: {found.of}, {found.data}", ""]
    rows = [("Port", "Address", "Reached by", "TLS", "Served")]
    rows += [(port.name, port.address, port.reached_by, port.tls, port.served) for port in found.ports]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not found.ports:
        lines.append("no port")
    lines += ["", *_details(found), ""]
    for severity in SEVERITIES:
        its = [finding for finding in found.findings if finding.severity == severity]
        for finding in its:
            lines.append(f"{severity:<8} {finding.id}: {finding.what}.")
            if finding.hint:
                lines.append(f"         {finding.hint}.")
    counts = [
        f"{sum(one.severity == severity for one in found.findings)} {severity}s" for severity in SEVERITIES
    ]
    lines += ["", f"{', '.join(counts)}." if found.findings else "Nothing is wrong."]
    # Django ends its sentences itself.
    return "\n".join(line[:-1] if line.endswith("..") else line for line in lines)


def _details(found: Deployment) -> list[str]:
    lines = []
    certificate, access, dashboard = found.certificate, found.access, found.dashboard
    if certificate is not None:
        made = "made by the broker" if certificate.is_own else "of the settings"
        ends = (
            "is made at the first start"
            if certificate.ends_ms is None
            else f"until {datetime.fromtimestamp(certificate.ends_ms / 1_000, UTC):%Y-%m-%d}"
        )
        names = f", for {', '.join(certificate.names[:8])}" if certificate.names else ""
        lines.append(f"Certificate  {certificate.file} ({made}), {certificate.failure or ends}{names}")
    if access is not None:
        supers = ", ".join(access.super_users[:8]) or "none"
        lines.append(f"Access       {len(access.names):,} users; may do everything: {supers}")
    elif any(port.name == "broker" for port in found.ports):
        lines.append("Access       no access control")
    if dashboard is not None:
        roles = (
            ", ".join(f"{count:,} {role}" for role, count in sorted(dashboard.by_role.items())) or "none yet"
        )
        lines.append(
            f"Dashboard    users: {roles}; {dashboard.tokens:,} tokens; without a login: "
            f"{', '.join(found.open_without_login)}"
        )
    return lines
