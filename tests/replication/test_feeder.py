"""The HA port of a master: what slaves get, and what foreign, slow and lying ones cost."""

import socket
import struct

import pytest

from broker_store.replication.feeder import FIRST_REPORT_S, MAX_SLAVES, Feeder
from broker_store.replication.positions import held_by, positions_of
from tests.support.hand_store import message, opened, small_settings

HEAD = struct.Struct(">qi")


class Seconds:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Port:
    """A feeder over a store, stepped by the test, and the sockets of slaves."""

    def __init__(self, store, wire=None, tls=None, **changes):
        self.store, self.seconds, self.reports = store, Seconds(), 0
        settings = small_settings(store.root, **changes)
        self.feeder = Feeder(
            settings,
            store.disk,
            store.log,
            on_report=self._reported,
            seconds=self.seconds,
            wire=wire,
            tls=tls,
        )
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.feeder.open(listening)
        self.address = listening.getsockname()
        self.sockets = []

    def _reported(self):
        self.reports += 1

    def connect(self, first=None, **options):
        slave = socket.socket()
        for name, value in options.items():
            slave.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        slave.connect(self.address)
        slave.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        slave.settimeout(5)
        self.sockets.append(slave)
        self.step()
        if first is not None:
            slave.sendall(struct.pack(">q", first))
            self.step(2)
        return slave

    def step(self, count=1):
        for _ in range(count):
            self.feeder.step(0)

    def after(self, seconds):
        self.seconds.now += seconds
        self.step()

    def frame(self, slave):
        """The next frame: (offset, bytes)."""
        offset, size = HEAD.unpack(self.read(slave, HEAD.size))
        return offset, self.read(slave, size)

    def read(self, slave, size):
        data = b""
        slave.setblocking(False)
        for _ in range(2_000):
            if len(data) == size:
                break
            try:
                piece = slave.recv(size - len(data))
            except BlockingIOError:
                self.step()
                continue
            assert piece, "the feeder closed the connection"
            data += piece
        assert len(data) == size
        return data

    def is_closed(self, slave):
        slave.setblocking(False)
        try:
            while slave.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "store") as opened_store:
        yield opened_store


@pytest.fixture
def port(store):
    made = Port(store, ha_transfer_batch_size=1_024, ha_send_heartbeat_interval=5_000)
    yield made
    made.feeder.close()
    for slave in made.sockets:
        slave.close()


def fill(store, count):
    for number in range(count):
        assert store.appender.put(message(queue_id=number % 3, body=bytes(number % 90))).ok


