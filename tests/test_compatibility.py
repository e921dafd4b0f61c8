"""docs/COMPATIBILITY.md says of each request code what the code does with it."""

import re
from pathlib import Path

import pytest

from broker_store.nameserver.handlers import NameServer
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from tests.support.broker_harness import Harness

PAGE = Path(__file__).parent.parent / "docs" / "COMPATIBILITY.md"
BROKER, NAME_SERVER, TO_CLIENTS, LATER, NEVER = (
    "Served by the broker", "Served by the name server", "Sent to clients", 'Answered "not supported"', "Left out",
)  # fmt: skip
NOT_SUPPORTED = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def listed() -> dict[str, dict[int, str]]:
    """Heading -> code -> name."""
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    rows = {
        section.partition("\n")[0]: re.findall(r"^\| (\d+) \| `(\w+)` \|", section, re.MULTILINE)
        for section in sections
    }
    return {heading: {int(code): name for code, name in found} for heading, found in rows.items()}


@pytest.fixture
def name_server():
    return NameServer(lambda: 0)


def test_each_code_stands_in_one_list_by_its_name():
    found = listed()
    assert list(found) == [BROKER, NAME_SERVER, TO_CLIENTS, LATER, NEVER]
    together = [(code, name) for section in found.values() for code, name in section.items()]
    assert sorted(together) == sorted((int(code), code.name) for code in RequestCode)


async def test_the_lists_of_what_is_served_are_the_handlers(name_server):
    found, harness = listed(), Harness()
    assert found[BROKER].keys() == harness.router._handlers.keys()
    assert found[NAME_SERVER].keys() == name_server._handlers.keys()


async def test_what_is_not_served_is_answered_so_by_the_broker_and_the_name_server(name_server):
    found, harness = listed(), Harness()
    for heading in (TO_CLIENTS, LATER, NEVER):
        for code in found[heading]:
            assert (await harness.ask(code)).code == NOT_SUPPORTED, (heading, code)
            assert name_server.handle(Command.request(code)).code == NOT_SUPPORTED, (heading, code)


async def test_settings_that_are_not_of_the_list_are_refused_whatever_a_request_says(name_server):
    harness = Harness()
    for code, ask in ((25, harness.router.handle), (318, name_server.handle)):
        for body in (b"", b"maxMessageSize=1\n", b"storePathRootDir=/tmp/x\n", b"traceOn=maybe\n"):
            answer = ask(Command.request(code, None, body), harness.channel)
            assert answer.code == int(ResponseCode.NO_PERMISSION) and "/tmp" not in answer.remark
