"""Signatures of requests on both ports, made and compared with the secret of a user.

A signature covers the header fields and the body of a remoting request, and only the time of a gRPC call. The
time is not compared with the clock, so a call can be repeated by any client that reads it from the network.
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import NamedTuple

from broker_store.access.denied import NotAuthenticated

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
SIGNING_FIELDS = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN))
# Clients up to this version do not sign the field (V4_9_3 in Apache's MQVersion).
_UNSIGNED_FIELD = "_UNIQUE_KEY_QUERY"
_LAST_VERSION_WITHOUT = 399
# What gRPC calls state is parsed once, and the names of the fields of a request are sorted once: so many
# different ones, each of at most so many characters.
MAX_CACHED, MAX_CACHED_CHARACTERS = 256, 512
_SHA1_BLOCK_BYTES = 64
_INNER_PAD, _OUTER_PAD = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


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
    names = tuple(fields)
    read = _readers.get(names)
    if read is None or (version <= _LAST_VERSION_WITHOUT and _UNSIGNED_FIELD in fields):
        return _content(fields, names, version) + body
    return "".join(read(fields)).encode("utf-8", "replace") + body


def _content(fields: Mapping[str, str], names: tuple[str, ...], version: int) -> bytes:
    """Return the part of the fields, and remember the order of their names."""
    text = "".join(names)
    ordered = sorted(names) if text.isascii() else sorted(names, key=_java_order)
    if SIGNATURE in fields:
        ordered.remove(SIGNATURE)
    if len(ordered) > 1 and len(text) <= MAX_CACHED_CHARACTERS:
        if len(_readers) >= MAX_CACHED:
            _readers.clear()
        _readers[names] = itemgetter(*ordered)
    if version <= _LAST_VERSION_WITHOUT and _UNSIGNED_FIELD in fields:
        ordered.remove(_UNSIGNED_FIELD)
    return "".join([fields[name] for name in ordered]).encode("utf-8", "replace")


# By the names of fields as they come: what returns the values that are signed, in their order. A client sends
# the fields of a code in one order.
_readers: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


class Signer:
    """Signs with a secret and compares signatures with it: HMAC with SHA-1, in Base64.

    What the secret alone determines is computed once. `hmac.digest` does it for each request, and OpenSSL 3
    searches its functions each time.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str):
        key = secret.encode()
        if len(key) > _SHA1_BLOCK_BYTES:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_SHA1_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER_PAD), usedforsecurity=False)
        self._outer = hashlib.sha1(key.translate(_OUTER_PAD), usedforsecurity=False)

    def sign(self, content: bytes) -> bytes:
        """Return the signature of a content, as a remoting request has it."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False)

    def has_signed(self, content: bytes, signature: str) -> bool:
        """Return True if a signature is that of the secret. The time does not depend on where both
        differ."""
        return hmac.compare_digest(self.sign(content), signature.encode("utf-8", "replace"))


def signature_of(secret: str, content: bytes) -> str:
    """Return the signature of a content with a secret."""
    return Signer(secret).sign(content).decode()


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
    # A client states the same for all calls of a second.
    usual = len(authorization) <= MAX_CACHED_CHARACTERS
    return _read_once(authorization) if usual else _read_authorization(authorization)


def _read_authorization(authorization: str) -> GrpcCredentials:
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


_read_once = functools.lru_cache(MAX_CACHED)(_read_authorization)


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
