"""Backups under load, with kill -9 of the broker and of the backup: each whole one has all that was on the
disk before it began and opens in Apache's store; one that was interrupted is refused."""

import asyncio
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_store.backup import manifest
from broker_store.backup.copying import Copier, Pace
from broker_store.backup.restore import Restore
from broker_store.backup.verify import verify
from broker_store.client import Producer
from broker_store.engine.disk.disk import Disk
from broker_store.errors import BrokerStoreError, StoreError
from tests.interop import clients
from tests.interop.apache_store import said_by_apache
from tests.interop.brokers import OurBroker
from tests.interop.lines import place
from tests.interop.test_kill_loop import assert_store_is_whole

SIZES = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 2000,
    "maxIndexNum": 8000,
}
TOPICS = ("saved-a", "saved-b", "saved-c")
EVENTS = ("none", "the backup is killed", "the broker is killed")
SENDERS = 6
# With ASYNC_FLUSH a message is on the disk after half a second, at most after a second
FLUSH_S = {"SYNC_FLUSH": 0.0, "ASYNC_FLUSH": 1.0}


class Sending:
    """Sends all the time, over kills of the broker; what was acknowledged is remembered, and when."""

    def __init__(self, nameserver: str):
        self._producer = Producer(nameserver, "saved-producers", timeout=2)
        self.acknowledged: dict[tuple[str, int, int], tuple[str, float]] = {}
        self.ended = asyncio.Event()

    async def run(self) -> None:
        async with self._producer as producer:
            await asyncio.gather(*(self._send(producer, sender) for sender in range(SENDERS)))

    async def _send(self, producer: Producer, sender: int) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            topic, body = TOPICS[number % len(TOPICS)], f"{sender}-{number}-".ljust(200 + number % 300, "x")
            try:
                receipt = await producer.send(topic, body.encode(), keys=[f"{sender}-{number}"])
            except BrokerStoreError:
                await asyncio.sleep(0.05)  # the broker is away
                continue
            where = (topic, receipt.queue_id, receipt.queue_offset)
            assert where not in self.acknowledged
            if receipt.status == "SEND_OK":
                self.acknowledged[where] = (f"{sender}-{number}", time.monotonic())
            await asyncio.sleep(0.005)  # about 1,000 messages a second

    def before(self, moment: float) -> dict[tuple[str, int, int], str]:
        return {where: key for where, (key, at) in self.acknowledged.items() if at <= moment}


async def save(broker: OurBroker, target: Path) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "manage.py",
        "backup",
        str(target),
        "--data",
        str(broker.data),
        "--quiet",
        cwd=clients.ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


def require_whole(backup: Path, home: Path, acknowledged: dict[tuple[str, int, int], str]) -> None:
    disk = Disk()
    assert verify(disk, backup, Copier(disk, Pace())).faults == []
    assert_store_is_whole(SimpleNamespace(store=backup / "store", data=home))
    restored = home / f"{backup.name}-restored"
    Restore(backup, restored, disk, Copier(disk, Pace())).run()
    lines = said_by_apache([restored / "store"], home, SIZES, "")
    assert lines[0]["loaded"] and not [line for line in lines if "error" in line]
    found = {place(line): line["key"] for line in lines if "body" in line and line["topic"] in TOPICS}
    assert {where: key for where, key in acknowledged.items() if found.get(where) != key} == {}
    shutil.rmtree(restored)
    require_moment(backup, home, {place(line): line["store_time"] for line in lines if "body" in line})


def require_moment(backup: Path, home: Path, times: dict[tuple[str, int, int], int]) -> None:
    """Check that Apache's store finds in a restore up to the middle moment what was stored by then."""
    until_ms = sorted(times.values())[len(times) // 2]
    disk, restored = Disk(), home / f"{backup.name}-earlier"
    Restore(backup, restored, disk, Copier(disk, Pace()), until_ms).run()
    lines = said_by_apache([restored / "store"], home, SIZES, "")
    assert lines[0]["loaded"] and not [line for line in lines if "error" in line]
    found = {place(line) for line in lines if "body" in line}
    assert found == {where for where, stored_ms in times.items() if stored_ms <= until_ms}
    shutil.rmtree(restored)


@pytest.mark.takes(60)
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.proof)])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_each_whole_backup_has_what_was_on_the_disk_before_it(flush, rounds, tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # shown by pytest when the test fails
    moments = random.Random(seed)
    others = (EVENTS * rounds)[1:]
    events = [EVENTS[0], *moments.sample(others, len(others))]
    broker = OurBroker(tmp_path / "data", SIZES | {"flushDiskType": flush})
    backups = tmp_path / "backups"
    backups.mkdir()
    disk, whole = Disk(), []
    try:
        await asyncio.to_thread(broker.start)
        sending = Sending(broker.nameserver)
        load = asyncio.ensure_future(sending.run())
        for number, event in enumerate(events):
            began = time.monotonic()
            process = await save(broker, backups / f"b{number}")
            if event != "none":
                await asyncio.sleep(moments.uniform(0.8, 3.5))  # the random moment; not a wait for anything
                if event == "the broker is killed":
                    await asyncio.to_thread(broker.kill9)
                elif process.returncode is None:
                    process.send_signal(signal.SIGKILL)
            said, _ = await process.communicate()
            if event == "the broker is killed":
                await asyncio.to_thread(broker.start)
            target = backups / f"b{number}"
            if disk.exists(target / manifest.FILE_NAME):
                before = sending.before(began - FLUSH_S[flush])
                await asyncio.to_thread(require_whole, target, tmp_path, before)
                whole.append(target)
                if len(whole) > 2:  # the others do not need it
                    shutil.rmtree(whole.pop(moments.randrange(len(whole) - 1)))
            else:
                assert event != "none" and process.returncode != 0, said.decode()
                if disk.exists(target):
                    with pytest.raises(StoreError):
                        Restore(target, tmp_path / "refused", disk, Copier(disk, Pace())).run()
            assert not load.done() or load.result() is None
        sending.ended.set()
        await load
        # With more rounds others than the first are whole as well
        assert len(whole) >= min(rounds, 2) and len(sending.acknowledged) > 500
        for backup in whole:
            assert verify(disk, backup, Copier(disk, Pace())).faults == []
        assert await asyncio.to_thread(broker.stop) == 0
        assert_store_is_whole(broker)
    finally:
        broker.kill9()
