"""The refusal of a request by access control. Its remark is Apache's."""

from __future__ import annotations

from broker_store.errors import PeerError

NO_USER_NAME = "username cannot be null."
WRONG_SIGNATURE = "check signature failed."
NO_DEMANDS = "parse authorization context error."
FAILED = "Authorization failed. Please verify your access rights and try again."


class Denied(PeerError):
    """A request that is refused before its handler is called. `user` is the name that it states, if any."""

    cause = "not authorized"

    def __init__(self, text: str, user: str | None = None):
        self.user = user
        super().__init__(text)


class NotAuthenticated(Denied):
    """A request whose sender did not prove who it is."""

    cause = "not authenticated"
