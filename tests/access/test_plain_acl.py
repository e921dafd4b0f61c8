"""Accounts of Apache 4.9: what becomes of them, what is refused, and that 4.9.8's own decisions stay, but where
5 asks for more."""

from __future__ import annotations

import pytest

from broker_store.access.control import AccessControl
from broker_store.access.denied import Denied
from broker_store.access.plain_acl import MAX_FILE_BYTES, Account, PlainAclError, read_plain_acl
from broker_store.access.signatures import Credentials, signed
from broker_store.access.state import AccessState
from broker_store.access.users import UserType
from tests.access.vectors import DIRECTORY, rows

# The permission that 4.9 does not know, and takes for DENY
UNKNOWN, DENIED = b"topicF=ANY", b"topicF=DENY"
OF_4 = 399  # the version of a client of 4.9.3
NEWER = 453


def golden(name: str) -> bytes:
    return (DIRECTORY / name).read_bytes()


def file_of(*lines: str) -> bytes:
    """Return a file with one account and some more lines of it."""
    return "\n".join(["accounts:", "- accessKey: someone", "  secretKey: a-secret", *lines]).encode()


def one(data: bytes) -> Account:
    (account,) = read_plain_acl(data).accounts
    return account


def rules_of(account: Account) -> list[str]:
    return [f"{policy.type}: {rule.text}" for policy in account.policies for rule in policy.rules]


def control_of_accounts(data: bytes) -> AccessControl:
    state = AccessState()
    for account in read_plain_acl(data).accounts:
        state = state.created(account.user, None)
        for policy in account.policies:
            state = state.with_policies(account.user.name, [policy])
    control = AccessControl(authorizes=True, cluster="DefaultCluster")
    control.take(state)
    return control


# What becomes of accounts


def test_accounts_become_users_with_rules():
    found = read_plain_acl(golden("migration-plain_acl.yml").replace(UNKNOWN, DENIED))
    old, admin, bare = found.accounts
    assert (old.user.name, old.user.secret, old.user.type) == ("RocketMQold", "12345678", UserType.NORMAL)
    assert rules_of(old) == [
        "Custom: Deny All on Topic:topicA",
        "Custom: Allow Pub, Sub on Topic:topicB",
        "Custom: Allow Sub on Topic:topicC",
        "Custom: Allow Sub, Pub on Topic:topicD",
        "Custom: Allow Pub on Topic:topicE",
        "Custom: Deny All on Topic:topicF",
        "Custom: Deny All on Group:groupA",
        "Custom: Allow Pub, Sub on Group:groupB",
        "Default: Deny All on Topic:*",
        "Default: Allow Sub on Group:*",
    ]
    assert (admin.user.type, admin.policies) == (UserType.SUPER, ())
    assert (bare.user.type, bare.policies) == (UserType.NORMAL, ())
    assert [note.partition(";")[0] for note in found.notes] == [
        "line 2: the white address '10.10.103.*' is not taken",
        "line 6: the white address '192.168.0.*' is not taken",
    ]


def test_an_admin_with_permissions_is_bound_by_them():
    account = one(file_of("  admin: true", "  topicPerms:", "  - a=PUB"))
    assert account.user.type == UserType.NORMAL
    assert rules_of(account) == [
        "Custom: Allow Pub on Topic:a",
        "Custom: Allow Create, Delete on Topic:*",
        "Custom: Allow Create, Delete on Group:*",
    ]


def test_a_permission_for_a_name_takes_from_it_what_the_default_allows():
    account = one(file_of("  defaultGroupPerm: PUB|SUB", "  groupPerms: [g=PUB, h=SUB|PUB, i=DENY]"))
    assert rules_of(account)[-2:] == ["Default: Allow Pub, Sub on Group:*", "Default: Deny Sub on Group:g"]


@pytest.mark.parametrize(
    "text", ["", "# nothing", "accounts:", "accounts: []", "dataVersion:\n- counter: 1\n"]
)
def test_a_file_without_accounts_is_one(text):
    assert read_plain_acl(text.encode()).accounts == []


@pytest.mark.parametrize("secret", ["0123456", "1e10000", "'null   '", "12_345_678", "2020-01-01", "yes-yes"])
def test_a_secret_is_the_text_that_stands_there(secret):
    data = f"accounts:\n- {{accessKey: someone, secretKey: {secret}}}".encode()
    assert one(data).user.secret == secret.strip("'")


# What is refused


