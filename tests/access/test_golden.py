"""Access control agrees with what Apache's classes and brokers answered, but where it is safer on purpose."""

from __future__ import annotations

import base64

import pytest

from broker_store.access import demands
from broker_store.access.addresses import is_address_rule, matches
from broker_store.access.control import AccessControl
from broker_store.access.demands import Asked, demands_of
from broker_store.access.denied import FAILED, Denied
from broker_store.access.policies import PolicyError, read_policies
from broker_store.access.resources import Demand, read_actions, read_resource
from broker_store.access.signatures import (
    Credentials,
    read_grpc_credentials,
    signature_of,
    signed,
    signed_content,
)
from broker_store.access.state import AccessState, ChangeRefused, read_subject
from broker_store.access.users import User, UserStatus, UserType
from tests.access.vectors import rows

# Codes that Apache lets every known user send; here they demand a right (docs/COMPATIBILITY.md).
SAFER_CODES = {
    18, 21, 25, 26, 28, 43, 45, 46, 60, 61, 106, 200, 201, 206, 220, 221, 224, 225, 305, 306, 316, 324, 325, 329,
    361, 400, 401, 402, 500, 513, 907, 2001, 2002, 2003, 2004, 200056, 200151,
    # They are not served, or unknown: they demand the right to change the cluster.
    50, 51, 52, 53, 54, 63, 64, 65, 304, 311, 312, 313, 318, 319, 350, 403, 404, 514, 515, 516, 517, 518, 519, 520,
    1005, 1006, 1007, 1009, 1010, 1014, 1015, 1016, 1017, 1018, 99999,
}  # fmt: skip


def control_of(*users: User) -> AccessControl:
    return AccessControl(authorizes=True, cluster="DefaultCluster", first_users=users)


@pytest.mark.parametrize("row", rows("signatures.jsonl"), ids=lambda row: row["name"])
def test_signature_of_a_request_is_apaches(row):
    body = base64.b64decode(row["body64"])
    fields = row["ext"] | {"Signature": row["signature"]}
    is_left_out = row["version"] <= 399 and "_UNIQUE_KEY_QUERY" in fields
    content = signed_content(fields, body, row["version"])
    assert (signature_of(row["secretKey"], content) == row["signature"]) != is_left_out
    control = control_of(User(row["accessKey"], row["secretKey"]))
    try:
        control.authenticate(row["code"], fields, body, row["version"])
        verdict = "ok"
    except Denied as error:
        verdict = str(error)
    assert verdict == row["server"]


def test_what_a_client_signs_is_accepted():
    by = Credentials("someone", "secret", "token")
    fields = signed({"topic": "T", "queueId": "0"}, b"body", by, 513)
    assert fields["AccessKey"] == "someone" and fields["SecurityToken"] == "token"
    control_of(User("someone", "secret")).authenticate(30, fields, b"body", 513)


@pytest.mark.parametrize("row", rows("grpc.jsonl"), ids=lambda row: row["name"])
def test_credentials_of_a_call_are_read_as_by_apache(row):
    control = control_of(User(row["accessKey"], row["secretKey"]))
    try:
        found = read_grpc_credentials(row["authorization"], row["datetime"])
        assert found == (row["username"], row["signatureBase64"])
        control.authenticate_call("", row["authorization"], row["datetime"])
        verdict = "ok"
    except Denied as error:
        verdict = str(error)
    assert verdict == row["server"]


def test_source_addresses_are_apaches_but_those_of_other_blocks_than_are_written():
    wrong, refused = [], set()
    for row in rows("ip.jsonl"):
        if row["rule"] in ("1.2.3/8", "/24"):  # Java reads 1.2.0.3/8 and 127.0.0.1/24
            refused.add((row["rule"], is_address_rule(row["rule"])))
            continue
        is_valid = is_address_rule(row["rule"])
        # A rule that is not valid is refused when it is written, so what it would match does not matter.
        is_match = matches(row["rule"], row["ip"]) if is_valid else row["in"]
        if (is_valid, is_match) != (row["valid"], row["in"]):
            wrong.append(row)
    assert wrong == []
    assert refused == {("1.2.3/8", False), ("/24", False)}


def _decision(row: dict) -> tuple[str, str | None]:
    state = AccessState()
    if row["user"] is not None:
        given = row["user"]
        kind = UserType(given["userType"] or "Normal")
        status = UserStatus(given["userStatus"] or "enable")
        state = state.created(User(given["username"], "secret", kind, status), None)
    try:
        for acl in row["acl"] or []:
            state = state.with_policies(read_subject(acl["subject"]), read_policies(acl["policies"]))
    except (ChangeRefused, PolicyError) as error:
        return "rejected", str(error)
    control = control_of()
    control.take(state)
    resource = read_resource(row["resource"])
    assert resource is not None
    try:
        name = read_subject(row["subject"])
    except ChangeRefused:
        return "deny", FAILED
    decision = control.decision(name, Demand(resource, read_actions(row["actions"])), row["sourceIp"])
    return ("allow", None) if decision.is_allowed else ("deny", decision.reason)


def test_decisions_are_apaches():
    wrong = []
    for row in rows("decisions.jsonl.gz"):
        expected = row["result"], row.get("remark")
        found = _decision(row)
        if found != expected:
            wrong.append((expected, found, row))
    assert wrong == []


def _demands(row: dict) -> list[tuple[str, tuple[str, ...]]] | str:
    body = row["body"].encode() if row["body"] is not None else b""
    try:
        found = demands_of(row["code"], Asked(row["ext"], body, "DefaultCluster"))
    except Denied as error:
        return str(error)
    return sorted((demand.resource.text, tuple(map(str, demand.actions))) for demand in found)


def test_demands_are_apaches_or_more():
    wrong = []
    for row in rows("requests.jsonl.gz"):
        if "AccessKey" not in row["ext"] and row.get("demands") == []:
            continue  # without a user name no request gets this far
        expected = row.get("error") or sorted(
            (demand["resource"], tuple(demand["actions"])) for demand in row["demands"]
        )
        found = _demands(row)
        if expected == [] and (row["code"] in SAFER_CODES or _lacks_its_name(row)):
            if found == []:
                wrong.append(("nothing demanded", row))
        elif found != expected:
            wrong.append((expected, found, row))
    assert wrong == []


def _lacks_its_name(row: dict) -> bool:
    """A code that demands a right on a topic and names none: Apache demands nothing."""
    return "topic" not in row["ext"] and row["code"] in demands._IN_HEADER or row["code"] in (33, 323)
