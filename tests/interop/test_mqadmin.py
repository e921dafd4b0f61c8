"""Apache's mqadmin against our broker, and ours against brokers of either kind, field by field.

The golden file is a round of Apache's mqadmin 5.5.0 at Apache's broker 5.5.0; `UPDATE=1` with the marked test
writes it again.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.interop.mqadmin_session import apaches, ours, round_of

GOLDEN = Path(__file__).parent.parent / "golden" / "mqadmin" / "round-5.5.0.json"
# Command -> why what it prints of our broker differs from what it prints of Apache's (docs/MQADMIN.md).
OF_OUR_BROKER = {
    "topicList": "no topics of RocksDB",
    "topicList -c": "no topics of RocksDB",
    "brokerStatus -b BROKER": "two keys of Apache's other versions too",
    "brokerStatus -c DefaultCluster": "two keys of Apache's other versions too",
    "getBrokerConfig -b BROKER": "the settings that act here",
    "getBrokerConfig -c DefaultCluster": "the settings that act here",
    "getNamesrvConfig": "the settings that act here",
    "setCommitLogReadAheadMode -b BROKER -m 1": "cold reads are by position",
    "setCommitLogReadAheadMode -c DefaultCluster -m 0": "cold reads are by position",
    "getColdDataFlowCtrInfo -b BROKER": "no limits of cold reads by bytes",
    "getColdDataFlowCtrInfo -b BROKER #2": "no limits of cold reads by bytes",
    "getColdDataFlowCtrInfo -c DefaultCluster": "no limits of cold reads by bytes",
    "updateColdDataFlowCtrGroupConfig -b BROKER -g readers -v 1000": "no limits of cold reads by bytes",
    "file configs.json": "the settings that act here",
}
# Command -> why our tool prints another text than Apache's.
OF_OUR_TOOL = {
    "updateTopic -b BROKER -t Bad -a bad": "the fault is named, not a stack",
    "allocateMQ -t Made -i 10.0.0.1": "in order of the queues; Apache's is in the order of a hash table",
    "exportPopRecord -b BROKER -d true": "Apache's ignores the value of -d and changes what it should not",
}


def differing(one: dict, other: dict) -> dict[str, tuple]:
    assert one.keys() == other.keys()
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


@pytest.fixture
def rounds(tmp_path):
    """A function that runs a round at a new broker of a kind."""
    clients.require(clients.JAVA_5)
    running = []

    def run(kind, *, with_java: bool) -> dict:
        home = tmp_path / str(len(running))
        broker = kind(home / "data").start()
        running.append(broker)
        tool = apaches(clients.java_of(clients.JAVA_5, broker, tmp_path)) if with_java else ours
        return asyncio.run(round_of(tool, broker, home / "files"))

    yield run
    for broker in running:
        broker.end()


def test_apaches_mqadmin_prints_of_our_broker_what_it_prints_of_apaches(rounds):
    found = differing(json.loads(GOLDEN.read_text()), rounds(OurBroker, with_java=True))
    assert found.keys() == OF_OUR_BROKER.keys(), found


def test_our_mqadmin_prints_of_our_broker_what_apaches_prints(rounds):
    found = differing(json.loads(GOLDEN.read_text()), rounds(OurBroker, with_java=False))
    assert found.keys() == OF_OUR_BROKER.keys() | OF_OUR_TOOL.keys(), found


@pytest.mark.proof
def test_our_mqadmin_prints_of_apaches_broker_what_apaches_prints(rounds):
    found = rounds(ApacheBroker, with_java=True)
    if os.environ.get("UPDATE"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert differing(json.loads(GOLDEN.read_text()), found) == {}
    native = differing(found, rounds(ApacheBroker, with_java=False))
    assert native.keys() == OF_OUR_TOOL.keys(), native
