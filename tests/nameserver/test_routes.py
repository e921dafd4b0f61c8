import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats.config_json import DataVersion
from broker_store.formats.static_topics import MappingInfo
from broker_store.nameserver.routes import (
    STEP,
    LowestIdChange,
    Registrant,
    RegistrationAnswer,
    RegistrationRefused,
    Routes,
    finish,
)
from broker_store.protocol.registration_body import Registration
from broker_store.protocol.route_bodies import QueueData
from broker_store.protocol.topic_bodies import TopicConfig

MASTER = Registrant("C", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912")
SLAVE = Registrant("C", "broker-a", 1, "127.0.0.1:20911", enable_acting_master=False)
OTHER = Registrant("C", "broker-b", 0, "127.0.0.1:30911")


def serves(*names, version=1, perm=6, state=0):
    return Registration(
        DataVersion(state, version, 5), {name: TopicConfig(name, 4, 4, perm) for name in names}
    )


@pytest.fixture
def routes():
    routes = Routes()
    routes.register(MASTER, serves("T", "TBW102"), None, 1000)
    return routes


def perm(routes, topic, broker="broker-a"):
    return routes.topics[topic][broker].perm


def test_a_registered_broker_is_in_the_route_of_its_topics(routes):
    route = routes.route("T")
    assert route.queues == (QueueData("broker-a", 4, 4, 6),)
    assert route.brokers[0].addresses == {0: "127.0.0.1:10911"}
    assert routes.route("Nope") is None
    assert routes.cluster_info().clusters == {"C": ["broker-a"]}


class NoItems(dict):
    """A table whose pairs may not be read all at once: that makes a tuple for each in one step."""

    def items(self):
        raise AssertionError("all pairs at once")


def test_no_step_takes_more_than_its_share_of_a_large_table(routes):
    """Of what walks over all topics, each step handles at most STEP of them."""
    names = [f"t{number}" for number in range(5 * STEP)]
    routes.register(OTHER, serves(*names), None, 1000)
    routes.topics = NoItems(routes.topics)
    for walk in (
        routes.topics_of_cluster("C"),
        routes.topics_by_flag(0),
        routes.wipe_write_perm("broker-b"),
        routes.add_write_perm("broker-b"),
    ):
        assert sum(1 for _ in walk) >= 5
    left = [len(routes.topics)]
    for _ in routes.unregister_in_steps("C", OTHER.address, "broker-b", 0):
        left.append(len(routes.topics))
    assert left[-1] == 2 and max(before - after for before, after in itertools.pairwise(left)) <= STEP
    for _ in routes.register_in_steps(OTHER, serves(*names), None, 1000):
        left.append(len(routes.topics))
    assert (
        left[-1] == 2 + len(names)
        and max(after - before for before, after in itertools.pairwise(left)) <= STEP
    )


def test_only_a_changed_data_version_changes_topics(routes):
    routes.register(MASTER, serves("T", "TBW102", perm=4), None, 2000)
    assert perm(routes, "T") == 6
    routes.register(MASTER, serves("T", "TBW102", "New", perm=4, version=2), None, 3000)
    assert perm(routes, "T") == 4
    assert "New" in routes.topics


def test_a_topic_that_is_not_in_the_table_is_taken_in_without_a_change(routes):
    routes.delete_topic("T")
    routes.register(MASTER, serves("T", "TBW102"), None, 2000)
    assert "T" in routes.topics


def test_a_single_topic_may_not_come_first_but_may_come_later():
    routes = Routes()
    with pytest.raises(RegistrationRefused):
        routes.register(MASTER, serves("T"), None, 0)
    assert routes.brokers == {}
    routes.register(MASTER, serves("T", "TBW102"), None, 0)
    routes.register(MASTER, serves("New", version=2), None, 1)
    assert set(routes.topics) == {"T", "TBW102", "New"}


def test_a_slave_is_told_its_master_and_does_not_change_topics(routes):
    assert routes.register(MASTER, serves("T", "TBW102"), None, 2000) == RegistrationAnswer()
    answer = routes.register(SLAVE, serves("T", "S", perm=2, version=9), None, 2000)
    assert answer == RegistrationAnswer("127.0.0.1:10912", "127.0.0.1:10911")
    assert "S" not in routes.topics
    assert routes.route("T").brokers[0].addresses == {0: "127.0.0.1:10911", 1: "127.0.0.1:20911"}


def test_a_slave_without_a_master_stands_in_for_reading_only():
    routes = Routes()
    answer = routes.register(SLAVE._replace(enable_acting_master=True), serves("T", "S"), None, 0)
    assert answer == RegistrationAnswer()
    assert perm(routes, "T") == 4


def test_a_group_without_its_master_shows_the_lowest_slave_as_master_where_that_is_switched_on():
    low = SLAVE._replace(broker_id=2, enable_acting_master=True)
    high = low._replace(broker_id=3, address="127.0.0.1:20921")
    members = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    for acting_masters, shown in (
        (False, {2: low.address, 3: high.address}),
        (True, {0: low.address, 3: high.address}),
    ):
        routes = Routes(acting_masters=acting_masters)
        for who in (low, high):
            routes.register(who, serves("T", members), None, 0)
        assert routes.route("T").brokers[0].addresses == shown
        assert routes.route("T").queues[0].perm == 4
        # The table itself and the topic by which slaves know one another keep the real ids.
        assert routes.route(members).brokers[0].addresses == {2: low.address, 3: high.address}
        assert routes.cluster_info().brokers["broker-a"].addresses == {2: low.address, 3: high.address}
        # A topic that may still be written would take sends to a slave, so it shows none.
        routes.register_topic("T", [QueueData("broker-a", 4, 4, 6)])
        assert routes.route("T").brokers[0].addresses == {2: low.address, 3: high.address}


def test_no_slave_acts_as_master_beside_one_or_without_being_allowed_to():
    routes = Routes(acting_masters=True)
    routes.register(MASTER._replace(enable_acting_master=True), serves("T", "S", perm=4), None, 0)
    routes.register(SLAVE._replace(enable_acting_master=True), serves("T", "S", perm=4), None, 0)
    assert routes.route("T").brokers[0].addresses == {0: MASTER.address, 1: SLAVE.address}
    routes = Routes(acting_masters=True)
    routes.register(SLAVE, serves("T", "S", perm=4), None, 0)
    assert routes.route("T").brokers[0].addresses == {1: SLAVE.address}


ACTING = SLAVE._replace(enable_acting_master=True)
SECOND = ACTING._replace(broker_id=2, address="127.0.0.1:20921")


@pytest.fixture
def changes():
    """Routes with two slaves, and the changes of the lowest id since."""
    routes, seen = Routes(), []
    for who in (ACTING, SECOND):
        routes.register(who, serves("T", "S"), None, 0)
    routes.on_lowest_id_changed = seen.append
    routes.seen = seen
    return routes


def test_a_lower_id_that_registers_is_a_change_for_the_others(changes):
    master = MASTER._replace(enable_acting_master=True)
    changes.register(master, serves("T", "S"), None, 0)
    others = (ACTING.address, SECOND.address)
    change = LowestIdChange("broker-a", 0, MASTER.address, None, MASTER.ha_address, others)
    assert changes.seen == [change]
    changes.register(master, serves("T", "S", version=2), None, 1)  # again, and a higher one
    changes.register(SECOND._replace(broker_id=3, address="127.0.0.1:1"), serves("T", "S"), None, 1)
    assert changes.seen == [change]


def test_the_first_of_a_name_is_no_change_and_one_that_takes_a_lower_id_is_its_own(changes):
    changes.register(OTHER._replace(broker_id=5), serves("T", "S"), None, 0)
    assert changes.seen == []
    changes.register(OTHER, serves("T", "S"), None, 0)
    assert changes.seen == [LowestIdChange("broker-b", 0, OTHER.address, None, None, (OTHER.address,))]


@pytest.mark.parametrize("way", ["unregisters", "is silent", "closes its channel"])
def test_the_lowest_id_that_goes_is_a_change_for_those_that_remain(changes, way):
    channel = object()
    changes.register(ACTING._replace(timeout_ms=10), serves("T", "S"), channel, 0)
    if way == "unregisters":
        changes.unregister("C", ACTING.address, "broker-a", 1)
    elif way == "is silent":
        changes.expire(11)
    else:
        changes.channel_closed(channel)
    assert changes.seen == [
        LowestIdChange("broker-a", 2, SECOND.address, ACTING.address, None, (SECOND.address,))
    ]
    changes.unregister("C", SECOND.address, "broker-a", 2)  # none remains
    assert len(changes.seen) == 1


def test_another_id_that_goes_is_no_change_nor_one_of_brokers_that_never_act(changes, routes):
    changes.unregister("C", SECOND.address, "broker-a", 2)
    changes.unregister("C", "127.0.0.1:9", "broker-a", 1)  # not its address
    assert changes.seen == []
    routes.on_lowest_id_changed = changes.seen.append
    routes.register(SLAVE, serves("T", "S"), None, 0)
    routes.unregister("C", MASTER.address, "broker-a", 0)
    assert changes.seen == []


def test_no_change_is_stated_before_the_routes_show_it(changes):
    shown = []
    changes.on_lowest_id_changed = lambda change: shown.append(
        (min(changes.brokers["broker-a"].addresses), perm(changes, "T"))
    )
    changes.register(MASTER._replace(enable_acting_master=True), serves("T", "S"), None, 0)
    changes.unregister("C", MASTER.address, "broker-a", 0)
    assert shown == [(0, 6), (1, 4)]


def test_a_slave_that_becomes_master_is_listed_once(routes):
    routes.register(SLAVE, serves("T", "S"), None, 2000)
    routes.unregister("C", MASTER.address, "broker-a", 0)
    routes.register(SLAVE._replace(broker_id=0), serves("T", "S", version=3), None, 3000)
    assert routes.brokers["broker-a"].addresses == {0: SLAVE.address}


def test_an_id_held_by_a_newer_state_is_not_taken_over(routes):
    routes.register(MASTER, serves("T", "TBW102", state=5), None, 1500)
    answer = routes.register(
        MASTER._replace(address="127.0.0.1:1"), serves("T", "TBW102", state=4), None, 2000
    )
    assert answer == RegistrationAnswer()
    assert routes.brokers["broker-a"].addresses == {0: MASTER.address}
    routes.register(MASTER._replace(address="127.0.0.1:1"), serves("T", "TBW102", state=6), None, 2000)
    assert routes.brokers["broker-a"].addresses == {0: "127.0.0.1:1"}


def test_unregistering_removes_what_only_that_broker_served(routes):
    routes.register(OTHER, serves("T", "O"), None, 1000)
    routes.unregister("C", MASTER.address, "broker-a", 0)
    assert set(routes.topics) == {"T", "O"}
    assert set(routes.brokers) == {"broker-b"}
    routes.unregister("C", OTHER.address, "broker-b", 0)
    assert (routes.topics, routes.brokers, routes.clusters, routes.live) == ({}, {}, {}, {})


def test_unregistering_somebody_unknown_changes_nothing(routes):
    routes.unregister("C", "127.0.0.1:1", "broker-z", 0)
    routes.unregister("C", "127.0.0.1:1", "broker-a", 0)
    assert routes.brokers["broker-a"].addresses == {0: MASTER.address}


def test_a_silent_broker_disappears_after_its_timeout(routes):
    assert routes.expire(121_000) == []
    assert [live.registrant for live in routes.expire(121_001)] == [MASTER]
    assert routes.route("T") is None


def test_a_sign_of_life_and_an_own_timeout_count():
    routes = Routes()
    routes.register(MASTER._replace(timeout_ms=10), serves("T", "S"), None, 0)
    routes.heard("C", MASTER.address, 100)
    routes.heard("C", "127.0.0.1:1", 100)
    assert routes.expire(110) == []
    assert len(routes.expire(111)) == 1


def test_a_closed_channel_takes_its_broker_along():
    routes, first, second = Routes(), object(), object()
    routes.register(MASTER, serves("T", "S"), first, 0)
    routes.register(MASTER, serves("T", "S"), second, 10)
    assert routes.channel_closed(first) == []
    assert routes.route("T") is not None
    assert len(routes.channel_closed(second)) == 1
    assert routes.route("T") is None


def test_write_permission_is_wiped_and_given_back_until_the_broker_changes(routes):
    assert finish(routes.wipe_write_perm("broker-a")) == 2
    assert perm(routes, "T") == 4
    assert finish(routes.add_write_perm("broker-a")) == 2
    assert perm(routes, "T") == 6
    assert finish(routes.wipe_write_perm("broker-z")) == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(routes):
    routes.register(OTHER._replace(cluster="D"), serves("T", "O"), None, 0)
    routes.delete_topic("T", "D")
    assert list(routes.topics["T"]) == ["broker-a"]
    routes.delete_topic("T", "nowhere")
    routes.delete_topic("T")
    assert "T" not in routes.topics


def test_a_topic_can_be_registered_on_known_brokers_only(routes):
    routes.register_topic("N", [QueueData("broker-a", 1, 1, 6), QueueData("broker-z", 1, 1, 6)])
    assert list(routes.topics["N"]) == ["broker-a"]
    routes.register_topic("M", [QueueData("broker-z", 1, 1, 6)])
    assert "M" not in routes.topics


def test_topics_are_found_by_cluster_and_flag(routes):
    topics = {name: TopicConfig(name, topic_sys_flag=flag) for name, flag in (("u", 1), ("s", 2), ("us", 3))}
    routes.register(OTHER._replace(cluster="D"), Registration(DataVersion(), topics), None, 0)
    assert sorted(finish(routes.topics_of_cluster("C"))) == ["T", "TBW102"]
    assert finish(routes.topics_by_flag(1)) == ["u", "us"]
    assert finish(routes.topics_by_flag(2)) == ["s", "us"]
    assert finish(routes.topics_by_flag(2, 1)) == ["s"]
    assert routes.system_names() == (["C", "D", "broker-a", "broker-b"], "127.0.0.1:10911")


def test_a_zone_shows_its_own_brokers_and_those_without_a_master(routes):
    routes.register(OTHER._replace(zone_name="East"), serves("T", "O"), None, 0)
    assert [b.broker_name for b in routes.route("T", "east").brokers] == ["broker-b"]
    assert routes.route("T", "west").queues == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"broker_name": "../etc"},
        {"broker_name": ""},
        {"cluster": "a/b"},
        {"cluster": ".."},
        {"address": "nowhere"},
        {"address": "a:1,b:2"},
        {"address": "127.0.0.1:10911\n"},
        {"broker_id": -1},
    ],
)
def test_names_that_are_paths_and_addresses_that_are_none_are_refused(changed):
    routes = Routes()
    with pytest.raises(RegistrationRefused):
        routes.register(MASTER._replace(**changed), serves("T", "S"), None, 0)
    with pytest.raises(RegistrationRefused):
        routes.register(MASTER, serves("T", "a/../b"), None, 0)
    assert (routes.topics, routes.brokers, routes.clusters, routes.live) == ({}, {}, {}, {})


