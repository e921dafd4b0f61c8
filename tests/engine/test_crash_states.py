"""Whatever a power cut leaves, the store keeps its word (docs/durability.md sections 2 and 3).

Each run opens 2,500 states in the two flush modes, by five sets of rules of file systems
(`tests/support/name_rules.py`). `CRASH_STATES` in the environment is another number; `make prove-crashes`
opens 10^6 states of random lives, others each time. A violation prints the command that makes
its state again; its life goes into LIVES_THAT_FAILED when the cause is gone.
"""

import os
import random

import pytest

from broker_store.engine.queue import consume_queues
from tests.support.crash_states import POOL, Choice, Exploration, Life, choices, contents_of, explore
from tests.support.name_rules import RULES

STATES = int(os.environ.get("CRASH_STATES", "2500"))
STATES_PER_LIFE = 250
STEPS = 60
# (seed, steps, states): each of these once lost, altered or refused something.
LIVES_THAT_FAILED = [(seed, 60, 120) for seed in (1, 2, 4, 5, 6, 8, 11, 14, 16, 17, 19)] + [
    pytest.param(seed, 90, 1500, marks=[pytest.mark.slow, pytest.mark.proof]) for seed in (2004, 2013, 3018)
]
# Seeds of lives whose queues lost a file among others: refused, or begun too late, so that acknowledged
# messages were gone.
LIVES_THAT_ROLLED = (1, 3, 149)


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("rules", RULES)
def test_what_is_safe_survives_every_state_a_power_cut_may_leave(rules, flush):
    opened, seed = 0, 1000
    while opened < STATES // (2 * len(RULES)):
        opened += explore(
            seed, flush, STEPS, STATES_PER_LIFE, rules=rules, wide=seed % 2 == 1, rolls=seed % 3 != 0
        )
        seed += 1
    print(f"{opened} states of {seed - 1000} lives, {flush}, {rules}")


@pytest.mark.quick(1)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", LIVES_THAT_ROLLED)
def test_files_of_a_queue_that_are_lost_one_by_one_take_no_message(seed, flush):
    explore(seed, flush, STEPS, 300, rules="posix", rolls=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize(("seed", "steps", "states"), LIVES_THAT_FAILED)
def test_a_life_that_once_failed_does_not_again(seed, steps, states, flush):
    explore(seed, flush, steps, states)


@pytest.mark.quick(4)
@pytest.mark.parametrize("rolls", [False, True], ids=["plain", "rolls"])
@pytest.mark.parametrize("seed", range(9100, 9104))
def test_with_a_pool_of_buffers_no_cut_and_no_kill_takes_what_was_committed_or_safe(seed, rolls):
    explore(seed, POOL, STEPS, 200, wide=seed % 2 == 1, rolls=rolls)


@pytest.mark.quick(4)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(9200, 9202))
def test_queues_that_are_synced_by_their_file_system_lose_nothing_that_is_safe(seed, rules, monkeypatch):
    monkeypatch.setattr(consume_queues, "MANY_UNSYNCED", 1)
    explore(seed, "SYNC_FLUSH", STEPS, 200, rules=rules, rolls=seed % 2 == 1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(9000, 9006))
def test_a_cut_in_the_middle_of_an_index_rebuild_leaves_an_index_that_is_whole_or_made_again(seed, flush):
    explore(seed, flush, 40, 300, rebuilds=True)


@pytest.mark.quick(4)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("failing", range(16, 140, 9))
def test_after_a_failed_sync_a_power_cut_takes_nothing_that_was_called_safe(failing, flush):
    explore(7000 + failing % 4, flush, 50, 40, failing_sync=failing)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_leads_the_same_life(seed):
    def trace():
        life = Life(seed, "ASYNC_FLUSH")
        life.live(30)
        life.store.die()
        return [point.what for point in life.points]

    assert trace() == trace()


@pytest.mark.quick(1)
@pytest.mark.parametrize("rules", RULES)
def test_a_state_is_made_again_from_what_a_violation_prints(rules):
    life, again = (Exploration(3, "SYNC_FLUSH", 30, 0, rules, rolls=True).live() for _ in range(2))
    rng = random.Random(1)
    for number in range(0, len(life.points), 10):
        for choice in choices(life.points[number], rng, 3):
            printed = Choice.from_json(choice.as_json())
            assert contents_of(again.points[number], printed) == contents_of(life.points[number], choice)
