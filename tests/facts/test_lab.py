"""The crash lab: a writer is really killed, a power cut really loses what was not synced, and only the lab's
own store is touched."""

import pytest

from broker_store.engine.start.start_records import StartRecords
from broker_store.errors import MisuseError
from broker_store.facts import recoveries
from broker_store.lab.disk import LabDisk, cut_power
from broker_store.lab.experiment import Experiment
from broker_store.lab.run import _sentence, run
from broker_store.lab.writer import settings
from tests.support.hand_store import HandStore, message


def test_async_flush_and_a_power_cut_lose_what_was_acknowledged_and_not_synced(tmp_path):
    said = []
    found = run(tmp_path, "first", Experiment("before-flush", power_cut="all", messages=40), said.append)
    assert found.acknowledged == found.there + found.lost and found.lost > 0
    assert found.kept_its_word and "the power cut took" in found.sentence and found.check_ok
    assert [lost.message for lost in found.lost_messages][-1] == found.acknowledged - 1
    assert (
        said[:3] == ["writing messages", "the power is cut", "starting again"]
        and "starting again: scan the log" in said
    )
    record = recoveries.one(tmp_path / "recoveries", found.recovery)
    assert (record.purpose, record.kind, record.store) == ("lab", "abnormal", "lab/first/store")
    assert {path.name for path in tmp_path.iterdir()} == {"lab", "recoveries"}


def test_sync_flush_loses_nothing_that_was_acknowledged_though_the_power_fails(tmp_path):
    found = run(tmp_path, "second", Experiment("before-flush", "SYNC_FLUSH", "all", messages=30))
    # It is killed at the sync of the thirtieth message, where that comes after its put was noted, or of the
    # next one.
    assert found.acknowledged in (29, 30) and (found.sent, found.there, found.lost) == (
        found.acknowledged + 1,
        found.acknowledged,
        0,
    )
    assert found.kept_its_word and found.check_ok


def test_a_writer_that_is_killed_as_the_log_goes_on_in_the_next_file_loses_nothing(tmp_path):
    found = run(tmp_path, "third", Experiment("roll", messages=1))
    assert found.killed_in == "00000000000000065536" and found.acknowledged > 100
    # Another thread makes the file: the kill may come between two sends.
    assert found.sent - found.acknowledged in (0, 1)
    assert (found.there, found.lost, found.check_ok, found.check_findings) == (
        found.acknowledged,
        0,
        True,
        0,
    )
    record = recoveries.one(tmp_path / "recoveries", found.recovery)
    assert record.state == "done" and any(tried.file == found.killed_in for tried in record.tried)


def test_a_power_cut_leaves_what_was_synced_and_by_chance_some_of_the_rest(tmp_path):
    def store_at(directory):
        directory.mkdir()
        store = HandStore(
            settings(directory / "store", "ASYNC_FLUSH"),
            disk=LabDisk(directory / "synced", lambda point, file: None),
        ).begin()
        for number in range(60):
            store.appender.put(message("Lab", 0, b"%03d" % number + b"x" * 500))
            if number == 29:
                store.flush()
                store.round()
        store.die()
        return directory

    left = {}
    for cut in ("all", "some"):
        directory = store_at(tmp_path / cut)
        cut_power(
            directory / "store", directory / "synced", Experiment("before-flush", power_cut=cut, seed=4)
        )
        again = HandStore(settings(directory / "store", "ASYNC_FLUSH")).begin()
        left[cut] = again.reads.max_offset("Lab", 0)
        again.close()
    assert left["all"] == 30 < left["some"] <= 60


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../../store"])
def test_it_makes_its_store_nowhere_else(tmp_path, name):
    with pytest.raises((MisuseError, FileNotFoundError)):
        run(tmp_path / "data", name, Experiment("roll"))
    assert not list(tmp_path.rglob("*store*"))


def test_what_was_there_before_is_neither_used_nor_removed(tmp_path):
    (tmp_path / "lab" / "mine").mkdir(parents=True)
    (tmp_path / "lab" / "mine" / "precious").write_text("x")
    with pytest.raises(FileExistsError):
        run(tmp_path, "mine", Experiment("roll"))
    for number in range(5):
        old = tmp_path / "lab" / f"old{number}"
        old.mkdir()
        (old / "this-is-a-crash-lab").touch()
    run(tmp_path, "new", Experiment("before-copy", messages=5))
    assert (tmp_path / "lab" / "mine" / "precious").exists()
    assert (
        len([path for path in (tmp_path / "lab").iterdir() if (path / "this-is-a-crash-lab").exists()]) == 3
    )


@pytest.mark.parametrize(
    "wrong", [{"point": "now"}, {"flush": "NO"}, {"power_cut": "half"}, {"messages": 0}, {"messages": 10**6}]
)
def test_an_experiment_is_checked(wrong):
    with pytest.raises(MisuseError, match="expected"):
        Experiment(**{"point": "roll"} | wrong)


def test_the_record_of_a_lab_run_is_found_by_its_name(tmp_path, settings):
    from mqadmin.views.store.recoveries import facts as kept

    settings.DATA_DIRECTORY = tmp_path
    root = tmp_path / "lab" / "run-1" / "store"
    HandStore(_small(root), records=StartRecords(tmp_path / "recoveries", root)).begin().close()
    assert kept.of_lab("run-1").state == "done" and kept.of_lab("run-2") is None


def _small(root):
    return settings(root, "ASYNC_FLUSH")


@pytest.mark.parametrize(
    ("lost", "extra", "may_lose", "said"),
    [
        (
            0,
            1,
            False,
            "All that was acknowledged is there. 1 message is there although its send was not "
            "answered: its sender would send it again.",
        ),
        (
            0,
            2,
            False,
            "All that was acknowledged is there. 2 messages are there although their sends were not "
            "answered: their senders would send them again.",
        ),
        (1, 0, False, "1 message that was acknowledged is gone, and that must not be."),
        (3, 0, False, "3 messages that were acknowledged are gone, and that must not be."),
    ],
)
def test_the_sentence_of_a_run_counts_one_and_many(lost, extra, may_lose, said):
    assert _sentence(lost, extra, may_lose) == said