def whole(store, begin=0):
    log = store.log
    return b"".join(
        store.reads.records.log_bytes(max(begin, offset), log.file_size - max(begin, offset) % log.file_size)
        for offset in range(begin // log.file_size * log.file_size, log.wrote, log.file_size)
    )


@pytest.mark.parametrize("first", [0, 1, 5_000, 16_384])
def test_a_slave_gets_the_log_from_where_its_own_ends(first, store, port):
    fill(store, 300)
    slave, got, at = port.connect(first), b"", first
    while at < store.log.wrote:
        offset, data = port.frame(slave)
        assert offset == at and 0 < len(data) <= 1_024
        assert offset // store.log.file_size == (offset + len(data) - 1) // store.log.file_size
        got, at = got + data, at + len(data)
    assert got == whole(store, first)
    fill(store, 1)
    offset, data = port.frame(slave)
    assert (offset, data) == (at, whole(store, at))


def test_a_slave_with_everything_gets_heartbeats_alone(store, port):
    fill(store, 3)
    slave = port.connect(store.log.wrote)
    port.after(4.9)
    assert not port.is_closed(slave) and port.feeder.slaves[0].sent_bytes == 0
    slave.setblocking(False)
    with pytest.raises(BlockingIOError):
        slave.recv(1)
    slave.sendall(struct.pack(">q", store.log.wrote))
    port.after(0.2)
    assert port.frame(slave) == (store.log.wrote, b"")


def test_with_sync_flush_only_what_is_on_the_disk_is_sent(tmp_path):
    with opened(tmp_path / "sync", flush_disk_type="SYNC_FLUSH") as store:
        port = Port(store, flush_disk_type="SYNC_FLUSH")
        fill(store, 3)
        slave = port.connect(0)
        slave.setblocking(False)
        with pytest.raises(BlockingIOError):
            slave.recv(1)
        store.flush()
        port.step()
        assert port.frame(slave) == (0, whole(store))
        port.feeder.close()
        slave.close()


def test_with_a_pool_of_buffers_only_what_is_in_the_files_is_sent(tmp_path):
    with opened(tmp_path / "pool", transient_store_pool_enable=True) as store:
        port = Port(store)
        fill(store, 3)
        slave = port.connect(0)
        slave.setblocking(False)
        with pytest.raises(BlockingIOError):
            slave.recv(1)
        store.commit()
        port.step()
        assert port.frame(slave) == (0, whole(store)) and store.log.committed == store.log.wrote
        port.feeder.close()
        slave.close()


@pytest.mark.parametrize("first", [-1, -(1 << 63), (1 << 63) - 1, 1_000_000])
def test_a_place_that_this_log_does_not_have_ends_the_connection(first, store, port):
    fill(store, 3)
    slave = port.connect(first)
    assert (
        port.is_closed(slave) and port.feeder.slaves == () and port.feeder.refused == {"foreign or silent": 1}
    )


def test_foreign_bytes_end_the_connection(store, port):
    fill(store, 3)
    slave = port.connect()
    slave.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    port.step(2)
    assert port.is_closed(slave) and port.feeder.slaves == ()


def test_a_report_below_the_last_one_ends_the_connection(store, port):
    fill(store, 3)
    slave = port.connect(store.log.wrote)
    slave.sendall(struct.pack(">q", store.log.wrote - 100))
    port.step(2)
    assert port.is_closed(slave)


def test_a_report_may_come_in_pieces_and_the_last_whole_one_counts(store, port):
    fill(store, 30)
    slave = port.connect(0)
    reports = b"".join(struct.pack(">q", offset) for offset in (100, 200, 300))
    for at in range(0, len(reports), 5):
        slave.sendall(reports[at : at + 5])
        port.step(2)
    assert port.feeder.slaves[0].reported == 300


def test_a_flood_of_reports_ends_the_connection_and_others_are_served(store, port):
    fill(store, 3)
    flood, other = port.connect(0), port.connect(0)
    flood.setblocking(False)
    for _ in range(3_000):
        try:
            flood.send(bytes(65_536))
        except BlockingIOError:
            pass
        except OSError:
            break
        port.step()
    assert port.is_closed(flood) and port.frame(other) == (0, whole(store))


def test_a_connection_without_a_report_is_closed(store, port):
    slave = port.connect()
    slave.sendall(b"\0\0\0")
    port.after(FIRST_REPORT_S - 0.1)
    assert not port.is_closed(slave)
    port.after(0.2)
    assert port.is_closed(slave)


def test_a_silent_slave_is_closed_and_one_that_reports_is_not(store, port):
    fill(store, 3)
    silent, speaking = port.connect(0), port.connect(0)
    port.frame(silent), port.frame(speaking)
    for _ in range(5):
        speaking.sendall(struct.pack(">q", store.log.wrote))
        port.after(5)
    assert port.is_closed(silent) and not port.is_closed(speaking)


def test_a_slave_that_reports_and_takes_nothing_is_closed(store, port):
    slave = port.connect(0, SO_RCVBUF=4_096)
    taken = -1
    while port.feeder.slaves[0].sent_bytes > taken:
        taken = port.feeder.slaves[0].sent_bytes
        fill(store, 5_000)
        port.step(100)
    fill(store, 30_000)  # more than the system's buffers still take
    for _ in range(40):
        if port.feeder.slaves:
            slave.sendall(struct.pack(">q", 0))
            port.after(5)
    assert port.feeder.slaves == ()


def test_a_slave_whose_next_file_is_gone_is_closed(store, port):
    fill(store, 600)
    file = store.log.drop_first()
    store.disk.unlink(file.path)
    for first in (5, 5_000):
        assert port.is_closed(port.connect(first))
    begin = store.log.minimum
    assert port.frame(port.connect(0))[0] == port.frame(port.connect(begin))[0] == begin


def test_there_are_at_most_so_many_slaves(store, port):
    slaves = [port.connect(0) for _ in range(MAX_SLAVES)]
    assert port.is_closed(port.connect())
    assert len(port.feeder.slaves) == MAX_SLAVES and sum(port.feeder.refused.values()) == 1
    slaves[0].close()
    port.step(2)
    assert not port.is_closed(port.connect(0))


def test_only_addresses_of_the_setting_and_of_this_machine_may_connect(store):
    port = Port(store, ha_slave_addresses="10.1.0.0/16, fd00::1")
    assert [
        port.feeder.takes(host) for host in ("127.0.0.1", "::1", "10.1.2.3", "::ffff:10.1.2.3", "fd00::1")
    ] == [True] * 5
    assert [port.feeder.takes(host) for host in ("10.2.0.1", "192.0.2.1", "fe80::1%eth0")] == [False] * 3
    port.feeder.close()


def test_what_enough_slaves_have(store, port):
    fill(store, 10)
    end = store.log.wrote
    port.connect(0), port.connect(end), port.connect(end - 100), port.connect()
    slaves = port.feeder.slaves
    assert [held_by(slaves, count) for count in range(6)] == [0, end, end - 100, 0, 0, 0]
    positions = positions_of(slaves, end, 200, port.seconds)
    assert [(one.behind, one.is_in_step) for one in positions] == [
        (end, False),
        (0, True),
        (100, True),
        (None, False),
    ]
    assert port.reports >= 3


def test_two_connections_of_one_slave_are_not_two_copies(store, port):
    """The older one is half open: it ends when it was silent for haHousekeepingInterval."""
    fill(store, 10)
    end = store.log.wrote
    older = port.connect(end)
    port.seconds.now += 1
    port.connect(end)
    assert [held_by(port.feeder.slaves, count) for count in (1, 2)] == [end, 0]
    port.seconds.now += 1
    older.sendall(struct.pack(">q", end))  # it lives: there are two slaves at this host
    port.step(2)
    assert [held_by(port.feeder.slaves, count) for count in (1, 2)] == [end, end]
