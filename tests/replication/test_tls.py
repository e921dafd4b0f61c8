"""TLS on the HA port: which slaves it takes in each mode, and that the copy is whole."""

import dataclasses
import socket
import ssl
import struct

import pytest

from broker_store.client import Admin, Producer, tls_context
from broker_store.replication.links import PIECE_BYTES, PlainLink, TlsLink
from broker_store.server.certificate import self_signed
from tests.engine.test_log_copy import log_of
from tests.replication.test_feeder import HEAD, Port, fill, whole
from tests.replication.test_follower import Master, following, slave, soon, until  # noqa: F401  (fixtures)
from tests.replication.test_pair import has_all, pair  # noqa: F401  (a fixture)
from tests.support.hand_store import opened
from tests.support.ports import free_port
from tests.support.waits import LIMIT_S

STEPS = 20_000


@dataclasses.dataclass
class Tls:
    """What the feeder needs of the TLS of a process."""

    context: ssl.SSLContext
    is_required: bool = False


@pytest.fixture
def tls(tmp_path):
    file = tmp_path / "own.pem"
    file.write_bytes(self_signed(["127.0.0.1"], 1_800_000_000_000))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return Tls(context)


class Secure:
    """A slave with TLS; the test steps the feeder while it waits."""

    def __init__(self, port: Port, **options):
        self.port, self.socket = port, port.connect(**options)
        if options:
            (*_, feeding) = port.feeder.slaves
            feeding.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        self.socket.setblocking(False)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = tls_context().wrap_bio(self.incoming, self.outgoing)
        self.do(self.tls.do_handshake)

    def do(self, step):
        for _ in range(STEPS):
            try:
                found, is_done = step(), True
            except ssl.SSLWantReadError:
                found, is_done = None, False
            if out := self.outgoing.read():
                self.socket.sendall(out)
            if is_done:
                return found
            self.port.step()
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                continue
            assert data, "the feeder closed the connection"
            self.incoming.write(data)
        raise AssertionError("it does not go on")

    def report(self, offset: int) -> None:
        self.do(lambda: self.tls.write(struct.pack(">q", offset)))
        self.port.step(2)

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = size - len(data)
            data += self.do(lambda left=left: self.tls.read(left))
        return bytes(data)

    def frame(self) -> tuple[int, bytes]:
        offset, size = HEAD.unpack(self.read(HEAD.size))
        return offset, self.read(size)


def port_of(store, tls, batch=1_024, **changes):
    return Port(store, tls=tls, ha_transfer_batch_size=batch, ha_send_heartbeat_interval=5_000, **changes)


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "store") as opened_store:
        yield opened_store


@pytest.fixture
def port(store, tls):
    made = port_of(store, tls)
    yield made
    made.feeder.close()
    for one in made.sockets:
        one.close()


def test_slaves_with_tls_and_without_get_the_same_log(store, port):
    fill(store, 300)
    secure, plain, at, got = Secure(port), port.connect(0), 0, [b"", b""]
    secure.report(0)
    while at < store.log.wrote:
        frames = secure.frame(), port.frame(plain)
        assert frames[0] == frames[1] and frames[0][0] == at
        got = [before + frame[1] for before, frame in zip(got, frames, strict=True)]
        at += len(frames[0][1])
    assert got == [whole(store)] * 2
    assert {type(one.link) for one in port.feeder.slaves} == {PlainLink, TlsLink}
    secure.report(store.log.wrote)
    assert sorted(one.reported for one in port.feeder.slaves) == [0, store.log.wrote]


def test_a_frame_that_the_socket_takes_in_pieces_arrives_whole(tmp_path, tls):
    with opened(tmp_path / "large", mapped_file_size_commit_log=1 << 20) as store:
        port = port_of(store, tls, batch=4 * PIECE_BYTES)
        fill(store, 8_000)
        secure = Secure(port, SO_RCVBUF=4_096)
        secure.report(0)
        port.step(5)
        (feeding,) = port.feeder.slaves
        assert feeding.link.unsent, "the socket took everything"
        got = b""
        while len(got) < store.log.wrote:
            offset, data = secure.frame()
            assert offset == len(got)
            got += data
        assert got == whole(store)
        port.feeder.close()
        secure.socket.close()


