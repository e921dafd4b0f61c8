"""The last record of a log, whatever the queues have."""

from broker_store.engine.log.record_ends import RecordEnds
from broker_store.formats import record
from tests.engine.test_log_copy import feed, fill, log_of
from tests.support.hand_store import message, opened


def ends_of(store) -> RecordEnds:
    return RecordEnds(store.log, 4 << 20)


def test_an_empty_log_has_no_last_record(tmp_path):
    with opened(tmp_path / "store") as store:
        assert ends_of(store).last_record(0) is None


def test_the_last_record_is_found_from_any_record_on(tmp_path):
    with opened(tmp_path / "store") as store:
        results = [store.appender.put(message(body=bytes(200))) for _ in range(5)]
        last = results[-1].log_offset
        for begin in (0, results[2].log_offset, last):
            assert ends_of(store).last_record(begin) == (last, store.log.wrote - last)
        assert record.decode(store.reads.records.record_at(last)).queue_offset == 4


def test_the_last_record_may_be_in_the_file_before_the_last(tmp_path):
    with (
        opened(tmp_path / "master") as master,
        opened(tmp_path / "slave", broker_role="SLAVE") as slave,
    ):
        while master.log.current.base == 0:
            fill(master, 1)
        size = master.log.file_size
        slave.copy.begin()
        feed(slave.copy, log_of(master)[:size], iter(lambda: 4_000, 0))
        assert slave.log.wrote == size and len(slave.log.files) == 2
        offset, length = ends_of(slave).last_record(0)
        assert slave.reads.records.record_at(offset)[:4] == length.to_bytes(4, "big")
        assert ends_of(slave).last_record(offset) == (offset, length)
        assert master.reads.records.record_at(offset + length) is None  # a blank follows
        assert ends_of(slave).last_record(size) is None
