"""broker.groups: subscription groups and their file."""

import pytest

from broker_store.broker.groups import (
    SYSTEM_GROUPS,
    Groups,
    SubscriptionGroup,
    TooManyGroupsError,
    check_retry_policy,
)
from broker_store.errors import DamagedStoreError, FormatError, NameError_
from broker_store.formats import config_json

# A group as a real 5.3.3 broker answered it (golden wire-1, "get group").
APACHES = {
    "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True, "consumeFromMinEnable": True, "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15, "groupName": "G5", "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 3, "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip


def make(**options) -> Groups:
    return Groups(clock=lambda: 1_000, **options)


def test_a_fresh_table_has_apaches_groups():
    assert {group.name for group in make().all()} == set(SYSTEM_GROUPS)


def test_a_group_has_apaches_form_and_defaults():
    assert SubscriptionGroup("G5", retry_max_times=3).to_json() == APACHES
    assert list(SubscriptionGroup("G5").to_json()) == sorted(APACHES)


def test_what_only_another_version_knows_of_a_group_is_kept():
    group = SubscriptionGroup.from_json(APACHES | {"somethingNew": {"a": 1}})
    assert group.to_json() == dict(sorted((APACHES | {"somethingNew": {"a": 1}}).items()))


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"groupName": 7},
        APACHES | {"retryMaxTimes": "3"},
        APACHES | {"consumeEnable": 1},
        APACHES | {"brokerId": 1 << 70},
    ],
)
def test_a_group_with_wrong_fields_is_refused(value):
    with pytest.raises(FormatError):
        SubscriptionGroup.from_json(value)


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"type": "CUSTOMIZED"},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}},
        {
            "type": "EXPONENTIAL",
            "exponentialRetryPolicy": {"initial": 5000, "max": 7_200_000, "multiplier": 2},
        },
    ],
)
def test_a_retry_policy_is_kept_as_it_was_given(policy):
    check_retry_policy(policy)
    assert (
        SubscriptionGroup.from_json({"groupName": "g", "groupRetryPolicy": policy}).to_json()[
            "groupRetryPolicy"
        ]
        == policy
    )


@pytest.mark.parametrize(
    "policy",
    [
        {"type": 5},
        {"type": "LINEAR"},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}},
        {"customizedRetryPolicy": {"next": [-1]}},
        {"customizedRetryPolicy": []},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "5000"}},
        {"exponentialRetryPolicy": {"max": 1 << 63}},
        {"exponentialRetryPolicy": {"max": True}},
    ],
)
def test_a_retry_policy_that_nobody_could_read_is_refused(policy):
    with pytest.raises(FormatError):
        check_retry_policy(policy)


def test_groups_make_themselves_only_when_that_is_allowed():
    assert make().find_or_create("g").name == "g"
    assert make(auto_create=False).find_or_create("g") is None
    assert make(auto_create=False).find_or_create("CID_RMQ_SYS_TRANS") is not None


def test_groups_that_make_themselves_are_bounded_and_named_well():
    groups = make(max_auto_created=len(SYSTEM_GROUPS))
    with pytest.raises(TooManyGroupsError):
        groups.find_or_create("g")
    groups.put(SubscriptionGroup("g"))
    for name in ("../g", "", "g" * 121, "a b"):
        with pytest.raises(NameError_):
            make().find_or_create(name)


def test_the_file_comes_back():
    groups = make()
    groups.put(SubscriptionGroup("g", consume_enable=False))
    text = groups.picture()().decode()
    assert set(config_json.read(text)) == {"dataVersion", "forbiddenTable", "subscriptionGroupTable"}
    again = make()
    again.load(text)
    assert again.get("g").consume_enable is False
    assert again.to_json() == groups.to_json()


@pytest.mark.parametrize(
    "table",
    [
        '{"subscriptionGroupTable":{"g":{}}}',
        '{"subscriptionGroupTable":{},"forbiddenTable":[1]}',
        '{"subscriptionGroupTable":{},"forbiddenTable":{"g":5}}',
        '{"subscriptionGroupTable":{},"forbiddenTable":{"g":{"t":"4"}}}',
    ],
)
def test_a_file_that_cannot_be_read_is_named(table):
    with pytest.raises(DamagedStoreError, match=r"config/subscriptionGroup\.json"):
        make().load(table)


def test_what_a_group_may_not_read_is_kept_with_what_others_said():
    groups = make()
    groups.load('{"subscriptionGroupTable":{"g":{"groupName":"g"}},"forbiddenTable":{"g":{"t":1,"u":4}}}')
    assert groups.may_read("g", "t") and not groups.may_read("g", "u") and groups.may_read("h", "u")
    groups.set_may_read("g", "t", False)
    groups.set_may_read("g", "u", True)
    assert groups.to_json()["forbiddenTable"] == {"g": {"t": 5}}
    groups.set_may_read("g", "t", True)
    assert groups.to_json()["forbiddenTable"] == {"g": {"t": 1}}
    groups.delete("g")
    assert groups.to_json()["forbiddenTable"] == {}


def test_a_deleted_group_is_gone():
    groups = make()
    groups.put(SubscriptionGroup("g"))
    assert groups.delete("g") and not groups.delete("g") and groups.get("g") is None
