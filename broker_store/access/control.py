"""What the ports ask: who sent this request, and may that user do it?

A request is first authenticated and then authorized. Both are checked for each request, with both of Apache's
strategies, so a withdrawn right and a wrong signature act at once, also on a connection that was served
before. Only decisions are remembered, and each change forgets them all.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping

from broker_store.access.decision import Decision, decide
from broker_store.access.demands import TOPIC_OF_SEND, Asked, demands_of
from broker_store.access.denied import FAILED, NO_USER_NAME, WRONG_SIGNATURE, Denied, NotAuthenticated
from broker_store.access.refusals import AccessRefusals
from broker_store.access.resources import Demand
from broker_store.access.signatures import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    GrpcCredentials,
    Signer,
    grpc_content,
    read_grpc_credentials,
    signed_content,
)
from broker_store.access.state import AccessState, ChangeRefused
from broker_store.access.users import User, UserType

MAX_REMEMBERED = 10_000  # decisions, on names of at most so many characters
MAX_NAME_CHARACTERS = 255
_NO_FIELDS: dict[str, str] = {}


class AccessControl:
    """Access control of one broker. It belongs to the loop's thread; `state` is replaced as a whole."""

    def __init__(
        self,
        *,
        authorizes: bool,
        cluster: str,
        open_to_all: Iterable[str] = (),
        open_to_users: Iterable[str] = (),
        first_users: Iterable[User] = (),
        signs_as: Credentials | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ):
        """`open_to_all` are the codes and gRPC messages that need no signature, `open_to_users` those that
        need no right. `signs_as` are the credentials of the broker's own requests."""
        self.authorizes, self.cluster = authorizes, cluster
        self._open_to_all, self._open_to_users = frozenset(open_to_all), frozenset(open_to_users)
        self._clock = clock
        self.refusals = AccessRefusals()
        self._first_users = tuple(first_users)
        self._signs_as = signs_as
        self._decisions: dict[tuple[str, Demand, str | None], Decision] = {}
        # Users that may send to a topic from an address: a send is the most frequent request, and to find its
        # demand and the decision takes several times as long as to find it here.
        self._may_send: set[tuple[str | None, str | None, str]] = set()
        self._signers: dict[str, Signer] = {}  # of users of the state
        self._state = AccessState()
        self.take(AccessState())

    @property
    def state(self) -> AccessState:
        return self._state

    @property
    def open_to_all(self) -> list[str]:
        """Return the codes and gRPC messages that need no signature."""
        return sorted(self._open_to_all)

    @property
    def open_to_users(self) -> list[str]:
        """Return the codes and gRPC messages that need no right."""
        return sorted(self._open_to_users)

    def is_of_settings(self, name: str) -> bool:
        """Return True if the settings make this user at each start where it is missing."""
        return any(user.name == name for user in self._first_users)

    def note(self, error: Denied, remote: str) -> None:
        """Count a refusal. `remote` is the address of the sender with the port."""
        user = error.user if error.user in self._state.users else None
        self.refusals.note(error.cause, user, remote, str(error), self._clock())

    def take(self, state: AccessState) -> bool:
        """Take the users and ACLs of a start, and add the users of the settings that are not there. Return
        True if some were added."""
        missing = {user.name: user for user in self._first_users if user.name not in state.users}
        if missing:
            state = AccessState({**state.users, **missing}, state.acls)
        self.replace(state)
        return bool(missing)

    def users_with_another_password(self) -> list[str]:
        """Return the users of the settings whose password was changed since they were made."""
        return [
            user.name
            for user in self._first_users
            if not hmac.compare_digest(user.secret.encode(), self._state.users[user.name].secret.encode())
        ]

    def check_change(self, state: AccessState) -> None:
        """Raise ChangeRefused for a state after which the broker could not sign its own requests, or no user
        could change users at its port."""
        before, after = self._state.users, state.users
        inner = self._signs_as
        if inner is not None and _can_sign(before, inner) and not _can_sign(after, inner):
            raise ChangeRefused(
                f"the broker signs its own requests as {inner.access_key}, which stays an enabled Super user "
                "with its password: innerClientAuthenticationCredentials can name another user"
            )
        if any(map(_is_administrator, before.values())) and not any(map(_is_administrator, after.values())):
            raise ChangeRefused("this is the last enabled Super user: make another one first")

    def replace(self, state: AccessState) -> None:
        """Take users and ACLs after a change. It acts on the next request."""
        self._state = state
        self._decisions.clear()
        self._may_send.clear()
        self._signers.clear()

    # The broker port

    def authenticate(self, code: int, fields: Mapping[str, str] | None, body: bytes, version: int) -> None:
        """Raise NotAuthenticated if the sender of a request has not proved who it is."""
        if self.authenticates(code):
            self._prove(fields or _NO_FIELDS, body, version)

    def authenticates(self, code: int) -> bool:
        """Return whether the sender of a request with this code is authenticated before all else."""
        return not self._open_to_all or str(code) not in self._open_to_all

    def _prove(self, fields: Mapping[str, str], body: bytes, version: int) -> User:
        user = self._known(fields.get(ACCESS_KEY))
        signature = fields.get(SIGNATURE, "")
        if not self._signer(user).has_signed(signed_content(fields, body, version), signature):
            raise NotAuthenticated(WRONG_SIGNATURE, user.name)
        return user

    def _signer(self, user: User) -> Signer:
        signer = self._signers.get(user.name)
        if signer is None:
            signer = self._signers[user.name] = Signer(user.secret)
        return signer

    def _known(self, name: str | None) -> User:
        if not name:
            raise NotAuthenticated(NO_USER_NAME)
        user = self._state.users.get(name)
        if user is None:
            raise NotAuthenticated(f"User:{name:.255} is not found.", name)
        if user.is_disabled:
            raise NotAuthenticated(f"User:{name} is disabled.", name)
        return user

    def authorize(
        self, code: int, fields: Mapping[str, str] | None, body: bytes, version: int, remote: str
    ) -> None:
        """Raise Denied if the sender of a request may not do all that it demands. `remote` is its address
        with the port."""
        if not self.authorizes or (self._open_to_users and str(code) in self._open_to_users):
            return
        given = fields or _NO_FIELDS
        name = given.get(ACCESS_KEY)
        if self._open_to_all and str(code) in self._open_to_all:
            # The name is not checked yet, and without a signature any client could state any name.
            name = self._prove_named(given, body, version)
        send = None
        if code in TOPIC_OF_SEND:
            send = (name, given.get(TOPIC_OF_SEND[code]), remote.rpartition(":")[0])
            if send in self._may_send:
                return
        self.require(name, demands_of(code, Asked(given, body, self.cluster)), remote)
        if send is not None and len(send[1] or "") <= MAX_NAME_CHARACTERS:
            if len(self._may_send) >= MAX_REMEMBERED:
                self._may_send.clear()
            self._may_send.add(send)

    def _prove_named(self, fields: Mapping[str, str], body: bytes, version: int) -> str:
        name = fields.get(ACCESS_KEY)
        if not name:
            raise Denied(FAILED)
        if name not in self._state.users:
            raise Denied(f"User:{name:.255} not found.", name)
        return self._prove(fields, body, version).name

    def proved_name(self, code: int, fields: Mapping[str, str] | None) -> str | None:
        """Return the name that the sender of an authorized request has proved; None if it needed no proof."""
        text = str(code)
        needs_proof = text not in self._open_to_all or (self.authorizes and text not in self._open_to_users)
        return (fields or _NO_FIELDS).get(ACCESS_KEY) if needs_proof else None

    # Both ports

    def may(self, name: str | None, demand: Demand, remote: str) -> bool:
        """Return whether a user, whose name is proved, may do what is demanded. No refusal is counted."""
        try:
            self.require(name, (demand,), remote)
        except Denied:
            return False
        return True

    def require(self, name: str | None, demands: Iterable[Demand], remote: str) -> None:
        """Raise Denied if a user, whose name is proved, may not do all that is demanded."""
        if not self.authorizes:
            return
        if not name:
            raise Denied(FAILED)
        address = remote.rpartition(":")[0].strip("[]")
        for demand in demands:
            decision = self.decision(name, demand, address)
            if not decision.is_allowed:
                raise Denied(decision.reason, name)

    def require_more(
        self, code: int, fields: Mapping[str, str] | None, demands: Iterable[Demand], remote: str
    ) -> None:
        """Raise Denied if the sender of a request that was authorized may not do what its handler has found
        it to demand."""
        if str(code) not in self._open_to_users:
            self.require((fields or _NO_FIELDS).get(ACCESS_KEY), demands, remote)

    def decision(self, name: str, demand: Demand, address: str | None) -> Decision:
        """Return whether a user may do what is demanded, from an address (None: unknown)."""
        key = (name, demand, address)
        known = self._decisions.get(key)
        if known is None:
            user = self._state.users.get(name)
            if user is None:
                return Decision(False, f"User:{name:.255} not found.")
            known = decide(user, self._state.acls.get(name), demand, address)
            if len(demand.resource.name) <= MAX_NAME_CHARACTERS:
                if len(self._decisions) >= MAX_REMEMBERED:
                    self._decisions.clear()
                self._decisions[key] = known
        return known

    def user(self, fields: Mapping[str, str] | None) -> User | None:
        """Return the user that an authenticated request names, None if there is none."""
        return self._state.users.get((fields or _NO_FIELDS).get(ACCESS_KEY, ""))

    def is_super(self, code: int, fields: Mapping[str, str] | None) -> bool:
        """Return True if an authenticated request proved that a super user has sent it."""
        user = self.user(fields)
        return user is not None and user.is_super and str(code) not in self._open_to_all

    # The gRPC port

    def authenticate_call(self, message: str, authorization: str | None, date_time: str | None) -> str | None:
        """Return the name of the user that sent a call with the message `message`, None if the call needs no
        proof and has none. Raises NotAuthenticated."""
        stated = read_grpc_credentials(authorization, date_time)
        if message in self._open_to_all and not stated.user_name:
            return None
        return self._prove_call(stated, date_time).name

    def _prove_call(self, stated: GrpcCredentials, date_time: str | None) -> User:
        user = self._known(stated.user_name)
        if not self._signer(user).has_signed(grpc_content(date_time), stated.signature or ""):
            raise NotAuthenticated(WRONG_SIGNATURE, user.name)
        return user

    def authorize_call(self, message: str, name: str | None, demands: Iterable[Demand], remote: str) -> None:
        """Raise Denied if the sender of a call may not do all that it demands."""
        if message not in self._open_to_users:
            self.require(name, demands, remote)


def super_user(credentials: Credentials) -> User:
    """Return the Super user with the name and secret of credentials."""
    return User(credentials.access_key, credentials.secret_key, UserType.SUPER)


def _can_sign(users: Mapping[str, User], inner: Credentials) -> bool:
    user = users.get(inner.access_key)
    if user is None or not _is_administrator(user):
        return False
    return hmac.compare_digest(user.secret.encode(), inner.secret_key.encode())


def _is_administrator(user: User | None) -> bool:
    return user is not None and user.is_super and not user.is_disabled
