"""Apache's own DefaultMessageStore (5.5.0) takes each store that the doctor repaired, and finds in it all that
could be read before."""

import hashlib
import shutil
import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.walk import StoreCheck
from broker_store.formats.record import StoredMessage
from tests.interop import clients
from tests.interop.apache_store import said_by_apache
from tests.support import stores
from tests.support.faults import FAULTS, Scene
from tests.support.reference import ReferenceStore, index_keys, walk_log

SIZES = stores.SIZES["crash"]
ASKED = 29  # of so many messages one is looked up by its keys, in each store others
OF_THE_LOG = {"length", "bridge", "create", "restore", "cut"}


class Before:
    """What an archive holds while it is whole: of each message in a queue log offset and digests of record
    and body, and where each key is."""

    def __init__(self, name: str, directory: Path):
        self.root = stores.unpack(name, directory)
        self.reference = ReferenceStore(self.root, SIZES)
        self.records = self.reference.walk.records
        files = dict(self.reference.log_files)
        self.places: dict[tuple[str, int, int], tuple[int, str, str | None]] = {}
        self.keys: dict[tuple[str, str], list[int]] = {}
        for message in self.records:
            base = message.log_offset // SIZES.mapped_file_size_commit_log * SIZES.mapped_file_size_commit_log
            raw = files[base][message.log_offset - base :][: message.size]
            # Java inflates it
            body = zlib.decompress(message.body) if message.is_compressed else message.body
            if message.is_queued:
                self.places[message.topic, message.queue_id, message.queue_offset] = (
                    message.log_offset,
                    _digest(raw),
                    _digest(body) if body else None,
                )
            if index_keys(message):
                for key in dict.fromkeys(message.keys):
                    self.keys.setdefault((message.topic, key), []).append(message.log_offset)


@dataclass(frozen=True)
class Mended:
    """A repaired store, and which messages nothing could bring back. `changed`: a message whose properties
    are others now."""

    name: str
    root: Path
    before: Before
    lost: frozenset[int]
    changed: int | None
    ends_at: int
    placeholders: frozenset[int]
    log_was_changed: bool
    asked: list[tuple[str, str]]


def _digest(content: bytes) -> str:
    return b64encode(hashlib.sha256(content).digest()).decode()


def _is_placeholder(message: StoredMessage) -> bool:
    """Where there was too little room for the reason, it is dashes."""
    return message.raw_properties.startswith(b"REPAIRED\x01") or not (
        message.body or message.raw_properties.strip(b"-")
    )


def _mended(
    number: int, name: str, root: Path, before: Before, lost: frozenset[int], changed: int | None = None
) -> Mended:
    check = StoreCheck(root)
    check.run()
    plan = make_plan(check, SIZES)
    assert plan.left == [], name
    Repair(plan).run()
    log = walk_log(stores.log_bytes(root))
    placeholders = frozenset(message.log_offset for message in log.records if _is_placeholder(message))
    asked = {
        (message.topic, key) for message in before.records[number % ASKED :: ASKED] for key in message.keys
    }
    return Mended(
        name,
        root,
        before,
        lost,
        changed,
        log.end,
        placeholders,
        any(action.kind in OF_THE_LOG for action in plan.actions),
        sorted(asked),
    )


def _mended_stores(directory: Path) -> Iterator[Mended]:
    before = Before("clean-small", directory / "sound")
    for number, (name, fault) in enumerate(FAULTS.items()):
        scene = Scene(
            shutil.copytree(before.root, directory / name.replace(" ", "-") / "store"),
            SIZES,
            before.reference,
        )
        planted = fault(scene)
        if not planted.file.startswith("config/"):
            yield _mended(number, name, scene.root, before, planted.lost, planted.changed)
    before = Before("crash", directory / "halted")
    for number, name in enumerate(stores.variants(), len(FAULTS)):
        root = stores.unpack_variant(name, directory / name)
        sound = {message.log_offset for message in stores.good_records("crash", root)}
        yield _mended(
            number,
            name,
            root,
            before,
            frozenset(message.log_offset for message in before.records if message.log_offset not in sound),
        )


def _crashed(one: Mended) -> Mended:
    """A copy as after a crash without a checkpoint. It is not asked for keys: Apache's names of index files
    are milliseconds, and small ones it overwrites."""
    root = shutil.copytree(one.root, one.root.with_name("crashed"))
    (root / "abort").write_bytes(b"")
    (root / "checkpoint").unlink(missing_ok=True)
    return replace(one, name=f"{one.name}, crashed", root=root, asked=[])


def _complaints(mended: Mended, lines: list[dict]) -> list[str]:
    """What Apache's lines about a store lack or have too much."""
    told = [str(line) for line in lines if "error" in line]
    if not lines[0]["loaded"] or lines[0]["max_log_offset"] != mended.ends_at:
        told.append(f"not read up to {mended.ends_at}: {lines[0]}")
    given = {}
    for line in lines:
        if "offsets" in line:
            if line["offsets"] != list(range(line["min"], line["max"])):
                told.append(f"{line['topic']}/{line['queue']} has a hole")
            found = zip(line["log_offsets"], line["records"], line["bodies"], strict=True)
            given |= {
                (line["topic"], line["queue"], offset): one
                for offset, one in zip(line["offsets"], found, strict=True)
            }
    for place, (log_offset, raw, body) in mended.before.places.items():
        if log_offset not in mended.lost:
            found = given.pop(place, (None, None, None))
            if found != (log_offset, found[1] if log_offset == mended.changed else raw, body):
                told.append(f"{place} is {found}")
    told += [
        f"{place} is at {log_offset}, which is no placeholder"
        for place, (log_offset, _, _) in given.items()
        if log_offset not in mended.placeholders
    ]
    answers = {(line["topic"], line["lookup"]): line["log_offsets"] for line in lines if "lookup" in line}
    gone = {*mended.lost, mended.changed}
    for asked in mended.asked:
        found, wanted = (
            [offset for offset in offsets if offset not in gone]
            for offsets in (answers[asked], mended.before.keys.get(asked, []))
        )
        if found != wanted or mended.lost & set(answers[asked]):
            told.append(f"{asked} gives {answers[asked]}, not {wanted}")
    return told


@pytest.mark.takes(60)
def test_apache_reads_a_mended_store_of_each_fault_and_of_each_crash(tmp_path):
    """Each as the repair left it, closed in order; where the log was changed also as after a crash, when
    Apache reads the whole log.

    Faults of config/ are left out: Apache's store reads nothing there.
    """
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    mended = list(_mended_stores(tmp_path))
    mended += [_crashed(one) for one in mended if one.log_was_changed]
    lookups = "\n".join("".join(f"{topic}\t{key}\n" for topic, key in one.asked) for one in mended)
    lines = said_by_apache(
        [one.root for one in mended], tmp_path, SIZES.overrides() | {"digests": "true"}, lookups
    )
    starts = [number for number, line in enumerate(lines) if "store" in line]
    assert [lines[number]["store"] for number in starts] == [str(one.root) for one in mended]
    complaints = {}
    for one, start, end in zip(mended, starts, [*starts[1:], len(lines)], strict=True):
        if told := _complaints(one, lines[start:end]):
            complaints[one.name] = told[:3]
    assert complaints == {}
    # The one error that is allowed: an entry of the index before the start of the log, where the first file
    # is missing, as after retention.
    errors = [
        line
        for line in (tmp_path / "client.log").read_text().splitlines()
        if " ERROR " in line and not line.endswith("queryMessage exception")
    ]
    assert errors == []
