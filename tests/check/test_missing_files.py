"""Whole files or directories of a closed store that are not there: a start and a check say the same of them,
and neither calls the store sound or new."""

import shutil

import pytest

from broker_store.broker.config_readers import READERS
from broker_store.check.doctor import findings_of
from broker_store.check.repair.plan import make_plan
from broker_store.check.report import ERROR, WARNING
from broker_store.check.walk import StoreCheck
from broker_store.engine.start.start_records import StartRecords, last_start
from broker_store.errors import DamagedStoreError
from broker_store.formats import config_json
from broker_store.formats.topics import SCHEDULE_TOPIC
from tests.support.hand_store import HandStore, message, small_settings

TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "delayOffset.json": "offsetTable",
}


@pytest.fixture
def closed(tmp_path):
    """The directory of a store that was closed, its data directory is its parent."""
    store = starting(tmp_path / "store")
    for number in range(60):
        store.appender.put(message("orders", number % 2, b"x" * 200, keys=f"k{number}", unique=f"u{number}"))
    for name, table in TABLES.items():
        store.write_config(
            name,
            config_json.write(
                {"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}, table: {}}
            ).encode(),
        )
    store.close()
    return tmp_path / "store"


def starting(root, **changes) -> HandStore:
    return HandStore(
        small_settings(root, **changes), records=StartRecords(root.parent / "recoveries", root)
    ).begin()


def checked(root, **changes) -> StoreCheck:
    given = {"last_start": last_start(root.parent / "recoveries", root), "config_readers": READERS} | changes
    check = StoreCheck(root, **given)
    check.run()
    findings_of(check.report, root, check.store.is_unclean)  # each kind has a meaning, else KeyError
    return check


def told(check: StoreCheck, kind: str) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in check.report.findings if finding.kind == kind]


def refused(root) -> DamagedStoreError:
    with pytest.raises(DamagedStoreError) as raised:
        starting(root)
    return raised.value


def test_a_whole_store_is_sound(closed):
    assert checked(closed).report.findings == []


@pytest.mark.parametrize("also_gone", [(), ("ends",), ("ends", "checkpoint"), ("consumequeue",)])
def test_a_missing_log_is_an_error_of_the_check_in_the_words_of_the_start(closed, also_gone):
    shutil.rmtree(closed / "commitlog")
    for name in also_gone:
        shutil.rmtree(closed / name) if (closed / name).is_dir() else (closed / name).unlink()
    check = checked(closed)
    assert told(check, "log-missing") == [(ERROR, refused(closed).what)]
    plan = make_plan(check)
    assert (
        (plan.actions, len(plan.left)) == ([], 1)
        and "60 messages are not there" in plan.left[0]
        and "--accept-damage" in plan.left[0]
    )


def test_a_log_of_which_only_the_index_is_left_is_missing(closed):
    """As of a store that was killed before the first round of its checkpoint."""
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(closed / name)
    (closed / "ends").unlink()
    (closed / "checkpoint").write_bytes(bytes(4096))
    check = checked(closed)
    assert (
        told(check, "log-missing") == [(ERROR, refused(closed).what)]
        and "whose messages are in the index" in refused(closed).what
    )
    assert make_plan(check).actions == [] and len(make_plan(check).left) == 1


def test_an_emptied_store_is_an_error_where_a_start_is_recorded_and_an_empty_one_without(closed):
    for path in closed.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    check = checked(closed)
    assert (
        told(check, "log-missing") == [(ERROR, refused(closed).what)]
        and "its disk is not mounted" in refused(closed).what
    )
    assert not check.report.ok and make_plan(check).left
    assert [finding.kind for finding in checked(closed, last_start=None).report.findings] == ["empty"]


def test_a_missing_record_of_ends_is_named_by_start_and_check(closed):
    (closed / "ends").unlink()
    ((severity, what),) = told(checked(closed), "ends-missing")
    assert severity == WARNING and what.startswith(
        "is missing, though each stop writes it and the store was opened at 20"
    )
    assert told(checked(closed, last_start=None), "ends-missing") == []
    store = starting(closed)
    assert [
        (finding["severity"], finding["file"], finding["what"])
        for finding in store.report.as_dict()["findings"]
    ] == [("warning", "ends", what)]
    store.close()
    assert checked(closed).report.findings == []


def test_a_log_that_lost_its_first_file_and_its_record_of_ends_is_no_silent_retention(closed):
    (closed / "ends").unlink()
    first, *_ = sorted((closed / "commitlog").iterdir())
    first.unlink()
    store = starting(closed)
    (found,) = [finding for finding in store.report.as_dict()["findings"] if finding["file"] == "commitlog"]
    assert found["severity"] == "warning" and "were removed by retention or are lost" in found["what"]
    store.close()


def test_tables_of_config_that_are_gone_are_named_by_start_and_check(closed):
    shutil.rmtree(closed / "config")
    # No message was ever delayed
    assert [severity for severity, _ in told(checked(closed), "config-missing")] == [WARNING] * (
        len(TABLES) - 1
    )
    store = starting(closed)
    store.appender.put(message(SCHEDULE_TOPIC, 2, b"x"))
    store.close()
    assert [severity for severity, _ in told(checked(closed), "config-missing")] == [WARNING] * len(TABLES)
    check = checked(closed)
    assert {finding.grade for finding in findings_of(check.report, closed, check.store.is_unclean)} == {
        "lost"
    } and make_plan(check).actions == []
    assert told(checked(closed, last_start=None), "config-missing") == []
    store = starting(closed)
    for name in TABLES:
        gone = READERS[name].gone({SCHEDULE_TOPIC})
        said = store.load_config(name, lambda text: None, when_gone=gone)
        assert said == f"config/{name} {gone}" and "is missing, though each stop writes it" in said
    assert [finding["file"] for finding in store.report.as_dict()["findings"]] == [
        f"config/{name}" for name in TABLES
    ]
    store.close()


def test_after_a_crash_a_table_may_never_have_been_written(closed):
    (closed / "abort").write_text("1")
    shutil.rmtree(closed / "config")
    assert told(checked(closed), "config-missing") == []
    store = starting(closed)
    assert store.load_config("topics.json", lambda text: None, when_gone="gone") is None
    store.close()


@pytest.mark.parametrize("which", [3, 11])  # in the middle of its queue, and its last
def test_a_topic_that_is_one_by_a_damaged_letter_is_not_noted_as_deleted(tmp_path, which):
    root = tmp_path / "store"
    store = HandStore(small_settings(root)).begin()
    for number in range(12):
        store.appender.put(message("orders", number % 2, b"x" * 200))
    table = {"topicName": "orders", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    store.write_config(
        "topics.json",
        config_json.write(
            {
                "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
                "topicConfigTable": {"orders": table},
            }
        ).encode(),
    )
    store.close()
    log = root / "commitlog" / f"{0:020}"
    content, at = bytearray(log.read_bytes()), -1
    for _ in range(which + 1):
        at = content.index(b"orders", at + 1)
    content[at] = ord("q")
    log.write_bytes(content)
    check = checked(root, config_readers={})
    assert "records_of_deleted_topics" not in check.report.counts
    assert [what for _, what in told(check, "queue-offset")] == [
        f"queue offsets {which // 2} to {which // 2} of orders/1 are in no record"
    ]
    whats = [action.what for action in make_plan(check).actions]
    assert any("The record states qrders/1" in what for what in whats) and not any(
        "deleted topics" in what for what in whats
    )
