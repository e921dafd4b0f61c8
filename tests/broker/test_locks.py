"""broker.locks: the client of a group that holds a queue."""

from broker_store.broker.locks import LOCK_LIFE_MS, QueueLocks

ONE, TWO = ("t", 0), ("t", 1)


def test_a_queue_belongs_to_who_came_first_until_it_is_given_back():
    locks = QueueLocks()
    assert locks.lock("g", "a", [ONE, TWO], 0) == [ONE, TWO]
    assert locks.lock("g", "b", [ONE, TWO], 1) == []
    locks.unlock("g", "b", [ONE])
    assert locks.owner("g", ONE, 1) == "a"
    locks.unlock("g", "a", [ONE])
    assert locks.lock("g", "b", [ONE, TWO], 2) == [ONE]


def test_groups_do_not_know_each_others_locks():
    locks = QueueLocks()
    locks.lock("g", "a", [ONE], 0)
    assert locks.lock("h", "b", [ONE], 0) == [ONE]


def test_a_lock_that_is_not_renewed_is_taken_over():
    locks = QueueLocks()
    locks.lock("g", "a", [ONE, TWO], 0)
    locks.lock("g", "a", [ONE], LOCK_LIFE_MS)
    assert locks.lock("g", "b", [ONE, TWO], LOCK_LIFE_MS + 1) == [TWO]
    assert locks.owner("g", ONE, 2 * LOCK_LIFE_MS + 1) is None


def test_a_group_holds_locks_until_the_last_one_expires():
    locks = QueueLocks()
    assert not locks.held("g", 0)
    locks.lock("g", "a", [ONE], 0)
    locks.lock("g", "a", [TWO], 10)
    assert locks.held("g", LOCK_LIFE_MS + 10) and not locks.held("h", 0)
    assert not locks.held("g", LOCK_LIFE_MS + 11)


def test_expired_locks_leave_nothing_behind():
    locks = QueueLocks()
    locks.lock("g", "a", [ONE], 0)
    locks.scan(LOCK_LIFE_MS + 1)
    assert locks._groups == {}
