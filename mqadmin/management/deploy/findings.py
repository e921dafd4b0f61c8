"""What is wrong with a deployment. Each finding says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from broker_store.config.checks import Network, networks
from broker_store.config.exposure import Exposure
from broker_store.config.tls import DISABLED, ENFORCING
from broker_store.launch import is_loopback
from mqadmin.management.deploy.facts import (
    AccessUsers,
    Certificate,
    DashboardUsers,
    Finding,
    OpenFile,
    Severity,
)

DAY_MS = 86_400_000
SOON_DAYS = 30
WIDE_BITS = {4: 8, 6: 16}  # a network with so few fixed bits is nearly every address
MAX_SUPER_USERS = 3
REPLACE = "replace it: no restart is needed"


def broker_findings(exposure: Exposure, access: AccessUsers | None) -> Iterator[Finding]:
    """Yield what is wrong with the ports of the broker and the name server."""
    is_open = not is_loopback(exposure.bind)
    if is_open and not exposure.authenticates:
        yield _error(
            "access.off",
            f"the broker listens on {exposure.bind} and every client that reaches it reads and writes "
            "everything",
            "set authenticationEnabled=true and authorizationEnabled=true with initAuthenticationUser, or "
            "leave --bind at 127.0.0.1",
        )
    is_name_server_open = is_open and exposure.has_name_server
    if is_name_server_open and exposure.has_open_name_server and not exposure.name_server_changers:
        yield _error(
            "nameserver.open",
            "every client may register a broker at the name server and so get the messages of others",
            "start without --insecure, or set nameServerChangeAddresses",
        )
    elif is_name_server_open:
        yield _note("nameserver.readable", "every client that reaches the name server reads names of topics")
    yield from _of_lists(exposure)
    if exposure.percent_of_address == 100 and is_open:
        yield _note("limits.address", "one address may use all connections: maxPercentOfAddress is 100")
    if access is not None:
        yield from _of_users(exposure, access, is_open)


def _of_lists(exposure: Exposure) -> Iterator[Finding]:
    may_name = "names nearly every address, so every client may choose the address that is seen"
    for key, setting, what in (
        ("nameServerChangeAddresses", exposure.name_server_changers, "lets nearly every address change it"),
        ("proxyProtocolAddresses", exposure.proxy_addresses, may_name),
        ("BROKER_WEB_PROXIES", exposure.web_proxies, may_name),
        (
            "haSlaveAddresses",
            exposure.ha_slaves if exposure.has_ha_port else "",
            "lets nearly every address copy the whole log, without a signature",
        ),
    ):
        if wide := [str(network) for network in networks(setting) if _is_wide(network)]:
            yield _error(
                f"addresses.{key}", f"{key} {what}: {', '.join(wide)}", "name the addresses of your machines"
            )


def _of_users(exposure: Exposure, access: AccessUsers, is_open: bool) -> Iterator[Finding]:
    if access.failure:
        yield _error("access.unreadable", f"the users of access control are unknown: {access.failure}")
        return
    if not exposure.authorizes:
        yield _finding(
            "error" if is_open else "warning",
            "access.no_rights",
            "each user may do everything: authorizationEnabled is false",
            "set it to true",
        )
    if not access.super_users:
        yield _warning(
            "access.no_super_user",
            "no enabled user may change users",
            "set initAuthenticationUser and start the broker",
        )
    if len(access.super_users) > MAX_SUPER_USERS:
        listed = ", ".join(access.super_users[:10])
        yield _note("access.super_users", f"{len(access.super_users):,} users may do everything: {listed}")
    for weak in access.weak:
        yield _finding(
            "error" if is_open else "warning",
            "access.weak_secret",
            f"user {weak}",
            "set another secret on the page Access",
        )
    for key, listed in (
        ("authenticationWhitelist", exposure.authentication_whitelist),
        ("authorizationWhitelist", exposure.authorization_whitelist),
    ):
        if listed:
            need = "signature" if key.startswith("authentication") else "right"
            yield _warning(f"access.{key}", f"{key} lets requests pass without a {need}: {listed}")
    if exposure.unsigned:
        yield _finding(
            "error" if is_open else "warning",
            "access.unsigned",
            f"every client may send without a name: requests {', '.join(exposure.unsigned)}",
            "take them out of authenticationWhitelist",
        )
    if not exposure.has_inner_credentials:
        yield _note(
            "access.no_inner_credentials",
            "jobs and manage.py demo cannot sign: innerClientAuthenticationCredentials is not set",
        )


_AGAIN = ", and who reads a signed request there can send it again"


def tls_findings(exposure: Exposure, certificate: Certificate | None, now_ms: int) -> Iterator[Finding]:
    """Yield what crosses a network in clear, and what is wrong with the certificate."""
    is_open = exposure.has_broker and not is_loopback(exposure.bind)
    is_web_open = exposure.web_bind is not None and not is_loopback(exposure.web_bind)
    if is_open and exposure.tls_mode == DISABLED:
        yield _warning(
            "tls.disabled",
            f"messages cross the network in clear{_AGAIN if exposure.authenticates else ''}",
            "set tls.server.mode to enforcing",
        )
    elif is_open and exposure.tls_mode != ENFORCING:
        yield _warning(
            "tls.permissive",
            "messages of clients without TLS cross the network in clear"
            f"{_AGAIN if exposure.authenticates else ''}",
            "set tls.server.mode to enforcing when all clients have TLS",
        )
    if is_web_open and exposure.tls_mode != ENFORCING and not exposure.has_tls_proxy:
        yield _finding(
            "error" if exposure.tls_mode == DISABLED else "warning",
            "web.plain",
            "passwords and tokens of the dashboard may cross the network in clear: it answers plain HTTP",
            "set tls.server.mode to enforcing, or put a proxy with TLS before it and set BROKER_WEB_TLS=1",
        )
    if certificate is not None and (is_open or is_web_open):
        yield from _of_certificate(certificate, now_ms)


def _of_certificate(certificate: Certificate, now_ms: int) -> Iterator[Finding]:
    if certificate.failure:
        yield _error("certificate.unreadable", f"{certificate.file} cannot be read: {certificate.failure}")
        return
    if certificate.is_own:
        yield _warning(
            "certificate.own",
            "the broker has made its certificate itself, so clients that accept any one do not notice an "
            "impostor",
            f"set tlsCertPath and tlsKeyPath, or give {certificate.file} to clients as the one they trust",
        )
    if certificate.ends_ms is None:
        return
    day = datetime.fromtimestamp(certificate.ends_ms / 1_000, UTC).date()
    if certificate.ends_ms <= now_ms:
        yield _error("certificate.ended", f"the certificate has ended on {day}", REPLACE)
    elif certificate.ends_ms - now_ms < SOON_DAYS * DAY_MS and not certificate.is_own:
        yield _warning("certificate.ends", f"the certificate ends on {day}", REPLACE)


def dashboard_findings(exposure: Exposure, dashboard: DashboardUsers | None) -> Iterator[Finding]:
    """Yield what is wrong with the dashboard's users and names."""
    if dashboard is None or exposure.web_bind is None:
        return
    is_open = not is_loopback(exposure.web_bind)
    if dashboard.failure:
        yield _error("web.database", f"the users of the dashboard are unknown: {dashboard.failure}")
        return
    hosts = [host for host in exposure.web_hosts.replace(" ", "").split(",") if host]
    if "*" in hosts:
        yield _error(
            "web.any_host",
            "the dashboard answers under every name, so a page of another site may reach it (DNS rebinding)",
            "name its hosts: --web-host NAME",
        )
    elif is_open and not hosts and not exposure.web_proxies:
        yield _warning(
            "web.no_host",
            "the dashboard answers 400 to browsers of other machines: it knows no name but localhost",
            "add --web-host NAME",
        )
    for name in dashboard.with_first_password:
        yield _finding(
            "warning" if is_open else "note",
            "web.first_password",
            f"user {name} has not set a password: the one that a start prints is valid once",
            "log in and set one",
        )
    if not dashboard.super_users and dashboard.active:
        yield _warning("web.no_super_user", "no active user of the dashboard may manage users")
    if len(dashboard.super_users) > MAX_SUPER_USERS:
        yield _note(
            "web.super_users", f"{len(dashboard.super_users):,} users of the dashboard may do everything"
        )
    if exposure.redis and not exposure.redis.startswith(("rediss:", "unix:")):
        host = exposure.redis.partition("://")[2]
        if not is_loopback(host):
            yield _warning(
                "redis.plain", f"jobs cross the network to {exposure.redis} in clear", "use rediss://"
            )
    if not dashboard.backup_schedules:
        yield _warning(
            "backup.none",
            "no backup is made by a schedule",
            "set BROKER_BACKUP_DIR and add one on the page Jobs, or let cron call manage.py backup",
        )