@pytest.mark.parametrize(
    ("data", "line", "text"),
    [
        (file_of("  topicPerms:", "  - a=ANY"), 5, "'ANY' is not known; expected one of DENY, PUB"),
        (file_of("  topicPerms:", "  - a=pub"), 5, "'pub' is not known"),
        (file_of("  defaultTopicPerm: ALL"), 4, "'ALL' is not known"),
        (file_of("  topicPerms:", "  - a"), 5, "is no permission; expected name=PUB|SUB"),
        (file_of("  topicPerms:", "  - a=PUB=SUB"), 5, "is no permission"),
        (file_of("  topicPerms:", "  - pay*=PUB"), 5, "'pay*' is no name of a topic"),
        (file_of("  topicPerms: [a=PUB, a=DENY]"), 2, "two permissions for Topic:a"),
        (file_of("  topicPerms: PUB"), 4, "expected a list"),
        (file_of("  admin: maybe"), 4, "admin is neither true nor false"),
        (file_of("  admim: true"), 4, "'admim' is not known"),
        (file_of("  admin: true", "  admin: false"), 5, "admin is given twice"),
        (file_of("- accessKey: someone", "  secretKey: a-secret"), 4, "is also at line 2"),
        (b"accounts:\n- accessKey: short\n  secretKey: 12345678", 2, "at least 7 characters"),
        (b"accounts:\n- accessKey: someone", 2, "at least 7 characters"),
        (file_of("  topicPerms: &all", "  - a=PUB"), 4, "anchors and aliases"),
        (b"accounts: *all", 1, "anchors and aliases"),
        (b"accounts: !!python/object/apply:os.system [x]", 1, "tags"),
        (b"accounts: []\n---\naccounts: []", 2, "a second document"),
        (b"accounts: [", 1, "no YAML"),
        (b"- accounts", 1, "expected a map"),
        (b"accounts: " + b"[" * 5_000, 1, "nested more than 6 times"),
        (b"accounts:\n- \xff", 2, "not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_file_that_is_wrong_is_refused_with_its_line(data, line, text):
    with pytest.raises(PlainAclError) as raised:
        read_plain_acl(data)
    assert str(raised.value).startswith(f"line {line}: ") and text in str(raised.value)
    assert "12345678" not in str(raised.value) and "a-secret" not in str(raised.value)


def test_a_file_has_a_largest_size():
    with pytest.raises(PlainAclError, match="1,048,577 bytes, of at most 1,048,576"):
        read_plain_acl(b"#" * (MAX_FILE_BYTES + 1))
    assert read_plain_acl(b"#" * MAX_FILE_BYTES).accounts == []


def test_a_character_that_yaml_does_not_allow_is_refused():
    with pytest.raises(PlainAclError, match="no YAML"):
        read_plain_acl(b"accounts: \x07")


def test_apaches_golden_file_is_refused_for_the_permission_that_nobody_knows():
    with pytest.raises(PlainAclError, match="line 16: the permission 'ANY' is not known"):
        read_plain_acl(golden("acl4-plain_acl.yml"))


# 4.9.8's decisions

# Codes of which 4.9 wants a signature and no permission; 5 has demands on them (docs/spec/access.md).
SIGNATURE_ALONE = {320, 30, 105, 200050, 26, 28, 201, 216, 50, 51, 52, 53, 54, 41, 400, 37, 99999}


def reason_of(row: dict, found: str) -> str | None:
    """Return why an answer differs from that of 4.9.8, None if there is no reason."""
    code, fields = row["code"], row.get("ext") or {}
    if found == "allow":
        is_retry = fields.get("topic", "").startswith("%RETRY%")
        return "an offset of a retry topic is checked by the group" if code == 15 and is_retry else None
    if code in SIGNATURE_ALONE:
        return "4.9 wants a signature alone"
    if row["cat"].startswith("white"):
        return "white addresses need a signature"
    topic = fields.get("b", fields.get("topic", ""))
    if code in (10, 310) and topic == "RMQ_SYS_TRACE_TOPIC":
        return "the trace topic needs a right"
    if code in (10, 12, 310) and topic.startswith("%RETRY%"):
        return "a retry topic counts as its own group, and for 12 as a topic"
    if code in (17, 200):
        return "the request has no names that can be read"
    return "an admin with permissions changes no settings" if code == 25 else None


def test_decisions_of_4_9_stay_after_the_import_or_become_stricter():
    control = control_of_accounts(golden("acl4-plain_acl.yml").replace(UNKNOWN, DENIED))
    wrong, reasons, agree = [], {}, 0
    for row in rows("acl4-decisions.jsonl.gz"):
        found = answer_to(control, row)
        if found == row["result"]:
            agree += 1
            continue
        reason = reason_of(row, found)
        if reason is None:
            wrong.append((found, row))
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    assert wrong == []
    assert (agree, sum(reasons.values())) == (575, 167)
    assert reasons["an offset of a retry topic is checked by the group"] == 1


def answer_to(control: AccessControl, row: dict) -> str:
    body, fields = (row.get("body") or "").encode(), dict(row.get("ext") or {})
    if "accessKey" in row:
        fields = signed(fields, body, Credentials(row["accessKey"], row["secretKey"]), NEWER)
    if "signature" in row:
        fields["Signature"] = row["signature"]
    try:
        control.authenticate(row["code"], fields, body, OF_4)
        control.authorize(row["code"], fields, body, OF_4, row["remote"])
    except Denied:
        return "deny"
    return "allow"
