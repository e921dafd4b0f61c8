"""5,000 topics whose 8 queues each have a message: what their broker takes of memory, maps and descriptors.

`fill` writes the topics before a broker opens the store, `give` sends the messages, and sends again what is
answered "busy": at the limit of maps first messages of queues wait until other queues are on the disk.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

from broker_store.formats import config_json
from broker_store.protocol import topic_bodies
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import SendHeader, write_send
from tests.bench.parked import Peer

TOPICS, QUEUES = 5_000, 8
UNANSWERED = 32
LIMIT_S = 60
BUSY = 2


def name_of(number: int) -> str:
    return f"filled-{number:05d}"


def fill(store: Path, topics: int = TOPICS) -> None:
    """Write config/topics.json of a store that no broker has opened."""
    directory = store / "config"
    directory.mkdir(parents=True)
    names = [name_of(number) for number in range(topics)]
    configs = {name: topic_bodies.TopicConfig(name, QUEUES, QUEUES, 6).to_json() for name in names}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    (directory / "topics.json").write_text(
        config_json.write({"dataVersion": version, "topicConfigTable": configs})
    )


def give(port: int, topics: int = TOPICS) -> int:
    """Send one message to each queue; return how many answers were "busy"."""
    peer, parser, busy = Peer(port), Connection(), 0
    peer.socket.settimeout(LIMIT_S)
    left = deque((number, queue) for number in range(topics) for queue in range(QUEUES))
    try:
        while left:
            sent = [left.popleft() for _ in range(min(UNANSWERED, len(left)))]
            peer.socket.sendall(b"".join(_frame(*one, opaque) for opaque, one in enumerate(sent)))
            waiting = len(sent)
            while waiting:
                for answer in parser.receive(peer.socket.recv(1 << 18)):
                    waiting -= 1
                    assert answer.code in (0, BUSY), answer
                    if answer.code == BUSY:
                        busy += 1
                        left.append(sent[answer.opaque])
    finally:
        peer.socket.close()
    return busy


def _frame(number: int, queue: int, opaque: int) -> bytes:
    unique = f"UNIQ_KEY\x01{number * QUEUES + queue:032X}\x02"
    header = SendHeader(
        "BenchGroup",
        name_of(number),
        "TBW102",
        4,
        queue,
        0,
        int(time.time() * 1000),
        0,
        unique,
        0,
        False,
        None,
        False,
    )
    return encode_frame(
        Command.request(int(RequestCode.SEND_MESSAGE_V2), write_send(header), b"x" * 100, opaque=opaque)
    )


def facts(pid: int) -> dict[str, float]:
    """Return MB of a process by kind, its maps and its descriptors."""
    proc = Path(f"/proc/{pid}")
    sizes = {
        line.split(":")[0]: int(line.split()[1]) / 1000
        for line in (proc / "status").read_text().splitlines()
        if line.startswith(("RssAnon", "RssFile", "VmPTE"))
    }
    return {
        "anonymous_mb": sizes["RssAnon"],
        "file_mb": sizes["RssFile"],
        "page_tables_mb": sizes["VmPTE"],
        "maps": len((proc / "maps").read_text().splitlines()),
        "descriptors": len(os.listdir(proc / "fd")),
    }
