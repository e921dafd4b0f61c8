"""Users: a name, a secret, a type and a status.

The secret is needed as it is, because a signature is made with it. It is in no text of a user.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MAX_NAME_CHARACTERS = 255
MAX_SECRET_CHARACTERS = 1_024


class UserType(StrEnum):
    """What a user may do: a Super user everything, a Normal user what its policies allow."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """Whether requests of a user are taken."""

    ENABLE = "enable"
    DISABLE = "disable"


_TYPES = {kind.lower(): kind for kind in UserType}
_STATUSES = {status.lower(): status for status in UserStatus}


@dataclass(frozen=True, slots=True)
class User:
    """A user of the ports."""

    name: str
    secret: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        return self.type == UserType.SUPER

    @property
    def is_disabled(self) -> bool:
        return self.status == UserStatus.DISABLE


def read_type(text: str) -> UserType | None:
    """Return the type of a text in any case, None for an unknown one."""
    return _TYPES.get(text.lower())


def read_status(text: str) -> UserStatus | None:
    """Return the status of a text in any case, None for an unknown one."""
    return _STATUSES.get(text.lower())