def file_findings(open_files: list[OpenFile]) -> Iterator[Finding]:
    """Yield which files other users of the machine may read."""
    for file in open_files:
        if file.is_writable:
            yield _error(
                "files.writable",
                f"{file.path} has mode {file.mode}: other users of this machine may change it",
                f"chmod go-w {file.path}",
            )
            continue
        yield _finding(
            "error" if file.has_secrets else "warning",
            "files.secret" if file.has_secrets else "files.directory",
            f"{file.path} has mode {file.mode}: other users of this machine may "
            + ("read its secrets" if file.has_secrets else "enter or read it"),
            f"chmod go-rwx {file.path}",
        )


def process_findings(uid: int | None) -> Iterator[Finding]:
    """Yield what is wrong with the process."""
    if uid == 0:
        yield _warning("process.root", "the broker runs as root", "start it as a user of its own")


def _is_wide(network: Network) -> bool:
    return network.prefixlen < WIDE_BITS[network.version]


def _finding(severity: Severity, name: str, what: str, hint: str = "") -> Finding:
    return Finding(id=name, severity=severity, what=what, hint=hint)


def _error(name: str, what: str, hint: str = "") -> Finding:
    return _finding("error", name, what, hint)


def _warning(name: str, what: str, hint: str = "") -> Finding:
    return _finding("warning", name, what, hint)


def _note(name: str, what: str, hint: str = "") -> Finding:
    return _finding("note", name, what, hint)
