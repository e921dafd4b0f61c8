import pytest

from broker_store.errors import FormatError
from broker_store.formats import checkpoint
from broker_store.formats.checkpoint import Checkpoint
from tests.support import stores


@pytest.mark.parametrize("name", ["clean", "clean-small", "broker-dir"])
def test_the_checkpoint_of_a_real_store_is_read_and_written(name, tmp_path):
    raw = (stores.unpack(name, tmp_path) / "checkpoint").read_bytes()
    found = checkpoint.decode(raw)
    assert tuple(found)[:5] == tuple(stores.facts(name)["checkpointBefore"].values())
    assert checkpoint.encode(found) == raw


def test_the_time_to_rely_on_is_three_seconds_before_the_older_stamp():
    assert Checkpoint(10_000, 8_000).min_timestamp == 5_000
    assert Checkpoint(10_000, 2_000).min_timestamp == 0


def test_a_short_file_is_refused():
    with pytest.raises(FormatError):
        checkpoint.decode(bytes(47))
