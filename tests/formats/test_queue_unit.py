import pytest

from broker_store.errors import FormatError
from broker_store.formats import properties, queue_unit, record
from tests.support import stores


def test_the_golden_first_unit_is_read_and_written():
    raw = bytes.fromhex("0000000000000000 000000ED 000000000027A807")
    assert queue_unit.decode(raw) == (0, 237, 2598919)
    assert queue_unit.encode(0, 237, 2598919) == raw
    assert queue_unit.SIZE == 20


def test_zero_is_no_data_and_a_pre_blank_unit_passes_as_data():
    assert not queue_unit.decode(bytes(20)).is_data
    assert not queue_unit.QueueUnit(-1, 5, 0).is_data
    blank = queue_unit.decode(queue_unit.PRE_BLANK)
    assert blank.is_data and blank.is_pre_blank
    assert queue_unit.PRE_BLANK.hex() == "0000000000000000" + "7fffffff" + "0000000000000000"


def test_a_unit_needs_twenty_bytes():
    with pytest.raises(FormatError):
        queue_unit.decode(bytes(19))
    both = bytes(20) + queue_unit.encode(1, 2, -3)
    assert list(queue_unit.decode_all(both)) == [(0, 0, 0), (1, 2, -3)]


@pytest.mark.parametrize("name", stores.NAMES)
def test_units_of_a_real_store_hold_the_code_of_their_message(name, tmp_path):
    root = stores.unpack(name, tmp_path)
    log = dict(stores.log_bytes(root))
    file_bytes = len(log[0])
    seen = 0
    for path in root.glob("consumequeue/*/*/*"):
        for unit in queue_unit.decode_all(path.read_bytes()):
            if not unit.is_data:
                break
            start = unit.log_offset // file_bytes * file_bytes
            message = record.decode(log[start], unit.log_offset - start)
            assert unit.tags_code == queue_unit.tags_code(
                message.topic, message.tags, message.properties.get(properties.DELAY), message.store_timestamp
            )
            seen += 1
    assert seen == {"broker-dir": 166, "golden-clean": 70, "golden-crash": 4320}.get(name, 3102)


def test_a_delay_level_above_the_highest_counts_as_the_highest():
    assert queue_unit.tags_code("SCHEDULE_TOPIC_XXXX", "x", "99", 1000) == 1000 + 7_200_000
    assert queue_unit.tags_code("SCHEDULE_TOPIC_XXXX", None, "0", 1000) == 0
    assert queue_unit.tags_code("Other", "TagA", "3", 1000) == 2598919
