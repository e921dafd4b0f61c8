"""Users and their ACLs: 3001 to 3010 (docs/spec/access.md).

A change is answered when its file was written, and it acts on the next request. No answer has a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker_store.access.control import AccessControl
from broker_store.access.policies import Acl, PolicyError, acl_info, policy_type, read_policies
from broker_store.access.state import (
    SUBJECT_PREFIX,
    AccessState,
    ChangeRefused,
    read_subject,
)
from broker_store.access.users import User, UserStatus, UserType, read_status, read_type
from broker_store.errors import PeerError
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.admin import answers
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.transactions import NOTHING_SET

MAX_RULES_ON_LOOP = 1_000  # of a list; more take longer than some 10 ms
NOT_CONFIGURED = "The authenticationMetadataProvider is not configured"


class AccessAdmin:
    """The handlers of users and ACLs."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        handlers: Handlers = {
            R.AUTH_CREATE_USER: self.create_user,
            R.AUTH_UPDATE_USER: self.update_user,
            R.AUTH_DELETE_USER: self.delete_user,
            R.AUTH_GET_USER: self.get_user,
            R.AUTH_LIST_USER: self.list_users,
            R.AUTH_CREATE_ACL: self.put_acl,
            R.AUTH_UPDATE_ACL: self.put_acl,
            R.AUTH_DELETE_ACL: self.delete_acl,
            R.AUTH_GET_ACL: self.get_acl,
            R.AUTH_LIST_ACL: self.list_acls,
        }
        return handlers if self._parts.access is not None else dict.fromkeys(handlers, self.refuse)

    def refuse(self, command: Command, channel: Channel) -> Command:
        """Refuse a request while access control is off: any client could make users for the time after."""
        raise Refusal(ResponseCode.NO_PERMISSION, NOT_CONFIGURED, "access control is off")

    # Users

    async def create_user(self, command: Command, channel: Channel) -> Command:
        name = _user_name(command)
        given = _UserInfo(command)
        user = User(name, given.password, given.type or UserType.NORMAL, given.status or UserStatus.ENABLE)
        return await self._change(command, lambda state, by: state.created(user, by))

    async def update_user(self, command: Command, channel: Channel) -> Command:
        name = _user_name(command)
        given = _UserInfo(command)
        return await self._change(
            command,
            lambda state, by: state.updated(
                name, by, secret=given.password, kind=given.type, status=given.status
            ),
        )

    async def delete_user(self, command: Command, channel: Channel) -> Command:
        name = _header(command).username or ""
        return await self._change(command, lambda state, by: state.without_user(name, by))

    def get_user(self, command: Command, channel: Channel) -> Command:
        user = self._control.state.users.get(_user_name(command))
        return command.answer(0, NOTHING_SET, None, b"" if user is None else fastjson.dumps(_user_info(user)))

    async def list_users(self, command: Command, channel: Channel) -> Command:
        wanted = _header(command).filter or ""
        users = self._control.state.users
        found = [_user_info(users[name]) for name in sorted(users) if wanted in name]
        return command.answer(0, NOTHING_SET, None, await _list_body(found, len(found)))

    # ACLs

    async def put_acl(self, command: Command, channel: Channel) -> Command:
        info = _body(command)
        if not info.get("policies"):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The body of acl is null", "wrong policy")
        subject = _header(command).subject
        if info.get("subject") not in (None, "", subject):
            # The record of the change names the subject of the header.
            raise Refusal(ResponseCode.INVALID_PARAMETER, "header and body name two subjects", "two subjects")
        name = _read_subject(subject)
        try:
            policies = read_policies(info["policies"], is_strict=True)
        except PolicyError as error:
            raise _refusal(error) from None
        return await self._change(command, lambda state, by: state.with_policies(name, policies))

    async def delete_acl(self, command: Command, channel: Channel) -> Command:
        header = _header(command)
        name, kind, resource = _read_subject(header.subject), policy_type(header.policy_type), header.resource
        return await self._change(command, lambda state, by: state.without_policies(name, kind, resource))

    def get_acl(self, command: Command, channel: Channel) -> Command:
        name = _read_subject(_header(command).subject)
        try:
            acl = self._control.state.acl_of(name)
        except ChangeRefused as error:
            raise _refusal(error) from None
        body = b"" if acl is None else fastjson.dumps(acl_info(f"{SUBJECT_PREFIX}{name}", acl))
        return command.answer(0, NOTHING_SET, None, body)

    async def list_acls(self, command: Command, channel: Channel) -> Command:
        header = _header(command)
        wanted, resource = header.subject_filter or "", header.resource_filter or ""
        acls = self._control.state.acls
        rules = sum(acl.rules for acl in acls.values())
        listed = partial(_listed, acls, wanted, resource)
        # The state never changes, so another thread may read it
        found = listed() if rules <= MAX_RULES_ON_LOOP else await asyncio.to_thread(listed)
        return command.answer(0, NOTHING_SET, None, await _list_body(found, rules))

    # Changes

    @property
    def _control(self) -> AccessControl:
        assert self._parts.access is not None  # else `refuse` is the handler
        return self._parts.access

    async def _change(
        self, command: Command, change: Callable[[AccessState, User | None], AccessState]
    ) -> Command:
        """Make a change for the sender of a request, and answer it. Raises Refusal, StoreError; then nothing
        is changed."""
        control, changes = self._control, self._parts.access_changes
        assert changes is not None  # as access control is
        try:
            await changes.make(lambda state: change(state, control.user(command.fields)))
        except ChangeRefused as error:
            raise _refusal(error) from None
        return command.answer(0, NOTHING_SET)


