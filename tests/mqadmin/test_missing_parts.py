"""What commands say where the socket of a running broker, or parts of a closed store, are not there."""

import json
import os
import shutil
from io import StringIO

import pytest
from django.core.management import call_command

from broker_store.engine.start.start_records import StartRecords
from mqadmin.process.rest_client import NotRunningError, RestClient
from tests.support.hand_store import HandStore, message, small_settings


def test_a_removed_socket_of_a_running_broker_is_not_taken_for_no_broker(tmp_path):
    (tmp_path / "run").mkdir()
    with (
        RestClient.of_data_directory(tmp_path) as client,
        pytest.raises(NotRunningError, match="no broker answers on .*start one with"),
    ):
        client.get("/store")
    (tmp_path / "run" / "broker.json").write_text(json.dumps({"pid": os.getpid()}))
    with (
        RestClient.of_data_directory(tmp_path) as client,
        pytest.raises(
            NotRunningError, match="the broker runs .* with --no-web, so without the REST interface"
        ),
    ):
        client.get("/store")
    (tmp_path / "run" / "broker.json").write_text(
        json.dumps({"pid": os.getpid(), "web": "http://127.0.0.1:8080"})
    )
    with (
        RestClient.of_data_directory(tmp_path) as client,
        pytest.raises(
            NotRunningError,
            match=f"the broker runs .process {os.getpid()}., but its socket .*web.sock was removed: stop "
            f"the broker and start it again",
        ),
    ):
        client.get("/store")


@pytest.mark.parametrize(
    ("gone", "said", "last"),
    [
        ((), "There is nothing to repair.", "Sound: "),
        (
            ("commitlog",),
            "A repair can do nothing: There is no log file, but the store had a log up to ",
            "Not sound: ",
        ),
        (
            ("commitlog", "consumequeue", "ends", "checkpoint"),
            "A repair can do nothing: Nothing is left of the store that was opened at ",
            "Not sound: ",
        ),
        (("ends",), "warning (next start): ends: is missing, though each stop writes it", "Sound: "),
        (
            ("config",),
            "warning (lost): config/topics.json: is missing, though each stop writes it",
            "Sound, except for what is lost: ",
        ),
    ],
)
def test_check_store_says_what_is_missing_of_a_store_that_was_opened(tmp_path, gone, said, last):
    root = tmp_path / "store"
    store = HandStore(small_settings(root), records=StartRecords(tmp_path / "recoveries", root)).begin()
    store.appender.put(message("orders", 0))
    for name, text in TABLES.items():
        store.write_config(name, text.encode())
    store.close()
    for name in gone:
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
    output = StringIO()
    try:
        call_command("check_store", "--plan", "--data", str(tmp_path), stdout=output)
        assert last.startswith("Sound")
    except SystemExit as error:
        assert error.code == 1 and last == "Not sound: "
    lines = output.getvalue().splitlines()
    assert any(line.startswith(said) for line in lines), lines
    assert lines[-1].startswith(last)


VERSION = '"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}'
TABLES = {
    "topics.json": f'{{{VERSION}, "topicConfigTable": {{}}}}',
    "subscriptionGroup.json": f'{{{VERSION}, "subscriptionGroupTable": {{}}}}',
    "consumerOffset.json": f'{{{VERSION}, "offsetTable": {{}}}}',
    "delayOffset.json": f'{{{VERSION}, "offsetTable": {{}}}}',
}
