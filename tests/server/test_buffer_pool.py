"""A broker whose log is appended in buffers: each kind of message goes its whole way."""

from __future__ import annotations

from broker_store.formats import record
from broker_store.protocol import table_bodies
from tests.server.test_with_engine import Running

POOL = {
    "transientStorePoolEnable": "true",
    "transientStorePoolSize": "3",
    "commitCommitLogLeastPages": "1000",
    "commitCommitLogThoroughInterval": "300",
    "commitIntervalCommitLog": "300",
}


async def test_a_send_is_answered_before_a_consumer_gets_it(tmp_path):
    async with Running(tmp_path, **POOL) as running:
        parked = await running.pull(suspend_ms=0)
        assert parked.body == b""
        answer = await running.send(b"early")
        assert answer.code == 0
        table = table_bodies.decode_table((await running.ask(28)).body)
        assert table["remainTransientStoreBufferNumbs"] == "2" and "remainHowManyDataToCommit" in table
        pulled = await running.pull(suspend_ms=10_000)
        assert [found.body for found in record.decode_all(pulled.body)] == [b"early"]


async def test_many_messages_come_in_order_and_a_stop_keeps_all(tmp_path):
    async with Running(tmp_path, **POOL) as running:
        for number in range(400):
            assert (await running.send(b"%d" % number + bytes(500))).code == 0
    async with Running(tmp_path, **POOL) as running:
        bodies, offset = [], 0
        while pulled := (await running.pull(offset=offset)).body:
            bodies += [found.body.rstrip(b"\0") for found in record.decode_all(pulled)]
            offset = len(bodies)
        assert bodies == [b"%d" % number for number in range(400)]


async def test_a_half_may_be_ended_before_it_is_in_the_file(tmp_path):
    async with Running(tmp_path, **POOL) as running:
        half = await running.send(b"paid", properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01H\x02")
        assert half.code == 0 and running.store.log.committed < running.store.log.wrote
        ended = await running.ask(
            37,
            producerGroup="PG",
            tranStateTableOffset=half.fields["queueOffset"],
            commitLogOffset=int(half.fields["msgId"][16:], 16),
            commitOrRollback=8,
            fromTransactionCheck="false",
            msgId="H",
        )
        assert ended.code == 0, ended.remark
        pulled = await running.pull(suspend_ms=10_000)
        assert [found.body for found in record.decode_all(pulled.body)] == [b"paid"]


async def test_delayed_and_timed_messages_come_too(tmp_path):
    async with Running(tmp_path, **POOL) as running:
        assert (await running.send(b"delayed", properties="DELAY\x011\x02")).code == 0
        offset, bodies = 0, []
        while not bodies:
            bodies = [found.body for found in record.decode_all((await running.pull(suspend_ms=5_000)).body)]
        assert bodies == [b"delayed"]
        offset = len(bodies)
        assert (await running.send(b"timed", properties="TIMER_DELAY_MS\x01100\x02")).code == 0
        bodies = []
        while not bodies:
            pulled = await running.pull(offset=offset, suspend_ms=5_000)
            bodies = [found.body for found in record.decode_all(pulled.body)]
        assert bodies == [b"timed"]


async def test_sends_are_refused_as_busy_while_no_buffer_is_free(tmp_path):
    async with Running(tmp_path, **POOL) as running:
        running.store.set_flag("no_buffer", "each buffer of the transient store pool is in use")
        answer = await running.send(b"x")
        assert answer.code == 2 and answer.remark.startswith("[REJECTREQUEST]system busy")
        running.store.clear_flag("no_buffer")
        assert (await running.send(b"x")).code == 0
