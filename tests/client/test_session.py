import asyncio

import pytest

from broker_store.client import link as client_link
from broker_store.client.errors import AnswerError, ConnectionLost, NoRouteError, RequestTimeout
from broker_store.client.link import open_link
from broker_store.client.session import Session, make_client_id, parse_nameservers
from broker_store.errors import MisuseError
from broker_store.protocol.client_bodies import Heartbeat
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.server.listener import bind, listen
from tests.support.waits import until


def test_name_servers_are_given_as_text_or_list():
    assert parse_nameservers("a:1; b:2") == ("a:1", "b:2")
    assert parse_nameservers("a:1,[::1]:2") == ("a:1", "[::1]:2")
    assert parse_nameservers(["a:1"]) == ("a:1",)


@pytest.mark.parametrize("wrong", ["", ";", "nowhere", "a:b", "a:99999", ":1", []])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(MisuseError):
        parse_nameservers(wrong)


def test_client_ids_differ():
    assert make_client_id() != make_client_id()


@pytest.fixture
async def session(cluster):
    session = Session(cluster.nameservers)
    yield session
    await session.close()


async def test_a_route_is_asked_once_and_remembered(cluster, session):
    routes = await asyncio.gather(*(session.route("TBW102") for _ in range(5)))
    assert all(route is routes[0] for route in routes)
    assert session.masters() == [cluster.address]
    with pytest.raises(NoRouteError):
        await session.route("Nope")


