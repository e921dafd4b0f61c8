"""What a young store takes of the disk, with Apache's own file sizes (1 GiB logs, 420 MB index files): blocks
come with the writing."""

from pathlib import Path

import pytest

from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from tests.support.hand_store import HandStore, message

pytestmark = pytest.mark.on_disk

MB = 1_000_000


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def write_one(store: HandStore, topic: str) -> None:
    """A message into each of as many queues as a topic is given when a send makes it."""
    for queue_id in range(BrokerSettings().default_topic_queue_nums):
        assert store.appender.put(
            message(topic=topic, queue_id=queue_id, keys=("key",), unique="unique", tag="tag")
        ).ok
    store.prepare()
    store.flush()
    store.round()


def test_a_fresh_store_takes_under_200_MB_and_a_topic_under_1_MB(tmp_path):
    store = HandStore(StoreSettings(store_path_root_dir=tmp_path / "store")).begin()
    try:
        write_one(store, "First")
        fresh = disk_bytes(store.root)
        assert fresh < 200 * MB
        for number in range(8):
            write_one(store, f"Topic{number}")
        assert disk_bytes(store.root) - fresh < 8 * MB
    finally:
        store.close()
