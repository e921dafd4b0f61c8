"""broker.broadcast: the progress of each client of a broadcasting group."""

from broker_store.broker import broadcast
from broker_store.broker.broadcast import BroadcastOffsets
from broker_store.broker.offsets import Offsets

EXPIRE_MS, ONLINE_MS = 120_000, 300_000


def make(*online: str) -> tuple[BroadcastOffsets, Offsets]:
    offsets = Offsets(clock=lambda: 1_000)
    return BroadcastOffsets(
        offsets,
        online=lambda group: set(online),
        begin=lambda topic, queue_id: 77,
        expire_ms=EXPIRE_MS,
        expire_online_ms=ONLINE_MS,
    ), offsets


def test_the_slowest_client_is_what_the_broker_keeps():
    clients, offsets = make("a", "b")
    clients.note("g", "t", 0, "a", 50, 0)
    clients.note("g", "t", 0, "b", 20, 0)
    clients.note("g", "t", 1, "b", 7, 0)
    clients.step(0)
    assert offsets.of_broadcast("g") == {"t": {0: 20, 1: 7}}
    clients.note("g", "t", 0, "b", 60, 1)
    clients.step(1)
    assert offsets.of_broadcast("g") == {"t": {0: 50, 1: 7}}


def test_a_client_that_pulls_again_from_before_counts_where_it_was():
    clients, offsets = make("a")
    clients.note("g", "t", 0, "a", 50, 0)
    clients.note("g", "t", 0, "a", 10, 1)
    clients.step(1)
    assert offsets.of_broadcast("g") == {"t": {0: 50}}


def test_who_is_gone_holds_nobody_back_for_longer_than_it_takes_to_forget():
    clients, offsets = make("here")
    clients.note("g", "t", 0, "gone", 5, 0)
    clients.note("g", "t", 0, "here", 50, 1)
    clients.step(EXPIRE_MS - 1)
    assert offsets.of_broadcast("g") == {"t": {0: 5}}
    clients.step(EXPIRE_MS)
    clients.step(EXPIRE_MS + 1)
    assert offsets.of_broadcast("g") == {"t": {0: 50}}
    clients.step(ONLINE_MS + 1)
    assert clients._table == {} and clients._count == 0


def test_a_client_with_offsets_of_its_own_is_let_go_on():
    clients, _ = make("a")
    assert clients.first("g", "t", 0, "a", 12, 0) is None
    clients.note("g", "t", 0, "a", 12, 0)
    assert clients.first("g", "t", 0, "a", 13, 1) is None
    assert clients.first("g", "t", 0, "b", 5, 1) is None


def test_a_proxy_that_does_not_know_where_is_told():
    clients, offsets = make("a")
    assert clients.first("g", "t", 0, "a", -1, 0, through_proxy=True) == 77
    offsets.commit_broadcast("g", "t", 0, 30)
    assert clients.first("g", "t", 0, "a", -1, 0, through_proxy=True) == 30
    clients.note("g", "t", 0, "a", 31, 0, through_proxy=True)
    assert clients.first("g", "t", 0, "a", -1, 1, through_proxy=True) == 31
    assert clients.first("g", "t", 0, "a", 32, 1, through_proxy=True) is None


def test_a_client_that_changes_between_proxy_and_broker_goes_on_where_it_was():
    clients, _ = make("a")
    clients.note("g", "t", 0, "a", 40, 0)
    assert clients.first("g", "t", 0, "a", 0, 1, through_proxy=True) == 40
    clients.note("g", "t", 0, "a", 45, 1, through_proxy=True)
    assert clients.first("g", "t", 0, "a", 3, 2) == 45


def test_names_that_are_invented_take_no_more_than_their_bound(monkeypatch):
    monkeypatch.setattr(broadcast, "MAX_CLIENTS", 3)
    clients, offsets = make()
    for number in range(5):
        clients.note("g", f"t{number % 2}", 0, f"c{number}", 9, 0, through_proxy=True)
    assert clients._count == 3 and clients.first("g", "t0", 0, "c9", -1, 0, through_proxy=True) is None
    clients.step(EXPIRE_MS)
    clients.note("g", "t0", 0, "c9", 9, EXPIRE_MS, through_proxy=True)
    assert clients._count == 1


def test_what_is_deleted_is_not_kept_again():
    clients, offsets = make("a")
    clients.note("g", "t", 0, "a", 5, 0)
    clients.note("h", "u", 0, "a", 5, 0)
    clients.forget(topic="t")
    clients.forget(group="h")
    clients.step(1)
    assert (offsets.of_broadcast("g"), offsets.of_broadcast("h"), clients._count) == ({}, {}, 0)
