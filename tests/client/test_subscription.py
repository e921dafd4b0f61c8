import pytest

from broker_store.client.subscription import make_subscription, wants
from broker_store.errors import MisuseError


def test_a_star_wants_everything():
    subscription = make_subscription("T", " * ", version=5)
    assert (subscription.expression, subscription.tags, subscription.codes, subscription.version) == (
        "*",
        set(),
        set(),
        5,
    )
    assert wants(subscription, None) and wants(subscription, "A")


def test_tags_are_compared_exactly_and_sent_with_their_java_hashes():
    subscription = make_subscription("T", "TagA || AaAa")
    assert subscription.tags == {"TagA", "AaAa"}
    assert 2598919 in subscription.codes
    assert wants(subscription, "AaAa")
    assert not wants(subscription, "BBBB")  # the same hash as AaAa
    assert not wants(subscription, None)


@pytest.mark.parametrize("tags", ["||", " || ", "* || a"])
def test_an_expression_without_sense_is_refused(tags):
    with pytest.raises(MisuseError):
        make_subscription("T", tags)
