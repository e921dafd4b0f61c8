"""The client without asyncio; the scripts run in a thread, because the cluster they talk to lives in the
test's loop."""

import asyncio
import inspect
import threading

import pytest

from broker_store.client import (
    Admin,
    NoRouteError,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    TransactionProducer,
    blocking,
)
from broker_store.errors import MisuseError

PAIRS = [
    (Producer, blocking.Producer),
    (PullConsumer, blocking.PullConsumer),
    (PopConsumer, blocking.PopConsumer),
    (PushConsumer, blocking.PushConsumer),
    (Admin, blocking.Admin),
]


@pytest.fixture
def script(cluster):
    """Runs a function of the name servers' address in a thread."""

    async def script(function):
        async with asyncio.timeout(30):
            return await asyncio.to_thread(function, cluster.nameservers)

    return script


async def test_messages_are_sent_and_received_in_a_plain_loop(cluster, script):
    def program(nameservers):
        with blocking.Producer(nameservers) as producer:
            producer.send("T", b"0", keys=["k"], queue_id=0)
            producer.send_many("T", [b"1", b"2"], queue_id=0)
            assert len(producer.queues("T")) == 4
        with blocking.PushConsumer("g", nameservers).subscribe("T") as consumer:
            received = []
            for message in consumer:
                received.append(message.body)
                if len(received) == 3:
                    consumer.ack(message)
                    break
            assert len([queue for queue in consumer.assignment if queue.topic == "T"]) == 4
        with blocking.Admin(nameservers) as admin:
            assert [message.body for message in admin.query_messages("T", "k")] == [b"0"]
        with blocking.PullConsumer("g", nameservers) as puller:
            queue = puller.queues("T")[0]
            assert (puller.committed(queue), len(puller.pull(queue, 0).messages)) == (3, 3)
        with blocking.PopConsumer("poppers", nameservers) as popper:
            first, second, third = popper.pop("T")
            popper.acknowledge(first)
            popper.change_invisible(second, 600)
            popper.give_up(third)
        return received

    assert await script(program) == [b"0", b"1", b"2"]


async def test_a_handler_is_called_in_threads_and_may_send_itself(script):
    def program(nameservers):
        done, threads = threading.Event(), set()
        with blocking.Producer(nameservers) as producer, blocking.PushConsumer("g", nameservers) as consumer:

            def handle(message):
                threads.add(threading.current_thread())
                if message.topic == "T":
                    producer.send("U", message.body)
                else:
                    done.set()

            producer.send("T", b"x")
            producer.send("U", b"first")
            consumer.subscribe("T").subscribe("U").start(handle)
            assert done.wait(20)
            assert consumer._thread not in threads and threading.current_thread() not in threads

    await script(program)


async def test_a_transaction_is_a_with_block(cluster, script):
    def program(nameservers):
        with blocking.TransactionProducer(nameservers, "p", lambda message: None) as producer:
            with producer.transaction("T", b"shown") as half:
                assert half.message_id == half.receipt.message_id
            with pytest.raises(ZeroDivisionError), producer.transaction("T", b"forgotten"):
                1 / 0  # noqa: B018
            assert producer.begin("T", b"shown too").commit()

    await script(program)
    bodies = [message.body for number in range(4) for message in cluster.store.messages("T", number)]
    assert sorted(bodies) == [b"shown", b"shown too"]


async def test_errors_are_raised_where_the_call_was_made(cluster, script):
    cluster.nameserver.routes.delete_topic("TBW102")

    def program(nameservers):
        with blocking.Producer(nameservers) as producer:
            with pytest.raises(NoRouteError):
                producer.send("T", b"x")
        with pytest.raises(MisuseError, match="inside its `with` block"):
            producer.send("T", b"x")
        with pytest.raises(MisuseError, match="entered once"), producer:
            pass
        with pytest.raises(MisuseError, match="plain function"):
            blocking.TransactionProducer(nameservers, "p", test_errors_are_raised_where_the_call_was_made)

    await script(program)


async def test_a_coroutine_of_the_client_cannot_wait_for_itself(script):
    def program(nameservers):
        told, seen = threading.Event(), []

        with (
            blocking.Producer(nameservers) as producer,
            blocking.PushConsumer("g", nameservers).subscribe("T") as consumer,
        ):

            async def handle(message):
                try:
                    consumer.subscribe("U")
                except MisuseError as error:
                    seen.append(str(error))
                told.set()
                raise RetryLater

            producer.send("T", b"x")
            consumer.start(handle)
            assert told.wait(20)
        return seen

    (sentence,) = await script(program)
    assert "cannot wait in a coroutine of its own client" in sentence


async def test_no_thread_is_left_behind(script):
    def program(nameservers):
        with blocking.Producer(nameservers) as producer:
            thread = producer._thread
            producer.close()
        return thread

    assert not (await script(program)).is_alive()


@pytest.mark.parametrize(
    ("with_asyncio", "without"), [*PAIRS, (TransactionProducer, blocking.TransactionProducer)]
)
def test_whatever_can_be_awaited_can_be_waited_for(with_asyncio, without):
    names = {name for name, _ in inspect.getmembers(with_asyncio, callable) if not name.startswith("_")} - {
        "start",
        "send_counted",
    }
    assert {name for name in names if not hasattr(without, name)} == set()


@pytest.mark.parametrize(("with_asyncio", "without"), PAIRS)
def test_a_waiting_method_has_the_signature_and_the_words_of_the_other(with_asyncio, without):
    for name, method in inspect.getmembers(with_asyncio, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in ("start", "close", "send_counted"):
            assert inspect.signature(getattr(without, name)) == inspect.signature(method)
            assert getattr(without, name).__doc__ == method.__doc__
    assert inspect.signature(without) == inspect.signature(with_asyncio)
