"""A slave's connection: what it does with masters that fit, differ, send nonsense, or say nothing."""

import asyncio
import struct

import pytest

from broker_store.errors import PeerError
from broker_store.replication import follower
from broker_store.replication.follower import DifferentLogError, Follower, MasterAddress
from tests.engine.test_log_copy import fill, log_of
from tests.support.hand_store import opened


class Master:
    """A server at the HA port that the test scripts: `script(reader, writer, first)` for each connection."""

    def __init__(self, script):
        self.script, self.firsts, self.reports = script, [], []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = MasterAddress(f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}", None)
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        (first,) = struct.unpack(">q", await reader.readexactly(8))
        self.firsts.append(first)
        await self.script(reader, writer, first)
        try:
            while True:
                self.reports += struct.unpack(">q", await reader.readexactly(8))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class Questions:
    def __init__(self, begin=0, difference=None, end=50_000):
        self.begin, self.difference, self.compared, self.end = begin, difference, 0, end

    async def log_of_master(self, master):
        if self.begin is None:
            raise PeerError("it does not say")
        return self.begin, self.end

    async def compare(self, master):
        self.compared += 1
        if self.difference is not None:
            raise self.difference


def frames(data, begin, size=1_000):
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        yield struct.pack(">qi", begin + at, len(piece)) + piece


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(follower, "RETRY_S", 0.01)
    monkeypatch.setattr(follower, "_CHECK_S", 0.01)


@pytest.fixture
def source(tmp_path):
    """The bytes of a master's log."""
    with opened(tmp_path / "master") as store:
        fill(store, 300)
        return log_of(store)


@pytest.fixture
def slave(tmp_path):
    with opened(tmp_path / "slave", broker_role="SLAVE", ha_housekeeping_interval=500) as store:
        yield store


def following(slave, master, questions=None, tls=None):
    made = Follower(
        slave.settings,
        slave,
        slave.copy,
        find_master=lambda: master.address if master is not None else None,
        ask=questions or Questions(),
        tls=tls,
    )
    made.start()
    return made


def sends(data, begin_at=None):
    async def script(reader, writer, first):
        begin = first if begin_at is None else begin_at
        for frame in frames(data[begin:], begin):
            writer.write(frame)

    return script


async def test_an_empty_slave_copies_the_whole_log_and_reports_it(source, slave):
    async with Master(sends(source)) as master:
        one = following(slave, master)
        await until(lambda: slave.log.wrote == len(source) and len(source) in master.reports)
        assert log_of(slave) == source and master.firsts == [1]
        assert one.error is None and one.master == master.address.ha
        await one.stop()


async def test_the_copy_of_an_empty_log_begins_with_its_first_byte(source, slave):
    async with Master(sends(source)) as master:
        one = following(slave, master, Questions(end=0))
        await until(lambda: slave.log.wrote == len(source))
        assert log_of(slave) == source and master.firsts == [0]
        await one.stop()


async def test_a_connection_that_breaks_is_made_again_where_the_log_ends(source, slave):
    async def script(reader, writer, first):
        piece = source[first : first + 5_000]
        for frame in frames(piece, first):
            writer.write(frame)
        await writer.drain()
        writer.close()

    async with Master(script) as master:
        questions = Questions()
        one = following(slave, master, questions)
        await until(lambda: slave.log.wrote == len(source))
        assert log_of(slave) == source and questions.compared == len(master.firsts) - 1 > 3
        assert master.firsts == sorted(master.firsts)
        await one.stop()


async def test_a_copy_of_a_log_whose_first_files_are_gone_begins_where_it_does(source, slave):
    begin = slave.log.file_size
    async with Master(sends(source)) as master:
        one = following(slave, master, Questions(begin))
        await until(lambda: slave.log.wrote == len(source))
        assert slave.log.minimum == begin and log_of(slave) == source[begin:] and master.firsts == [begin]
        await one.stop()


async def test_another_log_is_never_written_to_and_ends_the_copy(source, slave):
    async with Master(sends(source)) as master:
        one = following(slave, master)
        await until(lambda: slave.log.wrote == len(source))
        await one.stop()
        held = log_of(slave)
        two = following(slave, master, Questions(difference=DifferentLogError("it is another log")))
        await until(lambda: two.has_stopped)
        assert log_of(slave) == held and len(master.firsts) == 1
        assert slave.flags["copy_stopped"] == two.error == "it is another log"
        await two.stop()


async def test_nothing_is_copied_while_the_logs_cannot_be_compared(source, slave):
    async with Master(sends(source)) as master:
        one = following(slave, master, Questions(begin=None))
        await until(lambda: one.error == "it does not say")
        assert master.firsts == [] and not one.has_stopped
        await one.stop()


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (struct.pack(">qi", 5, 10) + bytes(10), "the master sends from 5, and this log ends at 1"),
        (struct.pack(">qi", 0, 10) + bytes(10), "the master sends from 0, and this log ends at 1"),
        (struct.pack(">qi", -1, 10), "it is no master's"),
        (struct.pack(">qi", 1, -1), "it is no master's"),
        (struct.pack(">qi", 1, 1 << 30), "it is no master's"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is no master's"),
        (struct.pack(">qi", 1, 100) + b"\xff" * 100, "is no sound record"),
    ],
)
async def test_nonsense_closes_the_connection_and_leaves_the_log_alone(frame, error, slave):
    async def script(reader, writer, first):
        writer.write(frame)

    async with Master(script) as master:
        one = following(slave, master)
        await until(lambda: one.error is not None and error in one.error)
        assert slave.log.wrote == 0 and slave.state == "read_only"
        await until(lambda: len(master.firsts) > 1)  # it tries again
        await one.stop()


async def test_a_silent_master_is_left(slave):
    async def script(reader, writer, first):
        pass

    async with Master(script) as master:
        one = following(slave, master)
        await until(lambda: one.error is not None and "was silent" in one.error)
        await one.stop()


async def test_a_stop_takes_away_what_follows_the_last_whole_record(source, slave):
    cut = len(source) - 5

    async with Master(sends(source[:cut])) as master:
        one = following(slave, master)
        await until(lambda: slave.copy.received == cut)
        await one.stop()
    end = slave.log.wrote
    assert source[:end] == log_of(slave) and slave.copy.received == end < cut
    file = slave.log.current
    assert not any(file.map().read(end - file.base, file.allocated - (end - file.base)))


async def test_without_a_master_it_says_so(slave):
    one = following(slave, None)
    await until(lambda: one.error == follower.NO_MASTER)
    await one.stop()


async def test_with_sync_flush_the_report_waits_for_the_disk(source, tmp_path):
    with opened(tmp_path / "synced", broker_role="SLAVE", flush_disk_type="SYNC_FLUSH") as slave:
        async with Master(sends(source)) as master:
            one = following(slave, master)
            await until(lambda: slave.copy.received == len(source))
            assert not any(master.reports)
            slave.flush()
            await until(lambda: len(source) in master.reports)
            await one.stop()