async def test_a_cancelled_caller_does_not_cancel_the_others(session):
    first = asyncio.ensure_future(session.route("TBW102"))
    second = asyncio.ensure_future(session.route("TBW102"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).queues


async def test_the_next_name_server_is_asked_when_one_is_away(cluster):
    session = Session(f"127.0.0.1:1;{cluster.nameservers}")
    assert (await session.route("TBW102")).brokers
    assert session.nameservers[session._nameserver] == cluster.nameservers
    await session.close()
    alone = Session("127.0.0.1:1")
    with pytest.raises(ConnectionLost):
        await alone.route("TBW102")
    await alone.close()


async def test_an_answer_that_means_no_is_an_error_with_its_code(cluster, session):
    with pytest.raises(AnswerError) as caught:
        await session.ask(cluster.address, 9999)
    assert (caught.value.code, caught.value.address) == (3, cluster.address)
    assert "9999" in str(caught.value)


async def test_a_lost_connection_is_opened_again(cluster, session):
    await session.ask(cluster.address, RequestCode.GET_ALL_TOPIC_CONFIG)
    link = await session.link(cluster.address)
    cluster.cut_connections()
    await until(lambda: link.closed)
    with pytest.raises(ConnectionLost):
        link.write(Command.request(1))
    await session.ask(cluster.address, RequestCode.GET_ALL_TOPIC_CONFIG)


async def test_a_request_under_way_fails_when_its_connection_ends():
    silent = []
    server = await listen(lambda command, channel: silent.append(channel), bind("127.0.0.1", 0))
    link = await open_link(f"127.0.0.1:{server.port}", lambda command, link: None, 1)
    waiting = asyncio.ensure_future(link.request(Command.request(1), 10))
    await until(lambda: silent)
    silent[0].abort()
    with pytest.raises(ConnectionLost):
        await waiting
    await server.close()


async def test_a_request_without_an_answer_times_out_and_a_late_answer_is_ignored():
    asked = []
    server = await listen(lambda command, channel: asked.append((command, channel)), bind("127.0.0.1", 0))
    link = await open_link(f"127.0.0.1:{server.port}", lambda command, link: None, 1)
    with pytest.raises(RequestTimeout):
        await link.request(Command.request(1), 0.02)
    await until(lambda: asked)
    command, channel = asked.pop()
    channel.write(command.answer(0))
    second = asyncio.ensure_future(link.request(Command.request(2), 10))
    await until(lambda: asked)
    command, channel = asked.pop()
    channel.write(command.answer(7))
    assert (await second).code == 7
    await link.close()
    await server.close()


async def test_a_connection_on_which_nothing_comes_is_closed_and_one_with_answers_is_not(monkeypatch):
    """The network has forgotten it: nothing says that it ended."""
    answers = True

    def handle(command, channel):
        if answers and command.code == 1:
            channel.write(command.answer(0))

    server = await listen(handle, bind("127.0.0.1", 0))
    link = await open_link(f"127.0.0.1:{server.port}", lambda command, link: None, 1)
    monkeypatch.setattr(client_link, "FORGOTTEN_S", 0.0)
    late = asyncio.ensure_future(link.request(Command.request(2), 0.05))
    await asyncio.sleep(0)
    assert (await link.request(Command.request(1), 10)).code == 0
    with pytest.raises(RequestTimeout):
        await late
    assert not link.closed  # an answer came meanwhile
    monkeypatch.setattr(client_link, "FORGOTTEN_S", 3600.0)
    answers = False
    with pytest.raises(RequestTimeout):
        await link.request(Command.request(1), 0.03)
    assert not link.closed  # not for long enough
    monkeypatch.setattr(client_link, "FORGOTTEN_S", 0.0)
    waiting = asyncio.ensure_future(link.request(Command.request(1), 10))
    with pytest.raises(RequestTimeout):
        await link.request(Command.request(1), 0.03)
    with pytest.raises(ConnectionLost):
        await waiting
    assert link.closed
    await server.close()


async def test_a_server_that_sends_no_frames_is_left():
    async def nonsense(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = await open_link(f"127.0.0.1:{port}", lambda command, link: None, 1)
    with pytest.raises(ConnectionLost):
        await link.request(Command.request(1), 10)
    await link.close()
    server.close()
    await server.wait_closed()


async def test_brokers_are_told_who_we_are_and_told_again_after_the_connection_was_lost(cluster):
    session = Session(
        cluster.nameservers, client_id="me", heartbeat=lambda: Heartbeat("me", producers=("pg",))
    )
    session.start()
    await session.route("TBW102")
    await until(lambda: cluster.parts.clients.producers("pg"))
    cluster.cut_connections()
    await until(lambda: not cluster.parts.clients.producers("pg"))
    await session.ask(cluster.address, RequestCode.GET_ALL_TOPIC_CONFIG)
    await until(lambda: cluster.parts.clients.producers("pg"))
    await session.unregister(producer_group="pg")
    assert not cluster.parts.clients.producers("pg")
    await session.close()
    with pytest.raises(MisuseError):
        session.start()
    with pytest.raises(ConnectionLost):
        await session.ask(cluster.address, 1)


async def test_what_a_broker_asks_is_answered():
    answers = []

    async def later(command):
        return command.answer(0, "later")

    def handle(command, channel):
        return command.answer(0)

    server = await listen(handle, bind("127.0.0.1", 0))
    session = Session(
        f"127.0.0.1:{server.port}", handlers={221: lambda command: command.answer(0, "now"), 307: later}
    )
    await session.ask(session.nameservers[0], 106)
    (channel,) = server.channels
    for code in (221, 307, 999):
        answers.append(await channel.request(Command.request(code), 5))
    assert [(answer.code, answer.remark) for answer in answers] == [
        (0, "now"),
        (0, "later"),
        (3, " request type 999 not supported"),
    ]
    await session.close()
    await server.close()


def test_a_client_runs_on_uvloop_whose_connections_are_no_transports_of_asyncio():
    uvloop = pytest.importorskip("uvloop")

    async def ask():
        server = await listen(lambda command, channel: command.answer(7), bind("127.0.0.1", 0))
        link = await open_link(f"127.0.0.1:{server.port}", lambda command, link: None, 1)
        answer = await link.request(Command.request(1), 10)
        await link.close()
        await server.close()
        return answer.code

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == 7
