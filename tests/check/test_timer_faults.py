"""The doctor on what waits for its time: each damage of timer files is named and repaired, nothing is lost, and
nothing delivered comes again."""

import shutil
import struct

import pytest

from broker_store.broker.timer import Timer
from broker_store.check import doctor
from broker_store.check.repair.apply import Repair
from broker_store.check.repair.plan import make_plan
from broker_store.check.timer import SLOTS_PER_READ
from broker_store.check.walk import StoreCheck, check_store
from broker_store.config.store import StoreSettings
from broker_store.formats import properties, record, timer_check, timer_log, timer_wheel
from broker_store.messages import GetRequest, GetStatus, Message
from tests.engine.test_golden_stores import open_store
from tests.support import stores
from tests.support.hand_store import START_MS, Clock, HandStore, small_settings

FILE_BYTES = 4096  # 78 units
COUNT = 200
SECONDS = (2, 20, 30, 40)  # message n waits so long; those of the first second are delivered
FIRST_S = START_MS // 1000


def settings_of(root) -> StoreSettings:
    return small_settings(root, mapped_file_size_timer_log=FILE_BYTES)


def run(store, timer, until_ms):
    """Every step at the time it asks for."""
    while (due_ms := timer.step(store.clock())) is not None and due_ms <= until_ms:
        store.clock.now_ms = max(store.clock(), due_ms)
    store.clock.now_ms = until_ms


def started(root, now_ms):
    store = HandStore(settings_of(root), Clock(now_ms)).begin()
    store.worker("prover").run(now_ms)  # else the first read of a queue file waits for a reader's thread
    timer = Timer(store, clock=store.clock)
    timer.start(["Orders"])
    return store, timer


def stopped(store, timer):
    timer.capture(ending=True)
    store.flush()
    store.timer_files.step(0)
    store.close()


def delivered(store) -> list[int]:
    found, offset = [], 0
    while (result := store.reads.get(GetRequest("Orders", 0, offset, 32))).status is GetStatus.FOUND:
        found += [int(message.body) for message in record.decode_all(result.body)]
        offset = result.next_offset
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = tmp_path_factory.mktemp("timer") / "store"
    store, timer = started(root, START_MS)
    for number in range(COUNT):
        pairs = {"UNIQ_KEY": f"K{number}", "TIMER_DELIVER_MS": str(START_MS + 1000 * SECONDS[number % 4] + 1)}
        message = Message("Orders", 0, b"%d" % number, properties.encode(pairs))
        assert timer.admission.schedule(message, pairs) is None and store.appender.put(message).ok
    run(store, timer, START_MS + 5_000)
    assert sorted(delivered(store)) == list(range(0, COUNT, 4))
    stopped(store, timer)
    return root


@pytest.fixture
def root(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "store")


