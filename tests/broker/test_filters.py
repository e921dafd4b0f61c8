"""broker.filters: subscriptions of a consumer."""

import pytest

from broker_store.broker.filters import FilterError, of_heartbeat, parse
from broker_store.formats.java_hash import java_hash
from broker_store.protocol import client_bodies


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression):
    assert parse("t", expression).tag_codes is None


def test_tags_become_their_java_hashes():
    subscription = parse("t", "TagA || TagB||TagC ")
    assert subscription.tags == {"TagA", "TagB", "TagC"}
    assert subscription.tag_codes == {java_hash("TagA"), java_hash("TagB"), java_hash("TagC")}


@pytest.mark.parametrize("expression", ["||", " ", " || ", "x" * 20_000, "||".join(map(str, range(2_000)))])
def test_expressions_without_a_tag_or_too_long_are_refused(expression):
    with pytest.raises(FilterError):
        parse("t", expression)


def test_sql_is_kept_as_it_is_and_has_no_tags():
    subscription = parse("t", "a > 5", "SQL92")
    assert (subscription.expression_type, subscription.tag_codes) == ("SQL92", None)


def test_a_heartbeats_subscription_has_its_own_hashes_computed_anew():
    data = client_bodies.Subscription("t", "TagA", version=5, tags=frozenset({"lie"}), codes=frozenset({1}))
    subscription = of_heartbeat(data)
    assert (subscription.tag_codes, subscription.version) == ({java_hash("TagA")}, 5)
    assert subscription.to_json() == {
        "classFilterMode": False, "codeSet": [2598919], "expressionType": "TAG", "subString": "TagA", "subVersion": 5, "tagsSet": ["TagA"], "topic": "t",
    }  # fmt: skip
