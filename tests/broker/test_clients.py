"""broker.clients: connected clients."""

import pytest

from broker_store.broker.clients import EXPIRED_AFTER_MS, Clients, TooManyClientsError
from broker_store.broker.filters import FilterError
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription


@pytest.fixture
def told(clients):
    changed = []
    clients.on_group_changed = lambda group: changed.append(group.name)
    return changed


@pytest.fixture
def clients():
    return Clients()


def beat(
    clients,
    channel="ch1",
    client="c1",
    group="g",
    topics=("t",),
    version=1,
    now_ms=0,
    producers=(),
    **options,
):
    consumer = ConsumerData(
        group, subscriptions=tuple(Subscription(topic, version=version) for topic in topics)
    )
    return clients.heartbeat(
        channel, Heartbeat(client, producers, (consumer,), **options), "JAVA", 479, now_ms
    )


def test_members_of_a_group_are_listed(clients, told):
    beat(clients)
    beat(clients, "ch2", "c2")
    assert clients.consumer_group("g").client_ids() == ["c1", "c2"]
    assert told == ["g", "g"]


def test_the_same_heartbeat_again_tells_nobody(clients, told):
    beat(clients)
    beat(clients, now_ms=30_000)
    assert told == ["g"]


def test_a_change_of_topics_is_told_and_of_versions_is_not(clients, told):
    beat(clients)
    beat(clients, version=2)
    assert told == ["g"] and clients.subscription("g", "t").version == 2
    beat(clients, topics=("t", "u"), version=3)
    beat(clients, topics=("u",), version=4)
    assert told == ["g"] * 3 and clients.subscription("g", "t") is None


def test_an_older_subscription_does_not_replace_a_newer(clients):
    beat(clients, version=5)
    beat(clients, version=4)
    assert clients.subscription("g", "t").version == 5


def test_a_heartbeat_without_subscriptions_leaves_them_alone(clients):
    assert beat(clients, fingerprint=7)
    assert not beat(clients, topics=(), fingerprint=7, without_sub=True)
    assert clients.subscription("g", "t") is not None
    assert beat(clients, topics=(), fingerprint=8, without_sub=True)


def test_who_leaves_is_told_to_the_rest_and_an_empty_group_is_gone(clients, told):
    beat(clients, producers=("p",))
    beat(clients, "ch2", "c2")
    clients.unregister("ch1", "c1", "p", "g")
    assert clients.consumer_group("g").client_ids() == ["c2"] and clients.producers("p") == []
    assert told == ["g"] * 3
    clients.channel_closed("ch2")
    assert clients.consumer_group("g") is None and told == ["g"] * 3


def test_a_closed_channel_takes_its_client_out_of_every_group(clients):
    beat(clients, producers=("p", "q"))
    beat(clients, group="h")
    clients.channel_closed("ch1")
    assert clients.consumer_groups() == [] and clients.producer_groups() == {} and clients.all() == []


def test_the_silent_are_forgotten_and_their_channels_named(clients):
    beat(clients, producers=("p",))
    beat(clients, "ch2", "c2", now_ms=10_000)
    assert clients.scan(EXPIRED_AFTER_MS) == []
    assert clients.scan(EXPIRED_AFTER_MS + 1) == ["ch1"]
    assert clients.consumer_group("g").client_ids() == ["c2"]


def test_an_expression_that_cannot_be_read_changes_nothing(clients):
    bad = ConsumerData("g", subscriptions=(Subscription("t", " || "),))
    with pytest.raises(FilterError):
        clients.heartbeat("ch1", Heartbeat("c1", ("p",), (bad,)), "JAVA", 479, 0)
    assert clients.all() == []


def test_memberships_are_bounded_all_together():
    clients = Clients(max_memberships=2)
    beat(clients, producers=("p",))
    beat(clients, producers=("p",))
    with pytest.raises(TooManyClientsError):
        beat(clients, "ch2", "c2")
    assert clients.consumer_group("g").client_ids() == ["c1"]
