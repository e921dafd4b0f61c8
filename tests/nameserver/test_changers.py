"""Which addresses may change a name server (nameServerChangeAddresses)."""

import pytest

from broker_store.assembly import build_name_server
from broker_store.config.name_server import NameServerSettings
from broker_store.errors import ConfigError
from broker_store.nameserver.handlers import CHANGES
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command

READS = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
)


class Connection:
    def __init__(self, remote: str, local: str = "10.0.0.1:9876"):
        self.remote, self.local = remote, local

    def write(self, command):
        raise AssertionError("answers come at once")


def code_of(nameserver, code: int, remote: str) -> int:
    fields = {"namespace": "n", "key": "k", "value": "v", "topic": "T"}
    return nameserver.handle(Command.request(code, fields), Connection(remote)).code


@pytest.fixture
def built(tmp_path):
    def build(given: str = ""):
        return build_name_server(NameServerSettings(name_server_change_addresses=given), tmp_path / "namesrv")

    return build


def test_without_a_list_every_address_may(built):
    assert code_of(built(), RequestCode.PUT_KV_CONFIG, "203.0.113.9:5000") == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("remote", "may"),
    [
        ("10.0.0.7:5000", True),
        ("10.0.1.7:5000", False),
        ("127.0.0.1:5000", True),
        ("[::1]:5000", True),
        ("10.0.0.1:5000", True),
        ("[2001:db8::7]:5000", True),
        ("[2001:db9::7]:5000", False),
        ("[fe80::1%eth0]:5000", False),
    ],
)
def test_named_networks_and_this_machine_may(built, remote, may):
    nameserver = built("10.0.0.0/24, 2001:db8::/32")
    answer = code_of(nameserver, RequestCode.PUT_KV_CONFIG, remote)
    assert answer == (ResponseCode.SUCCESS if may else ResponseCode.NO_PERMISSION)


def test_each_code_that_changes_is_refused_and_counted_and_reads_are_answered(built):
    nameserver, refused = built(), []
    nameserver.changers = ()  # as in a broker that others can reach
    nameserver.refuse = lambda cause, **case: refused.append((cause, case["who"], case["said"]))
    for code in CHANGES:
        assert code_of(nameserver, code, "203.0.113.9:5000") == ResponseCode.NO_PERMISSION
    assert {(cause, who) for cause, who, _ in refused} == {("address may not change", "203.0.113.9:5000")}
    assert {said for _, _, said in refused} == {f"request {code}" for code in CHANGES}
    refused.clear()
    for code in READS:
        assert code_of(nameserver, code, "203.0.113.9:5000") != ResponseCode.NO_PERMISSION
    # The broker in the process has no connection.
    assert (
        nameserver.handle(Command.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "x"})).code
        == 0
    )


def test_a_wrong_list_stops_the_start():
    with pytest.raises(ConfigError, match="nameServerChangeAddresses"):
        NameServerSettings(name_server_change_addresses="10.0.0.300")
