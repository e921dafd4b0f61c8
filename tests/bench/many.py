"""What a send waits while pages of a broker with many topics are read: `python -m tests.bench.many NAMESERVER
BROKER_PORT WEB_PORT DATA SESSION SECONDS [WHAT...]`.

`fill` writes the config files of a store that has TOPICS topics, GROUPS groups and as many offsets, before a
broker opens it. `give` sends one message to each of the first WITH_MESSAGES topics, so that these have a
queue's file. Then one process sends at a fixed rate, while another one (`visit`) opens one page, scrape,
list, stream or request after another, some times each. A time runs from when a send was due until its answer
was read. Prints a JSON line for each visit: the longest time of each round, and of rounds in which nothing
was visited; and the p99 and p99.9 of all rounds. What holds up the loop does so in every round, and what else
runs on the machine does not: so a figure is the least of the rounds' longest times.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

from websockets.asyncio.client import connect

from broker_store.formats import config_json
from broker_store.protocol import fastjson, registration_body, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import SendHeader, write_header, write_send
from tests.bench import watched
from tests.bench.parked import Peer
from tests.bench.watched import Sender

TOPICS, GROUPS = 100_000, 20_000
WITH_MESSAGES = 25_000  # topics; each has a mapped file, and Linux maps 65,530 by default
MAX_UNANSWERED = 128
RATE, ROUNDS, QUIET_S = 500, 3, 0.5
LIMIT_S = 120
NEW_TOPICS = 1_000  # in one request
OTHER_BROKER = "127.0.0.1:10999"
OTHER_TOPICS = 20_000  # of a broker elsewhere that registers here: 3 MB


def name_of(number: int) -> str:
    return f"many-{number:06d}"


def fill(store: Path, topics: int = TOPICS, groups: int = GROUPS) -> None:
    """Write config/ of a store with many topics; each tenth is a retry topic, as each group has one, and each
    has an offset."""
    directory = store / "config"
    directory.mkdir(parents=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    names = [f"%RETRY%{name_of(number)}" if number % 10 == 0 else name_of(number) for number in range(topics)]
    configs = {name: topic_bodies.TopicConfig(name, 4, 4, 6).to_json() for name in names}
    table = {f"many-{number:06d}": {"groupName": f"many-{number:06d}"} for number in range(groups)}
    offsets = {f"{name}@many-{number % groups:06d}": {0: number} for number, name in enumerate(names)}
    (directory / "topics.json").write_text(
        config_json.write({"dataVersion": version, "topicConfigTable": configs})
    )
    (directory / "subscriptionGroup.json").write_text(
        config_json.write({"dataVersion": version, "subscriptionGroupTable": table})
    )
    (directory / "consumerOffset.json").write_text(
        config_json.write({"dataVersion": version, "offsetTable": offsets})
    )


def give(port: int, topics: int) -> None:
    """Send one message to the first queue of each of the first topics that are no group's retry topic."""
    peer, parser, waiting = Peer(port), Connection(), 0
    peer.socket.settimeout(LIMIT_S)
    try:
        names = list(
            itertools.islice((name_of(number) for number in itertools.count() if number % 10), topics)
        )
        for number, name in enumerate(names, 1):
            unique = f"UNIQ_KEY\x01{number:032X}\x02"
            header = SendHeader(
                "BenchGroup",
                name,
                "TBW102",
                4,
                0,
                0,
                int(time.time() * 1000),
                0,
                unique,
                0,
                False,
                None,
                False,
            )
            peer.socket.sendall(
                encode_frame(
                    Command.request(int(R.SEND_MESSAGE_V2), write_send(header), b"x" * 100, opaque=number)
                )
            )
            waiting += 1
            while waiting >= (MAX_UNANSWERED if number < topics else 1):
                for answer in parser.receive(peer.socket.recv(1 << 18)):
                    assert answer.code == 0, answer
                    waiting -= 1
    finally:
        peer.socket.close()


