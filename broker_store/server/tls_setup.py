"""What the ports of a process read before the first byte of a request, made from its settings."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from pathlib import Path

from broker_store.config.checks import networks
from broker_store.config.tls import DISABLED, ENFORCING, NO_CLIENT_AUTH, REQUIRED, TlsSettings
from broker_store.engine.disk.disk import Disk
from broker_store.server.certificate import Certificate, ClientAuth
from broker_store.server.listener import Before
from broker_store.server.tls_server import TlsServer

_EVERY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


def _clock_ms() -> int:
    # Not `engine.store.wall_clock_ms`: a start without a broker imports no engine.
    return time.time_ns() // 1_000_000


def own_names(further: Iterable[str]) -> set[str]:
    """Return the names and addresses in a certificate that the process makes for itself."""
    named = {name for name in further if "*" not in name and not name.startswith(".")}
    return {"localhost", "127.0.0.1", "::1", socket.gethostname(), *named} - _EVERY_ADDRESS


def wanted_names(names: set[str]) -> set[str]:
    """Return those of the names that settings and options give. The name of the machine is another one in
    each new container."""
    return names - {socket.gethostname()}


def what_comes_before(settings: TlsSettings, place: Path, names: set[str], disk: Disk) -> Before:
    """Return what the ports of a process read before the first byte of a request. A certificate that it makes
    itself is in the directory `place`, for `names`."""
    proxies = networks(settings.proxy_protocol_addresses)
    if settings.tls_server_mode == DISABLED:
        return Before(None, proxies)
    given = (Path(settings.tls_cert_path), Path(settings.tls_key_path)) if settings.tls_cert_path else None
    clients = None
    if settings.tls_server_need_client_auth != NO_CLIENT_AUTH:
        clients = ClientAuth(
            Path(settings.tls_server_trust_cert_path), settings.tls_server_need_client_auth == REQUIRED
        )
    named = names - _EVERY_ADDRESS
    certificate = Certificate(given, place, named, _clock_ms, disk, clients, wanted_names(named))
    return Before(TlsServer(certificate, is_required=settings.tls_server_mode == ENFORCING), proxies)
