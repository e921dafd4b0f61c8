"""Accounts of Apache 4.9 (`plain_acl.yml`) as users and rules of 5.

    accounts:
    - accessKey: RocketMQ        -> user RocketMQ
      secretKey: 12345678        -> its password
      admin: false               -> true: a Super user
      defaultTopicPerm: DENY     -> Default policy: Deny All on Topic:*
      topicPerms:
      - topicB=PUB|SUB           -> Custom policy: Allow Pub, Sub on Topic:topicB

A file is taken as a whole or refused with the line that is wrong. Apache's migration makes Allow All of a
permission that it does not know; 4.9 itself took it for DENY. White addresses let requests pass without a
signature; they are not taken, and a note states so.

A permission for one name takes from it what the default would allow (`_withheld`); Apache's migration leaves
it that.

An admin with topicPerms or groupPerms is bound by them in 4.9, but is a Super user after Apache's migration.
Here it is a Normal user with these permissions, and may create and delete topics and groups.

The text is read as a tree of nodes, in which each scalar is a text: `secretKey: 012345` keeps its zero. Tags,
anchors and aliases are refused, and so are texts beyond the bounds below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml

from broker_store.access.policies import MAX_ENTRIES, Policy, PolicyType, Rule, Verdict
from broker_store.access.resources import Action, Kind, Pattern, Resource
from broker_store.access.state import MAX_USERS, ChangeRefused, check_user
from broker_store.access.users import User, UserType
from broker_store.errors import FormatError

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 6  # of nodes; a file of 4.9 has four
MIN_KEY_CHARACTERS = 7  # of names and secrets, in 4.9
MAX_RESOURCE_CHARACTERS = 255

_PERMISSIONS: dict[str, tuple[Verdict, tuple[Action, ...]]] = {
    "DENY": (Verdict.DENY, (Action.ALL,)),
    "PUB": (Verdict.ALLOW, (Action.PUB,)),
    "SUB": (Verdict.ALLOW, (Action.SUB,)),
    "PUB|SUB": (Verdict.ALLOW, (Action.PUB, Action.SUB)),
    "SUB|PUB": (Verdict.ALLOW, (Action.SUB, Action.PUB)),
}
_FLAGS = {"true": True, "false": False, "": False}
_ABSENT = ("", "~", "null")
_OF_FILE = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}
_OF_ACCOUNT = {
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
}
# What 4.9 lets an admin alone do, as far as it is about topics and groups
_OF_ADMIN = (Action.CREATE, Action.DELETE)


class PlainAclError(FormatError):
    """A file that is not taken. The text has the line, and no secret."""

    cause = "wrong plain_acl.yml"

    def __init__(self, line: int | None, text: str):
        super().__init__(text if line is None else f"line {line}: {text}")


@dataclass(frozen=True, slots=True)
class Account:
    """An account as a user with its rules, and the line where it begins."""

    user: User
    policies: tuple[Policy, ...]
    line: int


@dataclass(slots=True)
class PlainAcl:
    """The accounts of a file, and in sentences what of it is not taken or means something else."""

    accounts: list[Account] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_plain_acl(data: bytes) -> PlainAcl:
    """Return the accounts of a file. Raises PlainAclError."""
    root = _tree(data)
    found = PlainAcl()
    if root is None:
        return found
    members = _members(root, _OF_FILE)
    for node in _items(members.get("globalWhiteRemoteAddresses")):
        found.notes.append(_white(node, _text(node), "each request"))
    lines: dict[str, int] = {}
    for node in _items(members.get("accounts")):
        account = _account(node, found.notes)
        if account.user.name in lines:
            known = lines[account.user.name]
            raise PlainAclError(account.line, f"the account {account.user.name} is also at line {known}")
        lines[account.user.name] = account.line
        found.accounts.append(account)
        if len(found.accounts) > MAX_USERS:
            raise PlainAclError(account.line, f"more than {MAX_USERS} accounts")
    return found


# Nodes


def _tree(data: bytes) -> yaml.Node | None:
    if len(data) > MAX_FILE_BYTES:
        raise PlainAclError(None, f"the file has {len(data):,} bytes, of at most {MAX_FILE_BYTES:,}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PlainAclError(data.count(b"\n", 0, error.start) + 1, "the bytes are not UTF-8") from None
    try:
        _check_events(yaml.parse(text, Loader=yaml.BaseLoader))
        return yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        # The library's own text has the line of the file, which may have a secret.
        mark = error.problem_mark or error.context_mark
        raise PlainAclError(None if mark is None else mark.line + 1, "this is no YAML") from None
    except yaml.YAMLError:
        raise PlainAclError(None, "the file is no YAML: it has characters that YAML does not allow") from None


def _check_events(events: Iterable[yaml.Event]) -> None:
    """Raise PlainAclError for what makes a tree larger than its text, or objects of another kind."""
    depth = documents = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise PlainAclError(line, "anchors and aliases (& and *) are not taken; write the value out")
        if getattr(event, "tag", None) is not None:
            raise PlainAclError(line, "tags (!) are not taken")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise PlainAclError(line, "a second document begins")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise PlainAclError(line, f"lists and maps are nested more than {MAX_DEPTH} times")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def _text(node: yaml.Node | None) -> str:
    """Return the text of a scalar, empty where there is none."""
    if node is None:
        return ""
    if not isinstance(node, yaml.ScalarNode):
        raise PlainAclError(_line(node), "expected a value, and no list or map")
    text: str = node.value
    return "" if node.style is None and text.lower() in _ABSENT else text


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    if node is None or (isinstance(node, yaml.ScalarNode) and not _text(node)):
        return []
    if not isinstance(node, yaml.SequenceNode):
        raise PlainAclError(_line(node), "expected a list")
    items: list[yaml.Node] = node.value
    return items


def _members(node: yaml.Node, known: set[str]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise PlainAclError(_line(node), f"expected a map with {', '.join(sorted(known))}")
    members: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _text(key)
        if name not in known:
            raise PlainAclError(
                _line(key), f"{name[:60]!r} is not known; expected one of {', '.join(sorted(known))}"
            )
        if name in members:
            raise PlainAclError(_line(key), f"{name} is given twice")
        members[name] = value
    return members


# Accounts


def _account(node: yaml.Node, notes: list[str]) -> Account:
    members = _members(node, _OF_ACCOUNT)
    name, secret = _text(members.get("accessKey")), _text(members.get("secretKey"))
    if len(name) < MIN_KEY_CHARACTERS or len(secret) < MIN_KEY_CHARACTERS:
        raise PlainAclError(
            _line(node), f"accessKey and secretKey have at least {MIN_KEY_CHARACTERS} characters each"
        )
    is_admin = _FLAGS.get(_text(members.get("admin")).lower())
    if is_admin is None:
        raise PlainAclError(_line(members["admin"]), "admin is neither true nor false")
    white = _text(members.get("whiteRemoteAddress"))
    if white:
        notes.append(_white(members["whiteRemoteAddress"], white, f"each request of {name}"))
    custom = [
        *(_rule(item, Kind.TOPIC) for item in _items(members.get("topicPerms"))),
        *(_rule(item, Kind.GROUP) for item in _items(members.get("groupPerms"))),
    ]
    _check_once(custom, _line(node))
    if is_admin and not custom:
        return _made(User(name, secret, UserType.SUPER), (), _line(node))
    if is_admin:
        notes.append(
            f"line {_line(node)}: {name} is an admin with permissions of its own, which bind it in 4.9; it "
            f"becomes a Normal user with them, that may create and delete topics and groups"
        )
        custom += [Rule(_all_of(kind), _OF_ADMIN, (), Verdict.ALLOW) for kind in (Kind.TOPIC, Kind.GROUP)]
    defaults = [
        _rule_of(_all_of(kind), members[field_name])
        for kind, field_name in ((Kind.TOPIC, "defaultTopicPerm"), (Kind.GROUP, "defaultGroupPerm"))
        if _text(members.get(field_name))
    ]
    defaults += _withheld(custom, defaults)
    policies = (Policy(PolicyType.CUSTOM, tuple(custom)), Policy(PolicyType.DEFAULT, tuple(defaults)))
    kept = tuple(policy for policy in policies if policy.rules)
    if len(custom) + len(defaults) > MAX_ENTRIES:
        raise PlainAclError(_line(node), f"more than {MAX_ENTRIES} permissions")
    return _made(User(name, secret), kept, _line(node))


def _withheld(custom: list[Rule], defaults: list[Rule]) -> list[Rule]:
    """Return denials of what the default allows and a permission for one name does not.

    In 4.9 a permission for a name stands for the whole of it: groupD=PUB takes from groupD the SUB of the
    default. In 5 each action is searched by itself, first in Custom and then in Default."""
    denials = []
    for rule in custom:
        for default in defaults:
            if default.resource.kind != rule.resource.kind or default.verdict == Verdict.DENY:
                continue
            rest = tuple(action for action in default.actions if action not in rule.actions)
            if rule.verdict == Verdict.ALLOW and rest:
                denials.append(Rule(rule.resource, rest, (), Verdict.DENY))
    return denials


def _made(user: User, policies: tuple[Policy, ...], line: int) -> Account:
    try:
        check_user(user)
    except ChangeRefused as error:
        raise PlainAclError(line, str(error)) from None
    return Account(user, policies, line)


def _check_once(rules: list[Rule], line: int) -> None:
    seen: set[Resource] = set()
    for rule in rules:
        if rule.resource in seen:
            raise PlainAclError(line, f"the account has two permissions for {rule.resource.text}")
        seen.add(rule.resource)


def _rule(node: yaml.Node, kind: Kind) -> Rule:
    text = _text(node)
    name, equals, permission = (part.strip() for part in text.partition("="))
    if not equals or not name or "=" in permission:
        raise PlainAclError(_line(node), f"{text[:60]!r} is no permission; expected name=PUB|SUB")
    if "*" in name or len(name) > MAX_RESOURCE_CHARACTERS or not name.isprintable():
        # In 4.9 a star is a character of a name; in a rule it would stand for many names.
        raise PlainAclError(
            _line(node),
            f"{name[:60]!r} is no name of a {kind.lower()}; * is none, make such a rule yourself",
        )
    return _rule_of(Resource(kind, name), node, permission)


def _rule_of(resource: Resource, node: yaml.Node, permission: str | None = None) -> Rule:
    given = _text(node) if permission is None else permission
    known = _PERMISSIONS.get(given)
    if known is None:
        raise PlainAclError(
            _line(node),
            f"the permission {given[:60]!r} is not known; expected one of {', '.join(_PERMISSIONS)}. "
            f"4.9 took it for DENY",
        )
    verdict, actions = known
    return Rule(resource, actions, (), verdict)


def _all_of(kind: Kind) -> Resource:
    return Resource(kind, "", Pattern.ANY)


def _white(node: yaml.Node, address: str, what: str) -> str:
    return (
        f"line {_line(node)}: the white address {address[:60]!r} is not taken; 4.9 let {what} from it pass "
        f"without a signature"
    )