def test_there_is_a_bound_on_brokers_and_topics(monkeypatch, routes):
    monkeypatch.setattr("broker_store.nameserver.routes.MAX_BROKERS", 1)
    with pytest.raises(RegistrationRefused):
        routes.register(OTHER, serves("T", "O"), None, 0)
    monkeypatch.setattr("broker_store.nameserver.routes.MAX_TOPICS", 3)
    with pytest.raises(RegistrationRefused):
        routes.register(MASTER, serves("T", "A", "B", version=2), None, 0)
    routes.register(MASTER, serves("T", "TBW102", "A", version=2), None, 0)
    with pytest.raises(RegistrationRefused):
        routes.register_topic("B", [])


brokers = st.builds(
    lambda cluster, name, number, port: Registrant(cluster, name, number, f"h:{port}"),
    st.sampled_from(["C", "D"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.integers(1, 4),
)


@given(
    st.lists(
        st.tuples(
            brokers,
            st.sampled_from(["register", "unregister", "expire"]),
            st.sets(st.sampled_from("XYZ"), min_size=2),
        )
    )
)
def test_whatever_comes_every_topic_is_on_a_known_broker(events):
    routes = Routes()
    for now, (who, what, topics) in enumerate(events):
        if what == "register":
            routes.register(who._replace(timeout_ms=3), serves(*topics, version=now), None, now)
        elif what == "unregister":
            routes.unregister(who.cluster, who.address, who.broker_name, who.broker_id)
        else:
            routes.expire(now)
        assert all(queues and set(queues) <= set(routes.brokers) for queues in routes.topics.values())
        assert all(broker.addresses for broker in routes.brokers.values())
        assert {name for names in routes.clusters.values() for name in names} == set(routes.brokers)
        assert all(
            len(set(broker.addresses.values())) == len(broker.addresses) for broker in routes.brokers.values()
        )


def with_mapping(broker, version, leads, epoch=1, topic="T"):
    info = MappingInfo(topic, 2, broker, epoch, leads=leads)
    return replace(serves("T", "Other", version=version), mappings={topic: info})


def test_a_route_has_the_mapping_that_each_broker_registered_last(routes):
    assert routes.route("T").mappings == {}
    for who, leads in ((MASTER, {0: 0}), (OTHER, {1: 0})):
        routes.register(who, with_mapping(who.broker_name, 2, leads), None, 0)
    assert {name: info.leads for name, info in routes.route("T").mappings.items()} == {
        "broker-a": {0: 0},
        "broker-b": {1: 0},
    }
    routes.register(MASTER, with_mapping("broker-a", 3, {0: 0, 1: 5}, epoch=2), None, 0)
    assert routes.route("T").mappings["broker-a"].leads == {0: 0, 1: 5}
    assert routes.route("Other").mappings == {}


def test_a_mapping_goes_with_its_broker_with_its_topic_and_with_a_registration_that_has_none(routes):
    def both(version):
        for who in (MASTER, OTHER):
            routes.register(who, with_mapping(who.broker_name, version, {0: 0}), None, 0)
        assert routes.mappings["T"].keys() == {"broker-a", "broker-b"}

    both(2)
    routes.register(MASTER, serves("T", "Other", version=3), None, 0)
    assert routes.mappings["T"].keys() == {"broker-b"}
    routes.unregister("C", OTHER.address, "broker-b", 0)
    assert not routes.mappings
    both(4)
    routes.delete_topic("T")
    assert not routes.mappings
    both(5)
    routes.delete_topic("T", "C")
    assert not routes.mappings


def test_a_mapping_of_another_broker_or_of_a_topic_that_is_not_registered_is_not_taken(routes):
    routes.register(MASTER, with_mapping("broker-b", 2, {0: 0}), None, 0)
    routes.register(MASTER, with_mapping("broker-a", 3, {0: 0}, topic="Unknown"), None, 0)
    assert not routes.mappings
