"""broker.clients: connected clients."""

import random

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


class Unwalked(dict):
    """A table in which entries are only looked up."""

    def __iter__(self):
        raise AssertionError("all groups were walked")

    keys = values = items = __iter__


def test_the_end_of_a_channel_costs_its_own_groups_and_no_others(clients):
    for number in range(100):
        beat(clients, f"ch{number}", f"c{number}", group=f"g{number}", producers=(f"p{number}", "shared"))
    clients._producers, clients._consumers = Unwalked(clients._producers), Unwalked(clients._consumers)
    assert clients.id_on("ch7") == "c7" and clients.id_on("other") is None
    clients.channel_closed("ch7")
    clients.channel_closed("other")
    assert clients.id_on("ch7") is None
    assert clients.producers("p7") == [] and clients.consumer_group("g7") is None
    assert len(clients.producers("shared")) == 99 and clients.consumer_group("g8") is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_groups_of_each_channel_are_those_that_have_it(clients, seed):
    chance = random.Random(seed)
    now_ms = 0
    for _ in range(300):
        now_ms += chance.randrange(20_000)
        channel, name = f"ch{chance.randrange(6)}", str(chance.randrange(4))
        match chance.randrange(5):
            case 0 | 1:
                producers = tuple(f"p{chance.randrange(4)}" for _ in range(chance.randrange(3)))
                beat(
                    clients,
                    channel,
                    f"c{chance.randrange(3)}",
                    "g" + name,
                    producers=producers,
                    now_ms=now_ms,
                )
            case 2:
                clients.unregister(channel, f"c{chance.randrange(3)}", "p" + name, "g" + name)
            case 3:
                clients.channel_closed(channel)
            case 4:
                clients.scan(now_ms)
        wanted = {}
        for kind, groups in (
            ("p", clients._producers.items()),
            ("c", [(group.name, group.members) for group in clients.consumer_groups()]),
        ):
            for group, members in groups:
                for member in members:
                    wanted.setdefault(member, set()).add((kind, group))
        found = {
            member: {("p", one) for one in groups.producers} | {("c", one) for one in groups.consumers}
            for member, groups in clients._groups_of.items()
        }
        assert found == wanted
        assert clients._memberships == sum(map(len, wanted.values()))
