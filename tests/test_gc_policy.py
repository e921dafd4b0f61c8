"""What lives long is set apart from the garbage collector, and cycles that die there are found after all."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from broker_store import gc_policy
from broker_store.gc_policy import LongLived
from broker_store.turns import StepsInTurn


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def long_lived() -> Iterator[LongLived]:
    gc.collect()
    before, thresholds, current = list(gc.callbacks), gc.get_threshold(), gc_policy._current
    apart = LongLived()
    apart.start()
    yield apart
    gc_policy._current = current
    gc.callbacks[:] = before
    gc.set_threshold(*thresholds)
    gc.freeze()  # as the tests are after they are collected (tests/conftest.py)


def test_a_full_collection_walks_only_what_came_since_the_last_one(long_lived):
    kept = [[number] for number in range(10_000)]
    assert len(gc.get_objects()) >= 10_000
    gc.collect()
    assert len(gc.get_objects()) < 1_000
    assert gc.get_freeze_count() >= 10_000
    assert kept[9_999] == [9_999]


def test_no_collection_walks_many_objects(long_lived):
    walked = []
    gc.callbacks.insert(
        0,
        lambda phase, info: (
            walked.append(len(gc.get_objects())) if phase == "start" and info["generation"] == 2 else None
        ),
    )
    kept = [[number] for number in range(100_000)]
    assert len(walked) >= len(kept) // 20_000
    assert max(walked) < 20_000


def test_younger_collections_set_nothing_apart(long_lived):
    gc.disable()
    kept = [[number] for number in range(10_000)]
    gc.collect(0)
    gc.collect(1)
    gc.enable()
    assert len(gc.get_objects()) >= len(kept)


async def test_what_is_made_in_many_turns_is_not_walked(long_lived):
    """A table of 20,000 topics was walked in one turn of the loop."""
    walked, made, done = [], [], []
    gc.callbacks.insert(
        0,
        lambda phase, info: (
            walked.append(len(gc.get_objects())) if phase == "start" and info["generation"] == 2 else None
        ),
    )

    def steps():
        for number in range(100_000):
            made.append([number])
            if number % 100 == 0:
                yield
        gc.collect()

    turns = StepsInTurn(after_turn=gc_policy.set_apart)
    turns.take(steps(), lambda result, error: done.append(error))
    while not done:
        await asyncio.sleep(0)
    assert done == [None] and len(made) == 100_000
    assert max(walked) < 20_000 and gc.get_freeze_count() >= 80_000
    await turns.stop()


async def test_what_a_thread_makes_for_a_step_is_set_apart_while_it_works():
    called, done = threading.Event(), []

    def steps():
        return (yield lambda: (called.clear(), called.wait(10))[1])

    turns = StepsInTurn(after_turn=called.set)
    turns.take(steps(), lambda result, error: done.append((result, error)))
    while not done:
        await asyncio.sleep(0)
    assert done == [(True, None)]
    await turns.stop()


def test_nothing_is_set_apart_before_a_collection_of_everything(long_lived):
    gc.unfreeze()
    long_lived._is_next_complete = True
    gc_policy.set_apart()
    assert gc.get_freeze_count() == 0


def test_a_process_without_the_policy_sets_nothing_apart(monkeypatch):
    monkeypatch.setattr(gc_policy, "_current", None)
    before = gc.get_freeze_count()
    gc_policy.set_apart()
    assert gc.get_freeze_count() == before


def test_a_cycle_that_dies_young_goes_with_the_next_collection(long_lived):
    dead = weakref.ref(Node())
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize(
    "blocks, growth",
    [(gc_policy.LARGE // 10, gc_policy.GROWTH), (gc_policy.LARGE, gc_policy.GROWTH_OF_LARGE)],
)
def test_a_large_process_collects_everything_less_often(blocks, growth, monkeypatch):
    apart = LongLived()
    apart._blocks = blocks
    for factor, is_due in ((growth - 0.1, False), (growth + 0.1, True)):
        monkeypatch.setattr(gc_policy.sys, "getallocatedblocks", lambda factor=factor: int(factor * blocks))
        assert apart._has_grown() is is_due


def test_cycles_that_died_after_they_were_set_apart_go_when_memory_has_doubled(long_lived, monkeypatch):
    monkeypatch.setattr(gc_policy, "LARGE", 1 << 60)  # this process may be a large one
    node = Node()
    dead = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert dead() is not None, "set apart, so nobody looks at it"

    before = sys.getallocatedblocks()
    monkeypatch.setattr(gc_policy.sys, "getallocatedblocks", lambda: gc_policy.GROWTH * before + 10_000)
    gc.collect()
    gc.collect()
    assert dead() is None
    assert len(gc.get_objects()) < 1_000, "and what is left is set apart again"
    other = Node()
    dead = weakref.ref(other)
    gc.collect()
    del other
    gc.collect()
    gc.collect()
    assert dead() is not None, "until it has doubled from there"


def test_a_start_collects_seldom_until_the_process_runs():
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    try:
        gc_policy.collect_seldom()
        assert gc.get_threshold() == gc_policy.WHILE_STARTING
        LongLived().start()
        assert gc.get_threshold() == gc_policy.THRESHOLDS
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks[:] = callbacks
        gc.freeze()
