"""The page of replication, its REST resource and its verb: of a master with slaves, and of a slave."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mqadmin.facts.replication import ControllerFacts, EpochFacts, MasterFacts, SlaveLeftFacts
from mqadmin.views.store.replication import verb
from tests.mqadmin.test_threads_page import Command as CommandOfTables

pytestmark = pytest.mark.django_db(transaction=True)


def of_slave(facts, **changes):
    master = MasterFacts(
        ha_address="10.0.0.1:10912",
        broker_address="10.0.0.1:10911",
        connected=True,
        stopped=False,
        error=None,
        received_bytes=5_000_000,
        end=facts.wrote + 500,
        behind_bytes=500,
        silent_ms=40,
        tables_at_ms=1_800_000_000_000,
        tables_error=None,
    )
    return replace(
        facts,
        role="SLAVE",
        ha_port=None,
        slaves=[],
        failover_loses_bytes=None,
        master=replace(master, **changes),
    )


CONTROLLER = ControllerFacts(
    leader="10.0.0.5:9878",
    error=None,
    broker_id=2,
    master_id=1,
    master_address="10.0.0.1:10911",
    master_epoch=7,
    in_sync=[1, 2],
    set_epoch=19,
    counted=[],
    epochs=[EpochFacts(number=1, begin=0), EpochFacts(number=7, begin=4_500_000)],
)


@pytest.fixture
def shown(fake_cluster, client_of_role, monkeypatch):
    """(facts) -> the text of the page that shows them."""

    def show(facts=None):
        if facts is not None:
            monkeypatch.setattr(fake_cluster.store, "replication", lambda: facts)
        return client_of_role("viewer").get("/store/replication/").content.decode()

    return show


def test_a_master_shows_what_each_slave_lacks_and_what_a_failover_loses(shown):
    text = shown()
    assert "10.0.0.2:41022" in text and "no report yet" in text
    assert "4.0 KiB" in text and "A failover now would lose" in text
    assert "its address is none of haSlaveAddresses (2)" in text and "Sends are refused" not in text


def test_a_master_without_its_slaves_says_that_sends_are_refused(shown, fake_cluster):
    facts = replace(fake_cluster.store.replication(), slaves=[], in_step=0, failover_loses_bytes=None)
    text = shown(facts)
    assert "Sends are refused: 0 of the 1 slaves" in text and "all of the log" in text
    assert "No slave is connected" in text


def test_a_slave_that_left_has_its_copy_still(shown, fake_cluster):
    left = SlaveLeftFacts(address="10.0.0.2:41022", at_ms=1_800_000_000_000, reported=100)
    facts = replace(fake_cluster.store.replication(), slaves=[], left=left, failover_loses_bytes=2_048)
    text = shown(facts)
    assert "2.0 KiB" in text and "that the slave which left has not" in text and "all of the log" not in text


def test_a_slave_shows_its_master(shown, fake_cluster):
    text = shown(of_slave(fake_cluster.store.replication()))
    assert "10.0.0.1:10912" in text and "has sent up to here" in text and "<h2>Slaves</h2>" not in text


@pytest.mark.parametrize(
    ("stopped", "words"), [(True, "Nothing is copied any more"), (False, "Nothing is copied now")]
)
def test_a_slave_says_why_it_copies_nothing(stopped, words, shown, fake_cluster):
    facts = of_slave(
        fake_cluster.store.replication(), connected=False, stopped=stopped, error="it is another log"
    )
    assert f"{words}: it is another log" in shown(facts)


def test_rest_gives_the_facts(fake_cluster, client_of_role):
    facts = client_of_role("viewer").get("/api/v1/store/replication").json()
    assert (facts["role"], facts["needed"], len(facts["slaves"])) == ("SYNC_MASTER", 1, 2)
    assert facts["slaves"][1]["reported"] is None and facts["master"] is None


class Command(CommandOfTables):
    def __init__(self, found):
        super().__init__(found)
        self.lines = []

    def write(self, text):
        self.lines.append(text)


def test_the_verb_shows_slaves_or_the_master(fake_cluster, client_of_role, monkeypatch):
    viewer = client_of_role("viewer")
    command = Command(viewer.get("/api/v1/store/replication").json())
    verb.VERBS["replication"](command, {})
    assert command.tables[0][0][0] == "10.0.0.2:41022" and "would lose 4,096 bytes" in command.lines[-1]
    facts = of_slave(fake_cluster.store.replication())
    monkeypatch.setattr(fake_cluster.store, "replication", lambda: facts)
    command = Command(viewer.get("/api/v1/store/replication").json())
    verb.VERBS["replication"](command, {})
    assert command.tables[0][0][:2] == ["10.0.0.1:10912", True] and command.lines[0].startswith("SLAVE")
    command.as_json = True
    verb.VERBS["replication"](command, {})
    assert json.loads(command.tables[-1])["role"] == "SLAVE"
    member = replace(facts, controller=replace(CONTROLLER, error="none leads"))
    monkeypatch.setattr(fake_cluster.store, "replication", lambda: member)
    command = Command(viewer.get("/api/v1/store/replication").json())
    verb.VERBS["replication"](command, {})
    assert "master 1 at 10.0.0.1:10911, epoch 7; sync state set 1, 2 (epoch 19)" in command.lines[1]
    assert "none leads" in command.lines[2] and command.tables[0][1] == [7, 4_500_000]


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, ["id 1", "10.0.0.1:10911, epoch 7", "10.0.0.5:9878 leads", "1, 2", "4,500,000"]),
        ({"counted": [1, 2, 3]}, ["sends wait for 1, 2, 3"]),
        (
            {"error": "no leading controller is found", "broker_id": None, "epochs": []},
            ["no role now: no leading controller is found", "no id yet", "no epoch yet"],
        ),
    ],
)
def test_a_member_shows_who_was_elected_the_set_and_its_epochs(changes, texts, shown, fake_cluster):
    controller = replace(CONTROLLER, **changes)
    text = shown(replace(fake_cluster.store.replication(), controller=controller, needed=5))
    assert [wanted for wanted in texts if wanted not in text] == []
    assert "Sends are refused" not in text
