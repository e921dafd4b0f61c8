"""Reads what a deployment is: files of the data directory, the dashboard's database, the certificate."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.contrib.auth.password_validation import CommonPasswordValidator
from django.db import DatabaseError, connection
from django.utils import timezone

from broker_store.access.state import FILE_NAME, AccessState, read_file
from broker_store.access.users import User
from broker_store.config.broker import BrokerSettings
from broker_store.config.exposure import Exposure
from broker_store.errors import BrokerStoreError
from broker_store.launch import is_loopback
from broker_store.server.certificate import facts_of
from broker_store.server.parts import access_control
from mqadmin.management.deploy.facts import AccessUsers, Certificate, DashboardUsers, OpenFile, Port
from mqadmin.process.run_file import RunFile

MIN_SECRET_CHARACTERS = 12
# Of Apache's documents and examples, in small letters
DEFAULT_SECRETS = frozenset({"12345678", "rocketmq", "rocketmq2", "secretkey", "accesskey", "yoursecretkey"})
# Addresses of the dashboard that ask for no login; tests/mqadmin/access.txt has all
OPEN_WITHOUT_LOGIN = ("/login/", "/static/", "/api/v1/health", "/api/v1/ready", "/api/v1/docs",
                      "/api/v1/openapi.json")  # fmt: skip
_EVERY = ("0.0.0.0", "::", "[::]")
_FILES_WITH_SECRETS = (
    "secret_key", "mqadmin.sqlite3", "run/credentials.json", "tls/self-signed.pem", "tls/client.pem",
)  # fmt: skip
_DIRECTORIES = ("", "run", "logs", "store", "store/config", "namesrv", "tls", "exports")


def reached_by(address: str) -> str:
    """Return who reaches an address to listen on."""
    if is_loopback(address):
        return "this machine"
    return "every network of this machine" if address in _EVERY else f"the network of {address}"


def ports_of(
    exposure: Exposure, run: RunFile, access: AccessUsers | None, dashboard: DashboardUsers | None
) -> list[Port]:
    """Return the open ports of a start, and who is served at each."""
    by, tls = reached_by(exposure.bind), exposure.tls_mode
    clients = "every client, without a name"
    if access is not None:
        clients = f"clients that sign as one of {len(access.names):,} users" + (
            "; each user may do everything" if not exposure.authorizes else ""
        )
    unsigned = [] if access is None else exposure.unsigned
    codes = [name for name in unsigned if name.lstrip("-").isdigit()]
    messages = [name for name in unsigned if name not in codes]
    changers = exposure.name_server_changers or ("all" if exposure.has_open_name_server else "no other")
    users = "unknown" if dashboard is None or dashboard.failure else f"{dashboard.active:,}"
    found = [
        ("broker", run.broker, by, clients + _also(codes)),
        ("fast port", _fast_port(run.broker), by, clients + _also(codes)),
        ("gRPC", run.grpc, by, clients + _also(messages)),
        ("HA port", _ha_port(exposure, run.broker), by, _slaves(exposure)),
        (
            "name server",
            run.nameserver,
            by,
            f"reads: every client; changes: this machine and {changers}",
        ),
        (
            "dashboard",
            run.web,
            reached_by(exposure.web_bind or exposure.bind),
            f"logins and tokens ({users} users)",
        ),
    ]
    return [
        Port(name=name, address=address, reached_by=reach, tls=tls, served=served)
        for name, address, reach, served in found
        if address is not None
    ]


def _also(requests: list[str]) -> str:
    """Return what is served to every client, after those that sign."""
    return f"; every client: requests {', '.join(requests)}" if requests else ""


def _fast_port(broker: str | None) -> str | None:
    """Return the address of the second port, which is 2 below that of the broker."""
    if broker is None:
        return None
    host, _, port = broker.rpartition(":")
    return f"{host}:{int(port) - 2}" if port.isdigit() and int(port) > 2 else None


def _ha_port(exposure: Exposure, broker: str | None) -> str | None:
    """Return the address of the port that feeds slaves; None if there is none."""
    if broker is None or not exposure.has_ha_port:
        return None
    host, _, port = broker.rpartition(":")
    return f"{host}:{exposure.ha_port or (int(port) + 1 if port.isdigit() else 0)}"


def _slaves(exposure: Exposure) -> str:
    return f"slaves of this machine and {exposure.ha_slaves or 'no other'}, which get every message"


def certificate_of(exposure: Exposure) -> Certificate:
    """Return the certificate of the ports."""
    path, is_own = Path(exposure.certificate), exposure.is_own_certificate
    if is_own and not path.exists():
        return Certificate(file=str(path), is_own=True)
    try:
        found = facts_of(path)
    except (OSError, ValueError) as error:
        return Certificate(file=str(path), is_own=is_own, failure=str(error))
    return Certificate(
        file=str(path),
        is_own=is_own,
        subject=found.subject,
        issuer=found.issuer,
        names=found.names,
        ends_ms=found.ends_ms,
    )


def access_users_of(store: Path, settings: BrokerSettings | None = None) -> AccessUsers:
    """Return the users of access control that a store keeps, with those that a start with these settings
    makes."""
    path = store / "config" / FILE_NAME
    try:
        state = read_file(path.read_text()) if path.exists() else AccessState()
        control = None if settings is None else access_control(settings, lambda: 0)
        if control is not None:
            control.take(state)
            state = control.state
        users = state.users.values()
    except (OSError, ValueError, BrokerStoreError) as error:
        return AccessUsers(names=[], super_users=[], weak=[], failure=f"{path}: {error}")
    common = CommonPasswordValidator().passwords
    enabled = [user for user in users if not user.is_disabled]
    return AccessUsers(
        names=sorted(user.name for user in users),
        super_users=sorted(user.name for user in enabled if user.is_super),
        weak=sorted(f"{user.name}: {why}" for user in enabled if (why := _why_weak(user, common))),
    )


def _why_weak(user: User, common: set[str]) -> str:
    """Return why a secret is easy to guess, "" if it is not. No part of it is in the text."""
    lowered = user.secret.lower()
    if lowered in DEFAULT_SECRETS:
        return "a secret of Apache's documents"
    if lowered in common:
        return "one of the most used passwords"
    if user.name.lower() in lowered and len(lowered) - len(user.name) < MIN_SECRET_CHARACTERS // 2:
        return "its name is most of its secret"
    if len(lowered) < MIN_SECRET_CHARACTERS:
        return f"less than {MIN_SECRET_CHARACTERS} characters"
    return ""


def dashboard_users_of() -> DashboardUsers:
    """Return the users in the dashboard's database, which is not created."""
    nothing = DashboardUsers(
        active=0, super_users=[], by_role={}, with_first_password=[], tokens=0, backup_schedules=0
    )
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite" and not os.path.exists(str(name)) and ":memory:" not in str(name):
        return nothing
    from django.contrib.auth import get_user_model

    from mqadmin.jobs.kinds import BACKUP
    from mqadmin.jobs.schedules import PipelineSchedule
    from mqadmin.models import ApiToken, FirstLogin
    from mqadmin.web.roles import role_of

    try:
        users = list(get_user_model().objects.filter(is_active=True))
        live = ApiToken.objects.filter(revoked_at=None).exclude(expires_at__lt=timezone.now())
        return DashboardUsers(
            active=len(users),
            super_users=sorted(user.get_username() for user in users if user.is_superuser),
            by_role=dict(Counter(role_of(user) for user in users)),
            with_first_password=sorted(
                FirstLogin.objects.values_list("user__username", flat=True).filter(user__is_active=True)
            ),
            tokens=live.count(),
            backup_schedules=PipelineSchedule.objects.filter(job=BACKUP).count(),
        )
    except DatabaseError as error:
        return DashboardUsers(
            active=0,
            super_users=[],
            by_role={},
            with_first_password=[],
            tokens=0,
            backup_schedules=0,
            failure=str(error),
        )


def open_files_of(data: Path, store: Path, further: Iterable[str] = ()) -> list[OpenFile]:
    """Return directories and files of secrets that other users of the machine may read, enter or change. They
    may enter the data directory itself: what is in it is closed to them. `further` are files of secrets that
    are elsewhere."""
    secrets = [data / name for name in _FILES_WITH_SECRETS]
    secrets += [store / "config" / name for name in (FILE_NAME, f"{FILE_NAME}.bak")]
    secrets += map(Path, further)
    directories = [data / name for name in _DIRECTORIES] + [store]
    found = [*_open(directories, has_secrets=False), *_open(secrets, has_secrets=True)]
    return [file for file in found if file.is_writable or file.path != str(data)]


def _open(paths: list[Path], *, has_secrets: bool) -> Iterator[OpenFile]:
    for path in dict.fromkeys(paths):
        try:
            found = path.stat()
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077 and not found.st_mode & stat.S_ISVTX:
            yield OpenFile(
                path=str(path),
                mode=f"{mode:04o}",
                is_writable=bool(mode & 0o022),
                has_secrets=has_secrets,
            )
