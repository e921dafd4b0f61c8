"""A file of config/ that is torn is taken from its .bak and said so; when both are bad the start stops for
what messages depend on."""

import json
import os
import random
from pathlib import Path

import pytest

from broker_store.broker import delay, groups, offsets, topics, transaction_metrics
from broker_store.broker.config_readers import READERS
from broker_store.broker.pop import ordered
from broker_store.broker.pop.ordered import OrderedQueues
from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.report import ERROR, NOTE, WARNING
from broker_store.check.walk import StoreCheck
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.engine.config_files import ConfigFiles, read_sound
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.inspect_disk import InspectDisk
from broker_store.engine.queue import tombstones
from broker_store.engine.queue.tombstones import Tombstones
from broker_store.engine.start.report import RecoveryReport
from broker_store.errors import DamagedStoreError
from broker_store.server.parts import build_parts
from tests.support.crash_states import choices, disk_of
from tests.support.hand_store import Clock, HandStore, message, small_settings
from tests.support.memory_store import MemoryStore
from tests.support.name_rules import RULES
from tests.support.simulated_disk import SimulatedDisk

VERSION = '"dataVersion":{"counter":%d,"stateVersion":0,"timestamp":1700000000000}'
# Name -> text; a version and a number are put into it.
FILES = {
    topics.FILE_NAME: '{%s,"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":%%d,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}',
    groups.FILE_NAME: '{%s,"forbiddenTable":{},"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":%%d}}}',
    offsets.FILE_NAME: '{%s,"offsetTable":{"T@g":{0:%%d,1:7},"U@h":{0:3}}}',
    delay.FILE_NAME: '{%s,"offsetTable":{1:%%d,3:9}}',
    transaction_metrics.FILE_NAME: '{%s,"transactionCount":{"T":{"count":%%d,"timeStamp":1700000000000}}}',
}


def text_of(name: str, number: int) -> str:
    return FILES[name] % (VERSION % number) % number


@pytest.fixture
def root(tmp_path):
    (tmp_path / "store" / "config").mkdir(parents=True)
    return tmp_path / "store"


class Tables:
    """What the broker keeps in config/, over a store in memory."""

    def __init__(self):
        clock = Clock()
        parts = build_parts(BrokerSettings(), StoreSettings(), MemoryStore(clock), clock)
        self.take = {
            topics.FILE_NAME: parts.topics.load,
            groups.FILE_NAME: parts.groups.load,
            offsets.FILE_NAME: parts.offsets.load,
            delay.FILE_NAME: parts.delay.load,
            transaction_metrics.FILE_NAME: parts.transactions.metrics.load,
            tombstones.FILE_NAME: Tombstones(None, None, None)._take,
        }
        self._number = {
            topics.FILE_NAME: lambda: (
                parts.topics.to_json()["topicConfigTable"].get("T", {}).get("readQueueNums")
            ),
            groups.FILE_NAME: lambda: (
                parts.groups.to_json()["subscriptionGroupTable"].get("g", {}).get("retryMaxTimes")
            ),
            offsets.FILE_NAME: lambda: parts.offsets.query("g", "T", 0),
            delay.FILE_NAME: lambda: parts.delay._levels[0].offset or None,
            transaction_metrics.FILE_NAME: lambda: parts.transactions.metrics.count("T") or None,
            tombstones.FILE_NAME: lambda: None,  # they are read alone
        }

    def number(self, name: str) -> int | None:
        """The number that `text_of` put into the file; None when nothing was taken over."""
        return self._number[name]()


def load(root, name: str, *, disk=None, is_needed=True) -> tuple[int | None, list[dict]]:
    """(the number that was taken over, the findings)."""
    tables, report = Tables(), RecoveryReport(Clock().now_ms)
    ConfigFiles(disk or Disk(), root, report).load(name, tables.take[name], is_needed=is_needed)
    return tables.number(name), report.findings


