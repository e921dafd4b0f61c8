"""`manage.py demo --replica` beside a running broker."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys

import pytest

from broker_store.units import fact_of
from mqadmin.facts.replication import ReplicationFacts
from mqadmin.process.rest_client import RestClient
from tests.interop.brokers import OurBroker
from tests.interop.clients import ROOT
from tests.support.ports import free_port

LIMIT_S = 60


@pytest.mark.slow
def test_the_demo_starts_a_slave_that_copies_what_it_sends_and_ends_it(tmp_path):
    broker = OurBroker(tmp_path / "data", arguments=("--web-port", str(free_port()))).start()
    try:
        command = [sys.executable, "manage.py", "demo", "--data", str(broker.data), "--replica", "--json"]
        demo = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"BROKER_DATA_DIR": str(broker.data)},
        )
        with demo, RestClient.of_data_directory(broker.data) as rest:
            try:
                found = None
                while found is None or not found.slaves or found.slaves[0].reported in (None, 0):
                    assert select.select([demo.stdout], [], [], LIMIT_S)[0], "the demo says nothing"
                    assert json.loads(demo.stdout.readline())["sent"] >= 0
                    found = fact_of(ReplicationFacts, rest.get("/store/replication"))
                assert found.slaves[0].in_step and found.ha_port
            finally:
                demo.terminate()
                assert demo.wait(LIMIT_S) == 0
        copied = sum(path.stat().st_size for path in (broker.data / "demo-replica/store/commitlog").iterdir())
        assert copied > 0
    finally:
        broker.stop()
