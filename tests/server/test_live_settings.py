"""Settings that a request changes while the broker runs: which, when they act, and where they are kept."""

import asyncio
import re
from pathlib import Path

import pytest

from broker_store import assembly
from broker_store.config.broker import BrokerSettings
from broker_store.config.live import CHANGED_FILE, LiveSettings, live_fields, read_changes
from broker_store.config.load import load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.config.store import StoreSettings
from broker_store.errors import ConfigError
from broker_store.protocol.command import Command
from broker_store.server.audited_requests import note_name_server
from broker_store.server.change_records import ChangeRecords
from tests.support.broker_harness import FakeChannel, Harness

SMALL = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "50", "maxIndexNum": "200"}
# Key -> a value other than its default.
OTHER = {
    "autoCreateSubscriptionGroup": "false",
    "autoCreateTopicEnable": "false",
    "brokerPermission": "4",
    "brokerFastFailureEnable": "false",
    "deleteFileBatchMax": "3",
    "deleteWhen": "05;17",
    "enableMixedMessageType": "true",
    "filterSupportRetry": "true",
    "flushConsumerOffsetInterval": "700",
    "litePullMessageEnable": "false",
    "longPollingEnable": "false",
    "notifyConsumerIdsChangedEnable": "false",
    "popFromRetryProbability": "70",
    "popFromRetryProbabilityForPriority": "70",
    "priorityOrderAsc": "false",
    "recallMessageEnable": "true",
    "registerNameServerPeriod": "15000",
    "rejectTransactionMessage": "true",
    "shortPollingTimeMills": "50",
    "storeReplyMessageEnable": "false",
    "traceOn": "false",
    "waitTimeMillsInAdminBrokerQueue": "7",
    "waitTimeMillsInHeartbeatQueue": "7",
    "waitTimeMillsInLitePullQueue": "7",
    "waitTimeMillsInPullQueue": "7",
    "waitTimeMillsInSendQueue": "7",
    "waitTimeMillsInTransactionQueue": "7",
}
OF_NAME_SERVER = {"orderMessageEnable": "true", "returnOrderTopicConfigToBroker": "false"}
# What no request may change: paths, addresses, rights, limits, and what deletes messages earlier.
NEVER = re.compile(
    r"path|directory|addr|port|auth|acl|user|secret|credential|tls|bind|max|size|memory|reserved|ratio|role|"
    r"insecure|proxy|white|strategy|name$|id$|ip1",
    re.IGNORECASE,
)


def test_these_are_the_settings_that_may_be_changed():
    assert live_fields(BrokerSettings, StoreSettings).keys() == OTHER.keys()
    assert live_fields(NameServerSettings).keys() == OF_NAME_SERVER.keys()
    exceptions = {"deleteFileBatchMax", "filterSupportRetry"}
    assert not [key for key in {**OTHER, **OF_NAME_SERVER} if NEVER.search(key) and key not in exceptions]


@pytest.mark.parametrize("key", sorted(OTHER))
async def test_a_change_is_seen_at_once_and_recorded(key):
    harness, records = Harness(), []
    harness.parts.changes.note = lambda record, client_id=lambda: None: records.append(record)
    before = str(harness.parts.properties()[key])
    assert (await harness.ask(25, f"{key}={OTHER[key]}\n".encode())).code == 0
    after = str(harness.parts.properties()[key])
    assert after.lower() == OTHER[key] != before.lower()
    (record,) = records
    assert (record.outcome, record.kind, record.detail["keys"]) == ("done", "config", [key])
    assert str(record.detail["before"]) != str(record.detail["after"])


async def test_what_was_made_of_a_setting_is_made_again():
    harness = Harness()
    await harness.ask(
        25,
        b"traceOn=false\nautoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n"
        b"waitTimeMillsInPullQueue=7\nwaitTimeMillsInSendQueue=9\n",
    )
    parts, router = harness.parts, harness.router
    assert router._limits.limit_ms(11) == 7 and parts.sends._wait_limit_ms == 9
    assert not parts.topics.creates_itself and not parts.groups.creates_itself
    assert b"TRACE_ON\x01false" in router.produce._added


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"traceOn=maybe\n", "traceOn: expected true or false"),
        (b"deleteWhen=24\n", "deleteWhen: expected hours"),
        (b"popFromRetryProbability=101\n", "popFromRetryProbability: expected 0 to 100"),
        (b"fileReservedTime=1\n", "fileReservedTime: it is not changed while it runs"),
        (b"orderMessageEnable=true\n", "orderMessageEnable: it is not changed while it runs"),
        (b"traceOn=false\nbrokerName=x\n", "brokerName: it is not changed while it runs"),
        (b"nosuch=1\n", "nosuch: it is not changed while it runs"),
        (b"nothing", "the body has no key=value"),
    ],
)
async def test_a_request_that_is_wrong_in_one_key_changes_none(body, why):
    harness = Harness()
    answer = await harness.ask(25, body)
    assert answer.code == 16 and answer.remark.startswith(why)
    assert harness.parts.settings.trace_on


