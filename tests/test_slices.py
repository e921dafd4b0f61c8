"""Slices are the calling thread's own, where Linux has them."""

import platform
import threading

import pytest

from broker_store import slices

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
    [(slices.ask_for_short_slices, slices.SHORT_NS), (slices.ask_for_long_slices, slices.LONG_NS)],
)
def test_a_thread_has_the_slices_it_asks_for_and_those_that_it_starts_have_not(ask_for, wanted_ns):
    before = slices.slice_ns()

    def ask():
        return ask_for(), slices.slice_ns(), in_a_thread(slices.slice_ns)

    was_given, own, of_a_child = in_a_thread(ask)
    assert was_given and own == wanted_ns
    assert before != wanted_ns and of_a_child == slices.slice_ns() == before


def test_where_there_are_none_all_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(slices, "_GET", None)
    assert (
        slices.ask_for_short_slices() is slices.ask_for_long_slices() is False and slices.slice_ns() is None
    )