def test_a_slave_with_tls_that_takes_nothing_is_closed(tmp_path, tls):
    with opened(tmp_path / "large", mapped_file_size_commit_log=1 << 20) as store:
        port = port_of(store, tls, batch=4 * PIECE_BYTES)
        fill(store, 8_000)
        secure = Secure(port, SO_RCVBUF=4_096)
        secure.report(0)
        port.step(100)
        for _ in range(12):
            if port.feeder.slaves:
                secure.report(0)
                port.after(5)
        assert port.feeder.slaves == ()
        port.feeder.close()
        secure.socket.close()


def test_where_tls_is_required_a_slave_without_is_refused_and_counted(store, tls):
    port = port_of(store, dataclasses.replace(tls, is_required=True))
    fill(store, 3)
    assert port.is_closed(port.connect(0))
    assert port.feeder.refused == {"connection without TLS": 1, "foreign or silent": 1}
    secure = Secure(port)
    secure.report(0)
    assert secure.frame() == (0, whole(store))
    port.feeder.close()
    for one in port.sockets:
        one.close()


def test_a_handshake_that_does_not_end_costs_ten_seconds(store, port):
    slow = port.connect()
    slow.sendall(b"\x16\x03\x01\x00\xff")
    port.after(9.9)
    assert not port.is_closed(slow)
    port.after(0.2)
    assert port.is_closed(slow)


def test_bytes_that_are_no_record_end_the_connection(store, port):
    foreign = port.connect()
    foreign.sendall(b"\x16" + bytes(range(200)))
    port.step(3)
    assert port.is_closed(foreign) and port.feeder.slaves == ()


async def test_a_master_without_tls_is_named_with_what_to_do(slave):  # noqa: F811
    async def script(reader, writer, first):
        writer.write(struct.pack(">qi", 0, 0))

    async with Master(script) as master:
        one = following(slave, master, tls=tls_context())
        await until(lambda: one.error is not None and "haTlsEnable=false" in one.error)
        assert one.error.startswith(f"no TLS connection to the HA port {master.address.ha}")
        await one.stop()


@pytest.mark.parametrize(
    ("mode", "given", "link"),
    [
        ("permissive", {"tls.enable": "true"}, TlsLink),
        ("permissive", {"tls.enable": "true", "haTlsEnable": "false"}, PlainLink),
        ("permissive", {}, PlainLink),
        ("enforcing", {"tls.enable": "true"}, TlsLink),
        ("disabled", {}, PlainLink),
    ],
)
async def test_a_pair_copies_in_each_mode(pair, mode, given, link):  # noqa: F811
    master = await pair.start_master(haListenPort=str(free_port()), **{"tls.server.mode": mode})
    context = None if mode == "disabled" else tls_context()
    async with Admin(pair.nameserver, tls=context) as admin:
        await admin.create_topic("Copied", read_queues=1, write_queues=1)
    copy = await pair.start_slave(**given)
    async with Producer(pair.nameserver, tls=context, timeout=LIMIT_S) as producer:
        for number in range(100):
            await producer.send("Copied", bytes(2_000), keys=f"key{number}")
    await until(lambda: master.store.log.wrote > 200_000 and has_all(copy, master))
    assert log_of(copy.store) == log_of(master.store)
    (feeding,) = master.parts.replication.feeder.slaves
    assert type(feeding.link) is link


async def test_an_enforcing_master_refuses_the_copy_without_tls(pair):  # noqa: F811
    master = await pair.start_master(haListenPort=str(free_port()), **{"tls.server.mode": "enforcing"})
    copy = await pair.start_slave(**{"tls.enable": "true", "haTlsEnable": "false"})
    feeder, follower = master.parts.replication.feeder, copy.parts.replication.follower
    await until(lambda: feeder.refused.get("connection without TLS", 0) > 1)
    assert follower.received_bytes == 0 and copy.store.log.wrote == 0
