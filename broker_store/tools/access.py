"""Commands about users and their rights."""

from __future__ import annotations

import getpass
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

from broker_store.errors import MisuseError, NotFoundError
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode
from broker_store.tools import layout
from broker_store.tools.command import BROKER_OR_CLUSTER, Line, Options, command, needed, option
from broker_store.tools.servers import Servers

USER = needed("u", "username", "name of the user")
SUBJECT = needed("s", "subject", "the subject, User:NAME")
PASSWORD_ABOUT = (
    "the password; - reads it from the terminal or standard input, so that no list of processes shows it"
)
TYPES, STATES = ("Normal", "Super"), ("enable", "disable")
USER_ROW = "%-16s  %-22s  %-22s  %-22s"
ACL_ROW = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"


def _password(options: Options) -> str | None:
    given = options.get("password")
    if given != "-":
        return given
    if sys.stdin.isatty():
        return getpass.getpass("Password: ")
    return sys.stdin.readline().rstrip("\r\n")


def _info(options: Options) -> bytes:
    """Return the body of a request about a user: what was given alone."""
    info = {
        "username": options.text("username"),
        "password": _password(options),
        "userType": options.get("userType"),
        "userStatus": options.get("userStatus"),
    }
    return fastjson.dumps({name: value for name, value in info.items() if value is not None})


async def _at_each(
    servers: Servers, options: Options, code: RequestCode, done: str, body: bytes = b"", **header: Any
) -> AsyncIterator[Line]:
    """Make a change at each broker of the options."""
    for address in await servers.chosen(options):
        await servers.ask(address, code, body, **header)
        yield Line(f"{done} {address} success.", {"broker": address})


@command(
    "createUser",
    "Create user to cluster.",
    USER,
    needed("p", "password", PASSWORD_ABOUT),
    option("t", "userType", "Super has every right (default: Normal)", *TYPES),
    one_of=(BROKER_OR_CLUSTER,),
)
def create_user(servers: Servers, options: Options) -> AsyncIterator[Line]:
    name, body = options.text("username"), _info(options)
    return _at_each(servers, options, RequestCode.AUTH_CREATE_USER, "create user to", body, username=name)


@command(
    "updateUser",
    "Update user to cluster.",
    USER,
    one_of=(
        BROKER_OR_CLUSTER,
        (
            option("p", "password", PASSWORD_ABOUT),
            option("t", "userType", "the type", *TYPES),
            option("s", "userStatus", "the state", *STATES),
        ),
    ),
)
def update_user(servers: Servers, options: Options) -> AsyncIterator[Line]:
    name, body = options.text("username"), _info(options)
    return _at_each(servers, options, RequestCode.AUTH_UPDATE_USER, "update user to", body, username=name)


@command("deleteUser", "Delete user from cluster.", USER, one_of=(BROKER_OR_CLUSTER,))
def delete_user(servers: Servers, options: Options) -> AsyncIterator[Line]:
    name = options.text("username")
    return _at_each(servers, options, RequestCode.AUTH_DELETE_USER, "delete user to", username=name)


def _user_lines(users: list[Mapping[str, Any]]) -> list[Line]:
    if not users:
        return []
    lines = [Line(USER_ROW % ("#UserName", "#Password", "#UserType", "#UserStatus"))]
    for each in users:
        shown = [layout.value(each.get(name)) for name in ("username", "password", "userType", "userStatus")]
        lines.append(Line(USER_ROW % tuple(shown), dict(each)))
    return lines


def _value(body: bytes) -> Any:
    return fastjson.loads(body) if body else None