def test_a_change_that_cannot_be_written_is_not_made():
    settings = BrokerSettings()

    def fail(_data):
        raise OSError(28, "No space left on device")

    live = LiveSettings((settings,), write=fail)
    with pytest.raises(OSError, match="No space"):
        live.change({"traceOn": "false"}, BrokerSettings)
    assert settings.trace_on


def test_a_key_of_the_command_line_is_not_changed():
    live = LiveSettings((BrokerSettings(),), fixed=("traceOn",))
    with pytest.raises(ConfigError, match="command line"):
        live.change({"traceOn": "false"}, BrokerSettings)


async def test_changes_are_read_by_the_next_start_after_the_file_and_before_the_command_line(tmp_path):
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("traceOn=true\ndeleteWhen=02\n")
    given = SMALL | {"listenPort": "0", "grpcServerPort": "0"}

    def settings(**more):
        return load_settings(conf, given | more, store_root=root)

    process = assembly.BrokerProcess(settings(), with_name_server=False)
    await process.start()
    try:
        live = process.parts.live
        live.change({"traceOn": "false"}, BrokerSettings)
        live.change({"deleteWhen": "05"}, StoreSettings)
    finally:
        await process.stop()
    text = (root / "config" / CHANGED_FILE).read_text()
    assert text.splitlines()[1:] == ["deleteWhen=05", "traceOn=false"]
    again = settings()
    assert (again.broker.trace_on, again.store.delete_when) == (False, "05")
    assert settings(traceOn="true").broker.trace_on
    (root / "config" / CHANGED_FILE).write_text("brokerName=x\n")
    with pytest.raises(ConfigError, match=f"brokerName=x: {re.escape(str(root))}.*no others"):
        settings()


def test_a_name_server_keeps_its_changes_in_its_own_directory(tmp_path):
    server = assembly.build_name_server(NameServerSettings(), tmp_path)
    request = Command.request(318, None, b"orderMessageEnable=true\n")
    assert server.handle(request).code == 0 and server.has_order_topics_in_routes
    assert b"orderMessageEnable=true\n" in server.handle(Command.request(319)).body
    assert (tmp_path / CHANGED_FILE).read_text().endswith("orderMessageEnable=true\n")
    refused = server.handle(Command.request(318, None, b"traceOn=false\n"))
    assert refused.code == 16 and "traceOn" in refused.remark


def at(path):
    return assembly.build_name_server(
        NameServerSettings(), path, kept=read_changes(path / CHANGED_FILE, NameServerSettings)
    )


def test_a_name_server_that_changes_again_keeps_what_it_changed_before(tmp_path):
    at(tmp_path).handle(Command.request(318, None, b"orderMessageEnable=true\n"))
    at(tmp_path).handle(Command.request(318, None, b"returnOrderTopicConfigToBroker=false\n"))
    lines = (tmp_path / CHANGED_FILE).read_text().splitlines()[1:]
    assert lines == ["orderMessageEnable=true", "returnOrderTopicConfigToBroker=false"]


def test_a_change_of_the_name_server_is_recorded_with_the_values_before_and_after(tmp_path):
    server, changes, records = at(tmp_path), ChangeRecords(lambda: 0), []
    changes.note = records.append
    server.answered = lambda *answered: note_name_server(changes, 5, *answered)
    body = b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=true\n"

    async def ask():
        server.handle(Command.request(318, None, body), FakeChannel())
        server.handle(Command.request(318, None, b"listenPort=1\n"), FakeChannel())
        server.handle(Command.request(319, None, b""), FakeChannel())

    asyncio.run(ask())
    done, refused = records
    keys = ["orderMessageEnable", "returnOrderTopicConfigToBroker"]
    assert done.detail == {
        "keys": keys,
        "before": dict(zip(keys, ("False", "True"), strict=True)),
        "after": dict(zip(keys, ("True", "True"), strict=True)),
    }
    assert refused.outcome == "no_permission" and "before" not in refused.detail


async def test_without_access_control_the_brokers_permission_is_changed_from_its_machine_alone():
    harness = Harness()
    from_elsewhere = FakeChannel(address="10.0.0.9")
    answer = await harness.ask(25, b"traceOn=false\nbrokerPermission=4\n", channel=from_elsewhere)
    assert answer.code == 16 and answer.remark.startswith("brokerPermission: without access control")
    assert harness.parts.settings.trace_on and harness.parts.settings.broker_permission == 6
    assert (await harness.ask(25, b"traceOn=false\n", channel=from_elsewhere)).code == 0
    assert (await harness.ask(25, b"brokerPermission=8\n")).remark.startswith("brokerPermission: expected")
    assert (await harness.ask(25, b"brokerPermission=4\n")).code == 0
    assert harness.parts.settings.broker_permission == 4


def test_the_page_marks_them():
    page = (Path(__file__).parent.parent.parent / "docs" / "SETTINGS.md").read_text()
    assert set(re.findall(r"`([\w.]+)` ⟳", page)) == {*OTHER, *OF_NAME_SERVER}