def poke(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def log_file(root, number=0):
    return root / "timerlog" / f"{number * FILE_BYTES:020d}"


def poke_unit(root, number, name, data):
    poke(log_file(root, number // 78), number % 78 * timer_log.SIZE + timer_log.LAYOUT.offset[name], data)


def slot_at(second):
    return (FIRST_S + second) % timer_wheel.SLOTS * timer_wheel.SLOT_BYTES


def longer(path):
    with open(path, "ab") as file:
        file.write(b"x")


def check_page(root, **changes):
    path = root / "config" / "timercheck"
    path.write_bytes(timer_check.encode_page(timer_check.decode(path.read_bytes())._replace(**changes)))


def never_sure(root):
    """As Apache's page of a timer log that was never flushed, beside one that is damaged."""
    path = root / "config" / "timercheck"
    path.write_bytes(
        timer_check.encode(timer_check.decode(path.read_bytes())._replace(log_flushed=0)).ljust(
            timer_check.FILE_BYTES, b"\0"
        )
    )
    poke_unit(root, 50, "size", struct.pack(">i", 99))


FAULTS = {  # what is done, kind and grade of what must be found
    "wheel of another length": (lambda root: longer(root / "timerwheel"), "timer-wheel", "repair"),
    "wheel of no length": (lambda root: (root / "timerwheel").write_bytes(b""), "empty-file", "next start"),
    "slot that points beyond the log": (
        lambda root: poke(root / "timerwheel", slot_at(20) + 16, struct.pack(">q", 1 << 30)),
        "timer-slot",
        "next start",
    ),
    "slot that points to another second": (
        lambda root: poke(root / "timerwheel", slot_at(20) + 16, struct.pack(">q", 0)),
        "timer-slot",
        "next start",
    ),
    "unit of another second": (
        lambda root: poke_unit(root, COUNT - 3, "delay_ms", struct.pack(">i", 77_000)),
        "timer-unit",
        "repair",
    ),
    "unit of a message that is none": (
        lambda root: poke_unit(root, 50, "log_offset", struct.pack(">q", 1234)),
        "timer-unit",
        "repair",
    ),
    "unit of another size": (
        lambda root: poke_unit(root, 50, "size", struct.pack(">i", 99)),
        "timer-unit",
        "repair",
    ),
    "unit of another size in a log that was never sure": (never_sure, "timer-unit", "repair"),
    "chain to another second": (
        lambda root: poke_unit(root, 50, "previous", struct.pack(">q", 49 * 52)),
        "timer-chain",
        "repair",
    ),
    "chain that is cut": (
        lambda root: poke_unit(root, 50, "previous", struct.pack(">q", -1)),
        "timer-chain",
        "repair",
    ),
    "chain that leads forward": (
        lambda root: poke_unit(root, 50, "previous", struct.pack(">q", 54 * 52)),
        "timer-log",
        "next start",
    ),
    "chain that is a loop": (
        lambda root: poke_unit(root, 50, "previous", struct.pack(">q", 50 * 52)),
        "timer-log",
        "next start",
    ),
    "torn last unit": (
        lambda root: poke_unit(root, COUNT - 1, "unit_size", bytes(20)),
        "timer-log",
        "next start",
    ),
    "file too long": (lambda root: longer(log_file(root, 1)), "file-length", "repair"),
    "file missing in the middle": (lambda root: log_file(root, 1).unlink(), "file-missing", "repair"),
    "last file missing": (lambda root: log_file(root, 2).unlink(), "timer-check", "harmless"),
    "foreign file": (lambda root: (root / "timerlog" / "notes").write_bytes(b"x"), "stray-file", "repair"),
    "timercheck ahead of the queue": (
        lambda root: check_page(root, queue_offset=COUNT + 7),
        "timer-check",
        "harmless",
    ),
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_damage_of_timer_files_is_named_and_mended_and_each_message_comes_once(fault, root):
    plant, kind, grade = FAULTS[fault]
    plant(root)
    check = StoreCheck(root, settings_of(root))
    check.run()
    found = doctor.findings_of(check.report, root, check.store.is_unclean)
    assert (kind, grade) in {(finding.kind, finding.grade) for finding in found}, found
    assert {finding.kind for finding in found} <= {kind, "timer-check", "timer-slot", "timer-chain"}, found
    plan = make_plan(check, settings_of(root))
    assert plan.left == [] and (plan.actions or grade == "harmless")
    Repair(plan).run()
    assert [
        finding for finding in check_store(root, settings_of(root)).findings if finding.severity != "note"
    ] == []
    store, timer = started(root, START_MS + 6_000)
    run(store, timer, START_MS + 45_000)
    assert sorted(delivered(store)) == list(range(COUNT))
    stopped(store, timer)
    assert check_store(root, settings_of(root)).findings == []


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: poke(path, 0, struct.pack(">q", 1 << 50))]
)
def test_when_nobody_knows_what_was_delivered_it_comes_twice_rather_than_never(damage, root):
    damage(root / "config" / "timercheck")
    check = StoreCheck(root, settings_of(root))
    check.run()
    assert set(check.report.kinds) == {"timer-check"}
    Repair(make_plan(check, settings_of(root))).run()
    store, timer = started(root, START_MS + 6_000)
    run(store, timer, START_MS + 45_000)
    assert sorted(delivered(store)) == sorted([*range(COUNT), *range(0, COUNT, 4)])
    stopped(store, timer)


def test_a_sound_store_has_nothing_to_say(root):
    report = check_store(root)
    assert report.findings == [] and report.counts["timer_units"] == COUNT


def test_a_wheel_with_more_wrong_slots_than_are_looked_at_says_that_there_are_more(root):
    content = bytearray((root / "timerwheel").read_bytes())
    round_s = (FIRST_S // timer_wheel.SLOTS + 1) * timer_wheel.SLOTS
    for first, count in ((0, 5_000), (SLOTS_PER_READ, 4_100)):
        for slot in range(first, first + count):
            content[slot * timer_wheel.SLOT_BYTES : (slot + 1) * timer_wheel.SLOT_BYTES] = timer_wheel.encode(
                timer_wheel.TimerSlot(round_s + slot, 1 << 30, 1 << 30, 1)
            )
    (root / "timerwheel").write_bytes(content)
    check = StoreCheck(root, settings_of(root))
    check.run()
    assert check.report.kinds == {"timer-slot": 2 * 4_096, "timer-slots": 1}
    (more,) = [
        finding
        for finding in doctor.findings_of(check.report, root, check.store.is_unclean)
        if finding.kind == "timer-slots"
    ]
    assert (more.grade, more.file, more.offset) == (
        "next start",
        "timerwheel",
        4_096 * timer_wheel.SLOT_BYTES,
    )
    assert (
        "at least 8192 slots are wrong; 908 more that differ from the timer log were not checked" in more.what
    )
    Repair(make_plan(check, settings_of(root))).run()
    assert check_store(root, settings_of(root)).findings == []


def test_a_lost_first_file_of_the_timer_log_is_named_by_the_check(tmp_path):
    root = stores.unpack("golden-clean", tmp_path, timer=True)
    first = root / "timerlog" / f"{0:020d}"
    size = 3 * timer_log.SIZE + timer_log.BLANK.size
    with open_store("golden-clean", root) as store:
        check = store.timer_files.check
        entries = [
            store.timer_files.unit(number * timer_log.SIZE)
            for number in range(check.log_flushed // timer_log.SIZE)
        ]
    assert len(entries) > 3, "too few messages in the fixture"
    units = b"".join(timer_log.LAYOUT.pack(*unit) for unit in entries[3:])
    first.unlink()
    (root / "timerlog" / f"{size:020d}").write_bytes(units[: 3 * timer_log.SIZE].ljust(size, b"\0"))
    found = [
        finding
        for finding in check_store(root).findings
        if finding.kind == "timer-log"
        and "are missing, though the log has messages of theirs" in finding.what
    ]
    assert len(found) == 1
