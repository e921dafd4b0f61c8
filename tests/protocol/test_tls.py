"""TLS of a server without sockets, with Python's `ssl` as its client."""

from __future__ import annotations

import ssl

import pytest

from broker_store.protocol.tls import MAX_IDLE_RECORDS, TlsError, TlsSession
from broker_store.server.certificate import self_signed, server_context

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> ssl.SSLContext:
    file = tmp_path_factory.mktemp("tls") / "one.pem"
    file.write_bytes(self_signed(["localhost"], 1_700_000_000_000))
    made = server_context()
    made.load_cert_chain(file)
    return made


class Client:
    """A client that trusts any certificate."""

    def __init__(self, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, alpn: str = "h2"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        context.set_alpn_protocols([alpn])
        self.received, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.received, self.sent, server_hostname="localhost")

    def shake_hands(self, session: TlsSession, cut: int = 1 << 20) -> bytes:
        """Return what the client sends with the end of its handshake: nothing of data."""
        for _ in range(3):
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                pass
            data = self.sent.read()
            for at in range(0, len(data), cut):
                session.keep(data[at : at + cut], 1.0)
                session.shake_hands()
            self.received.write(session.take())
        assert session.is_open
        return self.sent.read()

    def records(self, *pieces: bytes) -> bytes:
        for piece in pieces:
            self.object.write(piece)
        return self.sent.read()

    def read(self, data: bytes) -> bytes:
        self.received.write(data)
        found = b""
        while True:
            try:
                found += self.object.read(1 << 16)
            except ssl.SSLWantReadError:
                return found


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_data_goes_both_ways_however_it_is_cut(context, version, cut):
    session, client = TlsSession(context, 1.0), Client(version)
    client.shake_hands(session, cut)
    assert client.object.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
    assert client.object.selected_alpn_protocol() == "h2"
    body = bytes(range(256)) * 200
    records = client.records(b"hello", body, b"end")
    plain = b"".join(session.receive(records[at : at + cut], 2.0) for at in range(0, len(records), cut))
    assert plain == b"hello" + body + b"end"
    assert (session.kept, session.unfinished_since_s, session.has_ended) == (0, None, False)
    assert client.read(session.send(body) + session.send(b"more")) == body + b"more"


def test_what_is_incomplete_of_a_record_is_counted_since_its_first_byte(context):
    session, client = TlsSession(context, 1.0), Client()
    client.shake_hands(session)
    first, second = client.records(b"a" * 100), client.records(b"b" * 100)
    assert session.receive(first + second[:3], 5.0) == b"a" * 100
    assert (session.kept, session.unfinished_since_s) == (3, 5.0)
    assert session.receive(second[3:50], 6.0) == b""
    assert (session.kept, session.unfinished_since_s) == (50, 5.0)
    third = client.records(b"c")
    assert session.receive(second[50:] + third[:6], 7.0) == b"b" * 100
    assert (session.kept, session.unfinished_since_s) == (6, 7.0)
    assert session.receive(third[6:], 8.0) == b"c"
    assert (session.kept, session.unfinished_since_s) == (0, None)


def test_the_end_of_the_client_is_seen(context):
    session, client = TlsSession(context, 1.0), Client()
    client.shake_hands(session)
    records = client.records(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.object.unwrap()
    assert session.receive(records + client.sent.read(), 2.0) == b"last"
    assert session.has_ended


def test_closing_tells_the_client_once(context):
    session, client = TlsSession(context, 1.0), Client()
    assert session.close() == b""  # before the handshake there is nothing to end
    client.shake_hands(session)
    client.received.write(session.close())
    assert client.object.read(1) == b""
    with pytest.raises(TlsError):
        session.send(b"late")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x00\x00" * 100,
        b"\x16GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_handshake_are_refused(context, data):
    session = TlsSession(context, 1.0)
    session.keep(data, 1.0)
    with pytest.raises(TlsError):
        session.shake_hands()


def test_a_record_that_was_changed_is_refused(context):
    session, client = TlsSession(context, 1.0), Client()
    client.shake_hands(session)
    records = bytearray(client.records(b"hello"))
    records[-1] ^= 1
    with pytest.raises(TlsError):
        session.receive(bytes(records), 2.0)


class Silent:
    """Reads records that hold no data."""

    def read(self, size: int) -> bytes:
        raise ssl.SSLWantReadError


def test_records_without_data_are_bounded(context):
    session, client = TlsSession(context, 1.0), Client()
    client.shake_hands(session)
    records = client.records(b"x")
    session._object = Silent()
    for _ in range(MAX_IDLE_RECORDS):
        assert session.receive(records, 1.0) == b""
    assert session.receive(records, 2.0) == b""
    with pytest.raises(TlsError, match="without data"):
        session.receive(records * 2, 2.0)
