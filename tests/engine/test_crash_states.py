"""Whatever a power cut leaves, the store keeps its word (RELIABILITY.md sections 2 and 3).

`CRASH_STATES` in the environment is how many states each flush mode opens; the default is what every `make test` affords. A violation
names seed, point and choice; put the life into LIVES_THAT_FAILED when it is mended.
"""

import os

import pytest

from tests.support.crash_states import Life, explore

STATES = int(os.environ.get("CRASH_STATES", "10000"))
STATES_A_LIFE = 400
STEPS = 60
# (seed, steps, states): each of these once lost, altered or refused something.
LIVES_THAT_FAILED = [(seed, 60, 120) for seed in (1, 2, 4, 5, 6, 8, 11, 14, 16, 17, 19)] + [(2004, 90, 1500), (2013, 90, 1500), (3018, 90, 1500)]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_safe_survives_every_state_a_power_cut_may_leave(flush):
    opened, seed = 0, 1000
    while opened < STATES:
        opened += explore(seed, flush, STEPS, STATES_A_LIFE, wide=seed % 2 == 1)
        seed += 1
    print(f"{opened} states of {seed - 1000} lives, {flush}")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize(("seed", "steps", "states"), LIVES_THAT_FAILED)
def test_a_life_that_once_failed_does_not_again(seed, steps, states, flush):
    explore(seed, flush, steps, states)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_cut_in_the_middle_of_an_index_rebuild_leaves_an_index_that_is_whole_or_made_again(flush):
    for seed in range(9000, 9006):
        explore(seed, flush, 40, 300, rebuilds=True)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_after_a_failed_sync_a_power_cut_takes_nothing_that_was_called_safe(flush):
    for failing in range(16, 140, 9):
        explore(7000 + failing % 4, flush, 50, 40, failing_sync=failing)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_leads_the_same_life(seed):
    def trace():
        life = Life(seed, "ASYNC_FLUSH")
        life.live(30)
        life.store.die()
        return [point.what for point in life.points]

    assert trace() == trace()