class Visitor:
    """Opens what a dashboard, a scraper or an administrator opens."""

    def __init__(self, nameserver: str, port: int, web_port: int, data: Path, session: str):
        self._nameserver, self._port, self._web_port, self._data, self._session = (
            nameserver,
            port,
            web_port,
            data,
            session,
        )
        self._made = 0

    def visits(self) -> dict[str, Callable[[], object]]:
        """What may be visited, by name."""
        pages = {
            "overview page": "/", "topics page": "/topics/", "topics page, all kinds, its last part": "/topics/?kind=all&part=100000", "topics page, searched": "/topics/?q=999",
            "topics page by messages": "/topics/?sort=messages", "topic page": f"/topics/{name_of(1)}/", "groups page": "/groups/", "groups page by name": "/groups/?sort=name&q=99",
            "group page": "/groups/many-000001/", "messages page": "/messages/", "store page": "/store/", "jobs page": "/jobs/", "layout page": "/store/layout/",
            "store page, searched": "/store/?q=999", "cache page": "/store/cache/", "disk page": "/store/disk/", "pipeline page": "/pipeline/", "waiting page": "/messages/waiting/",
            "admin: topics": "/admin/mqadmin/topic/", "admin: topics, searched": "/admin/mqadmin/topic/?q=999", "admin: groups": "/admin/mqadmin/group/",
            "REST: topics": "/api/v1/topics", "REST: topics, the second page": "/api/v1/topics?kind=normal&limit=100&cursor=bWFueS0wNTAwMDE", "REST: groups": "/api/v1/groups",
            "REST: files": "/api/v1/store/files?limit=100", "REST: disk": "/api/v1/store/disk/forecast",
            "REST: topic": f"/api/v1/topics/{name_of(1)}", "REST: overview": "/api/v1/overview",
        }  # fmt: skip
        codes = {
            "all topics (21)": Command.request(R.GET_ALL_TOPIC_CONFIG), "all groups (201)": Command.request(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            "all offsets (43)": Command.request(R.GET_ALL_CONSUMER_OFFSET), "consume stats (317)": Command.request(R.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
            "groups of a topic (300)": Command.request(R.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name_of(1)}), "runtime info (28)": Command.request(R.GET_BROKER_RUNTIME_INFO),
            "correction offset (308)": Command.request(R.QUERY_CORRECTION_OFFSET, {"compareGroup": "many-000001", "topic": name_of(1)}),
        }  # fmt: skip
        names = {
            "name server: all topics (206)": Command.request(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            "name server: topics of the cluster (224)": Command.request(R.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
            "name server: unit topics (311)": Command.request(R.GET_UNIT_TOPIC_LIST), "name server: route (105)": Command.request(R.GET_ROUTEINFO_BY_TOPIC, {"topic": name_of(1)}),
            "name server: permissions wiped and given (205, 327)": Command.request(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-other"}),
        }  # fmt: skip
        streams = {
            "overview": "",
            "topic": name_of(1),
            "group": "many-000001",
            "store.positions": "",
            "store.files": "",
            "waiting": "",
            "store.disk": "",
            "store.cache": "",
            "group.timeline": "many-000001",
        }
        return {
            **{name: lambda path=path: self._page(path) for name, path in pages.items()},
            "metrics": self._metrics,
            **{
                f"stream {stream}": lambda stream=stream, name=name: self._stream(stream, name)
                for stream, name in streams.items()
            },
            **{
                name: lambda command=command: self._ask(self._port, command)
                for name, command in codes.items()
            },
            "a broker registers, is asked for and leaves (103, 104)": self._other_broker,
            **{
                name: lambda command=command: self._ask(int(self._nameserver.rpartition(":")[2]), command)
                for name, command in names.items()
            },
            "one topic is made (17)": self._make_topic,
            f"{NEW_TOPICS} topics are made (18)": self._make_topics,
            "a group is made (200)": self._make_group,
            "a topic is deleted (215)": self._delete_topic,
            "a group commits, and offsets are saved (15)": self._commit,
            "40 s pass: registration, samples": lambda: time.sleep(40),
        }

    def _page(self, path: str) -> None:
        connection = HTTPConnection("127.0.0.1", self._web_port, timeout=LIMIT_S)
        try:
            connection.request("GET", path, headers={"Cookie": f"mqadmin_session={self._session}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (path, answer.status)
        finally:
            connection.close()

    def _metrics(self) -> None:
        """A scrape over the local socket, which needs no token."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(LIMIT_S)
            one.connect(str(self._data / "run" / "web.sock"))
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]

    def _stream(self, stream: str, name: str, frames: int = 3) -> None:
        async def watch() -> None:
            origin = f"http://127.0.0.1:{self._web_port}"
            async with connect(
                f"ws://127.0.0.1:{self._web_port}/ws/v1/",
                additional_headers={"Cookie": f"mqadmin_session={self._session}"},
                origin=origin,
                max_size=None,
            ) as one:
                await one.send(json.dumps({"kind": "subscribe", "stream": stream, "name": name}))
                seen = 0
                async with asyncio.timeout(LIMIT_S):
                    while seen < (1 if stream in ("store.disk", "store.cache", "group.timeline") else frames):
                        seen += sum(frame["stream"] == stream for frame in json.loads(await one.recv()))

        asyncio.run(watch())

    def _ask(self, port: int, command: Command, *, may_be_refused: bool = False) -> Command:
        peer = Peer(port)
        peer.socket.settimeout(LIMIT_S)
        try:
            command.opaque = 1
            answer = peer.ask(command)
            assert may_be_refused or answer.code == 0 or "frame" in (answer.remark or ""), answer
            return answer
        finally:
            peer.socket.close()

    def _make_topic(self) -> None:
        self._made += 1
        values = {
            "topic": f"made-{self._made}",
            "default_topic": "TBW102",
            "read_queue_nums": 4,
            "write_queue_nums": 4,
            "perm": 6,
        }
        self._ask(
            self._port,
            Command.request(R.UPDATE_AND_CREATE_TOPIC, write_header(R.UPDATE_AND_CREATE_TOPIC, **values)),
        )
        time.sleep(2)  # the file is written meanwhile

    def _make_topics(self) -> None:
        self._made += 1
        made = [
            topic_bodies.TopicConfig(f"list-{self._made}-{number}", 4, 4, 6).to_json()
            for number in range(NEW_TOPICS)
        ]
        self._ask(
            self._port,
            Command.request(R.UPDATE_AND_CREATE_TOPIC_LIST, None, fastjson.dumps({"topicConfigList": made})),
        )
        time.sleep(2)

    def _make_group(self) -> None:
        self._made += 1
        self._ask(
            self._port,
            Command.request(
                R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                None,
                fastjson.dumps({"groupName": f"made-{self._made}"}),
            ),
        )
        time.sleep(2)

    def _delete_topic(self) -> None:
        self._made += 1
        self._ask(
            self._port, Command.request(R.DELETE_TOPIC_IN_BROKER, {"topic": name_of(10_001 + self._made)})
        )
        time.sleep(2)

    def _commit(self) -> None:
        self._made += 1
        values = {
            "consumer_group": "many-000002",
            "topic": name_of(2),
            "queue_id": 0,
            "commit_offset": self._made,
        }
        self._ask(
            self._port,
            Command.request(R.UPDATE_CONSUMER_OFFSET, write_header(R.UPDATE_CONSUMER_OFFSET, **values)),
        )
        time.sleep(7)

    @functools.cached_property
    def _registration(self) -> bytes:
        """The body of REGISTER_BROKER, made once: to write it takes a core that the broker needs."""
        topics = {
            f"other-{number:05d}": topic_bodies.TopicConfig(f"other-{number:05d}", 4, 4, 6)
            for number in range(OTHER_TOPICS)
        }
        return registration_body.encode_registration(
            registration_body.Registration(config_json.DataVersion(0, 1, 1), topics)
        )

    def _other_broker(self) -> None:
        body = self._registration
        values = {
            "broker_name": "broker-other",
            "broker_addr": OTHER_BROKER,
            "cluster_name": "Other",
            "broker_id": 0,
        }
        header = {
            **values,
            "ha_server_addr": "127.0.0.1:11000",
            "compressed": False,
            "body_crc32": registration_body.body_crc(body),
        }
        port = int(self._nameserver.rpartition(":")[2])
        peer = Peer(port)
        peer.socket.settimeout(LIMIT_S)
        try:
            for number, command in enumerate([
                Command.request(R.REGISTER_BROKER, write_header(R.REGISTER_BROKER, **header), body),
                Command.request(R.GET_TOPICS_BY_CLUSTER, {"cluster": "Other"}),
                Command.request(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-other"}),
                Command.request(R.UNREGISTER_BROKER, write_header(R.UNREGISTER_BROKER, **values)),
            ]):  # fmt: skip
                command.opaque = number + 1
                answer = peer.ask(command)
                assert answer.code == 0, answer
        finally:
            peer.socket.close()


def visit(visitor: Visitor) -> None:
    """Visit what standard input names, a line each; a line of JSON says how long it took, or why it
    failed."""
    visits = visitor.visits()
    for line in sys.stdin:
        began = time.monotonic()
        try:
            visits[line.strip()]()
            said = {"took_s": time.monotonic() - began}
        except (AssertionError, OSError, TimeoutError) as error:
            said = {"took_s": time.monotonic() - began, "failed": f"{type(error).__name__}: {error!s:.300}"}
        print(json.dumps(said), flush=True)


class Rounds:
    """Sends at RATE, and what the sends of a stretch of time waited."""

    def __init__(self, port: int):
        self._sender = Sender(port)

    def until(self, is_over: Callable[[], bool]) -> list[int]:
        """Send until it is over; the sorted times of these sends."""
        sender, apart_ns = self._sender, 1_000_000_000 // RATE
        due_ns = time.perf_counter_ns()
        while not is_over():
            now_ns = time.perf_counter_ns()
            while due_ns <= now_ns and sender.outstanding < 4 * RATE:
                sender.send(due_ns)
                due_ns += apart_ns
            sender.read(max(0.0, min(due_ns - time.perf_counter_ns(), apart_ns) / 1e9))
        until_ns = time.perf_counter_ns() + 30_000_000_000
        while sender.outstanding and time.perf_counter_ns() < until_ns:
            sender.read(1.0)
        times, sender.took_ns = sorted(sender.took_ns), []
        return times

    @property
    def refused(self) -> int:
        return self._sender.refused


def measure(words: list[str], port: int, wanted: list[str]) -> None:
    rounds = Rounds(port)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.many", "visit", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )

    def quiet() -> list[int]:
        end = time.monotonic() + QUIET_S
        return rounds.until(lambda: time.monotonic() > end)

    try:
        quiet()
        print(json.dumps(line_of("nothing", [quiet() for _ in range(ROUNDS)])), flush=True)
        for name in wanted:
            times, took, failed, refused = [], [], None, rounds.refused
            for _ in range(ROUNDS):
                process.stdin.write(name + "\n")
                process.stdin.flush()
                times.append(rounds.until(lambda: bool(select.select([process.stdout], [], [], 0)[0])))
                said = json.loads(process.stdout.readline())
                took.append(round(said["took_s"], 3))
                failed = said.get("failed", failed)
                quiet()
            print(
                json.dumps(
                    line_of(name, times)
                    | {"took_s": took, "refused": rounds.refused - refused}
                    | ({"failed": failed} if failed else {})
                ),
                flush=True,
            )
    finally:
        process.stdin.close()
        process.wait(LIMIT_S)
        process.stdout.close()


def line_of(name: str, rounds: list[list[int]]) -> dict:
    longest = [round(times[-1] / 1e6, 1) for times in rounds if times]
    of_all = sorted(time_ns for times in rounds for time_ns in times)
    p99, p999 = (round(of_all[len(of_all) * part // 1_000] / 1e6, 2) for part in (990, 999))
    return {
        "what": name,
        "longest_ms": min(longest),
        "longest_of_each_ms": longest,
        "p99_ms": p99,
        "p999_ms": p999,
        "sends": len(of_all),
    }


def main() -> None:
    if sys.argv[1] == "visit":
        os.nice(10)
        arguments = sys.argv[2:]
        visit(Visitor(arguments[0], int(arguments[1]), int(arguments[2]), Path(arguments[3]), arguments[4]))
        return
    if sys.argv[1] == "give":
        give(int(sys.argv[2]), int(sys.argv[3]))
        return
    words, wanted = sys.argv[1:6], sys.argv[6:]
    visitor = Visitor(words[0], int(words[1]), int(words[2]), Path(words[3]), words[4])
    asyncio.run(watched.make_topic(words[0]))
    measure(words, int(words[1]), wanted or list(visitor.visits()))


if __name__ == "__main__":
    main()
