"""Live numbers: one sampler, one tick, one websocket a browser.

    browser -> {"kind": "subscribe" | "unsubscribe", "stream": "group", "name": "billing"}
               {"kind": "pause"} / {"kind": "resume"}       a tab in the background
    server  -> [{"stream", "name", "seq", "at", "kind": "snapshot" | "error" | "end", "data"}, ...]

A stream is measured and encoded once a tick, however many browsers watch it, and not at all while none does.
A watcher has one place a stream for the frame that it has not been sent yet, so a slow browser gets the
latest value and skips those between; nothing queues up. All frames of a tick go out as one websocket message,
a list. Each frame has the whole value: values are small, and a skipped frame then loses nothing. A value that
did not change is repeated once a second.

Each socket gets the stream `state` from its beginning, without a subscription. It comes each second, so a
page whose own streams come each 10 s, or are being measured for the first time, can distinguish a running
broker from a dead connection, and learns of another state. static/js/live.js says "no news" after 2.5 s
without a frame.

Numbers are JSON numbers as long as JavaScript holds them exactly (2**53), then strings. The store's streams
are measured on the loop that the broker runs on, with no Redis and no channel layer in their path. Sends are
served in between: a tick gives way to them after each stream and each socket. What reads files is measured in
a thread, one measurement at a time: threads that compute side by side hold up the loop, which shares one
interpreter with them. Jobs, which stand in Redis, wait for its answer only and delay no other stream. The
value of a measurement goes out with the next tick, the first one at once.

Tables that the server draws come as HTML: the name of the stream `part` is the address of such a part of a
page. It is drawn once for all browsers (mqadmin/web/parts.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, is_dataclass
from importlib import import_module

import orjson
from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError

from broker_store.errors import BrokerStoreError, NameError_, NotFoundError, StoreClosedError
from broker_store.formats import names
from broker_store.rest.problems import Problem, problem_of
from broker_store.throttle import Throttle, throttled_by
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.cluster.protocol import Cluster
from mqadmin.views import registry
from mqadmin.views.view import Stream
from mqadmin.web import parts
from mqadmin.web.middleware import MUST_SET_PASSWORD
from mqadmin.web.refusals import count_refusal

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
# An unchanged value is sent again after this: at the fourth tick, also when that comes a little early
REPEAT_SECONDS = 0.9
LOGIN_CHECK_SECONDS = 30.0  # between checks; a session that ended closes its sockets at the next
MAX_FRAME_BYTES = 4 << 10  # from a browser
MAX_SUBSCRIPTIONS = 16  # of one socket, its state among them
MAX_SOCKETS = 20  # of one user
FRESH_SECONDS = 2.0  # an older value is measured again for a new watcher, where the stream is `fresh`
# A measurement waits at most this for those of other streams, which are throttled, or hang
TURN_SECONDS = 0.5
PAST_POINTS = 130  # kept for charts
PAST_APART_MS = 950  # so that they are one a second
MAX_BAD_FRAMES = 5  # then the socket is closed
MAX_FRAMES = 100  # from a browser at once ...
FRAMES_PER_SECOND = 10.0  # ... and in the long run: each may begin a measurement

# Codes of our own, from the range for applications.
CLOSE_BAD_FRAMES, CLOSE_LOGGED_OUT, CLOSE_TOO_MANY, CLOSE_TOO_BIG = 4400, 4401, 4429, 1009

Key = tuple[str, str]  # stream, name

STREAMS: dict[str, Stream] = {
    **registry.streams(),
    "state": Stream(lambda cluster, name: cluster.state(), 4),
    "part": Stream(
        lambda cluster, address: {"html": parts.render(cluster, address)},
        40,
        parts.check_address,
        in_thread=True,
        fresh=True,
    ),
}

STATE: Key = ("state", "")  # what each socket is given


@dataclass(eq=False, slots=True)
class Watcher:
    """One browser: its streams, and the newest frame of each that it has not been sent."""

    wants: set[Key] = field(default_factory=set)
    paused: bool = False
    pending: dict[Key, bytes] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, key: Key, frame: bytes, *, at_once: bool) -> None:
        """Send a frame `at_once`, or with the next tick."""
        self.pending[key] = frame
        if at_once:
            self.ready.set()

    async def take(self) -> bytes:
        """Return all pending frames as one JSON list; wait for the first."""
        await self.ready.wait()
        frames, self.pending = list(self.pending.values()), {}
        self.ready.clear()
        return b"[" + b",".join(frames) + b"]"


@dataclass(frozen=True, slots=True)
class _Point:
    """The values of a stream at a moment."""

    at_ms: int
    values: dict[str, object]  # JSON


@dataclass(slots=True)
class _Last:
    """The last value of a stream."""

    seq: int = 0
    body: bytes = b""
    frame: bytes = b""
    sent_at: float = 0.0
    due: int = 0  # the tick of the next measurement


@dataclass(frozen=True, slots=True)
class _Measurement:
    """A measurement in a thread. It continues when its last watcher leaves, and serves those that come before
    it ends."""

    task: asyncio.Task
    throttle: Throttle | None  # None: at full speed


class Sampler:
    """Measures the streams that are watched. A task calls `tick` each TICK_SECONDS while there are
    watchers."""

    def __init__(
        self, cluster: Callable[[], Cluster] = current_cluster, clock: Callable[[], float] = time.time
    ):
        self._cluster = cluster
        self._clock = clock
        self._watchers: set[Watcher] = set()
        self._last: dict[Key, _Last] = {}
        self._ticks = 0
        self._under_way: dict[Key, _Measurement] = {}
        # Kept here: the loop alone does not keep a task from being collected
        self._measurements: set[asyncio.Task] = set()
        self._turns = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # of these turns and measurements
        self._task: asyncio.Task | None = None
        # What charts show of the time while the stream was watched, so that a page does not begin empty.
        self._past: dict[str, deque[_Point]] = {
            name: deque(maxlen=PAST_POINTS) for name, stream in STREAMS.items() if stream.past
        }

    def add(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        self.subscribe(watcher, STATE)
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            if self._loop is not loop:  # measurements of a loop that has ended never end
                self._loop, self._turns = loop, asyncio.Lock()
                self._under_way.clear()
                self._measurements.clear()
            self._task = loop.create_task(self._run(), name="live")

    def remove(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._last.clear()

    def subscribe(self, watcher: Watcher, key: Key) -> None:
        """Send the stream from now on: a first watcher has it measured at once, a later one gets the newest
        frame at once."""
        watcher.wants.add(key)
        last = self._last.get(key)
        if last is None or STREAMS[key[0]].fresh and self._clock() - last.sent_at > FRESH_SECONDS:
            last = self._last.setdefault(key, _Last())
            self._measure(key, {watcher}, last)
        elif last.frame:
            watcher.put(key, last.frame, at_once=True)

    def past(self, stream: str) -> list[dict[str, object]]:
        """Return the last two minutes of a stream as JSON for charts, a point a second, with gaps where it
        was not watched: `at_ms`, and what the stream keeps (`Stream.past`)."""
        return [{"at_ms": point.at_ms, **point.values} for point in self._past[stream]]

    def unsubscribe(self, watcher: Watcher, key: Key) -> None:
        watcher.wants.discard(key)
        watcher.pending.pop(key, None)

    async def tick(self) -> None:
        """Measure and send what is due."""
        self._ticks += 1
        wanted: dict[Key, set[Watcher]] = {}
        for watcher in self._watchers:
            if not watcher.paused:
                for key in watcher.wants:
                    wanted.setdefault(key, set()).add(watcher)
        for key in self._last.keys() - wanted.keys():
            del self._last[key]
        for key, watchers in wanted.items():
            last = self._last.setdefault(key, _Last())
            if self._ticks >= last.due:
                self._measure(key, watchers, last)
                await asyncio.sleep(0)
        for watcher in list(self._watchers):
            if watcher.pending:  # by now: a first value that came meanwhile took all along
                watcher.ready.set()
                await asyncio.sleep(0)

    def _measure(self, key: Key, watchers: set[Watcher], last: _Last) -> None:
        stream = STREAMS[key[0]]
        last.due = self._ticks + stream.ticks
        if not stream.in_thread:
            self._hand_out(key, watchers, last, *self._outcome(key))
            return
        under_way = self._under_way.get(key)
        if under_way is not None and not under_way.task.done():
            if not last.seq and under_way.throttle is not None:  # it was begun for watchers who had a value
                under_way.throttle.stop_throttling()
            return
        throttle = Throttle() if last.seq else None  # the page that was opened waits for its first value
        task = asyncio.get_running_loop().create_task(self._measured(key, throttle), name=f"live-{key[0]}")
        self._measurements.add(task)
        measurement = self._under_way[key] = _Measurement(task, throttle)

        def ended(task: asyncio.Task) -> None:
            self._measurements.discard(task)
            if self._under_way.get(key) is measurement:
                del self._under_way[key]

        task.add_done_callback(ended)

    async def _measured(self, key: Key, throttle: Throttle | None) -> None:
        stream = STREAMS[key[0]]
        async with self._turn() if stream.in_turn else nullcontext():
            outcome = await (
                asyncio.to_thread(self._outcome, key)
                if throttle is None
                else asyncio.to_thread(throttled_by, throttle, self._outcome, key)
            )
        last = self._last.get(key)
        if last is not None:  # a page still watches, or watches again
            self._hand_out(
                key,
                {watcher for watcher in self._watchers if key in watcher.wants and not watcher.paused},
                last,
                *outcome,
            )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold the turn of this loop's measurements, or none after TURN_SECONDS. It is released to the lock
        from which it was taken."""
        turns = self._turns
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await turns.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            turns.release()

    def _outcome(self, key: Key) -> tuple[str, bytes]:
        """Return (kind, data) of a frame."""
        name_of_stream, name = key
        try:
            stream = STREAMS[name_of_stream]
            data = stream.measure(self._cluster(), name)
            if stream.past:
                past, now_ms = self._past[name_of_stream], int(self._clock() * 1000)
                if not past or now_ms - past[-1].at_ms >= PAST_APART_MS:
                    past.append(_Point(now_ms, stream.past(data)))
            return "snapshot", encode(data)
        except Exception as error:
            return self._failed(name_of_stream, error)

    def _failed(self, stream: str, error: Exception) -> tuple[str, bytes]:
        """A stream that cannot be measured must not end the others."""
        match error:
            case StoreClosedError():
                return "error", encode({"code": "starting", "detail": str(error)})
            case NotFoundError():
                return "end", encode({"code": "not_found", "detail": str(error)})
            case Problem():
                return "end" if error.status == 404 else "error", encode(
                    {"code": error.code, "detail": error.detail}
                )
            case BrokerStoreError():
                return "error", encode({"code": "failed", "detail": problem_of(error).sentence})
        log.error("stream %s could not be measured", stream, exc_info=error)
        return "error", encode({"code": "internal", "detail": "this stream could not be measured"})

    def _hand_out(self, key: Key, watchers: set[Watcher], last: _Last, kind: str, body: bytes) -> None:
        now = self._clock()
        if body != last.body or now - last.sent_at >= REPEAT_SECONDS:
            last.seq += 1
            head = {"stream": key[0], "name": key[1], "seq": last.seq, "at": int(now * 1000), "kind": kind}
            last.frame = orjson.dumps(head)[:-1] + b',"data":' + body + b"}"
            last.body, last.sent_at = body, now
            for watcher in watchers:
                watcher.put(key, last.frame, at_once=last.seq == 1)
        if kind == "end":
            for watcher in watchers:
                watcher.wants.discard(key)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # Ticks keep their beat; those a busy loop missed are left out, not made up for.
            due = max(due + TICK_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            await self.tick()


sampler = Sampler()
sockets_of_user: Counter[int] = Counter()


def encode(value: object) -> bytes:
    """Return JSON in which an integer that JavaScript would round is a string."""
    try:
        return orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return orjson.dumps(_with_texts(value), option=orjson.OPT_NON_STR_KEYS)


def _with_texts(value: object) -> object:
    if is_dataclass(value):
        value = fields_of(value)
    if isinstance(value, dict):
        return {key: _with_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)
    return value


class LiveConsumer(AsyncWebsocketConsumer):
    """One socket. asgi.py has checked its origin and read its user."""

    watcher: Watcher | None = None
    tasks: tuple[asyncio.Task, ...] = ()
    bad_frames = 0
    allowance, allowed_s = float(MAX_FRAMES), 0.0

    async def connect(self) -> None:
        await self.accept()  # a code of ours reaches the browser only through an open socket
        user = self.scope.get("user")
        session = self.scope.get("session")
        if user is None or not user.is_authenticated or await sync_to_async(session.get)(MUST_SET_PASSWORD):
            return await self.close(CLOSE_LOGGED_OUT)
        if sockets_of_user[user.pk] >= MAX_SOCKETS:
            return await self.close(CLOSE_TOO_MANY)
        sockets_of_user[user.pk] += 1
        self.user_id, self.session_key = user.pk, session.session_key
        self.watcher = Watcher()
        sampler.add(self.watcher)
        self.tasks = (
            asyncio.create_task(self._send_frames(self.watcher)),
            asyncio.create_task(self._check_login()),
        )

    async def _leave(self, code: int) -> None:
        """Close from our side. Later frames have no effect, and nothing more is measured for it."""
        await self.disconnect(code)
        await self.close(code)

    async def disconnect(self, code: int) -> None:
        if self.watcher is None:
            return
        sampler.remove(self.watcher)
        self.watcher = None
        sockets_of_user[self.user_id] -= 1
        if sockets_of_user[self.user_id] <= 0:
            del sockets_of_user[self.user_id]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.watcher is None:
            return
        if text_data is None or len(text_data) > MAX_FRAME_BYTES:
            return await self._leave(CLOSE_TOO_BIG)
        now_s = time.monotonic()
        self.allowance = min(self.allowance + (now_s - self.allowed_s) * FRAMES_PER_SECOND, MAX_FRAMES) - 1
        self.allowed_s = now_s
        if self.allowance < 0:
            count_refusal(
                "websocket frames", value=MAX_FRAMES + 1, limit=MAX_FRAMES, who=f"user {self.user_id}"
            )
            return await self._leave(CLOSE_TOO_MANY)
        reason = self._handle_frame(text_data, self.watcher)
        if reason:
            self.bad_frames += 1
            if self.bad_frames >= MAX_BAD_FRAMES:
                return await self._leave(CLOSE_BAD_FRAMES)
            await self.send(
                text_data=json.dumps(
                    [
                        {
                            "stream": "",
                            "name": "",
                            "seq": 0,
                            "at": int(time.time() * 1000),
                            "kind": "error",
                            "data": {"code": "invalid", "detail": reason},
                        }
                    ]
                )
            )

    def _handle_frame(self, text: str, watcher: Watcher) -> str:
        """Do what a frame asks. Return what is wrong with it, "" for nothing."""
        try:
            frame = orjson.loads(text)
        except ValueError:
            return "not JSON"
        kind = frame.get("kind") if isinstance(frame, dict) else None
        if kind in ("pause", "resume"):
            watcher.paused = kind == "pause"
            return ""
        if kind not in ("subscribe", "unsubscribe"):
            return "kind is subscribe, unsubscribe, pause or resume"
        asked = frame.get("stream")
        stream = STREAMS.get(asked) if isinstance(asked, str) else None
        if stream is None:
            return f"there is no such stream; there are {', '.join(STREAMS)}"
        name = frame.get("name") or ""
        try:
            if stream.check is None and name or not isinstance(name, str):
                return f"stream {asked} takes no name"
            key = (asked, stream.check(name) if stream.check else "")
        except NameError_ as error:
            return names.in_words(error)
        if kind == "unsubscribe":
            sampler.unsubscribe(watcher, key)
        elif len(watcher.wants) >= MAX_SUBSCRIPTIONS and key not in watcher.wants:
            return f"a socket watches at most {MAX_SUBSCRIPTIONS} streams"
        else:
            sampler.subscribe(watcher, key)
        return ""

    async def _send_frames(self, watcher: Watcher) -> None:
        while True:
            frames = await watcher.take()
            # Waits while the browser's buffer is full; newer values replace those that are pending.
            await self.send(text_data=frames.decode())

    async def _check_login(self) -> None:
        """Close the socket when its login has ended, or when the database does not answer."""
        while True:
            await asyncio.sleep(LOGIN_CHECK_SECONDS)
            try:
                still_in = await self._is_logged_in()
            except DatabaseError as error:
                log.warning("a socket is closed, since its login could not be checked: %s", error)
                still_in = False
            if not still_in:
                await self.close(CLOSE_LOGGED_OUT)
                return

    async def _is_logged_in(self) -> bool:
        session = import_module(settings.SESSION_ENGINE).SessionStore(self.session_key)
        user = await get_user({"session": session})
        return user.is_authenticated and user.pk == self.user_id
