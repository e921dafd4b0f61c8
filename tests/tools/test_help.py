"""The commands have the names and options of Apache's mqadmin 5.5.0 (tests/golden/mqadmin/help-5.5.0.json)."""

import json
import re
from pathlib import Path

import pytest

from broker_store.tools.command import COMMANDS
from broker_store.tools.run import listing, parser_of

HELP = json.loads((Path(__file__).parent.parent / "golden" / "mqadmin" / "help-5.5.0.json").read_text())
# Commands for what this project leaves out, or for a part that is an issue of its own.
LEFT_OUT = {
    **dict.fromkeys(
        (
            "addBroker",
            "removeBroker",
        ),
        "containers of brokers",
    ),
    **dict.fromkeys(
        (
            "getControllerMetaData",
            "getControllerConfig",
            "updateControllerConfig",
            "electMaster",
            "cleanBrokerMetadata",
            "getSyncStateSet",
            "getBrokerEpoch",
        ),
        "controllers and their replicas",
    ),
    **dict.fromkeys(
        (
            "exportMetadataInRocksDB",
            "rocksDBConfigToJson",
            "checkRocksdbCqWriteProgress",
            "switchTimerEngine",
        ),
        "RocksDB",
    ),
    **dict.fromkeys(
        (
            "getBrokerLiteInfo",
            "getParentTopicInfo",
            "getLiteTopicInfo",
            "getLiteClientInfo",
            "getLiteGroupInfo",
            "triggerLiteDispatch",
        ),
        "light message queues",
    ),
    "dumpCompactionLog": "compaction topics",
    "startMonitoring": "the dashboard shows what it prints",
}
# (command, option) -> why it is not here.
OPTIONS_LEFT_OUT = {
    ("queryMsgById", "u"): "units of clients",
    ("queryMsgById", "c"): "light message queues",
    ("queryMsgByUniqueKey", "c"): "light message queues",
    ("queryMsgByKey", "c"): "light message queues",
    ("queryMsgByKey", "l"): "RocksDB",
    ("queryMsgByKey", "p"): "RocksDB: keys of tags",
    ("queryMsgByOffset", "r"): "light message queues",
    ("printMsg", "l"): "light message queues",
    ("sendMessage", "m"): "a trace needs a client that stays",
    ("haStatus", "i"): "run it again with watch",
}


def options_in(text: str) -> dict[str, str]:
    """Short name -> long name of each option of a help text of commons-cli."""
    found = re.findall(r"^ -(\w+)(?:,--([\w ]+?))?(?: +<arg>| {2,}|$)", text, re.MULTILINE)
    return {short: (long.strip() or short).replace(" ", "") for short, long in found}


def test_each_command_of_apaches_is_here_or_has_a_reason():
    assert HELP.keys() - COMMANDS.keys() == LEFT_OUT.keys()
    assert COMMANDS.keys() <= HELP.keys()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_apaches_options(name):
    here = {
        option.lstrip("-"): max(action.option_strings, key=len).lstrip("-")
        for action in parser_of(COMMANDS[name])._actions
        for option in action.option_strings
        if option.startswith("-") and not option.startswith("--")
    }
    apaches = options_in(HELP[name])
    missing = {short: long for short, long in apaches.items() if short not in here}
    assert {(name, short) for short in missing} <= OPTIONS_LEFT_OUT.keys(), missing
    shared = {"print": "printmsg", "printAsTlog": "printlog", "machineRoom": "machineroom"}
    for short, long in apaches.items():
        if short in here and here[short] != long:
            assert shared.get(here[short]) == long, (short, long, here[short])


def test_the_list_names_each_command_and_the_help_of_one_its_options():
    text = listing()
    assert all(f"   {name} " in text for name in COMMANDS)
    assert "--brokerAddr" in parser_of(COMMANDS["updateTopic"]).format_help()
