"""Slices are the calling thread's own, where Linux has them."""

import platform
import threading

import pytest

from broker_store import scheduler

RELEASE = (
    tuple(int(piece) for piece in platform.release().split("-")[0].split(".")[:2])
    if platform.system() == "Linux"
    else (0, 0)
)


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(RELEASE < (6, 12), reason="Linux gives slices from 6.12 on")
@pytest.mark.parametrize(
    ("ask_for", "wanted_ns"),
    [
        (scheduler.ask_for_short_slices, scheduler.SHORT_NS),
        (scheduler.ask_for_long_slices, scheduler.LONG_NS),
    ],
)
def test_a_thread_has_the_slices_it_asks_for_and_those_that_it_starts_have_not(ask_for, wanted_ns):
    before = scheduler.slice_ns()

    def ask():
        return ask_for(), scheduler.slice_ns(), in_a_thread(scheduler.slice_ns)

    was_given, own, of_a_child = in_a_thread(ask)
    assert was_given and own == wanted_ns
    assert before != wanted_ns and of_a_child == scheduler.slice_ns() == before


def test_where_there_are_none_all_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(scheduler, "_GET", None)
    assert (
        scheduler.ask_for_short_slices() is scheduler.ask_for_long_slices() is False
        and scheduler.slice_ns() is None
    )
