"""The first bytes of a connection: TLS in each mode, certificates of clients, PROXY prologues."""

from __future__ import annotations

import asyncio
import datetime
import gc
import ssl
from ipaddress import ip_network
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from broker_store.client import Admin, tls_context
from broker_store.config.broker import BrokerSettings
from broker_store.config.name_server import NameServerSettings
from broker_store.config.tls import TlsSettings
from broker_store.engine.disk.disk import Disk
from broker_store.errors import ConfigError
from broker_store.nameserver.handlers import NameServer
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.server import channel, opening
from broker_store.server.certificate import OF_CLIENTS
from broker_store.server.channel import Channel, connect
from broker_store.server.listener import bind, listen
from broker_store.server.nameserver_port import NameServerPort
from broker_store.server.registration import Registration
from broker_store.server.tls_setup import what_comes_before
from broker_store.server.tls_transport import TlsTransport
from tests.support.broker_harness import Harness
from tests.support.waits import LIMIT_S, until

PROXIED = b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 10911\r\n"


class Port:
    """A port whose answers have the address of the client, and what it refused."""

    def __init__(self, listener, before, refused):
        self.listener, self.before, self.refused = listener, before, refused

    @property
    def causes(self):
        return [cause for cause, _ in self.refused]

    async def ask(self, *, first: bytes = b"", tls: ssl.SSLContext | None = None) -> str | None:
        """Return which address the port sees; None if it ends the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        try:
            writer.write(first)
            if tls is not None:
                await writer.start_tls(tls)
            writer.write(encode_frame(Command.request(10, opaque=1)))
            connection = Connection()
            async with asyncio.timeout(LIMIT_S):
                while data := await reader.read(1 << 16):
                    for answer in connection.receive(data):
                        return answer.remark
        except ConnectionError:
            pass
        finally:
            writer.close()
        return None


@pytest.fixture
async def opened(tmp_path):
    """Open ports: `await opened(settings)`."""
    ports: list[Port] = []

    async def make(settings: TlsSettings, host: str = "127.0.0.1") -> Port:
        before = what_comes_before(settings, tmp_path / "tls", {"127.0.0.1"}, Disk())
        if before.tls is not None:
            await before.tls.open()
        refused: list = []
        listener = await listen(
            lambda command, channel: command.answer(0, channel.remote, body=command.body),
            bind(host, 0),
            refused=lambda cause, **case: refused.append((cause, case)),
            before=before,
        )
        ports.append(Port(listener, before, refused))
        return ports[-1]

    yield make
    for port in ports:
        await port.listener.close()
        if port.before.tls is not None:
            port.before.tls.close()


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
async def test_each_mode_takes_what_apache_takes(opened, mode):
    port = await opened(BrokerSettings(tls_server_mode=mode))
    plain = await port.ask()
    assert (plain is None) == (mode == "enforcing")
    if mode == "disabled":
        assert await seen(port, tls_context()) is None
    else:
        assert (await port.ask(tls=tls_context())).startswith("127.0.0.1:")
    wanted = {"disabled": ["TLS client"], "permissive": [], "enforcing": ["connection without TLS"]}
    assert port.causes == wanted[mode]
    await until(lambda: not port.listener.channels and not port.listener.openings)
    assert port.listener.kept_bytes == 0


async def test_many_requests_and_large_bodies_by_tls_are_answered(opened):
    port = await opened(BrokerSettings())
    channel = await connect("127.0.0.1", port.listener.port, 5.0, tls=tls_context())
    body = bytes(range(256)) * 4_096
    answers = await asyncio.gather(
        *(channel.request(Command.request(10, None, body if n % 50 == 0 else b"x"), 30.0) for n in range(500))
    )
    assert {answer.remark for answer in answers} == {channel.local}
    assert [answer.body == (body if n % 50 == 0 else b"x") for n, answer in enumerate(answers)] == [
        True
    ] * 500
    await _closed(channel)


@pytest.mark.parametrize("how", ["whole", "cut handshake"])
async def test_a_connection_that_ended_is_freed_at_once(opened, how):
    """Its parts refer to each other while it is open; a cycle would stay until the collector runs."""
    port = await opened(BrokerSettings())
    kinds = (TlsTransport, opening.Opening, Channel)
    gc.collect()
    gc.disable()
    try:
        if how == "whole":
            assert await port.ask(tls=tls_context()) is not None
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", port.listener.port)
            writer.write(b"\x16\x03\x01\x01\x00\x01")
            await until(lambda: port.before.tls.shaking)
            writer.close()
        await until(lambda: not port.listener.openings and not port.listener.channels)
        # Not `isinstance`, which asks lazy objects of other tests for their class
        await until(lambda: not [found for found in gc.get_objects() if type(found) in kinds])
    finally:
        gc.enable()


async def test_the_made_certificate_is_that_of_its_names(opened, tmp_path):
    port = await opened(BrokerSettings())
    trusted = tls_context(str(tmp_path / "tls" / "self-signed.crt"))
    assert await port.ask(tls=tls_context()) and trusted.verify_mode is ssl.CERT_REQUIRED
    async with asyncio.timeout(LIMIT_S):
        _, writer = await asyncio.open_connection("127.0.0.1", port.listener.port, ssl=trusted)
    writer.close()
    other = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", port.listener.port, ssl=other)
    await until(lambda: not port.listener.channels and not port.listener.openings)


class Authority:
    """Makes certificates of clients, in a directory."""

    def __init__(self, directory):
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.file = directory / "authority.pem"
        self._certificate = self._sign(self._name, self._key, is_authority=True)
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, name, key, *, is_authority):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def client(self, name: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        file = self._directory / f"{name}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + self._sign(subject, key, is_authority=False).public_bytes(serialization.Encoding.PEM)
        )
        context = tls_context()
        context.load_cert_chain(file)
        return context


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


async def seen(port: Port, tls: ssl.SSLContext) -> str | None:
    try:
        return await port.ask(tls=tls)
    except (ssl.SSLError, ConnectionError):
        return None


@pytest.mark.parametrize("asked", ["none", "optional", "require"])
async def test_certificates_of_clients_are_checked_as_the_setting_says(opened, authority, tmp_path, asked):
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").client("stranger")
    port = await opened(
        BrokerSettings(tls_server_need_client_auth=asked, tls_server_trust_cert_path=str(authority.file))
    )
    assert await seen(port, authority.client("ann"))
    assert bool(await seen(port, tls_context())) == (asked != "require")
    assert bool(await seen(port, stranger)) == (asked == "none")
    refused = {"none": 0, "optional": 1, "require": 2}[asked]
    await until(lambda: port.causes == ["TLS"] * refused)


def by_file(file) -> ssl.SSLContext:
    return tls_context(certificate=str(file))


async def test_programs_of_the_data_directory_have_a_certificate_that_its_ports_take(
    opened, authority, tmp_path
):
    settings = BrokerSettings(
        tls_server_need_client_auth="require", tls_server_trust_cert_path=str(authority.file)
    )
    port = await opened(settings)
    file = tmp_path / "tls" / OF_CLIENTS
    assert file.stat().st_mode & 0o777 == 0o600
    assert await seen(port, by_file(file))
    first = file.read_bytes()
    port.before.tls._certificate.changed()
    assert file.read_bytes() == first
    (tmp_path / "elsewhere").mkdir()
    elsewhere = what_comes_before(settings, tmp_path / "elsewhere", set(), Disk())
    elsewhere.tls._certificate.open()
    assert not await seen(port, by_file(tmp_path / "elsewhere" / OF_CLIENTS)), "it is of another process"


async def test_without_certificates_of_clients_none_is_made_for_them(opened, tmp_path):
    await opened(BrokerSettings())
    assert not (tmp_path / "tls" / OF_CLIENTS).exists()


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="trustCertPath"):
        BrokerSettings(tls_server_need_client_auth="require")
    with pytest.raises(ConfigError, match="proxyProtocolAddresses.*10.0.0.300"):
        NameServerSettings(proxy_protocol_addresses="10.0.0.1, 10.0.0.300")
    empty = tmp_path / "none.pem"
    empty.write_text("no certificate")
    settings = BrokerSettings(tls_server_need_client_auth="require", tls_server_trust_cert_path=str(empty))
    before = what_comes_before(settings, tmp_path / "tls", {"127.0.0.1"}, Disk())
    with pytest.raises(ConfigError, match="trustCertPath"):
        before.tls._certificate.open()


async def test_files_that_were_replaced_are_used_for_new_connections(opened, authority, tmp_path):
    port = await opened(
        BrokerSettings(tls_server_need_client_auth="require", tls_server_trust_cert_path=str(authority.file))
    )
    ann = authority.client("ann")
    assert await seen(port, ann)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    good = authority.file.read_bytes()
    authority.file.write_bytes(other.file.read_bytes())
    await port.before.tls.renew()
    assert await seen(port, ann) is None and await seen(port, other.client("bob"))
    authority.file.write_bytes(b"torn")
    await port.before.tls.renew()
    await port.before.tls.renew()
    assert await seen(port, other.client("bob")), "the former one stays"
    authority.file.write_bytes(good)
    await port.before.tls.renew()
    assert await seen(port, ann)


async def _closed(channel: Channel) -> None:
    channel.close()
    await until(lambda: channel.closed)


# PROXY prologues


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_prologue_of_a_proxy_names_the_client(opened, tls):
    port = await opened(BrokerSettings(proxy_protocol_addresses="10.0.0.0/8, 127.0.0.1"))
    context = tls_context() if tls else None
    assert await port.ask(first=PROXIED, tls=context) == "192.0.2.7:51000"
    assert (await port.ask(tls=context)).startswith("127.0.0.1:"), "a prologue is not needed"
    assert (await port.ask(first=b"PROXY UNKNOWN\r\n", tls=context)).startswith("127.0.0.1:")


async def test_a_proxy_by_ipv4_is_known_at_an_ipv6_port(opened):
    port = await opened(BrokerSettings(proxy_protocol_addresses="127.0.0.1"), "::")
    assert await port.ask(first=PROXIED) == "192.0.2.7:51000"


async def test_a_client_by_ipv4_has_its_ipv4_address_at_an_ipv6_port(opened):
    """Access control compares the text: a rule for 10.0.0.0/8 would not match ::ffff:10.1.2.3."""
    port = await opened(BrokerSettings(proxy_protocol_addresses="127.0.0.1"), "::")
    assert (await port.ask()).startswith("127.0.0.1:")
    mapped = b"PROXY TCP6 ::ffff:10.1.2.3 ::1 51000 10911\r\n"
    assert await port.ask(first=mapped) == "10.1.2.3:51000"
    assert await port.ask(first=mapped.replace(b"::ffff:10.1.2.3", b"2001:db8::7")) == "[2001:db8::7]:51000"


async def test_a_prologue_from_another_address_is_no_request(opened):
    port = await opened(BrokerSettings(proxy_protocol_addresses="10.0.0.0/8"))
    assert await port.ask(first=PROXIED) is None
    assert port.causes == ["malformed frame"]


async def test_a_client_behind_a_proxy_cannot_name_another(opened):
    port = await opened(BrokerSettings(proxy_protocol_addresses="127.0.0.1"))
    assert await port.ask(first=PROXIED + PROXIED.replace(b"192.0.2.7", b"192.0.2.8")) is None
    ((cause, case),) = port.refused
    assert (cause, case["who"]) == ("malformed frame", "192.0.2.7:51000")


@pytest.mark.parametrize(
    ("proxy", "client", "seen"),
    [
        ("10.0.0.9", "127.0.0.1", "10.0.0.9:40000"),
        ("10.0.0.9", "::1", "10.0.0.9:40000"),
        ("10.0.0.9", "192.0.2.7", "192.0.2.7:5"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:5"),
    ],
)
async def test_a_client_on_the_machine_of_its_proxy_is_not_taken_for_one_of_this_machine(proxy, client, seen):
    """By loopback it could change the name server, and had no bound of connections."""
    port = SimpleNamespace(
        proxies=(ip_network("10.0.0.0/8"), ip_network("127.0.0.1")),
        admit=lambda connection: True,
        moved=lambda connection: True,
        tls=None,
    )
    transport = SimpleNamespace(get_extra_info=lambda name: (proxy, 40_000))
    connection = opening.Opening(port)
    connection.connection_made(transport)
    kind = "TCP6" if ":" in client else "TCP4"
    own = "::2" if ":" in client else "10.0.0.1"
    connection.data_received(f"PROXY {kind} {client} {own} 5 6\r\n".encode())
    assert connection.remote == seen


async def test_a_bad_prologue_ends_the_connection_and_one_that_does_not_end_is_overdue(opened):
    port = await opened(BrokerSettings(proxy_protocol_addresses="127.0.0.1"))
    assert await port.ask(first=b"PROXY TCP4 nonsense\r\n") is None
    assert port.causes == ["PROXY prologue"]
    _, writer = await asyncio.open_connection("127.0.0.1", port.listener.port)
    writer.write(PROXIED[:20])
    await until(lambda: port.listener.kept_bytes == 20)
    (connection,) = port.listener.openings
    now_s = asyncio.get_running_loop().time()
    assert connection.overdue(now_s) is None
    overdue = connection.overdue(now_s + opening.PROLOGUE_TIMEOUT_S + 1)
    assert overdue[0] == "slow PROXY prologue"
    writer.close()
    await until(lambda: not port.listener.openings)
    assert port.listener.kept_bytes == 0


async def test_connections_without_a_byte_count_and_end(opened):
    port = await opened(BrokerSettings())
    port.listener.max_connections = 2
    writers = [(await asyncio.open_connection("127.0.0.1", port.listener.port))[1] for _ in range(2)]
    await until(lambda: len(port.listener.openings) == 2)
    assert await port.ask() is None and port.causes == ["too many connections"]
    now_s = asyncio.get_running_loop().time()
    (first, _) = port.listener.openings
    assert first.overdue(now_s + channel.IDLE_TIMEOUT_S + 1)[0] == "idle connection"
    for writer in writers:
        writer.close()
    await until(lambda: not port.listener.openings)


# Connections to name servers


@pytest.mark.parametrize("trusts", [False, True], ids=["any certificate", "that of the name server"])
async def test_a_broker_registers_by_tls(tmp_path, trusts):
    settings = NameServerSettings(tls_server_mode="enforcing")
    before = what_comes_before(settings, tmp_path / "tls", {"127.0.0.1"}, Disk())
    await before.tls.open()
    port = NameServerPort(NameServer(lambda: 0), lambda: 0)
    await port.start("127.0.0.1", 0, before=before)
    address = f"127.0.0.1:{port.listener.port}"
    harness = Harness(
        namesrv_addr=address,
        tls_enable=True,
        tls_client_trust_cert_path=str(tmp_path / "tls" / "self-signed.crt") if trusts else "",
    )
    registration = Registration(harness.parts)
    await registration.start()
    await until(lambda: port.nameserver.routes.cluster_info().brokers)
    async with Admin(address, tls=tls_context()) as admin:
        assert (await admin.cluster_info()).brokers
    await registration.stop()
    await port.stop()
    before.tls.close()


def with_password(file, password: bytes) -> None:
    """Write the key of a file that has key and certificate beside it, with a password."""
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    file.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
    )


async def test_a_broker_registers_with_a_certificate_of_its_own(tmp_path, authority):
    settings = NameServerSettings(
        tls_server_mode="enforcing",
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=str(authority.file),
    )
    before = what_comes_before(settings, tmp_path / "tls", {"127.0.0.1"}, Disk())
    await before.tls.open()
    port = NameServerPort(NameServer(lambda: 0), lambda: 0)
    await port.start("127.0.0.1", 0, before=before)
    authority.client("broker")
    with_password(tmp_path / "broker.pem", b"word")
    own = {
        "namesrv_addr": f"127.0.0.1:{port.listener.port}",
        "tls_enable": True,
        "tls_client_cert_path": str(tmp_path / "broker.pem"),
        "tls_client_key_path": str(tmp_path / "broker.key"),
    }
    for password in ("", "another"):
        with pytest.raises(ConfigError, match=r"tls.client.certPath, tls.client.keyPath.*broker\.pem"):
            Registration(Harness(**own, tls_client_key_password=password).parts)
    registration = Registration(Harness(**own, tls_client_key_password="word").parts)
    await registration.start()
    await until(lambda: port.nameserver.routes.cluster_info().brokers)
    await registration.stop()
    await port.stop()
    before.tls.close()


def test_the_certificate_of_a_broker_needs_its_key():
    for given in ({"tls_client_cert_path": "a.pem"}, {"tls_client_key_path": "a.key"}):
        with pytest.raises(ConfigError, match="set together"):
            BrokerSettings(**given)


async def test_an_authority_that_cannot_be_read_is_refused(tmp_path):
    file = tmp_path / "none.pem"
    harness = Harness(tls_enable=True, tls_client_trust_cert_path=str(file))
    for text in (None, "no certificate", "\xff"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigError, match=r"tls.client.trustCertPath.*none\.pem"):
            Registration(harness.parts)
