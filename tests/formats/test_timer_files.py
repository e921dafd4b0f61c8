"""The formats of timer messages, against the files of real brokers."""

import pytest

from broker_store.errors import FormatError
from broker_store.formats import recall_handle, timer_check, timer_log, timer_wheel
from broker_store.formats.java_hash import java_hash
from broker_store.formats.recall_handle import RecallHandle
from broker_store.formats.timer_check import TimerCheck
from broker_store.formats.timer_log import TimerUnit
from tests.support import stores

# (previous, write ms, delay ms, log offset, size, hash of the topic) of each unit, and (time, first, last,
# count) of each slot.
UNITS = {
    "broker-dir": [(-1, 1795247032000, 4000, 19180, 348, 1597051470), (-1, 1795247033000, 5000, 20578, 359, 1597051508)],
    "golden-clean": [
        (-1, 1795244467000, 60000, 523, 300, java_hash("TopicX")),
        (-1, 1795244468000, 58000, 1156, 420, java_hash("rmq_sys_REVIVE_LOG_DefaultCluster")),
        (-1, 1795245700000, 14000, 10992, 420, java_hash("rmq_sys_REVIVE_LOG_DefaultCluster")),
        (104, 1795245700000, 14000, 11412, 424, java_hash("rmq_sys_REVIVE_LOG_DefaultCluster")),
        (156, 1795245700000, 14000, 11836, 422, java_hash("rmq_sys_REVIVE_LOG_DefaultCluster")),
        (-1, 1795245700000, 15000, 12258, 363, java_hash("rmq_sys_REVIVE_LOG_DefaultCluster")),
    ],
}  # fmt: skip
SLOTS = {
    "broker-dir": [(1795247036, 0, 0, 1), (1795247038, 52, 52, 1)],
    "golden-clean": [
        (1795244526, 52, 52, 1),
        (1795244527, 0, 0, 1),
        (1795245714, 104, 208, 3),
        (1795245715, 260, 260, 1),
    ],
}
CHECKS = {
    "broker-dir": TimerCheck(1795247062000, 104, 2, 2, 0, 1795247062457, 30),
    "golden-clean": TimerCheck(1795246161000, 312, 6, 6, 0, 1795246161313, 1539),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_real_brokers_timer_log_is_read_and_written(name, tmp_path):
    (path,) = (stores.unpack(name, tmp_path, timer=True) / "timerlog").iterdir()
    raw = path.read_bytes()
    units = [timer_log.decode(raw, number * timer_log.SIZE) for number in range(len(UNITS[name]))]
    assert [(u.previous, u.write_ms, u.delay_ms, u.log_offset, u.size, u.topic_hash) for u in units] == UNITS[
        name
    ]
    assert all(unit.is_data and not unit.rolls and not unit.deletes for unit in units)
    end = len(units) * timer_log.SIZE
    assert b"".join(map(timer_log.encode, units)) == raw[:end]
    assert not timer_log.decode(raw, end).is_data


@pytest.mark.parametrize("name", SLOTS)
def test_a_real_brokers_wheel_is_read_and_written(name, tmp_path):
    raw = (stores.unpack(name, tmp_path, timer=True) / "timerwheel").read_bytes()
    assert len(raw) == timer_wheel.SLOTS * timer_wheel.SLOT_BYTES
    for wanted in SLOTS[name]:
        at = wanted[0] % timer_wheel.SLOTS * timer_wheel.SLOT_BYTES
        slot = timer_wheel.decode(raw, at)
        assert slot == (*wanted, 0)
        assert timer_wheel.encode(slot) == raw[at : at + timer_wheel.SLOT_BYTES]


def test_what_a_unit_says_of_its_message():
    unit = TimerUnit(52, -1, timer_log.DEFAULT, 5_000, 2_000, 0, 91, 7)
    assert unit.slot_ms == 7_000 and unit.is_data
    assert unit._replace(magic=timer_log.DEFAULT | timer_log.ROLL).rolls
    assert unit._replace(magic=timer_log.DEFAULT | timer_log.DELETE).deletes
    # A request to delete that is rolled goes on first.
    assert not unit._replace(magic=7).deletes
    for damage in ({"unit_size": 51}, {"magic": 0}, {"magic": 17}, {"log_offset": -1}, {"size": 0}):
        assert not unit._replace(**damage).is_data, damage


def test_a_blank_is_no_unit_and_leaves_room_for_itself():
    assert not timer_log.decode(timer_log.encode_blank(67).ljust(52, b"\0")).is_data
    assert timer_log.needs_next_file(67) and not timer_log.needs_next_file(68)
    # 100 MiB, Apache's default, holds 2,016,492 units exactly.
    assert timer_log.last_unit_at(104857600) == 2016491 * 52


@pytest.mark.parametrize("name", ["broker-dir", "golden-clean"])
def test_a_real_brokers_checkpoint_is_read_and_written_and_is_not_ours(name, tmp_path):
    raw = (stores.unpack(name, tmp_path) / "config" / "timercheck").read_bytes()
    check = timer_check.decode(raw)
    assert check == CHECKS[name]
    assert timer_check.encode(check) == raw[:56] and raw[56:] == bytes(4096 - 56)
    assert not timer_check.is_sealed(raw)
    ours = timer_check.encode_page(check)
    assert ours[:56] == raw[:56] and len(ours) == len(raw) and timer_check.is_sealed(ours)
    # Apache's broker changes the longs and nothing else.
    assert not timer_check.is_sealed(timer_check.encode(check._replace(counter=9999)) + ours[56:])


def test_an_old_checkpoint_of_four_longs_is_read():
    assert timer_check.decode(timer_check.encode(TimerCheck(1, 2, 3, 4))[:32]) == TimerCheck(1, 2, 3, 4)
    with pytest.raises(FormatError):
        timer_check.decode(bytes(31))


def test_a_recall_handle_is_the_real_brokers():
    # wire-1.txt, "sendv2 timer": a message whose TIMER_OUT_MS is 1795244527000.
    text = "djEgVG9waWNYIGJyb2tlci1hIDE3OTUyNDQ1MjcwMDEgN0YwMDAwMDEwQTIzMThCNEFBQzIwMDAwMDAwMDAwMDI="
    handle = RecallHandle("TopicX", "broker-a", "1795244527001", "7F0000010A2318B4AAC2000000000002")
    assert recall_handle.encode(handle) == text
    assert recall_handle.decode(text) == recall_handle.decode(text.rstrip("=")) == handle


@pytest.mark.parametrize("text", ["", "x", "!!!!", "djE=", "djIgYSBiIGMgZA==", "é", "\ud800", "/w=="])
def test_what_is_no_handle_is_refused(text):
    with pytest.raises(FormatError, match="recall handle is invalid"):
        recall_handle.decode(text)
