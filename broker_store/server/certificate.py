"""The certificate of a TLS port: that of the settings, or one that the broker makes for itself.

The Java and Go clients of RocketMQ 5 accept any certificate, so a self-signed one protects against readers,
not against impostors. It stands with its key in one file of the data directory, and without it in another,
which can be given to clients that check certificates. Only the owner may read both. It is valid for
VALID_DAYS, and is made again RENEWED_DAYS before its end, at a start or while the broker runs.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.errors import ConfigError

log = logging.getLogger(__name__)
FILE = "self-signed.pem"
FOR_CLIENTS = "self-signed.crt"
_BEGIN = b"-----BEGIN CERTIFICATE-----"
VALID_DAYS = 397
RENEWED_DAYS = 30
MAX_FILE_BYTES = 1 << 20
ALPN = ["h2"]
_DAY_MS = 86_400_000
# A clock that is set back a little does not make a new certificate one of the future.
_BACK_DATED = datetime.timedelta(days=1)


class _State(NamedTuple):
    """What changes when a file is replaced."""

    certificate: bytes
    key: bytes


class Certificate:
    """The certificate of one port. `given` are the files of the settings: certificate and key in PEM, or
    none. Methods read and write files: they are for a thread."""

    def __init__(
        self,
        given: tuple[Path, Path] | None,
        directory: Path,
        names: Iterable[str],
        clock: Callable[[], int],
        disk: Disk,
    ):
        self._given, self._names, self._clock, self._disk = given, sorted(set(names)), clock, disk
        self._own = directory / FILE
        self._loaded: _State | None = None

    def open(self) -> ssl.SSLContext:
        """Return the context of new connections. Raises ConfigError for files of the settings that cannot be
        used, StoreError if a new file cannot be written."""
        context = self.changed()
        assert context is not None  # nothing was loaded before
        return context

    def changed(self) -> ssl.SSLContext | None:
        """Return a new context if the files have changed, or if the certificate was made again; else None.
        Raises ConfigError, StoreError."""
        if self._given is not None:
            return self._load(*self._given)
        for_clients = self._own.with_name(FOR_CLIENTS)
        if is_again := self._disk.exists(for_clients):
            self._disk.size_of(for_clients)  # refused if it is no regular file
        if why := self._why_made():
            self._disk.make_directory(self._own.parent)
            self._disk.replace_file(self._own, self_signed(self._names, self._clock()))
            if is_again:
                log.warning(
                    "a new certificate was made, because %s %s: clients that trust the old one refuse the "
                    "new one, give them tls/%s again",
                    FILE,
                    why,
                    FOR_CLIENTS,
                )
        context = self._load(self._own, self._own)
        if context is not None and self._loaded is not None:
            content = self._loaded.certificate
            self._disk.replace_file(for_clients, content[content.index(_BEGIN) :])
        return context

    def _load(self, certificate: Path, key: Path) -> ssl.SSLContext | None:
        read = self._disk.read_file
        state = _State(read(certificate, MAX_FILE_BYTES) or b"", read(key, MAX_FILE_BYTES) or b"")
        if state == self._loaded:
            return None
        context = server_context()
        try:
            context.load_cert_chain(certificate, key, _no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "tlsCertPath, tlsKeyPath",
                f"{certificate}, {key}",
                f"no certificate with its key in PEM, without a password: {error!s:.200}",
            ) from None
        self._loaded = state
        return context

    def _why_made(self) -> str:
        """Return why the file has to be made: it is missing, cannot be used, or its certificate ends soon;
        "" if it is sound."""
        if self._disk.read_file(self._own, MAX_FILE_BYTES) is None:
            return "is missing"
        context = server_context()
        try:
            context.load_cert_chain(self._own, password=_no_password)
            context.load_verify_locations(self._own)
            (found,) = context.get_ca_certs()
            ends_ms = ssl.cert_time_to_seconds(str(found["notAfter"])) * 1_000
        except (OSError, ValueError) as error:
            return f"cannot be used ({error!s:.200})"
        return "ends soon" if ends_ms - self._clock() < RENEWED_DAYS * _DAY_MS else ""


def server_context() -> ssl.SSLContext:
    """Return a context of a server of HTTP/2, without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake within a connection would run on the loop.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(ALPN)
    return context


def self_signed(names: Iterable[str], now_ms: int) -> bytes:
    """Return a new key and a certificate for it, in PEM. `names` are host names and addresses."""
    # Imported here: a start that finds its file needs none of it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    # A signature with this curve takes 0.03 ms, one with an RSA key of 2,048 bits 0.6 ms.
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "RocketMQ broker")])
    now = datetime.datetime.fromtimestamp(now_ms // 1_000, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK_DATED)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        # A client that checks certificates can be given this one as its only authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _alternative(name: str):
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _no_password() -> str:
    # Without it OpenSSL would ask at the terminal.
    raise ValueError("the key has a password")
