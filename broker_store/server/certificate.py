"""The certificate of the ports: that of the settings, or one that the process makes for itself.

The Java and Go clients of RocketMQ 5 accept any certificate, so a self-signed one protects against readers,
not against impostors. It stands with its key in one file of the data directory, and without it in another,
which can be given to clients that check certificates. Only the owner may read both. It is valid for
VALID_DAYS, and is made again RENEWED_DAYS before its end, at a start or while the broker runs. It is not made
again when the process gets another name or address: clients that trust it would refuse the new one.

If clients are asked for certificates, the process makes one for the programs of its data directory too, and
accepts it beside those of the authorities.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from broker_store.config.tls import TlsClientSettings
from broker_store.engine.disk.disk import Disk
from broker_store.errors import ConfigError
from broker_store.protocol.tls import ClientCertificate, client_context, password_of

log = logging.getLogger(__name__)
FILE = "self-signed.pem"
FOR_CLIENTS = "self-signed.crt"
OF_CLIENTS = "client.pem"  # key and certificate of the demo, jobs and commands of the data directory
_BEGIN = b"-----BEGIN CERTIFICATE-----"
VALID_DAYS = 397
RENEWED_DAYS = 30
MAX_FILE_BYTES = 1 << 20
RPC_ALPN = ["h2"]
HTTP_ALPN = ["http/1.1"]
_DAY_MS = 86_400_000
# A clock that is set back a little does not make a new certificate one of the future.
_BACK_DATED = datetime.timedelta(days=1)


class _State(NamedTuple):
    """What changes when a file is replaced."""

    certificate: bytes
    key: bytes
    authorities: bytes
    of_clients: bytes  # OF_CLIENTS


class Contexts(NamedTuple):
    """The same certificate for ports of both kinds: a client of both protocols would else be given one that
    the port does not have."""

    rpc: ssl.SSLContext  # remoting, and gRPC by HTTP/2
    http: ssl.SSLContext  # the dashboard, HTTP/1.1


class ClientAuth(NamedTuple):
    """What is asked of clients: `authorities` have signed their certificates (a file in PEM), and each
    connection needs one if `is_required`."""

    authorities: Path
    is_required: bool


class Certificate:
    """The certificate of the ports. `given` are the files of the settings: certificate and key in PEM, or
    none. One that the process makes has `names`; those of them that are `wanted` are missed if an earlier one
    lacks them. Without `clients` no certificate is asked of them. Methods read and write files: they are for
    a thread."""

    def __init__(
        self,
        given: tuple[Path, Path] | None,
        directory: Path,
        names: Iterable[str],
        clock: Callable[[], int],
        disk: Disk,
        clients: ClientAuth | None = None,
        wanted: Iterable[str] = (),
    ):
        self._clients, self._wanted = clients, sorted(wanted)
        self._of_clients = directory / OF_CLIENTS
        self._given, self._names, self._clock, self._disk = given, sorted(set(names)), clock, disk
        self._own = directory / FILE
        self._loaded: _State | None = None
        self._ends_ms: int | None = None  # of a given certificate; None: unknown, or it was warned of

    def open(self) -> Contexts:
        """Return the contexts of new connections. Raises ConfigError for files of the settings that cannot be
        used, StoreError if a new file cannot be written."""
        contexts = self.changed()
        assert contexts is not None  # nothing was loaded before
        return contexts

    def changed(self) -> Contexts | None:
        """Return new contexts if the files have changed, or if the certificate was made again; else None.
        Raises ConfigError, StoreError."""
        if self._clients is not None and self._why_made(self._of_clients):
            self._disk.make_directory(self._of_clients.parent)
            self._disk.replace_file(self._of_clients, self_signed((), self._clock(), is_client=True))
        if self._given is not None:
            contexts = self._load(*self._given)
            if contexts is not None and self._loaded is not None:
                self._ends_ms = _end_of(self._loaded.certificate)
            self._warn_of_end(self._given[0])
            return contexts
        for_clients = self._own.with_name(FOR_CLIENTS)
        if is_again := self._disk.exists(for_clients):
            self._disk.size_of(for_clients)  # refused if it is no regular file
        if why := self._why_made(self._own):
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
        elif self._loaded is None and (missing := left_out(_stated_in(self._own), self._wanted)):
            log.warning(
                "the certificate %s does not state %s: it was made before. Clients that check names refuse "
                "it there; remove the file to have another one made, and give tls/%s to clients again",
                self._own,
                ", ".join(missing),
                FOR_CLIENTS,
            )
        contexts = self._load(self._own, self._own)
        if contexts is not None and self._loaded is not None:
            content = self._loaded.certificate
            self._disk.replace_file(for_clients, content[content.index(_BEGIN) :])
        return contexts

    def _load(self, certificate: Path, key: Path) -> Contexts | None:
        read, clients = self._disk.read_file, self._clients
        authorities = b"" if clients is None else read(clients.authorities.resolve(), MAX_FILE_BYTES) or b""
        of_clients = b"" if clients is None else read(self._of_clients, MAX_FILE_BYTES) or b""
        # A given file may be a link, which is replaced as a whole when a certificate is renewed
        certificate, key = certificate.resolve(), key.resolve()
        state = _State(
            read(certificate, MAX_FILE_BYTES) or b"",
            read(key, MAX_FILE_BYTES) or b"",
            authorities,
            of_clients,
        )
        if state == self._loaded:
            return None
        contexts = Contexts(server_context(RPC_ALPN), server_context(HTTP_ALPN))
        for context in contexts:
            if clients is not None:
                self._ask_clients(context, clients, authorities)
                context.load_verify_locations(cadata=of_clients[of_clients.index(_BEGIN) :].decode("ascii"))
            self._use(context, certificate, key)
        self._loaded = state
        return contexts

    def _use(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        try:
            context.load_cert_chain(certificate, key, _no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "tlsCertPath, tlsKeyPath",
                f"{certificate}, {key}",
                f"no certificate with its key in PEM, without a password: {error!s:.200}",
            ) from None

    def _ask_clients(self, context: ssl.SSLContext, clients: ClientAuth, authorities: bytes) -> None:
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                "tls.server.trustCertPath",
                str(clients.authorities),
                f"no certificates in PEM: {error!s:.200}",
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED if clients.is_required else ssl.CERT_OPTIONAL

    def _warn_of_end(self, path: Path) -> None:
        """Log once that a given certificate has ended or ends soon: clients that check it refuse it then."""
        if self._ends_ms is None or (left_ms := self._ends_ms - self._clock()) >= RENEWED_DAYS * _DAY_MS:
            return
        self._ends_ms = None
        what = "has ended" if left_ms <= 0 else f"ends in {left_ms / _DAY_MS:.0f} days"
        log.warning("the certificate %s %s: replace it and its key", path, what)

    def _why_made(self, file: Path) -> str:
        """Return why a file has to be made: it is missing, cannot be used, or its certificate ends soon; ""
        if it is sound."""
        if self._disk.read_file(file, MAX_FILE_BYTES) is None:
            return "is missing"
        try:
            server_context().load_cert_chain(file, password=_no_password)
            ends_ms = ssl.cert_time_to_seconds(str(_fields_of(file)["notAfter"])) * 1_000
        except (OSError, ValueError) as error:
            return f"cannot be used ({error!s:.200})"
        return "ends soon" if ends_ms - self._clock() < RENEWED_DAYS * _DAY_MS else ""


def _fields_of(file: Path) -> dict[str, Any]:
    """Return what the only certificate of a file states. Raises OSError, ValueError."""
    context = server_context()
    context.load_verify_locations(file)
    (found,) = context.get_ca_certs()
    return dict(found)


def _stated_in(file: Path) -> list[str]:
    return [str(value) for _kind, value in _fields_of(file).get("subjectAltName", ())]


def left_out(stated: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Return the wanted names and addresses that are not among the stated ones."""
    known = {_same(name) for name in stated}
    return [name for name in wanted if _same(name) not in known]