def damaged(text: bytes) -> list[bytes]:
    """The file torn at several bytes, empty, zeros, and what is no text or no table."""
    places = sorted({0, 1, 2, len(text) // 4, len(text) // 2, len(text) - 20, len(text) - 2, len(text) - 1})
    torn = [text[:place] for place in places]
    return [
        *torn,
        *(part + bytes(len(text) - len(part)) for part in torn),
        b"\xff" + text,
        b"[1]",
        b"null",
        text[: len(text) // 2] * 2,
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_torn_file_is_taken_from_its_backup_and_kept(root, name):
    path, backup = root / "config" / name, root / "config" / f"{name}.bak"
    for bad in damaged(text_of(name, 8).encode()):
        path.write_bytes(bad)
        backup.write_text(text_of(name, 5))
        number, (finding,) = load(root, name)
        assert (number, finding["severity"], finding["file"]) == (5, "warning", f"config/{name}"), bad
        assert "its .bak is taken" in finding["what"]
        # The next start finds nothing wrong, and the next change does not make the bad file the backup.
        assert load(root, name) == (5, [])
        assert path.read_bytes() == backup.read_bytes()
        kept = [file.read_bytes() for file in (root.parent / "lost+found").glob(f"*/config.{name}")]
        assert not bad or bad in kept


@pytest.mark.parametrize("content", [b"", b"\xff{}", b"{"])
def test_the_advice_of_a_table_stands_for_each_kind_of_damage(root, content):
    (root / "config" / ordered.FILE_NAME).write_bytes(content)
    queues = OrderedQueues(None, None, None, clock=lambda: 0, exists=lambda place: True, in_flight=None)
    with pytest.raises(DamagedStoreError) as raised:
        ConfigFiles(Disk(), root, RecoveryReport(0)).load(ordered.FILE_NAME, queues.load)
    assert raised.value.advice.startswith("Put a sound copy in its place, or remove it and its .bak")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_taken_from_its_backup(root, name):
    assert load(root, name) == (None, [])
    (root / "config" / f"{name}.bak").write_text(text_of(name, 5))
    number, (finding,) = load(root, name)
    assert number == 5 and finding["what"].startswith("is missing; its .bak is taken")


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("backup", [None, b"", b"{", b"[]"])
def test_when_both_are_bad_the_start_stops_and_changes_nothing(root, name, backup):
    for bad in damaged(text_of(name, 8).encode()):
        (root / "config" / name).write_bytes(bad)
        if backup is not None:
            (root / "config" / f"{name}.bak").write_bytes(backup)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        with pytest.raises(DamagedStoreError, match=rf"config/{name}: .*; and {name}\.bak ") as raised:
            load(root, name)
        assert raised.value.advice or name == transaction_metrics.FILE_NAME
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
        number, (finding,) = load(root, name, is_needed=False)  # as the broker reads what is only counted
        assert number is None and "begins without its content" in finding["what"]


# File, its text and its .bak's, what a refused start says of it before its advice.
REFUSED = [
    (topics.FILE_NAME, "[]", "must be an object that holds topicConfigTable: found []"),
    (topics.FILE_NAME, "{}", "must hold topicConfigTable, which is missing"),
    (topics.FILE_NAME, '{"topicConfigTable": 5}', "topicConfigTable must be an object: found 5"),
    (topics.FILE_NAME, '{"topicConfigTable": {"a": 5}}', "a topic needs an object with topicName: found 5"),
    (topics.FILE_NAME, "not JSON", "is not readable as JSON: Expecting value: line 1 column 1 (char 0)"),
    (groups.FILE_NAME, "[]", "must be an object that holds subscriptionGroupTable: found []"),
    (offsets.FILE_NAME, "{}", "must hold offsetTable, which is missing"),
    (offsets.FILE_NAME, '{"offsetTable": {"T@g": 5}}', "T@g must be an object: found 5"),
    (delay.FILE_NAME, "[]", "must be an object that holds offsetTable: found []"),
    (
        transaction_metrics.FILE_NAME,
        "{}",
        "is no table of halves by topic (must hold transactionCount, which is missing)",
    ),
    (
        transaction_metrics.FILE_NAME,
        '{"transactionCount": {"T": 5}}',
        "is no table of halves by topic ('T' needs the integers count and timeStamp: found 5)",
    ),
    (tombstones.FILE_NAME, "[]", "is no JSON table of log offsets by topic (no table: found [])"),
]


@pytest.mark.parametrize(("name", "text", "what"), REFUSED)
def test_a_refusal_says_once_what_is_wrong_and_what_to_do(root, name, text, what):
    for suffix in ("", ".bak"):
        (root / "config" / f"{name}{suffix}").write_text(text)
    with pytest.raises(DamagedStoreError) as raised:
        load(root, name)
    error = f"config/{name}: {what}; and {name}.bak has the same error"
    if name == transaction_metrics.FILE_NAME:
        # Of a file that is not needed: a start goes on and says that it counts again
        assert str(raised.value) == error
    else:
        assert str(raised.value).startswith(f"{error}. Put a sound copy ") and str(raised.value).endswith(".")


WRONG_SHAPES = [
    b"{}",
    b'"x"',
    b'{"topicConfigTable": 5}',
    b'{"topicConfigTable": {"T": 5}}',
    b'{"subscriptionGroupTable": {"g": []}}',
    b'{"offsetTable": {"T": {}}}',
    # fmt: skip
    b'{"offsetTable": {"x": 1}}',
    b'{"offsetTable": {1: "x"}}',
    b'{"transactionCount": {"T": 1}}',
    b'{"dataVersion": 1}',
    b"[" * 100_000,
]


@pytest.mark.quick(5)
@pytest.mark.parametrize("backup", [None, "bad", "good"])
@pytest.mark.parametrize("name", FILES)
def test_a_check_finds_wrong_what_a_start_refuses_and_nothing_else(root, name, backup):
    """With the severity that says whether the start goes on."""
    path, spare = root / "config" / name, root / "config" / f"{name}.bak"
    reader = READERS[name]
    sound = text_of(name, 8).encode()
    for content in (sound, None, *damaged(sound), *WRONG_SHAPES):
        path.unlink(missing_ok=True)
        spare.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        if backup is not None:
            spare.write_bytes(sound if backup == "good" else b"{")
        findings = StoreCheck(root, config_readers=READERS).run().findings
        try:
            load_findings = load(root, name, is_needed=reader.is_needed)[1]
            is_sound = not load_findings
            expected = (
                [] if is_sound else [WARNING if "its .bak is taken" in load_findings[0]["what"] else NOTE]
            )
        except DamagedStoreError:
            expected = [ERROR]
        assert [finding.severity for finding in findings if finding.kind == "config"] == expected, content


@pytest.mark.parametrize("bad", [b"[1]", None], ids=["bad", "missing"])
@pytest.mark.parametrize("name", [*FILES, tombstones.FILE_NAME])
def test_after_a_repair_a_start_reads_a_file_that_was_bad_as_its_backup_was(root, name, bad):
    """The file alone was moved away, and the start was refused because of the .bak."""
    path, spare = root / "config" / name, root / "config" / f"{name}.bak"
    if bad is not None:
        path.write_bytes(bad)
    spare.write_bytes(b"[2]")
    check = StoreCheck(root, config_readers=READERS)
    check.run()
    Repair(make_plan(check, small_settings(root))).run()
    is_needed = name not in READERS or READERS[name].is_needed
    findings = load(root, name, is_needed=is_needed)[1]
    assert findings == [] or not is_needed
    check = StoreCheck(root, config_readers=READERS)
    check.run()
    assert [
        finding for finding in check.report.findings if finding.kind == "config" and finding.severity != NOTE
    ] == []


def test_a_repair_does_not_write_lowered_offsets_into_a_table_that_a_start_refuses(root):
    """It wrote the bad table again after it had moved it away."""
    path = root / "config" / offsets.FILE_NAME
    (root / "config" / topics.FILE_NAME).write_text(text_of(topics.FILE_NAME, 8))
    path.write_text('{"offsetTable":{"T@g":{"0":99},"U":{"0":1}}}')
    check = StoreCheck(root, config_readers=READERS)
    check.run()
    assert {finding.kind for finding in check.report.findings if finding.severity != NOTE} == {
        "config",
        "offset-ahead",
    }
    Repair(make_plan(check, small_settings(root))).run()
    assert not path.exists() and load(root, offsets.FILE_NAME)[1] == []


@pytest.mark.parametrize("kind", ["directory", "fifo", "link"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_refused_before_anything_is_written(root, name, kind):
    path = root / "config" / name
    (root / "config" / f"{name}.bak").write_text(text_of(name, 5))
    path.mkdir() if kind == "directory" else os.mkfifo(path) if kind == "fifo" else path.symlink_to(
        f"{name}.bak"
    )
    names = sorted(path.name for path in root.rglob("*"))
    with pytest.raises(
        DamagedStoreError, match=rf"config/{name}: is no regular file. Move it out of the store"
    ):
        load(root, name, is_needed=READERS[name].is_needed)
    assert sorted(path.name for path in root.rglob("*")) == names
    number, (finding,) = load(root, name, disk=InspectDisk())
    assert number == 5 and finding["what"].startswith("is no regular file; its .bak is taken")
    (found,) = (
        one for one in StoreCheck(root, config_readers=READERS).run().findings if one.file == str(path)
    )
    assert (found.severity, found.kind) == (ERROR, "unreadable")


def test_a_file_that_no_start_reads_is_not_called_an_error(root):
    for name in ("rocksdb.json", "storeTimes.json"):
        (root / "config" / name).write_text("{")
    found = [
        (Path(one.file).name, one.severity, one.what)
        for one in StoreCheck(root, config_readers=READERS).run().findings
        if one.kind == "config"
    ]
    assert [(name, severity) for name, severity, _ in found] == [
        ("rocksdb.json", NOTE),
        ("storeTimes.json", NOTE),
    ]
    assert (
        "this broker does not read the file" in found[0][2]
        and "known only of what the start reads" in found[1][2]
    )


def test_a_directory_in_the_place_of_the_note_of_store_times_is_named_and_ends_no_check(root):
    path = root / "config" / "storeTimes.json"
    path.mkdir()
    (found,) = (
        one for one in StoreCheck(root, config_readers=READERS).run().findings if one.file == str(path)
    )
    assert (found.severity, found.kind, found.what) == (ERROR, "unreadable", "is no regular file")


def test_an_inspection_takes_the_backup_and_changes_nothing(root):
    name = offsets.FILE_NAME
    (root / "config" / name).write_bytes(b"{")
    (root / "config" / f"{name}.bak").write_text(text_of(name, 5))
    number, findings = load(root, name, disk=InspectDisk())
    assert number == 5 and len(findings) == 1
    assert (root / "config" / name).read_bytes() == b"{" and not (root.parent / "lost+found").exists()
    assert read_sound(Disk(), root, name) == text_of(name, 5)
    (root / "config" / f"{name}.bak").write_bytes(b"")
    assert read_sound(Disk(), root, name) == "{"
    assert read_sound(Disk(), root, "none") is None


def test_the_tombstones_of_deleted_topics_are_taken_from_their_backup_by_a_start(root):
    name = "deletedTopics.json"
    store = HandStore(small_settings(root)).begin()
    for topic in ("first", "second"):
        store.appender.put(message(topic))
        store.flush()
        store.delete_topic(topic)
    store.close()
    (root / "config" / name).write_bytes((root / "config" / name).read_bytes()[:-3])
    store = HandStore(small_settings(root)).begin()
    assert set(json.loads(store.read_config(name))) == {"first"}
    (finding,) = [
        finding for finding in store.report.as_dict()["findings"] if finding["file"] == f"config/{name}"
    ]
    assert "its .bak is taken" in finding["what"]
    store.close()


@pytest.mark.quick(1)
@pytest.mark.parametrize("rules", RULES)
def test_whatever_a_power_cut_leaves_of_a_replacement_one_of_the_two_texts_is_there(rules):
    """Each change is acknowledged when it is replaced: no later start may read an older text, or none."""
    clock, rng, name, points = Clock(), random.Random(1), offsets.FILE_NAME, []
    root = small_settings("/data/store").store_path_root_dir
    disk = SimulatedDisk(clock, rules=RULES[rules])
    disk.make_directory(root)
    files = ConfigFiles(disk, root, RecoveryReport(clock.now_ms))
    written = 0

    def note(what: str) -> None:
        points.append((disk.crash_point(what), written))

    disk.on_event = note
    for number in range(1, 6):
        files.write(name, text_of(name, number).encode())
        written = number
        note(f"written {number}")
    opened = 0
    for point, promised in points:
        for choice in choices(point, rng, 20):
            after = disk_of(point, choice, clock)
            number, findings = load(root, name, disk=after)
            assert (number or 0) in (promised, promised + 1), (point.what, choice)
            # A cut may leave the new text without its backup, or the backup alone before the first text:
            # never a bad text.
            assert all(finding["what"].startswith("is missing") for finding in findings), (
                point.what,
                choice,
                findings,
            )
            opened += 1
    assert opened > 200
