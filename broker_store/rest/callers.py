"""Callers of REST: roles, and the table of valid tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

ROLES = ("viewer", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `name` is what the audit records show: `user:NAME`, `token:NAME` or
    `local:NAME`."""

    name: str
    role: str = "viewer"

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class TokenTable:
    """The tokens that are good now, by the SHA-256 of their text; replaced as a whole, so a reader sees one
    picture.

    A token is 256 random bits, so a plain hash of it cannot be searched, and the time of a look-up by its
    hash reveals nothing.
    """

    def __init__(self) -> None:
        self._callers: Mapping[bytes, tuple[Caller, int]] = {}
        self._used: set[bytes] = set()

    def replace(self, callers: Mapping[bytes, tuple[Caller, int]]) -> None:
        """Take over `{digest: (caller, expires_ms)}`; `expires_ms` 0 is never. What is not in it is refused
        from now on."""
        self._callers = dict(callers)

    def caller(self, token: str, now_ms: int) -> Caller | None:
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        entry = self._callers.get(digest)
        if entry is None or 0 < entry[1] <= now_ms:
            return None
        self._used.add(digest)
        return entry[0]

    def take_used(self) -> set[bytes]:
        """Digests that were used since the last call; for the list of tokens, which shows when."""
        used, self._used = self._used, set()
        return used
