"""broker.loaded_slots: which seconds of the wheel are in memory, and when."""

from types import SimpleNamespace

from broker_store.broker import loaded_slots
from broker_store.broker.loaded_slots import LoadedSlots, WaitingMessage
from broker_store.formats import timer_log

NOW_MS = 1_000_000


class Files:
    """The wheel's slots by second; each has a last unit at position 8."""

    def __init__(self, **counts: int):
        self.counts = {int(name[1:]): count for name, count in counts.items()}

    def slot(self, second: int):
        return SimpleNamespace(count=self.counts.get(second, 0), last=8) if second in self.counts else None


def message(due_ms: int) -> WaitingMessage:
    return WaitingMessage(due_ms, 0, 100, NOW_MS, False, 1)


def test_a_second_is_loaded_earlier_the_more_messages_it_has():
    slots = LoadedSlots(Files(s1100=0, s1200=500_000))
    slots.start(NOW_MS, [1100, 1200])
    assert slots.next_open_ms() == 1_100_000 - loaded_slots.LOAD_AHEAD_MS
    slots.open_near(1_099_000)
    (slot,) = slots.in_order()
    assert (slot.slot_ms, slot.next, slot.is_loaded) == (1_100_000, 8, False)
    assert slots.next_open_ms() == 1_200_000 - loaded_slots.LOAD_AHEAD_MS - 50_000


def test_a_near_second_is_in_memory_from_its_first_message():
    slots = LoadedSlots(Files())
    slots.begin(1_009, NOW_MS)
    slots.begin(1_011, NOW_MS)
    assert [slot.slot_ms for slot in slots.in_order()] == [1_009_000] and slots.get(1_009_000).is_loaded


def test_the_latest_second_is_released_when_too_much_is_in_memory(monkeypatch):
    monkeypatch.setattr(loaded_slots, "MAX_LOADED", 2)
    slots = LoadedSlots(Files(s1001=2, s1009=2))
    for second in (1_001, 1_009):
        slots.begin(second, NOW_MS)
    for second in (1_001, 1_009, 1_009):
        slots.add(slots.get(second * 1_000), message(second * 1_000))
    slots.release(NOW_MS)
    assert [slot.slot_ms for slot in slots.in_order()] == [1_001_000] and slots.loaded == 1
    slots.open_near(1_008_500)
    assert slots.get(1_009_000).next != timer_log.NONE, "it is loaded again when it is near"


def test_finished_seconds_are_passed_and_those_with_messages_are_not():
    slots = LoadedSlots(Files(s1003=1))
    slots.start(NOW_MS, [1003])
    slots.begin(1_000, NOW_MS)
    slots.add(slots.get(NOW_MS), message(NOW_MS))
    assert not slots.pass_finished(NOW_MS + 5_000) and slots.read_ms == NOW_MS
    slots.get(NOW_MS).waiting.clear()
    assert slots.pass_finished(NOW_MS + 5_000) and slots.read_ms == 1_003_000
