"""What it costs a broker that the Store pages are open: `python -m tests.bench.watched NAMESERVER BROKER_PORT
WEB_PORT PID SESSION SECONDS FIRST`.

Browsers themselves would take the cores that the broker and its client run on. So this does what the pages'
script does: it fetches each page that the Store's tabs lead to, reads from its elements which streams it
watches and what it fetches again when a frame differs (static/js/live.js), and does that for five browsers,
in a process of its own (`watch`). That has the lowest priority, since an operator's browser does not stand on
the broker's machine.

A round with and one without them, of which FIRST (with, without) comes first. Each sends at a fixed rate,
over eight connections; after both come two as fast as 64 sends that wait for their answers allow. A time runs
from just before a send is due to be written until its answer was read, so what holds up the broker holds up
those after it as well. Prints a JSON line for each of the two.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urljoin

from websockets.asyncio.client import connect

from broker_store.client import Admin
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import SendHeader, write_send
from tests.bench.parked import Peer, processor_ns

BROWSERS, CONNECTIONS, RATE, OUTSTANDING, BODY = 5, 8, 2_000, 64, b"x" * 1024
TOPIC = "BenchWatched"
FULL_SPEED_S = 5
SETTLE_S = 3


class Page(HTMLParser):
    """What live.js would do with a page: `streams` it subscribes to, `renewed` what it fetches when a frame
    of one differs."""

    def __init__(self, html: str, path: str):
        super().__init__()
        self._path = path
        self.streams: set[tuple[str, str]] = set()
        self.renewed: list[tuple[tuple[str, str], str]] = []
        self.tabs: list[str] = []
        self._open: list[tuple[str, tuple[str, str] | None, bool]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        found = dict(attributes)
        stream = (found["data-stream"], found.get("data-name") or "") if "data-stream" in found else None
        if stream is not None:
            self.streams.add(stream)
        current = next((one for _, one, _ in reversed(self._open) if one), None)
        if "data-renew" in found and "hx-get" in found and current is not None:
            self.renewed.append((current, urljoin(self._path, found["hx-get"])))
        if tag == "a" and any(is_tabs for _, _, is_tabs in self._open):
            self.tabs.append(found["href"])
        if tag not in ("input", "meta", "link", "img", "br", "hr"):
            self._open.append((tag, stream, found.get("class") == "tabs"))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass


def fetch(port: int, session: str, path: str, *, htmx: bool = False) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(
            "GET",
            path,
            headers={"Cookie": f"mqadmin_session={session}"} | ({"HX-Request": "true"} if htmx else {}),
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, (path, answer.status)
        return text
    finally:
        connection.close()


async def watch(port: int, session: str) -> None:
    """Five browsers with every Store page open; says READY when each stream gave its first frame, and ends
    when it is ended."""
    pages = [
        Page(await asyncio.to_thread(fetch, port, session, path), path)
        for path in Page(fetch(port, session, "/store/"), "/store/").tabs
    ]
    streams = set().union(*(page.streams for page in pages))
    renewed = [one for page in pages for one in page.renewed]
    seen = asyncio.Queue()
    async with asyncio.TaskGroup() as browsers:
        for _ in range(BROWSERS):
            browsers.create_task(browse(port, session, streams, renewed, seen))
        for _ in range(BROWSERS * len(streams)):
            await seen.get()
        print("READY", " ".join(sorted(name for name, _ in streams)), flush=True)


async def browse(port: int, session: str, streams: set, renewed: list, seen: asyncio.Queue) -> None:
    headers = {"Cookie": f"mqadmin_session={session}"}
    last: dict[tuple[str, str], str] = {}
    async with connect(
        f"ws://127.0.0.1:{port}/ws/v1/",
        additional_headers=headers,
        origin=f"http://127.0.0.1:{port}",
        max_size=None,
        compression="deflate",
    ) as socket:
        for stream, name in streams:
            await socket.send(json.dumps({"kind": "subscribe", "stream": stream, "name": name}))
        async for message in socket:
            for frame in json.loads(message):
                key = (frame["stream"], frame["name"])
                data = json.dumps({**frame["data"], "at_ms": None})
                if key not in streams:
                    continue  # the state, which each socket is given
                if key not in last:
                    seen.put_nowait(key)
                elif data != last[key]:
                    for stream, address in renewed:
                        if stream == key:
                            await asyncio.to_thread(fetch, port, session, address, htmx=True)
                last[key] = data


class Sender:
    """Sends over some connections; `took_ns` of those that were answered."""

    def __init__(self, port: int):
        self._peers = [Peer(port) for _ in range(CONNECTIONS)]
        self._parsers = [Connection() for _ in self._peers]
        self._selector = selectors.DefaultSelector()
        for number, peer in enumerate(self._peers):
            peer.socket.setblocking(False)
            self._selector.register(peer.socket, selectors.EVENT_READ, number)
        self._due_ns: dict[int, int] = {}
        self._number = 0
        self.took_ns: list[int] = []
        self.refused = 0

    def close(self) -> None:
        self._selector.close()
        for peer in self._peers:
            peer.socket.close()

    @property
    def outstanding(self) -> int:
        return len(self._due_ns)

    def send(self, due_ns: int) -> None:
        self._number += 1
        number = self._number
        unique = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number}\x02"
        header = SendHeader(
            "BenchGroup",
            TOPIC,
            "TBW102",
            8,
            number % 4,
            0,
            int(time.time() * 1000),
            0,
            unique,
            0,
            False,
            None,
            False,
        )
        frame = encode_frame(
            Command.request(int(RequestCode.SEND_MESSAGE_V2), write_send(header), BODY, opaque=number)
        )
        self._due_ns[number] = due_ns
        assert self._peers[number % CONNECTIONS].socket.send(frame) == len(frame)

    def read(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            data = key.fileobj.recv(1 << 18)
            assert data, "the broker ended a connection"
            now_ns = time.perf_counter_ns()
            for answer in self._parsers[key.data].receive(data):
                took_ns = now_ns - self._due_ns.pop(answer.opaque)
                # It waited 200 ms, as when the disk holds up the writer
                if answer.code == ResponseCode.SYSTEM_BUSY:
                    self.refused += 1
                    continue
                assert answer.code == 0, answer
                self.took_ns.append(took_ns)


def at_a_rate(port: int, pid: int, seconds: float) -> dict:
    """Latencies and the broker's processor time at RATE sends a second."""
    sender = Sender(port)
    apart_ns = 1_000_000_000 // RATE
    began_cpu, began_ns = processor_ns(pid), time.perf_counter_ns()
    due_ns, end_ns = began_ns, began_ns + int(seconds * 1e9)
    while due_ns < end_ns:
        while due_ns <= time.perf_counter_ns() and due_ns < end_ns:
            sender.send(due_ns)
            due_ns += apart_ns
        sender.read(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
    took_s = (time.perf_counter_ns() - began_ns) / 1e9
    cpu_ms = (processor_ns(pid) - began_cpu) / 1e6 / took_s
    until_ns = time.perf_counter_ns() + 10_000_000_000
    while sender.outstanding and time.perf_counter_ns() < until_ns:
        sender.read(1.0)
    assert not sender.outstanding
    sender.close()
    times = sorted(sender.took_ns)
    return {
        "cpu_ms_per_s": cpu_ms,
        "sends_s": len(times) / took_s,
        "refused": sender.refused,
        **{f"p{p}_us": times[len(times) * p // 100] / 1e3 for p in (50, 99)},
    }


def at_full_speed(port: int) -> float:
    """Sends a second while OUTSTANDING of them wait for their answers."""
    sender = Sender(port)
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < FULL_SPEED_S:
        while sender.outstanding < OUTSTANDING:
            sender.send(time.perf_counter_ns())
        sender.read(1.0)
    rate = len(sender.took_ns) / (now - began)
    while sender.outstanding:
        sender.read(1.0)
    sender.close()
    return rate


@contextmanager
def browsers(web_port: int, session: str) -> Iterator[list[str]]:
    """While `watch` runs; the streams that it watches."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.watched", "watch", str(web_port), session],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        streams = process.stdout.readline().split()[1:]
        assert streams, "the browsers did not get ready"
        time.sleep(SETTLE_S)
        yield streams
        assert process.poll() is None, "the browsers ended before they were to"
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


async def make_topic(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, read_queues=4, write_queues=4)


def main() -> None:
    nameserver, session, seconds, first = sys.argv[1], sys.argv[5], float(sys.argv[6]), sys.argv[7]
    port, web_port, pid = map(int, sys.argv[2:5])
    asyncio.run(make_topic(nameserver))
    at_a_rate(port, pid, 2)
    order = (False, True) if first == "without" else (True, False)
    lines = {watched: {"watched": watched} for watched in order}
    # All at the rate before any at full speed: what that writes has the kernel make room in the file cache
    # for seconds after.
    for watched in order:
        with browsers(web_port, session) if watched else nullcontext([]) as streams:
            lines[watched] |= {"streams": streams, **at_a_rate(port, pid, seconds)}
    for watched in order:
        with browsers(web_port, session) if watched else nullcontext():
            lines[watched]["full_speed_s"] = at_full_speed(port)
    for line in lines.values():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        os.nice(19)
        asyncio.run(watch(int(sys.argv[2]), sys.argv[3]))
    else:
        main()
