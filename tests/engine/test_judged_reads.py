"""Reads that judge the properties of each record: hot and cold, with bounded work."""

import pytest

from broker_store.broker.filters import property_filter
from broker_store.config.store import StoreSettings
from broker_store.engine.read import cold, judging, reads
from broker_store.formats import properties, record
from broker_store.messages import GetRequest, GetStatus, Message
from tests.support.hand_store import Clock, HandStore, message, small_settings

MESSAGES = 230


class Every:
    """Passes each n-th message, by its unique key, and counts what it judges."""

    steps = 1
    program = None

    def __init__(self, step: int):
        self.step, self.judged = step, 0

    def passes(self, encoded: bytes) -> bool:
        self.judged += 1
        return int(properties.decode(encoded)["UNIQ_KEY"]) % self.step == 0


@pytest.fixture(params=["hot", "cold"])
def store(request, tmp_path):
    settings = small_settings(tmp_path / "store")
    store = HandStore(settings, Clock()).begin()
    for number in range(MESSAGES):
        store.appender.put(message("T", 0, b"%d" % number * (1 + number % 50), tag="a", unique=str(number)))
    if request.param == "cold":
        store.close()
        store = HandStore(settings, Clock()).begin()
    yield store
    store.close()


def numbers(result) -> list[int]:
    return [found.queue_offset for found in record.decode_all(result.body)]


@pytest.mark.parametrize("step", [1, 8, 1000])
@pytest.mark.parametrize("blocking", [False, True])
def test_following_next_offset_sees_every_passed_message_once(store, step, blocking):
    at, seen, judge = 0, [], Every(step)
    get = store.reads.get_blocking if blocking else store.reads.get
    while at < MESSAGES:
        result = get(GetRequest("T", 0, at, 5, message_filter=judge))
        assert result.status is (GetStatus.FOUND if result.count else GetStatus.NO_MATCHED_MESSAGE)
        assert (result.max_offset, result.count) == (MESSAGES, len(numbers(result)))
        assert result.count <= 5 and at < result.next_offset <= MESSAGES
        seen += numbers(result)
        at = result.next_offset
    assert seen == list(range(0, MESSAGES, step))


def test_bytes_are_bounded(store):
    result = store.reads.get(GetRequest("T", 0, 0, 32, 1_000, message_filter=Every(2)))
    assert 1 < result.count < 32 and len(result.body) <= 1_000
    assert numbers(result)[-1] < result.next_offset
    first = store.reads.get(GetRequest("T", 0, 8, 32, 1, message_filter=Every(8)))
    assert numbers(first) == [8]


def test_a_read_beyond_the_end_is_answered_as_without_a_filter(store):
    for offset in (MESSAGES, MESSAGES + 5, -1):
        asked = [GetRequest("T", 0, offset, message_filter=judge) for judge in (None, Every(1))]
        assert store.reads.get(asked[0]) == store.reads.get(asked[1])
    unknown = store.reads.get(GetRequest("U", 0, 0, message_filter=Every(1)))
    assert unknown.status is GetStatus.NO_MESSAGE_IN_QUEUE


def test_work_is_bounded_and_goes_on_in_the_next_read(store, monkeypatch):
    monkeypatch.setattr(reads, "_JUDGED_STEPS", 3 * (24 + judging.STEPS_PER_CALL + judging.STEPS_PER_NODE))
    judge = Every(1000)
    result = store.reads.get(GetRequest("T", 0, 1, message_filter=judge))
    assert (result.status, result.count) == (GetStatus.NO_MATCHED_MESSAGE, 0)
    assert 1 < result.next_offset <= 4 and judge.judged == result.next_offset - 1


def test_a_read_without_a_filter_is_not_judged_afterwards(store):
    assert store.reads.get(GetRequest("T", 0, 0, 32, message_filter=Every(8))).count
    assert numbers(store.reads.get(GetRequest("T", 0, 0, 3))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("bytes_of_value", "bytes_of_text", "terms", "most"),
    [(7_900, 2, 400, 3), (1_500, 10, 300, 16), (30_000, 10, 300, 1)],
)
@pytest.mark.parametrize("is_read_by_kernel", [True, False])
def test_long_properties_that_many_words_search_end_a_read_early(
    tmp_path, bytes_of_value, bytes_of_text, terms, most, is_read_by_kernel
):
    """Such a read took up to half a second."""
    expression = " OR ".join([f"a CONTAINS '{'9' * (bytes_of_text - 1)}x'"] * terms)
    judge = property_filter(
        expression if is_read_by_kernel else f"{expression} OR (a = 1) = (b = 2)", "SQL92"
    )
    assert (judge.program is not None) == is_read_by_kernel
    settings = StoreSettings(store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=1 << 22)
    store = HandStore(settings, Clock()).begin()
    for number in range(100):
        encoded = properties.encode({"a": "9" * bytes_of_value, "UNIQ_KEY": str(number)})
        assert store.appender.put(Message("T", 0, b"", encoded)).ok
    result = store.reads.get(GetRequest("T", 0, 0, message_filter=judge))
    store.close()
    assert (result.status, result.count) == (GetStatus.NO_MATCHED_MESSAGE, 0)
    assert 0 < result.next_offset <= most


def test_a_read_from_the_disk_ends_when_its_filter_has_worked_enough(store, monkeypatch):
    monkeypatch.setattr(cold, "_MAX_JUDGED_STEPS", 3 * (judging.STEPS_PER_CALL + judging.STEPS_PER_NODE))
    judge = Every(1000)
    result = store.reads.get_blocking(GetRequest("T", 0, 1, message_filter=judge))
    assert (result.status, result.next_offset, judge.judged) == (GetStatus.NO_MATCHED_MESSAGE, 4, 3)
