"""A slave's connection in controller mode: what it copies, cuts and refuses."""

import asyncio
import struct

import pytest

from broker_store.formats.epochs import Epoch
from broker_store.protocol import ha_epochs
from broker_store.protocol.ha_epochs import Greeting
from broker_store.replication import follower
from broker_store.replication.epoch_follower import EpochFollower
from broker_store.replication.epochs import EpochHistory
from broker_store.replication.follower import DifferentLogError, MasterAddress
from tests.engine.test_log_copy import fill, log_of
from tests.replication.test_follower import Questions
from tests.support.hand_store import opened
from tests.support.waits import until


class Master:
    """A server at the HA port: `history` is what it answers, `frames` what it sends after the first report."""

    def __init__(self, epochs, end, frames=b"", history=None):
        self.history = (
            ha_epochs.write_history([Epoch(*one) for one in epochs], end) if history is None else history
        )
        self.frames, self.reports, self.greetings = frames, [], []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = MasterAddress(f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}", None)
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        try:
            received = bytearray(await reader.readexactly(16))
            self.greetings.append(ha_epochs.take_greeting(received))
            writer.write(self.history)
            for number in range(1 << 20):
                state, end = struct.unpack(">iq", await reader.readexactly(12))
                assert state == 2
                self.reports.append(end)
                if number == 0:
                    writer.write(self.frames)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def frames(data, begin=0, epochs=((1, 0),), confirmed=1 << 40, size=1_000):
    """Frames of `data` from `begin` on, none of two epochs."""
    raw, at = b"", begin
    while at < len(data):
        epoch = max(one for one in epochs if one[1] <= at)
        ends = [one[1] for one in epochs if one[1] > at]
        end = min(at + size, len(data), *ends)
        raw += ha_epochs.write_frame_head(end - at, at, Epoch(*epoch), confirmed) + data[at:end]
        at = end
    return raw


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(follower, "RETRY_S", 0.01)
    monkeypatch.setattr(follower, "_CHECK_S", 0.01)


@pytest.fixture
def source(tmp_path):
    """The bytes of a master's log."""
    with opened(tmp_path / "master") as store:
        fill(store, 300)
        return log_of(store)[: store.log.wrote]


CHANGES = {"broker_role": "SLAVE", "enable_controller_mode": True, "ha_housekeeping_interval": 500}


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def slave(tmp_path, request):
    with opened(tmp_path / "slave", flush_disk_type=request.param, **CHANGES) as store:
        yield store


class Following:
    def __init__(self, slave, master, questions=None):
        self.cuts = []
        self.history = EpochHistory(slave.disk, slave.root)
        self.follower = EpochFollower(
            slave.settings,
            slave,
            slave.copy,
            number=2,
            history=self.history,
            find_master=lambda: master.address,
            ask=questions or Questions(),
            on_cut=self.cuts.append,
        )

    async def __aenter__(self):
        self.follower.start()
        return self

    async def __aexit__(self, *_):
        await self.follower.stop()


async def holds(slave, condition):
    """Wait for a condition, while the flusher works."""

    def ticked():
        slave.flush()
        slave.tick()
        return condition()

    await until(ticked)


async def copied(slave, source, **master):
    """Let a slave copy `source` once."""
    async with (
        Master([(1, 0)], len(source), frames(source), **master) as there,
        Following(slave, there) as one,
    ):
        await holds(slave, lambda: slave.log.wrote == len(source) == slave.flushed)
        return one


