import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.client.allocation import allocate
from broker_store.protocol.message_queue import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(8)]


def java_allocate(queues, clients, client):
    """AllocateMessageQueueAveragely, line by line."""
    index, mod = clients.index(client), len(queues) % len(clients)
    if len(queues) <= len(clients):
        average = 1
    else:
        average = len(queues) // len(clients) + (1 if mod > 0 and index < mod else 0)
    start = index * average if mod > 0 and index < mod else index * average + mod
    count = min(average, len(queues) - start)
    return [queues[(start + number) % len(queues)] for number in range(count)]


@given(st.integers(0, 20), st.integers(1, 12))
def test_queues_are_shared_out_as_java_does(queue_count, client_count):
    queues = [MessageQueue("T", "b", number) for number in range(queue_count)]
    clients = sorted(f"c{number}" for number in range(client_count))
    shares = [allocate(reversed(queues), reversed(clients), client) for client in clients]
    assert shares == [java_allocate(queues, clients, client) for client in clients]
    assert [queue for share in shares for queue in share] == queues


@pytest.mark.parametrize("clients", [[], ["x"]])
def test_a_stranger_gets_nothing(clients):
    assert allocate(QUEUES, clients, "me") == []


def test_the_first_clients_have_one_more():
    assert [len(allocate(QUEUES, ["a", "b", "c"], client)) for client in "abc"] == [3, 3, 2]