class _UserInfo:
    """The body of a request about a user. What it lacks is empty, or None."""

    def __init__(self, command: Command):
        info = _body(command)
        texts = [info.get(name) for name in ("password", "userType", "userStatus")]
        password, kind, status = (text if isinstance(text, str) else "" for text in texts)
        self.password = password if password.strip() else ""
        self.type, self.status = read_type(kind), read_status(status)


def _body(command: Command) -> dict[str, object]:
    """Return the object in the body of a request. The text of a refusal has nothing of it, because it may
    have a password."""
    if not command.body:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "The body of acl is null", "no body")
    try:
        value = fastjson.loads(command.body)
    except PeerError:
        value = None
    if not isinstance(value, dict):
        raise Refusal(ResponseCode.INVALID_PARAMETER, "the body is no JSON object", "malformed body")
    return value


def _header(command: Command) -> Any:
    """Return the declared fields of a request; a missing one is None."""
    return read_header(R(command.code), command.fields)


def _user_name(command: Command) -> str:
    name = _header(command).username or ""
    if not name.strip():
        raise Refusal(ResponseCode.INVALID_PARAMETER, "The username is blank", "no username")
    return name


def _read_subject(text: str | None) -> str:
    try:
        return read_subject(text)
    except ChangeRefused as error:
        raise _refusal(error) from None


def _refusal(error: ChangeRefused | PolicyError) -> Refusal:
    is_denied = isinstance(error, ChangeRefused) and error.is_denied
    code = ResponseCode.SYSTEM_ERROR if is_denied else ResponseCode.NO_PERMISSION
    return Refusal(code, str(error), "change of access")


def _user_info(user: User) -> dict[str, object]:
    """Return Apache's UserInfo without the password."""
    return {"userStatus": str(user.status), "userType": str(user.type), "username": user.name}


def _listed(acls: Mapping[str, Acl], wanted: str, resource: str) -> list[dict[str, object]]:
    """Return Apache's AclInfo of ACLs whose subject has the text `wanted`, with the entries whose resource
    has the text `resource`."""
    found = []
    for name in sorted(acls):
        subject = f"{SUBJECT_PREFIX}{name}"
        acl = acls[name].filtered(lambda policy, rule: resource in rule.resource.text)
        if wanted in subject and acl.policies:
            found.append(acl_info(subject, acl))
    return found


async def _list_body(found: list[dict[str, object]], count: int) -> bytes:
    """Return the body of a list with so many entries, which is missing for an empty one. Raises Refusal if it
    is too large."""
    if not found:
        return b""
    body = await answers.dumps(found, count)
    answers.check_fits(len(body))
    return body
