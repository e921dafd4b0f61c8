"""The websocket: its access, its frames, and that a stream without watchers costs nothing."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from dataclasses import replace

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.test import Client

from broker_store import throttle
from broker_store.errors import NameError_, StoreClosedError
from broker_store.rest.problems import Problem
from mqadmin.jobs import queue
from mqadmin.web import live, parts, server
from mqadmin.web.middleware import MUST_SET_PASSWORD
from tests.support import fake_runs
from tests.support.fake_cluster import FakeCluster, FakeGroups
from tests.support.websocket import WebsocketCommunicator

NUMBERS = re.compile(r"[0-9][0-9.,:]*")  # times among them
ORIGIN = (b"origin", b"http://localhost:8080")


class CountingGroups(FakeGroups):
    def detail(self, name):
        self._cluster.measured.append(f"group {name}")
        return super().detail(name)


class CountingCluster(FakeCluster):
    def __init__(self, **more):
        super().__init__(**more)
        self.groups = CountingGroups(self)
        self.measured: list[str] = []

    def overview(self):
        self.measured.append("overview")
        return super().overview()


@pytest.fixture
def now():
    return [1_764_000_000.0]


@pytest.fixture
def cluster(now):
    return CountingCluster(clock=lambda: now[0])


@pytest.fixture
async def sampler(cluster, now):
    sampler = live.Sampler(lambda: cluster, clock=lambda: now[0])

    async def ticks(count: int) -> None:
        for _ in range(count):
            now[0] += live.TICK_SECONDS
            await sampler.tick()

    sampler.ticks = ticks
    return sampler


def _frames(watcher) -> list[dict]:
    frames = [json.loads(frame) for frame in watcher.pending.values()]
    watcher.pending.clear()
    return frames


async def test_nothing_is_measured_while_nobody_watches(sampler, cluster):
    await sampler.ticks(20)
    assert cluster.measured == []


async def test_a_stream_is_measured_once_however_many_watch_it(sampler, cluster):
    watchers = [live.Watcher() for _ in range(30)]
    for watcher in watchers:
        sampler._watchers.add(watcher)
        sampler.subscribe(watcher, ("overview", ""))
    assert cluster.measured == ["overview"]
    await sampler.ticks(4)
    assert cluster.measured == ["overview"] * 2
    assert all(_frames(watcher)[0]["seq"] == 2 for watcher in watchers)


async def test_a_slow_browser_gets_the_latest_and_skips_the_rest(sampler):
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    sampler.subscribe(watcher, ("store.positions", ""))
    await sampler.ticks(40)
    [frame] = _frames(watcher)
    assert frame["seq"] == 41
    assert frame["data"]["positions"]["wrote"] > 0


async def test_a_hidden_tab_is_paused_and_its_streams_rest(sampler, cluster):
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    sampler.subscribe(watcher, ("group", "billing"))
    _frames(watcher)
    watcher.paused = True
    await sampler.ticks(40)
    assert cluster.measured == ["group billing"] and _frames(watcher) == []
    watcher.paused = False
    await sampler.ticks(1)
    assert len(_frames(watcher)) == 1


async def test_what_did_not_change_is_repeated_once_a_second_only(sampler, cluster, monkeypatch):
    monkeypatch.setitem(live.STREAMS, "store.index", live.Stream(lambda cluster, name: {"same": 1}, 1))
    watcher, sent = live.Watcher(), 0
    sampler._watchers.add(watcher)
    sampler.subscribe(watcher, ("store.index", ""))
    for _ in range(16):
        await sampler.ticks(1)
        sent += len(_frames(watcher))
    assert sent == 5


async def test_a_page_that_watches_a_slow_stream_hears_each_second_that_the_broker_lives_and_how_it_is(
    sampler, cluster, now, monkeypatch
):
    monkeypatch.setitem(live.STREAMS, "store.disk", live.Stream(lambda cluster, name: {"same": 1}, 40))
    watcher, heard = live.Watcher(), []
    sampler.add(watcher)
    sampler.subscribe(watcher, ("store.disk", ""))
    assert {frame["stream"] for frame in _frames(watcher)} == {"state", "store.disk"}
    for tick in range(1, 41):
        now[0] -= 0.001  # ticks that come a little early
        await sampler.ticks(1)
        heard += [(tick, frame["stream"]) for frame in _frames(watcher)]
    assert sorted(heard) == [*[(tick, "state") for tick in range(4, 41, 4)], (40, "store.disk")]
    cluster.state_name = "read_only"
    await sampler.ticks(4)
    [frame] = _frames(watcher)
    assert frame["data"]["state"] == "read_only" and "sync failed" in frame["data"]["sentence"]
    sampler.remove(watcher)


async def test_a_stream_that_fails_says_so_and_leaves_the_others_alone(sampler, cluster, monkeypatch, caplog):
    def fails(cluster, name):
        raise ZeroDivisionError

    def closed(cluster, name):
        raise StoreClosedError("the broker is starting")

    monkeypatch.setitem(live.STREAMS, "store.index", live.Stream(fails, 1))
    monkeypatch.setitem(live.STREAMS, "store.files", live.Stream(closed, 1))
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    for stream in ("store.index", "store.files", "store.positions"):
        sampler.subscribe(watcher, (stream, ""))
    kinds = {frame["stream"]: (frame["kind"], frame["data"].get("code")) for frame in _frames(watcher)}
    assert kinds == {
        "store.index": ("error", "internal"),
        "store.files": ("error", "starting"),
        "store.positions": ("snapshot", None),
    }
    assert "ZeroDivisionError" in caplog.text


async def test_a_group_that_is_gone_ends_its_stream(sampler, cluster):
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    sampler.subscribe(watcher, ("group", "never-was"))
    assert _frames(watcher)[0]["kind"] == "end"
    await sampler.ticks(20)
    assert cluster.measured == ["group never-was"]


def test_integers_that_a_browser_would_round_are_strings():
    assert (
        live.encode({"a": 1 << 53, "b": [(1 << 53) - 1], "c": True, "d": None})
        == b'{"a":"9007199254740992","b":[9007199254740991],"c":true,"d":null}'
    )


# -- over the socket


def _communicator(client: Client | None, origin=ORIGIN) -> WebsocketCommunicator:
    from mqadmin.web.asgi import websockets

    headers = [origin] if origin else []
    if client is not None:
        headers.append((b"cookie", f"mqadmin_session={client.cookies['mqadmin_session'].value}".encode()))
    return WebsocketCommunicator(websockets, "/ws/v1/", headers=headers)


async def _next(communicator: WebsocketCommunicator, stream: str) -> dict:
    """The next frame of a stream, "" for an answer; the state of the broker comes between."""
    while True:
        for frame in await communicator.frames():
            if frame["stream"] == stream:
                return frame


socket = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def viewer(fake_cluster, client_of_role):
    return await sync_to_async(client_of_role)("viewer")


@socket
async def test_anonymous_is_closed_with_4401(fake_cluster):
    communicator = _communicator(None)
    assert await communicator.connect()
    assert await communicator.closed() == live.CLOSE_LOGGED_OUT


@socket
@pytest.mark.parametrize("origin", [(b"origin", b"http://evil.example"), None, (b"origin", b"null")])
async def test_another_sites_page_is_not_let_in(viewer, origin):
    communicator = _communicator(viewer, origin)
    assert not await communicator.connect()


@socket
async def test_a_session_that_must_set_a_password_sees_nothing(viewer):
    def plant():
        session = viewer.session
        session[MUST_SET_PASSWORD] = True
        session.save()

    await sync_to_async(plant)()
    communicator = _communicator(viewer)
    await communicator.connect()
    assert await communicator.closed() == live.CLOSE_LOGGED_OUT


@socket
async def test_subscribing_gives_a_snapshot_at_once_and_ticks_follow(viewer, monkeypatch):
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "REPEAT_SECONDS", 0.0)
    communicator = _communicator(viewer)
    await communicator.connect()
    assert {frame["stream"] for frame in await communicator.frames()} == {"state"}
    await communicator.send({"kind": "subscribe", "stream": "store.positions"})
    first = await _next(communicator, "store.positions")
    assert first["stream"] == "store.positions" and first["kind"] == "snapshot" and first["seq"] == 1
    assert first["data"]["state"] == "running"
    await communicator.send({"kind": "subscribe", "stream": "group", "name": "billing"})
    seen = set()
    while seen != {"state", "store.positions", "group"}:
        seen |= {frame["stream"] for frame in await communicator.frames()}
    await communicator.close()
    assert not live.sampler._watchers and live.sampler._task is None and not live.sockets_of_user


@socket
@pytest.mark.parametrize(
    ("frame", "detail"),
    [
        ("{", "not JSON"),
        ("[]", "kind is"),
        ('{"kind": "subscribe", "stream": "secrets"}', "no such stream"),
        ('{"kind": "subscribe", "stream": ["overview"]}', "no such stream"),
        ('{"kind": "subscribe", "stream": "group", "name": "../etc"}', "illegal characters"),
        ('{"kind": "subscribe", "stream": "overview", "name": "x"}', "takes no name"),
        ('{"kind": "subscribe", "stream": "group", "name": 7}', "takes no name"),
    ],
)
async def test_a_frame_that_means_nothing_is_answered_and_too_many_close_the_socket(viewer, frame, detail):
    communicator = _communicator(viewer)
    await communicator.connect()
    for _ in range(live.MAX_BAD_FRAMES - 1):
        await communicator.send(frame)
        answer = await _next(communicator, "")
        assert answer["kind"] == "error" and detail in answer["data"]["detail"]
    await communicator.send(frame)
    assert await communicator.closed() == live.CLOSE_BAD_FRAMES


@socket
async def test_a_frame_beyond_its_bound_or_of_bytes_closes_the_socket(viewer):
    for payload in ("x" * (live.MAX_FRAME_BYTES + 1), b"{}"):
        communicator = _communicator(viewer)
        await communicator.connect()
        await communicator.send(payload)
        assert await communicator.closed() == live.CLOSE_TOO_BIG


@socket
async def test_a_browser_that_floods_its_socket_is_closed_and_has_begun_few_measurements(
    viewer, fake_cluster, monkeypatch
):
    monkeypatch.setattr(live, "FRAMES_PER_SECOND", 0.0)
    measured = []
    monkeypatch.setattr(fake_cluster.groups, "detail", lambda name: measured.append(name) or {})
    communicator = _communicator(viewer)
    await communicator.connect()
    for number in range(500):
        name = f"group-{number}"
        await communicator.send({"kind": "subscribe", "stream": "group", "name": name})
        await communicator.send({"kind": "unsubscribe", "stream": "group", "name": name})
    assert await communicator.closed() == live.CLOSE_TOO_MANY
    assert len(measured) == live.MAX_FRAMES // 2
    assert fake_cluster.refused[-1][0] == "websocket frames"


@socket
async def test_a_socket_watches_a_bounded_number_of_streams(viewer, monkeypatch):
    communicator = _communicator(viewer)
    await communicator.connect()
    monkeypatch.setitem(live.STREAMS, "topic", live.Stream(lambda cluster, name: {}, 1, str))
    for number in range(live.MAX_SUBSCRIPTIONS + 1):
        await communicator.send({"kind": "subscribe", "stream": "topic", "name": f"t{number}"})
    seen = []
    while not any("at most" in frame["data"].get("detail", "") for frame in seen):
        seen += await communicator.frames()
    assert len(next(iter(live.sampler._watchers)).wants) == live.MAX_SUBSCRIPTIONS
    await communicator.close()


@socket
async def test_a_user_has_a_bounded_number_of_sockets(viewer, monkeypatch):
    monkeypatch.setattr(live, "MAX_SOCKETS", 2)
    opened = [_communicator(viewer) for _ in range(3)]
    for communicator in opened:
        await communicator.connect()
    assert await opened[2].closed() == live.CLOSE_TOO_MANY
    for communicator in opened[:2]:
        await communicator.close()


@socket
async def test_a_logout_closes_what_is_open(viewer, monkeypatch):
    monkeypatch.setattr(live, "LOGIN_CHECK_SECONDS", 0.01)
    communicator = _communicator(viewer)
    await communicator.connect()
    await sync_to_async(viewer.logout)()
    assert await communicator.closed() == live.CLOSE_LOGGED_OUT


@socket
@pytest.mark.parametrize("change", [{"is_active": False}, {"password": "another"}])
async def test_a_user_who_was_shut_out_is_closed_too(viewer, monkeypatch, change):
    monkeypatch.setattr(live, "LOGIN_CHECK_SECONDS", 0.01)
    communicator = _communicator(viewer)
    await communicator.connect()
    await get_user_model().objects.aupdate(**change)
    assert await communicator.closed() == live.CLOSE_LOGGED_OUT


@socket
async def test_a_database_that_does_not_answer_keeps_no_socket_open(viewer, monkeypatch):
    async def fails(scope):
        raise OperationalError("locked")

    monkeypatch.setattr(live, "LOGIN_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(live, "get_user", fails)
    communicator = _communicator(viewer)
    await communicator.connect()
    assert await communicator.closed() == live.CLOSE_LOGGED_OUT


def test_a_login_that_ended_is_noticed_within_a_minute():
    assert live.LOGIN_CHECK_SECONDS <= 60


@socket
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"http://evil.example", 403),
        (None, 403),
        (b"null", 403),
        (b"http://localhost.evil.example", 403),
        (b"http://localhost:8080", 101),
    ],
)
async def test_over_tcp_another_sites_page_is_answered_403(viewer, origin, status):
    from mqadmin.web.asgi import application

    served = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, application=application)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        lines = [
            b"GET /ws/v1/ HTTP/1.1",
            b"Host: localhost:8080",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            b"Sec-WebSocket-Version: 13",
            # fmt: skip
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            b"Cookie: mqadmin_session=" + viewer.cookies["mqadmin_session"].value.encode(),
        ]
        writer.write(b"\r\n".join([*lines, *([b"Origin: " + origin] if origin else []), b"", b""]))
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()
    finally:
        await served.stop()


PARTS = [
    "/store/cache/",
    "/store/disk/",
    "/store/disk/?retention_hours=12",
    "/store/layout/?topic=orders",
    "/store/index/?file=20251122090000000&part_of=chains",
]


@pytest.fixture
def drawn(monkeypatch):
    """The addresses of parts in the order in which they were drawn."""
    drawn, render = [], parts.render

    def noted(cluster, address):
        drawn.append(address)
        return render(cluster, address)

    monkeypatch.setattr(parts, "render", noted)
    return drawn


@socket
@pytest.mark.parametrize("inspects", [False, True])
@pytest.mark.parametrize("address", PARTS)
async def test_a_part_is_drawn_once_for_all_and_is_what_its_page_answers(
    address, inspects, sampler, cluster, fake_cluster, drawn, client_of_role
):
    cluster.store.inspects = fake_cluster.store.inspects = inspects
    watchers = [live.Watcher() for _ in range(5)]
    for watcher in watchers:
        sampler._watchers.add(watcher)
        sampler.subscribe(watcher, ("part", address))
    await asyncio.gather(*sampler._measurements)
    frames = [_frames(watcher) for watcher in watchers]
    assert drawn == [address] and all(len(own) == 1 and own[0]["kind"] == "snapshot" for own in frames)
    fetched = await sync_to_async(
        lambda: client_of_role("viewer").get(address, headers={"HX-Request": "true"}).content.decode()
    )()
    assert NUMBERS.sub("", frames[0][0]["data"]["html"]) == NUMBERS.sub("", fetched)


async def test_a_part_is_drawn_again_for_who_comes_later_and_every_ten_seconds(
    sampler, fake_cluster, drawn, now
):
    first, soon, later = live.Watcher(), live.Watcher(), live.Watcher()
    key = ("part", "/store/cache/")
    for watcher, after_s in ((first, 0), (soon, 1), (later, live.FRESH_SECONDS)):
        now[0] += after_s
        sampler._watchers.add(watcher)
        sampler.subscribe(watcher, key)
        await asyncio.gather(*sampler._measurements)
    assert len(drawn) == 2 and all(_frames(watcher) for watcher in (first, soon, later))
    await sampler.ticks(39)
    await asyncio.gather(*sampler._measurements)
    assert len(drawn) == 2
    await sampler.ticks(1)
    await asyncio.gather(*sampler._measurements)
    assert len(drawn) == 3


async def test_a_part_that_cannot_be_drawn_says_so_and_the_others_go_on(
    sampler, cluster, monkeypatch, caplog
):
    def broken(hours):
        raise ZeroDivisionError

    monkeypatch.setattr(cluster.store, "disk_forecast", broken)
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    for address in ("/store/disk/", "/store/index/?file=20010101000000000&part_of=chains", "/store/cache/"):
        sampler.subscribe(watcher, ("part", address))
    await asyncio.gather(*sampler._measurements)
    kinds = {
        frame["name"].partition("?")[0]: (frame["kind"], frame["data"].get("code"))
        for frame in _frames(watcher)
    }
    assert kinds == {
        "/store/disk/": ("error", "internal"),
        "/store/index/": ("end", "not_found"),
        "/store/cache/": ("snapshot", None),
    }
    assert "part could not be measured" in caplog.text


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        "/store/",
        "store/cache/",
        "/store/cache",
        "/topics/orders/",
        "/store/doctor/start",
        "http://other/store/cache/",
        "/store/cache/#x",
        "/store/cache/?file=1",
        "/store/index/",
        "/store/index/?file=20251122090000000",
        "/store/layout/?offset=7",
        "/store/cache/?" + "x" * 1100,
        "/store/cache/?\u00fc",
        "/store/cache/?" + "&" * 1000,
        "/store/../store/cache/",
    ],
)
def test_only_parts_that_are_everybodys_have_an_address(address):
    with pytest.raises(NameError_):
        live.STREAMS["part"].check(address)


async def test_a_stream_that_waits_is_looked_up_in_a_thread_once_at_a_time_and_handed_out_when_it_comes(
    sampler, monkeypatch
):
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)
    looked = []

    def look(cluster, name):
        looked.append(name)
        began.release()
        go_on.acquire()
        return {"job": {"id": name, "state": "running"}, "look": len(looked)}

    monkeypatch.setitem(live.STREAMS, "job", live.Stream(look, 1, in_thread=True))
    first, later = live.Watcher(), live.Watcher()
    for watcher in (first, later):
        sampler._watchers.add(watcher)
        sampler.subscribe(watcher, ("job", "some"))
    await asyncio.to_thread(began.acquire)
    await sampler.ticks(5)
    assert looked == ["some"] and _frames(first) == _frames(later) == []
    go_on.release()
    assert [json.loads(await watcher.take())[0]["data"]["look"] for watcher in (first, later)] == [1, 1]
    # A value that comes after the last watcher has left is dropped.
    await sampler.ticks(1)
    await asyncio.to_thread(began.acquire)
    for watcher in (first, later):
        sampler.remove(watcher)
    go_on.release()
    await asyncio.gather(*sampler._measurements)
    assert _frames(first) == _frames(later) == []


def _waiting_looks(monkeypatch, *streams: str, in_turn: bool = True) -> tuple[list[str], threading.Event]:
    """(the streams whose looks began, what lets them end)."""
    began, go_on = [], threading.Event()
    for stream in streams:

        def look(cluster, name, stream=stream):
            began.append(stream)
            assert go_on.wait(10)
            return {}

        monkeypatch.setitem(live.STREAMS, stream, live.Stream(look, 1, in_thread=True, in_turn=in_turn))
    return began, go_on


async def _began(began: list[str], count: int) -> None:
    while len(began) < count:
        await asyncio.sleep(0)


async def test_looks_of_different_streams_take_turns(sampler, monkeypatch):
    began, go_on = _waiting_looks(monkeypatch, "store.index", "store.cache")
    told, answer = _waiting_looks(monkeypatch, "jobs", in_turn=False)
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    for stream in ("store.index", "store.cache", "jobs"):
        sampler.subscribe(watcher, (stream, ""))
    await _began(told, 1)  # what waits for Redis waits for no other stream
    await _began(began, 1)
    assert began == ["store.index"]
    go_on.set()
    await _began(began, 2)
    answer.set()
    await asyncio.gather(*sampler._measurements)
    assert {frame["stream"] for frame in _frames(watcher)} == {"store.index", "store.cache", "jobs"}


async def test_a_look_that_hangs_holds_up_the_others_for_a_bounded_time(sampler, monkeypatch):
    monkeypatch.setattr(live, "TURN_SECONDS", 0.01)
    began, go_on = _waiting_looks(monkeypatch, "store.index", "store.cache")
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    for stream in ("store.index", "store.cache"):
        sampler.subscribe(watcher, (stream, ""))
    await _began(began, 2)
    go_on.set()
    await asyncio.gather(*sampler._measurements)
    assert len(_frames(watcher)) == 2


async def test_a_page_that_is_left_during_a_look_and_opened_again_is_answered_and_looks_still_take_turns(
    sampler, monkeypatch
):
    monkeypatch.setattr(live, "TURN_SECONDS", 60.0)
    began, first_end = _waiting_looks(monkeypatch, "store.index")
    watcher = live.Watcher()
    sampler.add(watcher)
    sampler.subscribe(watcher, ("store.index", ""))
    await _began(began, 1)
    sampler.remove(watcher)  # the last one: the look goes on in its thread
    again, second_end = _waiting_looks(monkeypatch, "store.cache")
    third, third_end = _waiting_looks(monkeypatch, "store.exposure")
    watcher = live.Watcher()
    sampler.add(watcher)
    for stream in ("store.cache", "store.exposure"):
        sampler.subscribe(watcher, (stream, ""))
    await asyncio.sleep(0)
    assert again == [], "two looks at once"
    first_end.set()
    await _began(again, 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert third == [], "the end of one look lets two others begin"
    second_end.set()
    await _began(third, 1)
    third_end.set()
    ends = await asyncio.gather(*sampler._measurements, return_exceptions=True)
    assert [end for end in ends if end is not None] == []
    assert {"store.cache", "store.exposure"} <= {frame["stream"] for frame in _frames(watcher)}
    sampler.remove(watcher)


async def test_a_page_that_is_opened_again_and_again_during_a_look_begins_no_other_and_hurries_it(
    sampler, monkeypatch
):
    monkeypatch.setattr(live, "TURN_SECONDS", 0.01)
    began, go_on = [], threading.Event()

    def look(cluster, name):
        began.append(throttle.current())
        assert len(began) == 1 or go_on.wait(10)
        return {}

    monkeypatch.setitem(live.STREAMS, "store.cache", live.Stream(look, 1, in_thread=True))

    def opened() -> live.Watcher:
        watcher = live.Watcher()
        sampler.add(watcher)
        sampler.subscribe(watcher, ("store.cache", ""))
        return watcher

    watcher = opened()
    await asyncio.gather(*sampler._measurements)
    await sampler.ticks(1)
    await _began(began, 2)
    for _ in range(100):
        sampler.remove(watcher)
        watcher = opened()
    assert len(sampler._measurements) == 1 and began[1]._is_stopped
    go_on.set()
    await asyncio.gather(*sampler._measurements)
    assert len(began) == 2 and "store.cache" in {frame["stream"] for frame in _frames(watcher)}
    sampler.remove(watcher)


async def test_a_look_gives_back_only_the_turn_that_it_took(sampler, monkeypatch):
    """Also when the sampler goes on in another loop, whose looks have turns of their own."""
    monkeypatch.setattr(live, "TURN_SECONDS", 60.0)
    async with sampler._turn():
        taken = sampler._turns
        sampler._turns = asyncio.Lock()
        await sampler._turns.acquire()
    assert sampler._turns.locked() and not taken.locked()


def test_a_sampler_that_goes_on_in_another_loop_has_turns_of_that_loop(cluster, monkeypatch):
    """A loop that ended during a look leaves a turn that is not given back."""
    sampler = live.Sampler(lambda: cluster)

    async def leave_one_held() -> None:
        watcher = live.Watcher()
        sampler.add(watcher)
        await sampler._turns.acquire()
        sampler.remove(watcher)

    async def look() -> bool:
        watcher = live.Watcher()
        sampler.add(watcher)
        try:
            return sampler._turns.locked()
        finally:
            sampler.remove(watcher)

    asyncio.run(leave_one_held())
    assert asyncio.run(look()) is False


async def test_the_first_look_is_quick_and_those_after_it_are_gentle(sampler, monkeypatch):
    monkeypatch.setitem(
        live.STREAMS,
        "store.cache",
        live.Stream(lambda cluster, name: {"gentle": throttle.current() is not None}, 1, in_thread=True),
    )
    watcher, told = live.Watcher(), []
    sampler._watchers.add(watcher)
    sampler.subscribe(watcher, ("store.cache", ""))
    for _ in range(3):
        await asyncio.gather(*sampler._measurements)
        told += [frame["data"]["gentle"] for frame in _frames(watcher)]
        await sampler.ticks(1)
    assert told == [False, True]


async def test_a_tick_gives_way_after_each_stream_and_wakes_each_socket_once(sampler):
    watchers = [live.Watcher(), live.Watcher()]
    for watcher in watchers:
        sampler._watchers.add(watcher)
        for stream in ("store.positions", "recovery", "overview"):
            sampler.subscribe(watcher, (stream, ""))
        await watcher.take()
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    before = turns
    await sampler.ticks(4)
    beside.cancel()
    # After two streams of each tick and one of the fourth, and after each socket
    assert turns - before >= 4 * 2 + 1 + 4 * 2
    for watcher in watchers:
        assert {frame["stream"] for frame in json.loads(await watcher.take())} == {
            "store.positions",
            "recovery",
            "overview",
        }
        assert not watcher.ready.is_set()


async def test_a_socket_that_was_sent_all_within_a_tick_is_not_woken_again_for_nothing(sampler):
    watchers = {live.Watcher(), live.Watcher()}
    for watcher in watchers:
        sampler._watchers.add(watcher)
        sampler.subscribe(watcher, ("store.positions", ""))
        await watcher.take()

    async def sent_to_the_second():
        while not (woken := {watcher for watcher in watchers if watcher.ready.is_set()}):
            await asyncio.sleep(0)
        (second,) = watchers - woken
        sampler.subscribe(second, ("overview", ""))  # its first value goes out at once
        return second, json.loads(await second.take())

    beside = asyncio.create_task(sent_to_the_second())
    await sampler.ticks(1)
    second, frames = await beside
    assert {frame["stream"] for frame in frames} == {
        "store.positions",
        "overview",
    } and not second.ready.is_set()


async def test_runs_and_a_run_are_streams_and_what_redis_does_not_say_is_an_error(sampler, monkeypatch):
    fake_runs.install(monkeypatch.setattr)
    watcher = live.Watcher()
    sampler._watchers.add(watcher)
    monkeypatch.setattr(
        queue,
        "listing",
        lambda: [
            *map(fake_runs.run, fake_runs.RUNS),
            replace(fake_runs.run("running"), id="check", pipeline=None),
        ],
    )
    for key in (("jobs", ""), ("pipeline", ""), ("job", "running"), ("job", "nobody")):
        sampler.subscribe(watcher, key)
    await asyncio.gather(*sampler._measurements)
    every, runs, one, none = sorted(
        _frames(watcher), key=lambda frame: ("jobs", "pipeline", "job").index(frame["stream"])
    )
    assert [run["id"] for run in runs["data"]["jobs"]] == list(fake_runs.RUNS)
    assert [job["id"] for job in every["data"]["jobs"]] == [*fake_runs.RUNS, "check"]
    assert (one["kind"], one["data"]["job"]["progress"]["done"]) == ("snapshot", 31)
    assert (none["kind"], none["data"]["code"]) == ("end", "not_found")
    assert "result" not in one["data"]["job"]

    def silent():
        raise Problem("jobs_unavailable", "Redis does not answer (ConnectionError)")

    monkeypatch.setattr(queue, "listing", silent)
    await sampler.ticks(4)
    await asyncio.gather(*sampler._measurements)
    failed = next(frame for frame in _frames(watcher) if frame["stream"] == "pipeline")
    assert (failed["kind"], failed["data"]["code"]) == ("error", "jobs_unavailable")


def test_a_page_is_behind_when_a_state_changed_and_not_when_only_progress_did(monkeypatch):
    fake_runs.install(monkeypatch.setattr)
    mark = queue.mark_of(queue.listing())
    assert mark == queue.moving().mark
    assert queue.moving(runs_only=True).mark == queue.mark_of(
        [job for job in queue.listing() if job.pipeline]
    )
    running = queue.listing()
    running[1] = replace(running[1], progress=None)
    assert queue.mark_of(running) == mark
    running[1] = replace(running[1], state="done")
    assert queue.mark_of(running) != mark
