"""Users and policies: their file, their bounds, and changes that a state refuses."""

from __future__ import annotations

import json

import pytest

from broker_store.access import policies, state, users
from broker_store.access.policies import PolicyType, read_policies
from broker_store.access.state import AccessState, ChangeRefused, read_file
from broker_store.access.users import User, UserStatus, UserType
from broker_store.errors import FormatError

SECRET = "a-secret-that-no-text-has"
ENTRY = {"resource": "Topic:T*", "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}


def sound() -> AccessState:
    policy = [{"policyType": "Custom", "entries": [ENTRY]}, {"policyType": "Default", "entries": [ENTRY]}]
    found = AccessState().created(User("ann", SECRET, UserType.SUPER, UserStatus.DISABLE), None)
    found = found.created(User("bob", SECRET), None)
    return found.with_policies("bob", read_policies(policy))


def test_a_file_is_read_as_it_was_written():
    assert read_file(sound().text().decode()) == sound()


def _with_sources(value: dict, sources: object) -> dict:
    """The content of the file with these source addresses in one of its entries."""
    changed = json.loads(json.dumps(value))
    changed["acls"][0]["policies"][0]["entries"][0]["sourceIps"] = sources
    return changed


def damaged() -> list[str]:
    text = sound().text().decode()
    value = json.loads(text)
    changes = [
        "",
        "[]",
        "{}",
        text[:-10],
        text.replace('"userType": "Super"', '"userType": "Root"'),
        text.replace("disable", "off"),
        text.replace(f'"password": "{SECRET}"', '"password": ""', 1),
        text.replace('"bob"', '"ann"', 1),
        text.replace("User:bob", "User:missing"),
        text.replace("User:bob", "bob"),
        text.replace("Allow", "Perhaps"),
        text.replace("10.0.0.0/8", "10.0.0.0/80"),
        text.replace("Topic:T*", "Nothing:T"),
        text.replace('"User:bob"', "5"),
        text.replace('"policyType": "Default"', '"policyType": "Defualt"'),
        text.replace('"policyType": "Custom"', '"policyType": null'),
        text.replace('"Pub"', '"Pub", "Subscribe"'),
        text.replace('"Pub"', '"Pub", 5'),
        text.replace('"10.0.0.0/8"', "10"),
        text.replace('"10.0.0.0/8"', "null"),
        json.dumps(_with_sources(value, "10.0.0.0/8")),
        json.dumps(_with_sources(value, {"0": "10.0.0.0/8"})),
        json.dumps(_with_sources(value, 0)),
        json.dumps(value | {"users": {}}),
        json.dumps(value | {"acls": value["acls"] * 2}),
        json.dumps(value | {"users": [None]}),
        json.dumps(value | {"acls": ["x"]}),
        text.rstrip().removesuffix("}") + ', "users": []}',
        text.rstrip().removesuffix("}") + ', "acls": []}',
    ]
    assert text not in changes
    return changes


@pytest.mark.parametrize("text", damaged())
def test_a_damaged_file_is_refused_without_its_secrets(text):
    with pytest.raises(FormatError) as raised:
        read_file(text)
    assert SECRET not in str(raised.value)


def test_a_secret_is_in_no_text_of_a_user_or_a_state():
    assert SECRET not in repr(sound()) and SECRET not in str(sound().users["ann"])


@pytest.mark.parametrize(
    "user",
    [
        User("", "x"),
        User("  ", "x"),
        User("a\nb", "x"),
        User("x" * 256, "x"),
        User("x", " "),
        User("x", "x" * 2_000),
    ],
    ids=["empty", "blank", "control", "long", "no-secret", "long-secret"],
)
def test_a_user_that_cannot_be_is_refused(user):
    with pytest.raises(ChangeRefused):
        AccessState().created(user, None)


def test_users_entries_and_addresses_are_bounded(monkeypatch):
    monkeypatch.setattr(state, "MAX_USERS", 2)
    with pytest.raises(ChangeRefused, match="at most 2"):
        sound().created(User("carl", "x"), None)
    monkeypatch.setattr(policies, "MAX_SOURCES", 1)
    with pytest.raises(FormatError, match="at most 1"):
        read_policies([{"entries": [ENTRY | {"sourceIps": ["10.0.0.1", "10.0.0.2"]}]}])
    monkeypatch.setattr(state, "MAX_ENTRIES", 2)
    with pytest.raises(ChangeRefused, match="at most 2"):
        sound().with_policies("bob", read_policies([{"entries": [ENTRY | {"resource": "Group:G"}]}]))
    monkeypatch.setattr(policies, "MAX_ENTRIES", 1)
    with pytest.raises(FormatError, match="of at most 1"):
        read_policies([{"entries": [ENTRY, ENTRY]}])
    assert users.MAX_NAME_CHARACTERS == 255


@pytest.mark.parametrize("sources", ["10.0.0.1", ["10.0.0.1", 5], [None], [["10.0.0.1"]], 0, False, {}])
def test_an_address_that_is_no_text_makes_no_rule_for_all_addresses(sources):
    with pytest.raises(policies.PolicyError, match="The source ip is invalid"):
        read_policies([{"entries": [ENTRY | {"sourceIps": sources}]}])


def test_an_entry_is_removed_from_the_policy_of_its_type_alone():
    left = sound().without_policies("bob", PolicyType.DEFAULT, "Topic:T*")
    assert [policy.type for policy in left.acls["bob"].policies] == [PolicyType.CUSTOM]
    assert "bob" not in left.without_policies("bob", PolicyType.CUSTOM, "Topic:T*").acls
    assert "bob" not in sound().without_policies("bob", PolicyType.CUSTOM, None).acls


@pytest.mark.parametrize(
    ("resource", "shown"),
    [("Any:x", "*"), ("any:x*", "*"), ("Topic:**", "Topic:*"), ("Topic:*x*", "Topic:*")],
)
def test_an_entry_is_replaced_and_removed_by_the_text_that_shows_it(resource, shown):
    """It was listed as another one, and stayed when that was removed: a right that could not be withdrawn."""
    found = AccessState().created(User("bob", SECRET), None)
    for given in (resource, shown):
        found = found.with_policies("bob", read_policies([{"entries": [ENTRY | {"resource": given}]}]))
    (rule,) = found.acls["bob"].rules_of(PolicyType.CUSTOM)
    assert rule.resource.text == shown
    assert not found.without_policies("bob", PolicyType.CUSTOM, shown).acls


def test_a_change_replaces_each_entry_of_its_resource():
    """One request may give two of them; the second decided as before."""
    twice = [
        ENTRY | {"resource": "Topic:t"},
        ENTRY | {"resource": "Topic:u"},
        ENTRY | {"resource": "Topic:t"},
    ]
    found = AccessState().created(User("bob", SECRET), None)
    found = found.with_policies("bob", read_policies([{"entries": twice}]))
    changed = [ENTRY | {"resource": "Topic:t", "decision": "Deny"}]
    found = found.with_policies("bob", read_policies([{"entries": changed}]))
    rules = [
        (rule.resource.text, str(rule.verdict)) for rule in found.acls["bob"].rules_of(PolicyType.CUSTOM)
    ]
    assert rules == [("Topic:t", "Deny"), ("Topic:u", "Allow")]


def test_a_deleted_user_takes_its_policies_along():
    left = sound().without_user("bob", None)
    assert set(left.users) == {"ann"} and left.acls == {}


def test_the_rule_that_decides_is_given_in_words():
    (rule,) = sound().acls["bob"].rules_of(PolicyType.CUSTOM)
    assert rule.text == "Allow Pub on Topic:T* from 10.0.0.0/8"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"resource": "Topic:*x*"}, r"Topic:\*x\* has a \* that is not at its end"),
        ({"resource": "Topic:pay*x"}, r"Topic:pay\*x has a \* that is not at its end"),
        ({"actions": ["Pub", "Sbu"]}, "action Sbu is not known"),
        ({"actions": ["Pub", 5]}, "action 5 is not known"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(changed, why):
    """A right to `Topic:*x*` was one to all topics, and a denial of an unknown action denied nothing."""
    assert read_policies([{"entries": [ENTRY | changed]}])
    with pytest.raises(policies.PolicyError, match=why):
        read_policies([{"entries": [ENTRY | changed]}], is_strict=True)


def test_an_unknown_type_is_refused():
    with pytest.raises(policies.PolicyError, match="policy type Defalut is not known"):
        read_policies([{"policyType": "Defalut", "entries": [ENTRY]}], is_strict=True)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("2001:DB8::/32", "2001:DB8::/32"),
    ],
)
def test_an_address_has_the_spelling_of_those_of_clients(given, address):
    (policy,) = read_policies([{"entries": [ENTRY | {"sourceIps": [given]}]}], is_strict=True)
    assert policy.rules[0].sources == (address,)


@pytest.mark.parametrize("block", ["::ffff:10.0.0.0/95", "::ffff:0:0/80"])
def test_a_block_around_the_ipv4_addresses_in_ipv6_is_refused(block):
    with pytest.raises(policies.PolicyError, match="The source ip is invalid"):
        read_policies([{"entries": [ENTRY | {"sourceIps": [block]}]}], is_strict=True)
