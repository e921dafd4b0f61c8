"""TLS without input and output. Of a server's connection: bytes go in, plain bytes come out.

    session = TlsSession(context, loop.time())
    session.keep(data, loop.time())
    session.shake_hands()                 # until `is_open`; may run in another thread
    plain = session.receive(data, loop.time())
    transport.write(session.take())       # after each of them

A record that is not complete is counted in `kept`, and the time of its first byte is `unfinished_since_s`.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from broker_store.errors import ProtocolError
from broker_store.protocol.budget import Budget

# The first byte of a connection that begins with TLS: its record has a message of the handshake.
HANDSHAKE = 0x16
HEAD_BYTES = 5  # type, version (2), length (2)
_LENGTH_AT = 3
MAX_PLAIN_BYTES = 16 << 10  # of a record
# Records without data after the handshake, for example changes of keys: each costs work.
MAX_IDLE_RECORDS = 64
IDLE_RECORDS_PER_S = 1


class ClientCertificate(NamedTuple):
    """What a client proves with who it is: files in PEM, and the password of the key, "" for none."""

    certificate: str
    key: str
    password: str = ""


def client_context(authorities: str | None, own: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return a context for connections to servers. `authorities` are certificates in PEM, one of which must
    have signed the server's; None: any certificate is accepted. `own` is sent to a server that asks for a
    certificate; its files are read here, because OpenSSL takes files alone. Raises OSError, ssl.SSLError, and
    ValueError for a text without certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authorities is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=authorities)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key, lambda: password_of(own.password))
    return context


def password_of(given: str) -> str:
    """Return the password of a key. Raises ValueError if none was given: OpenSSL would ask at the
    terminal."""
    if not given:
        raise ValueError("the key has a password")
    return given


def pinned_context(certificate: str, own: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return a context for connections to a server that must have this certificate, or one that it has signed
    (PEM), under whatever name. Raises as `client_context`."""
    context = client_context(certificate, own)
    context.check_hostname = False
    # Else a certificate of an authority would need that authority too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class TlsError(ProtocolError):
    """The peer broke a rule of TLS, or there is no version or cipher that both sides have."""

    cause = "TLS"


class TlsSession:
    """One connection. Its methods are for one thread at a time."""

    __slots__ = (
        "is_open", "has_ended", "kept", "unfinished_since_s", "_in", "_out", "_object", "_missing", "_head",
        "_idle",
    )  # fmt: skip

    def __init__(self, context: ssl.SSLContext, now_s: float):
        self.is_open = False  # the handshake is done
        self.has_ended = False  # the peer sends no more
        self.kept = 0  # bytes of a record that is not complete
        self.unfinished_since_s: float | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=True)
        self._missing = 0  # bytes until the end of the current record
        self._head = b""  # of the current record, while it is not complete
        self._idle = Budget(MAX_IDLE_RECORDS, IDLE_RECORDS_PER_S, now_s)

    @property
    def ssl_object(self) -> ssl.SSLObject:
        """Return what knows the version, the cipher and the certificate of the client."""
        return self._object

    def keep(self, data: bytes, now_s: float) -> int:
        """Take received bytes. Return the number of records that they complete."""
        self._in.write(data)
        return self._count(data, now_s)

    def _count(self, data: bytes, now_s: float) -> int:
        if self._head:
            data, self._head, self.kept = self._head + data, b"", 0
        end = len(data)
        at = self._missing
        begin = -self.kept  # of the current record
        complete = 0
        while at <= end:
            if at > begin:
                complete += 1
                begin = at
            if end - at < HEAD_BYTES:
                self._head = data[at:]
                break
            at += HEAD_BYTES + (data[at + _LENGTH_AT] << 8 | data[at + _LENGTH_AT + 1])
        self._missing = max(0, at - end)
        self.kept = end - begin
        if not self.kept:
            self.unfinished_since_s = None
        elif complete or self.unfinished_since_s is None:
            self.unfinished_since_s = now_s
        return complete

    def shake_hands(self) -> None:
        """Go on with the handshake, as far as the received bytes allow it. Raises TlsError; an alert for the
        peer is then among the bytes to send."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise TlsError(f"no TLS handshake: {error.reason or error!s:.120}") from None
        self.is_open = True

    def receive(self, data: bytes, now_s: float) -> bytes:
        """Return the plain bytes of the records that are complete with these bytes. Raises TlsError."""
        left = self.keep(data, now_s)
        pieces: list[bytes] = []
        source = self._object
        try:
            while True:
                piece = source.read(MAX_PLAIN_BYTES)
                if not piece:
                    self.has_ended = True
                    break
                pieces.append(piece)
                left -= 1
                if not left and not self._in.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise TlsError(f"a TLS record that cannot be read: {error.reason or error!s:.120}") from None
        if left > 0 and not self._idle.spend(left, now_s):
            raise TlsError("too many TLS records without data")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes) -> bytes:
        """Return plain bytes as records, with what else is to be sent. Raises TlsError."""
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TlsError(f"nothing can be sent any more: {error.reason or error!s:.120}") from None
        return self._out.read()

    def take(self) -> bytes:
        """Return the bytes to send, and forget them."""
        return self._out.read()

    def close(self) -> bytes:
        """Return the bytes that end the connection; no more data can be sent."""
        if self.is_open:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                pass  # the peer's answer is not waited for
        return self._out.read()
