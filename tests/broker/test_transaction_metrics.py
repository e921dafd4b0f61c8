"""broker.transaction_metrics: the file of Apache's with the number of halves that wait for each topic."""

import pytest

from broker_store.broker.transaction_metrics import TransactionMetrics
from broker_store.errors import DamagedStoreError

APACHE = '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1795245742699},"transactionCount":{"TopicX":{"count":1,"timeStamp":1795245742699}}}'


@pytest.fixture
def metrics():
    return TransactionMetrics(lambda: 5_000)


def test_the_file_is_as_apache_writes_it(metrics):
    metrics.load(APACHE)
    assert metrics.picture() is None, "nothing changed"
    metrics.add("TopicX", 1)
    metrics.add("TopicX", -1)
    metrics.add("A", 1)
    assert metrics.picture()().decode() == (
        '{"dataVersion":{"counter":10,"stateVersion":0,"timestamp":5000},'
        '"transactionCount":{"A":{"count":1,"timeStamp":5000},"TopicX":{"count":1,"timeStamp":5000}}}'
    )
    assert metrics.picture() is None


def test_there_are_never_fewer_than_none(metrics):
    metrics.load(APACHE.replace('"count":1', '"count":-3'))
    assert metrics.count("TopicX") == 0
    metrics.add("TopicX", -1)
    metrics.add("TopicX", 1)
    metrics.add("Unknown", -1)
    assert (metrics.count("TopicX"), metrics.count("Unknown")) == (1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        "7",
        '{"transactionCount":{"A":7}}',
        '{"transactionCount":{"A":{"count":"many","timeStamp":1}}}',
        "[" * 100_000,
        '{"transactionCount":{"A":{"count":Infinity,"timeStamp":1}}}',
        '{"dataVersion":3,"transactionCount":{}}',
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_changes_nothing(metrics, text):
    metrics.load(APACHE)
    before = metrics.count("TopicX"), metrics._counts
    with pytest.raises(DamagedStoreError, match="is no table of halves by topic"):
        metrics.load(text)
    assert (metrics.count("TopicX"), metrics._counts) == before and metrics.picture() is None
