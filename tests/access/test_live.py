"""Requests in order, with the answers of a broker of Apache's: ours gives the same, but where it is safer."""

from __future__ import annotations

import asyncio
import json

from broker_store.access.signatures import Credentials, signed
from broker_store.protocol.command import VERSION, Command
from tests.access.vectors import rows
from tests.support.broker_harness import FakeChannel, Harness

SETTINGS = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username": "rocketmq", "password": "12345678"}',
    "inner_client_authentication_credentials": '{"accessKey": "inner", "secretKey": "inner-secret"}',
}
# Of users that are made by requests of the vectors
SECRETS = {"rocketmq": "12345678", "inner": "inner-secret"}
# Where ours is safer (docs/COMPATIBILITY.md): Apache lets each known user do this.
REFUSED_HERE = {
    "lite pull": "norm",
    "get broker config by normal": "norm",
    "update broker config by normal": "norm",
    "create group by normal": "norm",
    "runtime info by normal": "norm",
    "all topic config by normal": "norm",
    "all groups by normal": "norm",
    "create topic list by normal": "norm",
    "reply message by normal": "norm",
    "consumer offsets by normal": "norm",
    "batch ack by normal": "norm",
}
# Apache names a class of its own.
OTHER_WORDS = {"create without body", "create acl no body", "create acl empty policies"}


class Broker:
    """A broker with access control, and the secrets of the users that the vectors make."""

    def __init__(self, **settings):
        self.harness = Harness(**SETTINGS, **settings)
        self.channels: dict[str, FakeChannel] = {}
        self.secrets = dict(SECRETS)
        self._opaque = 0

    async def ask(self, row: dict, *, channel: str = "", secret: str | None = None) -> Command:
        """Send the request of a row, signed by its user unless it has a signature of its own."""
        fields = None if row["ext"] is None else {name: _text(value) for name, value in row["ext"].items()}
        given = row["body"]
        body = b"" if given is None else (given if isinstance(given, str) else json.dumps(given)).encode()
        if row["user"] is not None:
            secret = secret or self.secrets.get(row["user"], "x")
            fields = signed(fields, body, Credentials(row["user"], secret), VERSION)
            if "signature" in row:
                fields["Signature"] = row["signature"]
        self._opaque += 1
        connection = self.channels.setdefault(channel, FakeChannel())
        command = Command.request(row["code"], fields, body, opaque=self._opaque)
        answer = self.harness.router.handle(command, connection)
        for _ in range(2_000):
            if answer is not None:
                return answer
            answer = next((one for one in connection.answers if one.opaque == self._opaque), None)
            await asyncio.sleep(0.001)
        raise AssertionError(f"no answer to {row['name']}")

    def note_secrets(self, row: dict) -> None:
        if row["code"] in (3001, 3002) and isinstance(row["body"], dict) and row["body"].get("password"):
            self.secrets[row["ext"]["username"]] = row["body"]["password"]


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _without_passwords(text: str | None) -> object:
    value = None if text is None else json.loads(text)
    for user in value if isinstance(value, list) else [value]:
        if isinstance(user, dict):
            user.pop("password", None)
    return value


def _difference(row: dict, answer: Command) -> str | None:
    expected = row["response"]
    if REFUSED_HERE.get(row["name"]) == row["user"]:
        return None if answer.code == 16 else "allowed"
    if answer.code != expected["code"]:
        return f"code {answer.code} {answer.remark}"
    if answer.code and row["name"] not in OTHER_WORDS and row["code"] not in (11, 324, 361):
        if answer.remark != expected["remark"]:
            return f"remark {answer.remark}"
    if 3001 <= row["code"] <= 3010:
        found = answer.body.decode() or None
        if expected["remark"] != answer.remark and row["name"] not in OTHER_WORDS:
            return f"remark {answer.remark}"
        if (None if found is None else json.loads(found)) != _without_passwords(expected["body"]):
            return f"body {found}"
    return None


def test_answers_are_those_of_a_broker_of_apaches():
    async def compare() -> list[tuple[str, str]]:
        broker = Broker()
        wrong = []
        for row in rows("live.jsonl"):
            answer = await broker.ask(row)
            if (difference := _difference(row, answer)) is not None:
                wrong.append((row["name"], difference))
            if not answer.code:
                broker.note_secrets(row)
        return wrong

    assert asyncio.run(compare()) == []


# Apache's answer to these is unsafe: it takes a name without a proof, and remembers a result for a minute.
SAFER_WHEN_STATEFUL = {
    "30, wrong secret of super": "check signature failed.",
    "stateful: right signature afterwards, same connection": None,  # the wrong one before is not remembered
    "stateful: wrong signature afterwards, same connection": "check signature failed.",
    "stateful: still allowed on that connection": (
        "User:bare1234 has no permission to access Topic:T1 from 127.0.0.1, no matched policies."
    ),
    "disabled user, old connection": "User:bare1234 is disabled.",
}
# The import of plain_acl.yml is not there.
MIGRATED = {"migrated users", "migrated acls"}


def test_white_lists_and_stateful_strategies_answer_as_apaches_or_more_safely():
    async def compare() -> list[tuple[str, str]]:
        broker = Broker(authentication_whitelist="30, 32", authorization_whitelist="31,32")
        broker.secrets["bare1234"] = "abcdefgh"
        create = {"code": 3001, "ext": {"username": "bare1234"}, "body": {"password": "abcdefgh"}}
        assert (await broker.ask({"user": "rocketmq", "name": "", **create})).code == 0
        wrong = []
        for row in rows("live-stateful.jsonl"):
            if row["name"] in MIGRATED:
                continue
            secret = "wrong" if "wrong" in row["name"] else None
            answer = await broker.ask(row, secret=secret)
            expected = row["response"]["remark"] if row["response"]["code"] else None
            expected = SAFER_WHEN_STATEFUL.get(row["name"], expected)
            if (answer.remark if answer.code else None) != expected:
                wrong.append((row["name"], answer.code, answer.remark))
        return wrong

    assert asyncio.run(compare()) == []