async def test_an_empty_slave_copies_the_log_with_its_epochs_and_reports_it(source, slave):
    epochs = [(1, 0), (3, len(source) // 2)]
    async with (
        Master(epochs, len(source), frames(source, 0, epochs)) as master,
        Following(slave, master) as one,
    ):
        await holds(slave, lambda: slave.log.wrote == len(source) and master.reports[-1:] == [len(source)])
        assert log_of(slave)[: len(source)] == source
        assert master.greetings == [Greeting(2)] and master.reports[0] == 0
        assert master.reports == sorted(master.reports)
        assert one.history.entries == tuple(epochs) and one.follower.has_fitted
        await holds(slave, lambda: slave.confirmed == len(source))


async def test_a_slave_shows_what_its_master_has_confirmed(source, slave):
    half = len(source) // 2
    sent = frames(source, 0, confirmed=half)
    async with Master([(1, 0)], len(source), sent) as master, Following(slave, master):
        await holds(slave, lambda: slave.log.wrote == len(source) and master.reports[-1:] == [len(source)])
        await holds(slave, lambda: slave.confirmed > half - 1_000)
        assert slave.confirmed <= half


async def test_a_slave_goes_on_where_its_log_ends(source, slave):
    half = len(source) // 2
    async with Master([(1, 0)], half, frames(source[:half])) as master, Following(slave, master):
        await holds(slave, lambda: slave.copy.received == half)
    end = slave.log.wrote
    assert half - 1_000 < end <= half
    async with Master([(1, 0)], len(source), frames(source, end)) as master, Following(slave, master) as one:
        await holds(slave, lambda: slave.log.wrote == len(source))
        assert master.reports[0] == end and one.cuts == []
    assert log_of(slave)[: len(source)] == source


async def test_a_log_that_went_on_alone_is_cut_at_the_common_end(source, slave):
    await copied(slave, source)
    async with Master([(1, 0), (2, 5_000)], 9_000) as master, Following(slave, master) as one:
        await until(lambda: one.cuts)
        assert one.cuts[0] == 5_000 and master.reports == []
        assert "cut at 5,000" in one.follower.error and not one.follower.has_stopped


async def test_a_master_that_lost_the_end_of_its_log_leads_to_a_cut_there(source, slave):
    await copied(slave, source)
    async with Master([(1, 0)], 4_000) as master, Following(slave, master) as one:
        await until(lambda: one.cuts)
        assert one.cuts[0] == 4_000


async def test_the_same_epoch_with_another_record_leads_to_a_cut_at_its_begin(source, slave):
    epochs = [(1, 0), (2, 6_000)]
    async with Master(epochs, len(source), frames(source, 0, epochs)) as master, Following(slave, master):
        await holds(slave, lambda: slave.log.wrote == len(source))
    questions = Questions(difference=DifferentLogError("another record"))
    async with Master(epochs, len(source)) as master, Following(slave, master, questions) as one:
        await until(lambda: one.cuts)
        assert one.cuts[0] == 6_000


@pytest.mark.parametrize("epochs", [[(2, 0)], [(1, 5)], []])
async def test_without_a_common_epoch_nothing_is_touched(epochs, source, slave):
    await copied(slave, source)
    held = log_of(slave)
    async with Master(epochs, len(source)) as master, Following(slave, master) as one:
        await until(lambda: one.follower.has_stopped)
        assert "no epoch in common" in slave.flags["copy_stopped"]
        assert one.cuts == [] and log_of(slave) == held and not one.follower.has_fitted


async def test_a_log_without_epochs_is_no_copy(source, slave):
    one = await copied(slave, source)
    one.history.cut(0)
    async with Master([(1, 0)], len(source)) as master, Following(slave, master) as one:
        await until(lambda: one.follower.has_stopped)
        assert "has no epochs" in slave.flags["copy_stopped"]


async def test_a_copy_begins_where_the_masters_log_begins(source, slave):
    size = slave.log.file_size
    begin = 3 * size
    raw = frames(bytes(begin) + b"", begin)  # nothing yet
    raw += ha_epochs.write_frame_head(0, begin, Epoch(4, 2 * size), begin)
    first = ha_epochs.write_frame_head(12, begin, Epoch(4, 2 * size), begin) + bytes(12)
    async with Master([(4, 2 * size)], begin, raw + first) as master, Following(slave, master) as one:
        await until(lambda: slave.log.minimum == begin)
        assert one.history.entries == ((4, 2 * size),)


async def test_a_heartbeat_of_a_master_without_a_log_changes_nothing(slave):
    beat = ha_epochs.write_frame_head(0, -1, Epoch(1, 0), -1)
    async with Master([(1, 0)], 0, beat * 3) as master, Following(slave, master) as one:
        await until(lambda: one.history.last == 1)
        assert slave.log.wrote == 0 and one.follower.error is None


async def test_the_next_epoch_may_be_stated_with_the_last_bytes_before_it(source, slave):
    begin = 2_000
    early = ha_epochs.write_frame_head(1_000, 1_000, Epoch(2, begin), 0) + source[1_000:2_000]
    sent = frames(source[:1_000]) + early + frames(source[:3_000], begin, ((2, begin),))
    async with Master([(1, 0), (2, begin)], 3_000, sent) as master, Following(slave, master) as one:
        await until(lambda: one.history.last == 2)
        assert one.history.entries == ((1, 0), (2, begin))


@pytest.mark.parametrize(
    ("history", "sent", "why"),
    [
        (b"\0" * 20, b"", "no master's"),
        (ha_epochs.HISTORY_HEAD.pack(1, 12 * 2_000, 0, 0), b"", "no master's"),
        (None, ha_epochs.FRAME_HEAD.pack(1, 5, 0, 1, 0, 0), "no master's"),
        (None, ha_epochs.FRAME_HEAD.pack(2, 5 << 20, 0, 1, 0, 0), "no master's"),
        (None, ha_epochs.FRAME_HEAD.pack(2, 5, 77, 1, 0, 0), "cannot begin at 77"),
        (b"", b"", "sent no epochs"),
    ],
)
async def test_bytes_of_another_protocol_end_the_connection(history, sent, why, slave, monkeypatch):
    monkeypatch.setattr("broker_store.replication.epoch_follower.CONNECT_TIMEOUT_S", 0.05)
    async with Master([(1, 0)], 0, sent, history) as master, Following(slave, master) as one:
        await until(lambda: why in (one.follower.error or ""))
        assert slave.log.wrote == 0 and not one.follower.has_stopped


async def test_with_another_master_the_connection_ends(source, slave):
    async with Master([(1, 0)], 0) as master, Following(slave, master) as one:
        await until(lambda: one.follower.master is not None)
        one.follower.connect_again()
        await until(lambda: len(master.greetings) > 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"async_learner": True}, Greeting(2, False, True)),
        ({"sync_from_last_file": True}, Greeting(2, True, False)),
    ],
)
async def test_a_slave_greets_as_its_settings_say(source, tmp_path, changes, said):
    with opened(tmp_path / "slave", **CHANGES, **changes) as store:
        async with Master([(1, 0)], len(source)) as master, Following(store, master):
            await until(lambda: master.greetings)
            assert master.greetings[0] == said
