"""broker.pauses: the longest pause of the event loop."""

from __future__ import annotations

from broker_store.broker.pauses import RECENT_MS, Pause, Pauses

NOW = 1_764_000_000_000


def test_the_longest_pause_of_late_is_kept_and_forgotten_in_time_and_that_of_the_run_stays():
    now = [NOW]
    pauses = Pauses(lambda: now[0])
    assert pauses.longest() is None and pauses.longest_of_run is None
    for late_s in (0.001, 16.0, 0.002):
        pauses.note(late_s)
    assert pauses.longest() == Pause(16.0, NOW - 16_000)
    assert pauses.longest_of_run == Pause(16.0, NOW - 16_000)
    now[0] += RECENT_MS - 1
    pauses.note(0.5)
    assert pauses.longest() == Pause(16.0, NOW - 16_000)
    now[0] += 1
    assert pauses.longest().seconds == 0.5 and pauses.longest_of_run.seconds == 16.0


def test_a_day_of_notes_holds_some_buckets_only():
    now = [NOW]
    pauses = Pauses(lambda: now[0])
    for _ in range(10_000):
        now[0] += 9_000
        pauses.note(0.0)
    assert len(pauses._longest) <= 12
