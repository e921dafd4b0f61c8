import pytest

from broker_store.errors import NameError_
from broker_store.formats import names


@pytest.mark.parametrize(
    "name", ["TopicX", "%RETRY%CG", "a|b_c-9", "T" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250]
)
def test_ordinary_topics_pass(name):
    assert names.check_topic(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "..",
        "a/b",
        "../x",
        "a\\b",
        "a.b",
        "a b",
        "a\n",
        "ü",
        "\0",
        "T" * 128,
        "%RETRY%" + "g" * 249,
        None,
        "x@y",
    ],
)
def test_what_could_be_a_path_or_is_too_long_is_refused(name):
    with pytest.raises(NameError_, match="The specified topic"):
        names.check_topic(name)


def test_a_stored_topic_may_be_longer_than_a_clients():
    assert names.check_stored_topic("T" * 255) == "T" * 255
    for name in ("T" * 256, "../x", ""):
        with pytest.raises(NameError_):
            names.check_stored_topic(name)


def test_groups_have_their_own_limit():
    assert names.check_group("g" * 120) == "g" * 120
    with pytest.raises(NameError_, match="group is longer"):
        names.check_group("g" * 121)
    with pytest.raises(NameError_, match="illegal characters"):
        names.check_group("a/../b")


def test_the_topics_of_a_group_carry_its_name():
    assert (names.retry_topic("G"), names.dead_letter_topic("G")) == ("%RETRY%G", "%DLQ%G")


def test_retry_topics_of_popped_messages():
    assert names.pop_retry_topic("T", "g") == "%RETRY%g_T"
    assert names.pop_retry_topic("T", "g", version=2) == "%RETRY%g+T"
    for version in (1, 2):
        retry = names.pop_retry_topic("a_b", "g_c", version=version)
        assert names.popped_topic(retry, "g_c") == "a_b" and names.is_stored_topic(retry)
    assert names.popped_topic("T", "g") == "T" and names.popped_topic("%RETRY%g", "g") == "%RETRY%g"


@pytest.mark.parametrize("name", ["a+b", "%RETRY%g+", "%RETRY%+T", "%RETRY%g+T+U", "%RETRY%g+../x"])
def test_a_plus_stands_in_no_other_name(name):
    assert not names.is_stored_topic(name)


def test_no_client_names_a_topic_with_a_plus():
    with pytest.raises(NameError_):
        names.check_topic("%RETRY%g+T")
