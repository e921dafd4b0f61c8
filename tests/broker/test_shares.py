"""What one address and one user may have of a total."""

from ipaddress import ip_network

import pytest

from broker_store.broker.shares import Full, Held, Shares


@pytest.mark.parametrize(
    ("peer", "site"),
    [
        ("203.0.113.9:5000", "203.0.113.9"),
        ("[2001:db8::1:2]:5000", "2001:db8::/64"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("127.0.0.1:5000", ""),
        ("[::1]:5000", ""),
        ("10.1.2.3:5000", ""),
        ("", ""),
        ("local socket", ""),
    ],
)
def test_an_address_counts_for_itself_an_ipv6_one_for_its_site_and_gateways_for_nothing(peer, site):
    shares = Shares(50, 100, [ip_network("10.1.0.0/16")])
    assert shares.site(peer) == shares.site(peer) == site
    assert shares.holders(peer) == ((site,) if site else ())
    assert Shares(100, 100).site(peer) == ""


def test_a_peer_holds_for_its_user_too_while_it_is_connected():
    shares = Shares(50, 30)
    peer = "203.0.113.9:5000"
    assert not shares.has_user(peer, "ann")
    shares.note_user(peer, "ann")
    assert shares.has_user(peer, "ann") and not shares.has_user(peer, "bob")
    assert shares.holders(peer) == ("203.0.113.9", "user ann")
    shares.forget(peer)
    assert shares.holders(peer) == ("203.0.113.9",)
    assert Shares(50, 100).has_user(peer, "ann")  # users have no share, so none is noted
    assert shares.least_percent == 30


def test_a_total_is_shared_and_what_is_given_back_leaves_nothing():
    held = Held(Shares(50, 25), 8)
    both = ("203.0.113.9", "user ann")
    held.take(both)
    held.take(both)
    assert held.full(both) == Full("user ann", 2, 2) and held.full(both).cause("pops") == "pops of one user"
    assert held.full(("203.0.113.9",)) is None
    assert held.full(("203.0.113.9",), 3) == Full("203.0.113.9", 2, 4)
    held.give(both, 2)
    held.take(both, 0)
    assert held.full(both) is None and not held.counts


def test_a_small_total_leaves_one_for_each():
    held = Held(Shares(10, 10), 3)
    assert held.full(("a",)) is None
    held.take(("a",))
    assert held.full(("a",)) == Full("a", 1, 1)


def test_the_addresses_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("broker_store.broker.shares._MAX_KNOWN_SITES", 10)
    shares = Shares(50)
    for number in range(1, 100):
        assert shares.site(f"203.0.113.{number}:1") == f"203.0.113.{number}"
    assert len(shares._sites) <= 10
