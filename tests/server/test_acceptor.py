"""server.acceptor: new connections of a port, by both loops."""

import asyncio
import errno
import socket

import pytest
import uvloop

from broker_store.server import acceptor as acceptor_module
from broker_store.server.acceptor import MAX_ACCEPTS_PER_TURN
from broker_store.server.listener import bind, listen

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request):
    """Return a function that runs a coroutine in a new loop."""

    def run_one(coroutine):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run_one


class Failing(socket.socket):
    """A socket whose first `accept` fails."""

    error = errno.EMFILE

    def accept(self):
        if self.error:
            error, self.error = self.error, 0
            raise OSError(error, "failed")
        return super().accept()


def _bound(kind=socket.socket):
    listening = kind(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    return listening


def _connected(listener, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(count)]


async def _turns_until(condition) -> int:
    async with asyncio.timeout(5):
        turns = 0
        while not condition():
            await asyncio.sleep(0)
            turns += 1
        return turns


def _answer(command, channel):
    return command.answer(0, None, {})


def test_many_connections_at_once_are_open_after_few_turns_with_a_bound_for_each(run):
    async def connect_many() -> None:
        listener = await listen(_answer, bind("127.0.0.1", 0))
        waiting = _connected(listener, 300)
        counts = [0]

        def all_are_open() -> bool:
            counts.append(len(listener.openings))
            return counts[-1] == len(waiting)

        turns = await _turns_until(all_are_open)
        steps = [after - before for before, after in zip(counts, counts[1:], strict=False)]
        for one in waiting:
            one.close()
        await listener.close()
        assert turns < 30 and max(steps) <= MAX_ACCEPTS_PER_TURN

    run(connect_many())


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ECONNABORTED])
def test_a_connection_that_cannot_be_accepted_does_not_end_the_port(run, error, monkeypatch, caplog):
    monkeypatch.setattr(acceptor_module, "RETRY_S", 0.01)
    monkeypatch.setattr(Failing, "error", error)

    async def connect_one() -> None:
        listener = await listen(_answer, _bound(Failing))
        (waiting,) = _connected(listener, 1)
        await _turns_until(lambda: len(listener.openings) == 1)
        waiting.close()
        await listener.close()

    run(connect_one())
    said = "cannot accept connections"
    assert (said in caplog.text) == (error == errno.EMFILE)


def test_a_port_that_is_closed_opens_no_connection_that_was_accepted_before(run):
    async def connect_and_close() -> bytes:
        listener = await listen(_answer, bind("127.0.0.1", 0))
        (waiting,) = _connected(listener, 1)
        acceptor = listener._acceptor
        acceptor._accept()
        assert acceptor._opening and not listener.openings
        await listener.close()
        await _turns_until(lambda: not acceptor._opening)
        assert not listener.openings and not listener.channels
        with waiting:
            waiting.settimeout(5)
            try:
                return await asyncio.to_thread(waiting.recv, 1)
            except ConnectionError:
                return b""

    assert run(connect_and_close()) == b""
