"""Access control of the broker in this process: its users and their rules.

An administrator of the dashboard may do here what a Super user may do through the broker port. A change is
made as by the port: the file is written first, then it acts on the next request.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Sequence

from broker_store.access import state as users_of_broker
from broker_store.access.addresses import is_address_rule, one_spelling
from broker_store.access.control import AccessControl
from broker_store.access.denied import FAILED
from broker_store.access.imported import Imported, with_imported
from broker_store.access.policies import MAX_RESOURCE_CHARACTERS, MAX_SOURCES, Acl, Policy, Rule, Verdict
from broker_store.access.policies import PolicyType as Type
from broker_store.access.refusals import RefusedOfUser
from broker_store.access.resources import (
    ANYTHING,
    Action,
    Demand,
    Kind,
    Pattern,
    Resource,
    on_cluster,
    on_group,
    on_topic,
    read_actions,
    read_resource,
)
from broker_store.access.state import ChangeRefused
from broker_store.access.users import User
from broker_store.access.users import UserStatus as Status
from broker_store.access.users import UserType as KindOfUser
from broker_store.rest.problems import Problem
from broker_store.server.access_changes import AccessChanges
from broker_store.server.parts import BrokerParts
from mqadmin.cluster.access_protocol import Access
from mqadmin.cluster.embedded.host import Host
from mqadmin.facts.access import (
    AccessAnswer,
    AccessRule,
    AccessState,
    AccessUser,
    AccessUserDetail,
    AccessUsers,
    ImportedUsers,
    PolicyType,
    RefusedRequests,
    UserStatus,
    UserToImport,
    UserType,
)

OFF_HINT = "set authenticationEnabled=true in the settings of the broker, and start it again"
# What a rule may name, and what may be asked about. `Any` and `Unknown` are for requests alone.
KINDS = (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER, Kind.NAMESPACE)
ACTIONS = (Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST)
SHOWN_CHARACTERS = 60  # of a wrong value, in a sentence


class EmbeddedAccess(Access):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    def state(self) -> AccessState:
        parts = self._host.parts
        return state_of(parts.access, parts.cluster, parts.store_settings.inspect)

    def page(self, search: str, begin: int, count: int) -> tuple[list[AccessUser], int]:
        return page_of(self._control(), search, begin, count)

    def after(self, name: str | None, count: int) -> list[AccessUser]:
        return users_after(self._control(), name, count)

    def detail(self, name: str) -> AccessUserDetail:
        return detail_of(self._control(), name)

    def decide(self, name: str, resource: str, action: str, address: str | None) -> AccessAnswer:
        return answer_of(self._control(), name, resource, action, address)

    async def create_user(self, name: str, password: str, kind: UserType, status: UserStatus) -> None:
        await self._changing().create_user(name, password, kind, status)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        await self._changing().update_user(name, password=password, kind=kind, status=status)

    async def delete_user(self, name: str) -> None:
        await self._changing().delete_user(name)

    async def put_rule(self, name: str, rule: AccessRule) -> None:
        await self._changing().put_rule(name, rule)

    async def import_users(self, users: Sequence[UserToImport], dry_run: bool) -> ImportedUsers:
        return await self._changing().import_users(users, dry_run)

    async def delete_rule(self, name: str, policy: PolicyType, resource: str) -> None:
        await self._changing().delete_rule(name, policy, resource)

    def _control(self) -> AccessControl:
        return control_of(self._host.parts)

    def _changing(self) -> Changing:
        parts = self._host.parts
        control_of(parts)
        if parts.store_settings.inspect:
            raise Problem("read_only", "the store is inspected: its users are not read and not changed")
        assert parts.access_changes is not None  # as access control is
        return Changing(parts.access_changes)


def control_of(parts: BrokerParts) -> AccessControl:
    """Return access control. Raises Problem if it is off."""
    if parts.access is None:
        raise off()
    return parts.access


def off() -> Problem:
    """Return the problem of what needs access control while it is off."""
    return Problem("conflict", "access control is off, so there are no users and rules", OFF_HINT)


# What is shown


def state_of(control: AccessControl | None, cluster: str, inspects: bool) -> AccessState:
    if control is None:
        return AccessState(
            authenticates=False,
            authorizes=False,
            inspects=inspects,
            cluster=cluster,
            open_to_all=[],
            open_to_users=[],
            counts=None,
            refusals=[],
        )
    users = control.state.users.values()
    counts = AccessUsers(
        users=len(users),
        super_users=sum(user.is_super for user in users),
        disabled=sum(user.is_disabled for user in users),
        rules=sum(acl.rules for acl in control.state.acls.values()),
    )
    return AccessState(
        authenticates=True,
        authorizes=control.authorizes,
        inspects=inspects,
        cluster=cluster,
        open_to_all=control.open_to_all,
        open_to_users=control.open_to_users,
        counts=None if inspects else counts,
        refusals=list(map(_refused, control.refusals.rows())),
    )


def _refused(row: RefusedOfUser) -> RefusedRequests:
    return RefusedRequests(
        cause=row.cause,
        user=row.user,
        count=row.count,
        at_ms=row.at_ms,
        address=row.address,
        answer=row.text,
    )


def page_of(control: AccessControl, search: str, begin: int, count: int) -> tuple[list[AccessUser], int]:
    wanted = search.lower()
    names = sorted(name for name in control.state.users if wanted in name.lower())
    return [_user(control, name) for name in names[begin : begin + count]], len(names)


def users_after(control: AccessControl, name: str | None, count: int) -> list[AccessUser]:
    names = sorted(control.state.users)
    begin = 0 if name is None else bisect_right(names, name)
    return [_user(control, found) for found in names[begin : begin + count]]


def _user(control: AccessControl, name: str) -> AccessUser:
    user, acl = control.state.users[name], control.state.acls.get(name)
    return AccessUser(
        name=name,
        type="Super" if user.is_super else "Normal",
        status="disable" if user.is_disabled else "enable",
        is_of_settings=control.is_of_settings(name),
        rule_count=0 if acl is None else acl.rules,
    )


def detail_of(control: AccessControl, name: str) -> AccessUserDetail:
    _known(control.state, name)
    user, acl = _user(control, name), control.state.acls.get(name, Acl())
    # The order of the decision: rules of Custom first
    kinds = (Type.CUSTOM, Type.DEFAULT)
    return AccessUserDetail(
        name=user.name,
        type=user.type,
        status=user.status,
        is_of_settings=user.is_of_settings,
        rule_count=user.rule_count,
        rules=[_rule(kind, rule) for kind in kinds for rule in acl.rules_of(kind)],
        refusals=[_refused(row) for row in control.refusals.rows() if row.user == name],
    )


def _rule(policy: Type, rule: Rule) -> AccessRule:
    return AccessRule(
        policy="Default" if policy == Type.DEFAULT else "Custom",
        resource=rule.resource.text,
        actions=list(map(str, rule.actions)),
        addresses=list(rule.sources),
        verdict="Allow" if rule.verdict == Verdict.ALLOW else "Deny",
    )


# The decision


def answer_of(
    control: AccessControl, name: str, resource: str, action: str, address: str | None
) -> AccessAnswer:
    user, demand = _known(control.state, name), demand_of(resource, action)
    if address is not None:
        _check_address(address)
        address = one_spelling(address)
    is_allowed, why, rule = _decided(control, user, demand, address)
    return AccessAnswer(
        user=name,
        resource=demand.resource.text,
        action=str(demand.actions[0]),
        address=address,
        is_allowed=is_allowed,
        why=why,
        rule=rule,
    )


def _decided(
    control: AccessControl, user: User, demand: Demand, address: str | None
) -> tuple[bool, str, AccessRule | None]:
    if user.is_disabled:
        return False, "its status is disable, so each of its requests is refused", None
    if not control.authorizes:
        return True, "authorizationEnabled is off: each user that signs its requests may do everything", None
    if user.is_super:
        return True, "it is a Super user, who may do everything; no rule is read", None
    decision = control.decision(user.name, demand, address)
    if decision.rule is not None:
        acl = control.state.acls[user.name]
        policy = Type.CUSTOM if decision.rule in acl.rules_of(Type.CUSTOM) else Type.DEFAULT
        why = f"the most specific rule that matches is in the {policy} policy: {decision.rule.text}"
        return decision.is_allowed, why, _rule(policy, decision.rule)
    if decision.reason == FAILED:
        return False, "some of its rules are for certain addresses: ask again with an address", None
    return False, "no rule matches, and what no rule allows is refused", None


def demand_of(resource: str, action: str) -> Demand:
    """Return what is asked about. Raises Problem."""
    found = _resource(resource)
    if found.pattern != Pattern.LITERAL:
        raise Problem(
            "invalid", f"resource: {resource[:SHOWN_CHARACTERS]!r} has no one name: expected Topic:orders"
        )
    actions = tuple(known for known in read_actions([action]) if known in ACTIONS)
    if not actions:
        raise _wrong_action(action, ACTIONS)
    if found.kind == Kind.TOPIC:
        return on_topic(found.name, *actions)
    if found.kind == Kind.GROUP:
        return on_group(found.name, *actions)
    if found.kind == Kind.CLUSTER:
        return on_cluster(found.name, *actions)
    return Demand(found, actions)


def _resource(text: str) -> Resource:
    """Return the resource that a person names. Raises Problem."""
    found = read_resource(text) if len(text) <= MAX_RESOURCE_CHARACTERS and text.isprintable() else None
    if found is not None and text == ANYTHING:
        return found
    named = text.partition(":")[2]
    if found is None or found.kind not in KINDS or not named or "*" in named[:-1]:
        raise Problem(
            "invalid",
            f"resource: {text[:SHOWN_CHARACTERS]!r} is none: expected *, or a type ({', '.join(KINDS)}), "
            f"a colon, and a name, a prefix with * at its end, or *; at most {MAX_RESOURCE_CHARACTERS} "
            f"characters",
        )
    return found


def _wrong_action(text: str, known: tuple[Action, ...]) -> Problem:
    return Problem(
        "invalid", f"action: {text[:SHOWN_CHARACTERS]!r} is none: expected one of {', '.join(known)}"
    )


def _check_address(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise Problem(
            "invalid", f"address: {text[:SHOWN_CHARACTERS]!r} is no address: expected one such as 10.0.0.7"
        ) from None


def _known(state: users_of_broker.AccessState, name: str) -> User:
    user = state.users.get(name)
    if user is None:
        raise Problem("not_found", f"there is no user {name[:SHOWN_CHARACTERS]!r}")
    return user


# Changes


class Changing:
    """The changes that an administrator of the dashboard may make."""

    def __init__(self, changes: AccessChanges):
        self._changes = changes

    async def create_user(self, name: str, password: str, kind: UserType, status: UserStatus) -> None:
        user = User(name, password, KindOfUser(kind), Status(status))

        def change(state: users_of_broker.AccessState) -> users_of_broker.AccessState:
            if name in state.users:
                raise Problem("conflict", f"user {name[:SHOWN_CHARACTERS]} exists", "change it, or delete it")
            return state.created(user, None)

        await self._make(change)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        if password is not None and not password.strip():
            raise Problem("invalid", "password can not be blank")

        def change(state: users_of_broker.AccessState) -> users_of_broker.AccessState:
            _known(state, name)
            return state.updated(
                name,
                None,
                secret=password or "",
                kind=None if kind is None else KindOfUser(kind),
                status=None if status is None else Status(status),
            )

        await self._make(change)

    async def delete_user(self, name: str) -> None:
        def change(state: users_of_broker.AccessState) -> users_of_broker.AccessState:
            _known(state, name)
            return state.without_user(name, None)

        await self._make(change)

    async def put_rule(self, name: str, rule: AccessRule) -> None:
        policy = Policy(Type(rule.policy), (_rule_of(rule),))

        def change(state: users_of_broker.AccessState) -> users_of_broker.AccessState:
            _known(state, name)
            return state.with_policies(name, [policy])

        await self._make(change)

    async def delete_rule(self, name: str, policy: PolicyType, resource: str) -> None:
        wanted, kind = _resource(resource), Type(policy)

        def change(state: users_of_broker.AccessState) -> users_of_broker.AccessState:
            _known(state, name)
            rules = state.acls.get(name, Acl()).rules_of(kind)
            if not any(rule.resource == wanted for rule in rules):
                raise Problem("not_found", f"user {name} has no rule for {wanted.text} in its {kind} policy")
            return state.without_policies(name, kind, wanted.text)

        await self._make(change)

    async def import_users(self, users: Sequence[UserToImport], dry_run: bool) -> ImportedUsers:
        given = [
            (
                User(user.name, user.password, KindOfUser(user.type)),
                [Policy(Type(rule.policy), (_rule_of(rule),)) for rule in user.rules],
            )
            for user in users
        ]
        made: list[Imported] = []

        def change(state: users_of_broker.AccessState) -> users_of_broker.AccessState:
            made.append(with_imported(state, given))
            return state if dry_run else made[-1].state

        await self._make(change)
        return ImportedUsers(dry_run=dry_run, created=made[-1].created, skipped=made[-1].skipped)

    async def _make(
        self, change: Callable[[users_of_broker.AccessState], users_of_broker.AccessState]
    ) -> None:
        try:
            await self._changes.make(change)
        except ChangeRefused as error:
            raise Problem("invalid", str(error)) from None


def _rule_of(rule: AccessRule) -> Rule:
    """Return the rule that a person gives. Raises Problem."""
    resource = _resource(rule.resource)
    actions: list[Action] = []
    for text in rule.actions:
        known = tuple(action for action in read_actions([text]) if action in (Action.ALL, *ACTIONS))
        if not known:
            raise _wrong_action(text, (Action.ALL, *ACTIONS))
        actions += known
    if not actions:
        raise Problem("invalid", "actions: none is given; give at least one")
    if len(rule.addresses) > MAX_SOURCES:
        raise Problem("invalid", f"addresses: {len(rule.addresses)} of at most {MAX_SOURCES}")
    for address in rule.addresses:
        if not is_address_rule(address):
            raise Problem(
                "invalid",
                f"addresses: {address[:SHOWN_CHARACTERS]!r} is none: expected an address such as 10.0.0.7, "
                f"or a block such as 10.0.0.0/8",
            )
    addresses = tuple(map(one_spelling, rule.addresses))
    return Rule(resource, tuple(dict.fromkeys(actions)), addresses, Verdict(rule.verdict))
