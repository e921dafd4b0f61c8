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
    """The valid tokens, by the SHA-256 of their text. The table is replaced as a whole, so a reader sees one
    state."""

    def __init__(self) -> None:
        self._callers: Mapping[bytes, tuple[Caller, int]] = {}
        self._used: set[bytes] = set()

    def replace(self, callers: Mapping[bytes, tuple[Caller, int]]) -> None:
        """Replace the table by `{digest: (caller, expires_ms)}`; an `expires_ms` of 0 means never. Other
        tokens are refused from now on."""
        self._callers = dict(callers)

    def caller(self, token: str, now_ms: int) -> Caller | None:
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        entry = self._callers.get(digest)
        if entry is None or 0 < entry[1] <= now_ms:
            return None
        self._used.add(digest)
        return entry[0]

    def take_used(self) -> set[bytes]:
        """Return the digests that were used since the last call; the list of tokens shows when each was
        used."""
        used, self._used = self._used, set()
        return used
