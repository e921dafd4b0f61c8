"""broker.pop.parked_pops: pops that wait, by what they wait for."""

from collections import Counter

from broker_store.broker.pop.parked_pops import ParkedPop, ParkedPops
from tests.support.loop_turns import no_garbage_collection, time_taken


class Watches:
    def __init__(self) -> None:
        self.watched: Counter[tuple[str, int]] = Counter()

    def parked(self) -> ParkedPops[None]:
        return ParkedPops(watch=self.watch, unwatch=self.unwatch, max_parked=100_000, max_in_line=100)

    def watch(self, topic: str, queue_id: int) -> None:
        self.watched[topic, queue_id] += 1

    def unwatch(self, topic: str, queue_id: int) -> None:
        self.watched[topic, queue_id] -= 1


def pop(topic: str = "T", group: str = "G", queue_id: int = -1, deadline_ms: int = 100) -> ParkedPop[None]:
    return ParkedPop((topic, group, queue_id), "channel", deadline_ms, None)


def test_lines_of_a_group_in_a_topic():
    pops = Watches().parked()
    both = [pop(), pop(queue_id=1)]
    for parked in [*both, pop(group="Other"), pop("Other")]:
        assert pops.park(parked, [("T", 0)])
    assert pops.lines("G", "T") == [parked.line for parked in both]
    pops.remove(both[0])
    assert pops.lines("G", "T") == [both[1].line]
    pops.remove(both[1])
    assert pops.lines("G", "T") == [] and pops.lines("Other", "T") == [("T", "Other", -1)]


def test_pops_of_other_topics_and_groups_cost_nothing():
    pops = Watches().parked()
    for number in range(30_000):
        assert pops.park(pop("T" if number % 2 else "Other", f"G{number}"), [("T", 0)])
    with no_garbage_collection(), time_taken() as taken:
        for _ in range(1_000):
            assert pops.lines("G1", "T") == [("T", "G1", -1)]
    assert taken.readings < 1


def test_some_of_those_whose_time_is_over():
    pops = Watches().parked()
    for number in range(5):
        assert pops.park(pop(group=f"G{number}", deadline_ms=number), [])
    assert [parked.line[1] for parked in pops.expired(3, 3)] == ["G0", "G1", "G2"]
    assert [parked.line[1] for parked in pops.expired(3, 3)] == ["G3"]
    assert pops.count == 1 and [parked.line[1] for parked in pops.expired(9)] == ["G4"]


def test_a_line_gets_other_queues():
    watches = Watches()
    pops = watches.parked()
    all_queues, one_queue = pop(), pop(queue_id=1)
    assert pops.park(all_queues, [("T", 0), ("T", 1)]) and pops.park(one_queue, [("T", 1)])
    assert pops.lines_of_topic("T") == [all_queues.line, one_queue.line] and pops.lines_of_topic("O") == []
    assert pops.set_queues(all_queues.line, [("T", 1), ("T", 2)])
    assert watches.watched == {("T", 0): 0, ("T", 1): 2, ("T", 2): 1}
    assert pops.lines_of(("T", 0)) == [] and pops.lines_of(("T", 2)) == [all_queues.line]
    assert not pops.set_queues(all_queues.line, [("T", 1)])
    pops.remove(all_queues)
    pops.remove(one_queue)
    assert not pops.set_queues(all_queues.line, [("T", 1)])
    assert set(watches.watched.values()) == {0} and pops.lines_of_topic("T") == []