def _same(name: str) -> str:
    """Return a name or an address in one form."""
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return name.lower()


class CertificateFacts(NamedTuple):
    """What a certificate states."""

    subject: str
    issuer: str
    is_self_signed: bool
    names: list[str]  # host names and addresses
    ends_ms: int


def facts_of(certificate: Path) -> CertificateFacts:
    """Return what the first certificate of a file in PEM states. Raises OSError, and ValueError for a file
    without one."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names: list[str] = []
    try:
        stated = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        pass
    else:
        names = [str(name.value) for name in stated]
    return CertificateFacts(
        found.subject.rfc4514_string(),
        found.issuer.rfc4514_string(),
        found.subject == found.issuer,
        names,
        int(found.not_valid_after_utc.timestamp() * 1_000),
    )


def server_context(protocols: Sequence[str] = RPC_ALPN) -> ssl.SSLContext:
    """Return a context of a server, without a certificate. `protocols` are offered by ALPN."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake within a connection would run on the loop.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(protocols)
    return context


def context_to_servers(settings: TlsClientSettings) -> ssl.SSLContext:
    """Return a context for the broker's connections to other servers. Raises ConfigError."""
    authorities = settings.tls_client_trust_cert_path
    try:
        text = Path(authorities).read_text("ascii") if authorities else None
        context = client_context(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "tls.client.trustCertPath", authorities, f"no certificates in PEM: {error!s:.200}"
        ) from None
    certificate, key = settings.tls_client_cert_path, settings.tls_client_key_path
    if certificate:
        try:
            return client_context(text, ClientCertificate(certificate, key, settings.tls_client_key_password))
        except (OSError, ValueError) as error:
            raise ConfigError(
                "tls.client.certPath, tls.client.keyPath",
                f"{certificate}, {key}",
                f"no certificate with its key in PEM: {error!s:.200}",
            ) from None
    return context


def self_signed(names: Iterable[str], now_ms: int, *, is_client: bool = False) -> bytes:
    """Return a new key and a certificate for it, in PEM, for a server of these host names and addresses, or
    for clients."""
    # Imported here: a start that finds its file needs none of it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    # A signature with this curve takes 0.03 ms, one with an RSA key of 2,048 bits 0.6 ms.
    key = ec.generate_private_key(ec.SECP256R1())
    title = "RocketMQ broker's own clients" if is_client else "RocketMQ broker"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, title)])
    now = datetime.datetime.fromtimestamp(now_ms // 1_000, datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK_DATED)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        # A client that checks certificates can be given this one as its only authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    further: x509.ExtensionType = x509.SubjectAlternativeName([_alternative(name) for name in names])
    if is_client:
        further = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = built.add_extension(further, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _end_of(content: bytes) -> int | None:
    """Return when the first certificate of a file in PEM ends, in milliseconds; None if that cannot be
    read."""
    from cryptography import x509

    try:
        return int(x509.load_pem_x509_certificates(content)[0].not_valid_after_utc.timestamp()) * 1_000
    except (ValueError, x509.InvalidVersion):
        return None


def _alternative(name: str):
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _no_password() -> str:
    return password_of("")
