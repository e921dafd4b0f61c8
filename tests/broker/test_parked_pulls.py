"""broker.parked_pulls: pulls that wait."""

from broker_store.broker.parked_pulls import ParkedPull, ParkedPulls

QUEUE, OTHER = ("t", 0), ("t", 1)


class Watches:
    def __init__(self):
        self.watched = set()

    def parked(self, **options) -> ParkedPulls:
        return ParkedPulls(
            watch=lambda *queue: self.watched.add(queue),
            unwatch=lambda *queue: self.watched.remove(queue),
            **options,
        )


def pull(queue=QUEUE, channel="ch", offset=0, deadline_ms=100) -> ParkedPull:
    return ParkedPull(queue, channel, offset, deadline_ms, None)


def test_a_queue_is_watched_as_long_as_somebody_waits_on_it():
    watches = Watches()
    parked = watches.parked()
    first, second = pull(), pull()
    assert parked.park(first) and parked.park(second)
    assert watches.watched == {QUEUE} and parked.waiting_on(QUEUE) == [first, second]
    parked.remove(first)
    parked.remove(first)
    assert watches.watched == {QUEUE} and parked.count == 1
    parked.remove(second)
    assert watches.watched == set() and parked.waiting_on(QUEUE) == []


def test_deadlines_are_exact():
    parked = Watches().parked()
    late, early = pull(deadline_ms=200), pull(OTHER, deadline_ms=100)
    parked.park(late)
    parked.park(early)
    assert parked.expired(99) == []
    assert parked.expired(100) == [early]
    assert parked.expired(1_000) == [late] and parked.count == 0


def test_who_was_served_does_not_expire():
    parked = Watches().parked()
    one = pull()
    parked.park(one)
    parked.remove(one)
    assert parked.expired(1_000) == []


def test_a_closed_channel_waits_for_nothing():
    watches = Watches()
    parked = watches.parked()
    parked.park(pull(channel="a"))
    parked.park(pull(OTHER, channel="b"))
    parked.channel_closed("a")
    assert parked.count == 1 and watches.watched == {OTHER}
    assert len(parked.take_all()) == 1 and watches.watched == set()


def test_the_table_has_a_bound():
    parked = Watches().parked(max_parked=1)
    assert parked.park(pull()) and not parked.park(pull())


def test_deadlines_of_the_served_do_not_pile_up():
    parked = Watches().parked()
    for _ in range(5_000):
        one = pull(deadline_ms=10**9)
        parked.park(one)
        parked.remove(one)
    assert len(parked._deadlines) < 2_500
