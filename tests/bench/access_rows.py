"""Brokers with access control and without, for the section `access` of `make bench`.

The client's user is a normal one with two policies: a super user passes before policies are read.
"""

from __future__ import annotations

import asyncio
import json

from broker_store.client import Admin, Credentials
from broker_store.protocol.codes import RequestCode

ROOT = Credentials("root", "the-secret-of-root-0001")
INNER = {"accessKey": "inner", "secretKey": "the-secret-of-inner-1"}
USER = Credentials("bench", "the-secret-of-bench-01")
_PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
SETTINGS: dict[str, object] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": _PROVIDER.format("authentication", "Authentication"),
    "authorizationMetadataProvider": _PROVIDER.format("authorization", "Authorization"),
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(INNER),
}
_ENTRIES = [
    {"resource": "Topic:*", "actions": ["Pub", "Sub"], "decision": "Allow"},
    {"resource": "Group:*", "actions": ["Sub"], "decision": "Allow"},
]


def add_user(nameserver: str, address: str) -> dict[str, str]:
    """Make the user at the broker of an address, and return the options of the client that signs as it."""

    async def make() -> None:
        async with Admin(nameserver, credentials=ROOT) as admin:
            user = json.dumps({"password": USER.secret_key}).encode()
            await admin.ask(address, RequestCode.AUTH_CREATE_USER, {"username": USER.access_key}, user)
            policies = json.dumps({"policies": [{"policyType": "Custom", "entries": _ENTRIES}]}).encode()
            subject = {"subject": f"User:{USER.access_key}"}
            await admin.ask(address, RequestCode.AUTH_CREATE_ACL, subject, policies)

    asyncio.run(make())
    return {"access_key": USER.access_key, "secret_key": USER.secret_key}
