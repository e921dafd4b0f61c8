"""What a member and a controller of Apache's say to each other, by what a real one said."""

import json
from pathlib import Path

import pytest

from broker_store.errors import FieldError, ProtocolError
from broker_store.formats.epochs import Epoch
from broker_store.protocol import controller_bodies, fastjson, ha_epochs
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command
from broker_store.protocol.controller_bodies import Assignment, SyncStateSet
from broker_store.protocol.ha_epochs import FrameHead, Greeting, History
from broker_store.protocol.headers import read_header, write_header

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "golden" / "controller" / "live.jsonl")
    .read_text()
    .splitlines()
]
ASKED = {line["name"]: line for line in LINES if "name" in line}
SAID = [line["ha"] for line in LINES if "ha" in line]


def answer_to(name):
    response = ASKED[name]["response"]
    body = response["body"].encode() if response["body"] else b""
    return Command.request(response["code"], response["ext"], body)


NOT_USED = (R.CLEAN_BROKER_DATA, R.NOTIFY_BROKER_ROLE_CHANGED)
WITH_HEADER = [line for line in LINES if line.get("ext") and line["code"] not in NOT_USED]


@pytest.mark.parametrize("line", WITH_HEADER, ids=lambda line: line["name"])
def test_headers_are_read_and_written_as_a_real_controller_takes_them(line):
    fields = {name: str(value) for name, value in line["ext"].items()}
    header = read_header(line["code"], fields)
    assert write_header(line["code"], **header._asdict()) == fields


def test_who_is_the_master_is_read_from_each_answer():
    expected = Assignment(1, "127.0.0.1:10911", 1, SyncStateSet(frozenset({1}), 3))
    for name in ("replica info of the real broker", "register 3", "elect 3, master alive"):
        assert controller_bodies.read_assignment(answer_to(name)) == expected, name
    none = controller_bodies.read_assignment(answer_to("replica info unknown"))
    assert none.master is None and none.members == SyncStateSet(frozenset(), 0)
    assert controller_bodies.read_leader(answer_to("metadata").fields) == "127.0.0.1:9878"
    assert controller_bodies.read_leader({"controllerLeaderAddress": ""}) is None


def test_a_set_is_written_and_read_as_a_real_controller_does():
    asked = ASKED["alter: good"]
    body = controller_bodies.write_set({3, 1}, 3)
    assert fastjson.loads(body) == asked["body"]
    assert controller_bodies.read_set(answer_to("alter: good").body) == SyncStateSet(frozenset({1, 3}), 4)
    with pytest.raises(FieldError):
        controller_bodies.read_set(b'{"syncStateSet":["1"]}')


def test_the_answer_with_epochs_is_that_of_a_real_broker():
    expected = ASKED["epoch cache"]["response"]["body"].encode()
    written = controller_bodies.write_epochs("DefaultCluster", "broker-a", 0, [Epoch(1, 0)], 452)
    assert written == expected


def test_what_a_real_slave_and_master_said_is_read_and_written():
    greeting, head, entries, first, frame, ack, heartbeat = (bytes.fromhex(line[1]) for line in SAID[:7])
    assert ha_epochs.write_greeting(Greeting(3)) == greeting
    assert ha_epochs.take_greeting(bytearray(greeting)) == Greeting(3)
    assert ha_epochs.history_bytes(head) == len(entries)
    assert ha_epochs.read_history(head, entries) == History((Epoch(1, 0),), 904)
    assert ha_epochs.write_history([Epoch(1, 0)], 904) == head + entries
    assert (ha_epochs.write_report(0), ha_epochs.write_report(904)) == (first, ack)
    assert ha_epochs.read_frame_head(frame) == FrameHead(904, 0, Epoch(1, 0), 904)
    assert ha_epochs.write_frame_head(904, 0, Epoch(1, 0), 904) == frame
    assert ha_epochs.read_frame_head(heartbeat) == FrameHead(0, 904, Epoch(1, 0), 904)


def test_a_greeting_and_reports_are_taken_when_they_are_whole():
    received = bytearray(ha_epochs.write_greeting(Greeting(2, True, True))[:15])
    assert ha_epochs.take_greeting(received) is None and len(received) == 15
    received += b"\x02" + ha_epochs.write_report(5) + ha_epochs.write_report(9) + b"\0\0"
    assert ha_epochs.take_greeting(received) == Greeting(2, True, True)
    assert ha_epochs.last_report(received) == 9
    assert received == b"\0\0" and ha_epochs.last_report(received) is None


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (ha_epochs.take_greeting, bytearray(16)),
        (ha_epochs.last_report, bytearray(ha_epochs.write_greeting(Greeting(2)))),
        (ha_epochs.history_bytes, ha_epochs.HISTORY_HEAD.pack(1, 13, 0, 0)),
        (ha_epochs.history_bytes, ha_epochs.HISTORY_HEAD.pack(1, 12 * 1_001, 0, 0)),
        (ha_epochs.history_bytes, ha_epochs.HISTORY_HEAD.pack(1, -12, 0, 0)),
        (ha_epochs.history_bytes, ha_epochs.HISTORY_HEAD.pack(2, 12, 0, 0)),
        (ha_epochs.read_frame_head, ha_epochs.FRAME_HEAD.pack(1, 0, 0, 1, 0, 0)),
        (ha_epochs.read_frame_head, ha_epochs.FRAME_HEAD.pack(2, -1, 0, 1, 0, 0)),
        (ha_epochs.read_frame_head, ha_epochs.FRAME_HEAD.pack(2, 5 << 20, 0, 1, 0, 0)),
        (ha_epochs.read_frame_head, ha_epochs.FRAME_HEAD.pack(2, 1, -1, 1, 0, 0)),
    ],
)
def test_foreign_bytes_are_refused(read, raw):
    with pytest.raises(ProtocolError):
        read(raw)