@command("getUser", "Get user from cluster.", USER, one_of=(BROKER_OR_CLUSTER,))
async def get_user(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        answer = await servers.ask(address, RequestCode.AUTH_GET_USER, username=options.text("username"))
        found = _value(answer.body)
        for line in _user_lines([found] if found else []):
            yield line


@command(
    "listUser",
    "List user from cluster.",
    option("f", "filter", "a part of their names"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def list_users(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        answer = await servers.ask(address, RequestCode.AUTH_LIST_USER, filter=options.get("filter"))
        for line in _user_lines(_value(answer.body) or []):
            yield line
        if "clusterName" in options:
            yield Line(f"get user from {address} success.")


@command(
    "copyUser",
    "Copy user to cluster.",
    needed("f", "fromBroker", "address of the broker that has the users"),
    needed("t", "toBroker", "address of the broker that gets them"),
    option("u", "usernames", "their names, joined by commas (default: all)"),
)
async def copy_users(servers: Servers, options: Options) -> AsyncIterator[Line]:
    source, target = options.text("fromBroker"), options.text("toBroker")
    names = options.words("usernames")
    if not names:
        found = _value((await servers.ask(source, RequestCode.AUTH_LIST_USER)).body) or []
        names = [str(each.get("username")) for each in found]
    for name in names:
        user = _value((await servers.ask(source, RequestCode.AUTH_GET_USER, username=name)).body)
        if user is None:
            raise NotFoundError(f"{source} has no user {name}")
        if not user.get("password"):
            raise NotFoundError(
                f"{source} does not give the password of user {name}; create the user at {target} "
                "with createUser"
            )
        known = _value((await servers.ask(target, RequestCode.AUTH_GET_USER, username=name)).body)
        code = RequestCode.AUTH_CREATE_USER if known is None else RequestCode.AUTH_UPDATE_USER
        await servers.ask(target, code, fastjson.dumps(user), username=name)
        yield Line(f"copy user of {name} from {source} to {target} success.", {"username": name})


# Rights


def _rights(options: Options) -> bytes:
    """Return the body of a request about rights."""
    sources = options.words("sourceIp")
    if options.get("sourceIp") is not None and not sources:
        # The rule would be for all addresses
        raise MisuseError("--sourceIp: expected addresses, joined by commas")
    entries = [
        {
            "resource": resource,
            "actions": options.words("actions"),
            "sourceIps": sources or None,
            "decision": options.text("decision"),
        }
        for resource in options.words("resources")
    ]
    if not entries:
        raise MisuseError("--resources: expected Type:name, joined by commas")
    return fastjson.dumps(
        {
            "subject": options.text("subject"),
            "policies": [{"policyType": "Custom", "entries": entries}],
        }
    )


RIGHTS = (
    SUBJECT,
    needed("r", "resources", "what they are about: Topic:name, Group:name*, Cluster:name, joined by commas"),
    needed("a", "actions", "Pub, Sub, Create, Update, Delete, Get, List or All, joined by commas"),
    option("i", "sourceIp", "addresses or networks from which they hold, joined by commas (default: all)"),
    needed("d", "decision", "whether they are granted", "Allow", "Deny"),
)


@command("createAcl", "Create acl to cluster.", *RIGHTS, one_of=(BROKER_OR_CLUSTER,))
def create_acl(servers: Servers, options: Options) -> AsyncIterator[Line]:
    subject, body = options.text("subject"), _rights(options)
    return _at_each(servers, options, RequestCode.AUTH_CREATE_ACL, "create acl to", body, subject=subject)


@command("updateAcl", "Update acl to cluster.", *RIGHTS, one_of=(BROKER_OR_CLUSTER,))
def update_acl(servers: Servers, options: Options) -> AsyncIterator[Line]:
    subject, body = options.text("subject"), _rights(options)
    return _at_each(servers, options, RequestCode.AUTH_UPDATE_ACL, "update acl to", body, subject=subject)


@command(
    "deleteAcl",
    "Delete acl from cluster.",
    SUBJECT,
    option("r", "resources", "of these resources alone, joined by commas (default: all)"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def delete_acl(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        resources: list[str | None] = [*options.words("resources")]
        for resource in resources or [None]:
            await servers.ask(
                address, RequestCode.AUTH_DELETE_ACL, subject=options.text("subject"), resource=resource
            )
        yield Line(f"delete acl to {address} success.", {"broker": address})


def _acl_lines(acls: list[Mapping[str, Any]]) -> list[Line]:
    rows = []
    for acl in acls:
        for policy in acl.get("policies") or ():
            for entry in policy.get("entries") or ():
                texts = [_texts(entry.get(name)) for name in ("actions", "sourceIps")]
                shown = (acl.get("subject"), policy.get("policyType"), entry.get("resource"), *texts)
                rows.append(
                    Line(ACL_ROW % (*shown, entry.get("decision")), {"subject": acl.get("subject")} | entry)
                )
    heads = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")
    return [Line(ACL_ROW % heads), *rows] if rows else []


def _texts(given: object) -> str:
    return f"[{', '.join(map(str, given))}]" if isinstance(given, (list, tuple)) else layout.value(given)


@command("getAcl", "Get acl from cluster.", SUBJECT, one_of=(BROKER_OR_CLUSTER,))
async def get_acl(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        answer = await servers.ask(address, RequestCode.AUTH_GET_ACL, subject=options.text("subject"))
        found = _value(answer.body)
        for line in _acl_lines([found] if found else []):
            yield line


@command(
    "listAcl",
    "List acl from cluster.",
    option("s", "subject", "a part of their subjects"),
    option("r", "resource", "a part of their resources"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def list_acls(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        answer = await servers.ask(
            address,
            RequestCode.AUTH_LIST_ACL,
            subject_filter=options.get("subject"),
            resource_filter=options.get("resource"),
        )
        for line in _acl_lines(_value(answer.body) or []):
            yield line


@command(
    "copyAcl",
    "Copy acl to cluster.",
    needed("f", "fromBroker", "address of the broker that has the rights"),
    needed("t", "toBroker", "address of the broker that gets them"),
    option("s", "subjects", "their subjects, joined by commas (default: all)"),
)
async def copy_acls(servers: Servers, options: Options) -> AsyncIterator[Line]:
    source, target = options.text("fromBroker"), options.text("toBroker")
    subjects = options.words("subjects")
    if not subjects:
        found = _value((await servers.ask(source, RequestCode.AUTH_LIST_ACL)).body) or []
        subjects = [str(each.get("subject")) for each in found]
    for subject in subjects:
        acl = _value((await servers.ask(source, RequestCode.AUTH_GET_ACL, subject=subject)).body)
        if acl is None:
            raise NotFoundError(f"{source} has no rights of {subject}")
        known = _value((await servers.ask(target, RequestCode.AUTH_GET_ACL, subject=subject)).body)
        code = RequestCode.AUTH_CREATE_ACL if known is None else RequestCode.AUTH_UPDATE_ACL
        await servers.ask(target, code, fastjson.dumps(acl), subject=subject)
        yield Line(f"copy acl of {subject} from {source} to {target} success.", {"subject": subject})
