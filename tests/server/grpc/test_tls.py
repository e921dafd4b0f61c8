"""TLS on the gRPC port, beside plain connections."""

from __future__ import annotations

import asyncio
import ssl
import time

import grpc
import grpc.aio
import pytest
import uvloop

from broker_store.engine.disk.disk import Disk
from broker_store.formats.http2_frame import SETTINGS
from broker_store.protocol.grpc.v2.definition_pb2 import Code
from broker_store.protocol.http2.connection import PREFACE
from broker_store.protocol.http2.frames import settings_frame
from broker_store.server import tls_server, tls_transport
from broker_store.server.certificate import FILE, VALID_DAYS, Certificate
from broker_store.server.grpc import channel as channel_module
from tests.server.grpc.conftest import Grpc, message, route
from tests.support.broker_harness import Harness
from tests.support.waits import LIMIT_S, until


@pytest.fixture
def certificate(tmp_path):
    return Certificate(
        None, tmp_path / "tls", ["localhost", "127.0.0.1"], lambda: int(time.time() * 1000), Disk()
    )


def secure(port, certificate) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials((certificate._own.parent / FILE).read_bytes())
    return grpc.aio.secure_channel(
        f"127.0.0.1:{port.port.port}", credentials, options=[("grpc.use_local_subchannel_pool", 1)]
    )


async def half_open(port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with the first three bytes of TLS and no more; returned when the port has read them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
    before = len(port.port.tls.shaking)
    writer.write(b"\x16\x03\x01")
    await until(lambda: len(port.port.tls.shaking) > before)
    return reader, writer


async def test_plain_and_tls_connections_share_the_port(opened, certificate):
    port = await opened(certificate=certificate)
    channel = secure(port, certificate)
    body = bytes(range(256)) * 4_000
    answers = await asyncio.gather(
        *(port.send(message(body), channel=one) for one in (channel, port.channel) for _ in range(5))
    )
    assert {answer.status.code for answer in answers} == {Code.OK}
    stored = port.stored()
    assert [one.body == body for one in stored] == [True] * 10
    assert sorted(one.tls is not None for one in port.port.channels) == [False, True]
    assert (port.port.kept_bytes, port.port.tls.shaking) == (0, {})
    await channel.close()


async def test_the_protocol_is_agreed_on_and_old_versions_are_refused(opened, certificate):
    port = await opened(certificate=certificate)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_alpn_protocols(["http/1.1", "h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port.port.port, ssl=client)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
    writer.write(b"\x16\x03\x01\x00\x05hello")
    assert (await reader.read())[:1] == b"\x15"  # an alert, then the end
    writer.close()
    assert port.parts.statistics.refusals.counts()["TLS"] == 1


async def test_a_handshake_has_its_time(opened, certificate):
    port = await opened(certificate=certificate)
    _, writer = await half_open(port)
    (connection,) = port.port.openings
    began_s = connection._tls._began_s
    assert connection.overdue(began_s + tls_transport.HANDSHAKE_TIMEOUT_S - 1) is None
    cause, _, limit_s = connection.overdue(began_s + tls_transport.HANDSHAKE_TIMEOUT_S + 1)
    assert (cause, limit_s) == ("slow TLS handshake", tls_transport.HANDSHAKE_TIMEOUT_S)
    assert port.port.kept_bytes == 3
    writer.close()
    await until(lambda: not port.port.openings)
    assert (port.port.tls.shaking, port.port.kept_bytes) == ({}, 0)


async def test_one_handshake_too_many_ends_the_oldest(opened, certificate, monkeypatch):
    monkeypatch.setattr(tls_server, "MAX_HANDSHAKES", 2)
    port = await opened(certificate=certificate)
    (oldest, first), (_, second) = await half_open(port), await half_open(port)
    channel = secure(port, certificate)
    assert (await port.call("QueryRoute", route(), channel=channel)).status.code == Code.OK
    assert await oldest.read() == b""
    assert port.parts.statistics.refusals.counts()["too many handshakes"] == 1
    assert len(port.port.tls.shaking) == 1
    first.close()
    second.close()
    await channel.close()


async def test_a_record_that_does_not_end_is_overdue(opened, certificate):
    port = await opened(certificate=certificate)
    client = ssl.create_default_context(cafile=str(certificate._own))
    client.check_hostname = False
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(received, sent)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(sent.read())
            async with asyncio.timeout(LIMIT_S):
                piece = await reader.read(1 << 16)
            assert piece, "the connection was ended"
            received.write(piece)
    tls.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    record = sent.read()
    writer.write(record[:-1])
    await until(lambda: port.port.channels and port.port.kept_bytes)
    (connection,) = port.port.channels
    since_s = connection.tls.session.unfinished_since_s
    assert connection.overdue(since_s + channel_module.FRAME_TIMEOUT_S - 1) is None
    assert connection.overdue(since_s + channel_module.FRAME_TIMEOUT_S + 1)[0] == "slow frame"
    writer.write(record[-1:])
    await until(lambda: connection.connection._has_preface)
    assert connection.tls.session.unfinished_since_s is None and port.port.kept_bytes == 0
    writer.close()


async def test_a_certificate_that_was_made_again_is_used_for_new_connections(
    opened, certificate, monkeypatch
):
    monkeypatch.setattr(tls_server, "CERTIFICATE_INTERVAL_S", 0.001)
    port = await opened(certificate=certificate)
    before = certificate._own.read_bytes()
    first = secure(port, certificate)
    assert (await port.call("QueryRoute", route(), channel=first)).status.code == Code.OK
    context = port.port.tls.context
    certificate._clock = lambda: int(time.time() * 1000) + VALID_DAYS * 86_400_000
    await until(lambda: port.port.tls.context is not context)
    assert certificate._own.read_bytes() != before
    certificate._own.write_bytes(b"torn")
    assert (await port.call("QueryRoute", route(), channel=first)).status.code == Code.OK
    await first.close()


def test_tls_works_on_the_loop_of_the_broker_too(certificate):
    async def exchange() -> bytes:
        port = Grpc(Harness())
        await port.start(certificate)
        client = ssl.create_default_context(cadata=certificate._own.read_text().partition("KEY-----\n")[2])
        client.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port, ssl=client)
        writer.write(PREFACE + settings_frame({}))
        answer = await reader.readexactly(9)
        writer.close()
        await port.stop()
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(exchange())[3] == SETTINGS


async def test_without_a_certificate_tls_is_no_http2(opened):
    port = await opened()
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port.port)
    writer.write(b"\x16\x03\x01\x00\x05hello")
    assert b"not those of HTTP/2" in await reader.read()
    writer.close()


async def test_a_port_that_closes_ends_handshakes_too(opened, certificate):
    port = await opened(certificate=certificate)
    reader, writer = await half_open(port)
    await port.port.close()
    assert await reader.read() == b"" and port.port.channels == set()
    writer.close()
