"""Signatures of requests on both ports, made and compared with the secret of a user.

A signature covers the header fields and the body of a remoting request, and only the time of a gRPC call. The
time is not compared with the clock, so a call can be repeated by any client that reads it from the network.
"""

from __future__ import annotations

import binascii
import hmac
import json
from collections.abc import Mapping
from typing import NamedTuple

from broker_store.access.denied import NotAuthenticated

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
SIGNING_FIELDS = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN))
# Clients up to this version do not sign the field (V4_9_3 in Apache's MQVersion).
_UNSIGNED_FIELD = "_UNIQUE_KEY_QUERY"
_LAST_VERSION_WITHOUT = 399


class Credentials(NamedTuple):
    """The name and the secret with which requests are signed. The secret is in no text of this value."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"<credentials of {self.access_key}>"


def read_credentials(
    text: str, name_key: str = "accessKey", secret_key: str = "secretKey"
) -> Credentials | None:
    """Return the credentials in JSON with these keys, None if it is malformed."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name, secret, token = value.get(name_key), value.get(secret_key), value.get("securityToken") or ""
    if not (isinstance(name, str) and isinstance(secret, str) and isinstance(token, str)):
        return None
    return Credentials(name, secret, token) if name.strip() and secret.strip() else None


def signed_content(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """Return what the signature of a request covers: the values in Java's order of their names, and the
    body."""
    names = sorted(fields)
    if not "".join(names).isascii():
        names.sort(key=_java_order)
    if SIGNATURE in fields:
        names.remove(SIGNATURE)
    if version <= _LAST_VERSION_WITHOUT and _UNSIGNED_FIELD in fields:
        names.remove(_UNSIGNED_FIELD)
    return "".join([fields[name] for name in names]).encode("utf-8", "replace") + body


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def signature_of(secret: str, content: bytes) -> str:
    """Return the signature in Base64, as a remoting request has it."""
    return _signature(secret, content).decode()


def _signature(secret: str, content: bytes) -> bytes:
    return binascii.b2a_base64(hmac.digest(secret.encode(), content, "sha1"), newline=False)


def is_signature(secret: str, content: bytes, signature: str) -> bool:
    """Return True if a signature is that of the secret. The time does not depend on where both differ."""
    return hmac.compare_digest(_signature(secret, content), signature.encode("utf-8", "replace"))


def signed(fields: Mapping[str, str] | None, body: bytes, by: Credentials, version: int) -> dict[str, str]:
    """Return the fields of a request with those of a signature."""
    given = dict(fields or {})
    given[ACCESS_KEY] = by.access_key
    if by.security_token:
        given[SECURITY_TOKEN] = by.security_token
    given[SIGNATURE] = signature_of(by.secret_key, signed_content(given, body, version))
    return given


class GrpcCredentials(NamedTuple):
    """What the metadata of a gRPC call states; the signature is in Base64. Both may be missing."""

    user_name: str | None = None
    signature: str | None = None


def read_grpc_credentials(authorization: str | None, date_time: str | None) -> GrpcCredentials:
    """Return what `authorization` states. Raises NotAuthenticated."""
    if not authorization:
        return GrpcCredentials()
    if date_time is None:
        raise NotAuthenticated("datetime is null.")
    _, blank, rest = authorization.partition(" ")
    if not blank:
        raise NotAuthenticated("authentication header is incorrect.")
    user_name = signature = None
    for pair in rest.rstrip(",").split(","):
        key, equals, value = pair.strip().partition("=")
        if not equals:
            raise NotAuthenticated("authentication keyValues length is incorrect, actual length=1.")
        if key == "Credential":
            user_name = _user_name(value)
        elif key == "Signature":
            signature = _in_base64(value)
    return GrpcCredentials(user_name, signature)


def _user_name(credential: str) -> str:
    name, slash, _ = credential.partition("/")
    if slash and not name:
        raise NotAuthenticated("authentication credential length is incorrect, actual length=0.")
    return name


def _in_base64(text: str) -> str:
    try:
        if not text.isascii() or any(character.isspace() for character in text):
            raise ValueError
        return binascii.b2a_base64(bytes.fromhex(text), newline=False).decode()
    except ValueError:
        raise NotAuthenticated("create authentication context error.") from None


def grpc_content(date_time: str | None) -> bytes:
    """Return what the signature of a gRPC call covers."""
    return (date_time or "").encode("utf-8", "replace")
