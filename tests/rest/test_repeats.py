"""Repeated sends: the same key and body are answered once, and what is kept is bounded."""

from __future__ import annotations

import asyncio

import pytest

from broker_store.rest import repeats
from broker_store.rest.problems import Problem
from broker_store.rest.repeats import Repeats, read_key


class Sender:
    """Counts how often it really sends; `gate` holds it up, `problem` makes it fail."""

    def __init__(self):
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.problem = None
        self.results = ()

    async def __call__(self):
        self.count += 1
        number = self.count
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        return {"number": number, "results": self.results}


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def known(now):
    return Repeats(lambda: now[0])


async def test_a_repeat_gets_the_first_answer_and_sends_nothing(known):
    send = Sender()
    first = await known.once("token:a", "T", "k", b"x", send)
    assert await known.once("token:a", "T", "k", b"x", send) == first
    assert send.count == 1


@pytest.mark.parametrize("other", [("token:b", "T", "k"), ("token:a", "U", "k"), ("token:a", "T", "l")])
async def test_a_key_is_its_callers_and_its_topics(known, other):
    send = Sender()
    await known.once("token:a", "T", "k", b"x", send)
    await known.once(*other, b"x", send)
    assert send.count == 2


async def test_another_body_with_the_same_key_is_refused(known):
    send = Sender()
    await known.once("token:a", "T", "k", b"x", send)
    with pytest.raises(Problem) as refused:
        await known.once("token:a", "T", "k", b"y", send)
    assert (refused.value.code, refused.value.status, send.count) == ("key_reused", 422, 1)


async def test_a_repeat_waits_for_the_first_that_is_under_way_though_its_caller_went(known):
    send = Sender()
    send.gate.clear()
    first = asyncio.ensure_future(known.once("token:a", "T", "k", b"x", send))
    second = asyncio.ensure_future(known.once("token:a", "T", "k", b"x", send))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    send.gate.set()
    assert (await second)["number"] == 1
    assert send.count == 1


async def test_what_was_refused_as_a_whole_may_be_tried_again(known):
    send = Sender()
    send.problem = Problem("busy")
    with pytest.raises(Problem):
        await known.once("token:a", "T", "k", b"x", send)
    send.problem = None
    assert (await known.once("token:a", "T", "k", b"x", send))["number"] == 2


async def test_keys_are_kept_for_ten_minutes_and_by_their_receipts(known, now, monkeypatch):
    send = Sender()
    await known.once("token:a", "T", "old", b"x", send)
    now[0] = 599.0
    await known.once("token:a", "T", "old", b"x", send)
    assert send.count == 1
    now[0] = 600.0
    await known.once("token:a", "T", "old", b"x", send)
    assert send.count == 2
    monkeypatch.setattr(repeats, "MAX_RECEIPTS", 10)
    send.results = ({},) * 8
    await known.once("token:a", "T", "a", b"x", send)
    await known.once("token:a", "T", "b", b"x", send)  # 1 and 8 and 8: the two oldest go
    await known.once("token:a", "T", "b", b"x", send)
    assert send.count == 4
    await known.once("token:a", "T", "a", b"x", send)
    assert send.count == 5


@pytest.mark.parametrize("header", [b"", b" ", b"x" * 256, b"\xe4", b"a\x00b"])
def test_a_key_is_short_visible_text(header):
    with pytest.raises(Problem):
        read_key(header)
    assert read_key(None) is None
    assert read_key(b" 7f2c-41 ") == "7f2c-41"
