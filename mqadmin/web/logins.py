"""Limits of tried and hashed passwords: by one address, by one device, by all, and at once.

A hash takes a third of a second of a core that messages need. So tries are limited before a password is
checked:

- each device from which this user has logged in before has an allowance of its own (`remember`: a signed
  cookie), so tries of others, with this name or from this address, never keep its user out;
- all other tries share the allowance of their address (an IPv6 address with its /64), that of their network
  (its /24 or /48), which is half of the allowance of all, and that of all together; the local socket has only
  the first, so no flood shuts it;
- a try that is refused is answered 429 with the seconds until the next; allowances refill evenly, so no user
  is locked out;
- MAX_HASHES are computed at once; a few tries wait for their turn, WAIT_S at most, further ones are answered
  503.

A login that succeeds returns its try. Counts are in the memory of this process, which serves all logins.
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

from broker_store.units import document_of, fact_of
from mqadmin.web.trusted_proxies import client_address, network_of, site_of

MAX_TRIES = 10  # at once, of one address or one device; a person mistypes less
TRY_SECONDS = 6.0  # until one more is allowed
MAX_TRIES_OF_NETWORK = 30  # at once, of unknown devices of one network ...
TRY_SECONDS_OF_NETWORK = 2.0  # ... and in the long run
MAX_TRIES_OF_ALL = 60  # at once, of all unknown devices ...
TRY_SECONDS_OF_ALL = 1.0  # ... and in the long run: a third of a core
MAX_REMEMBERED = 10_000  # addresses and devices; the least recently seen is removed first
MAX_HASHES = 2
MAX_WAITING = 8  # for their turn to hash ...
MAX_WAITING_UNKNOWN = 4  # ... of them from unknown devices
WAIT_S = 5.0
DEVICE_COOKIE = "mqadmin_device"
DEVICE_AGE_S = 365 * 24 * 3600
MAX_DEVICE_CHARACTERS = 300
_SALT = "mqadmin.logins.device"


class TryRefused(Exception):
    """A try to log in is refused with `status` 429 or 503; `wait_s` is until another may succeed."""

    def __init__(self, status: int, wait_s: float):
        self.status, self.wait_s = status, math.ceil(wait_s)
        super().__init__(f"Too many tries to log in. Try again in {self.wait_s} seconds.")


@dataclass(slots=True)
class _Allowance:
    tries: float
    at_s: float


class Allowances:
    """Tries by key; each key has `most` at once and one more each `seconds`."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float]):
        self._most, self._seconds, self._clock = most, seconds, clock
        self._known: OrderedDict[object, _Allowance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def take(self, key: object) -> float:
        """Take a try. Return 0 when there was one, else the seconds until there is."""
        now_s = self._clock()
        found = self._known.setdefault(key, _Allowance(self._most, now_s))
        self._known.move_to_end(key)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        found.tries = min(self._most, found.tries + max(0.0, now_s - found.at_s) / self._seconds)
        found.at_s = now_s
        if found.tries < 1:
            return (1 - found.tries) * self._seconds
        found.tries -= 1
        return 0.0

    def give_back(self, key: object) -> None:
        found = self._known.get(key)
        if found is not None:
            found.tries = min(self._most, found.tries + 1)


@dataclass(frozen=True, slots=True)
class Source:
    """The address and network of a try; both are empty for the local socket."""

    site: str  # an address, an IPv6 one with its /64
    network: str  # the network of the site


LOCAL_SOCKET = Source("", "")


@dataclass(frozen=True, slots=True)
class Try:
    """A try that was counted. `device` is None for one from which this user has not logged in."""

    source: Source
    device: tuple[str, str] | None


class LoginLimits:
    """All limits together. Requests have threads of their own, so to check and to count is one step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._lock = threading.Lock()
        self._addresses = Allowances(MAX_TRIES, TRY_SECONDS, clock)
        self._networks = Allowances(MAX_TRIES_OF_NETWORK, TRY_SECONDS_OF_NETWORK, clock)
        self._devices = Allowances(MAX_TRIES, TRY_SECONDS, clock)
        self._all = Allowances(MAX_TRIES_OF_ALL, TRY_SECONDS_OF_ALL, clock)
        self._hashes = threading.Semaphore(MAX_HASHES)
        self._waiting = 0

    def begin(self, source: Source, device: tuple[str, str] | None) -> Try:
        """Count a try, as one that failed until `succeeded` is called. Raises TryRefused."""
        tried = Try(source, device)
        taken: list[tuple[Allowances, Any]] = []
        with self._lock:
            for allowances, key in self._counted(tried):
                wait_s = allowances.take(key)
                if wait_s:
                    for others, other in taken:
                        others.give_back(other)
                    raise TryRefused(429, wait_s)
                taken.append((allowances, key))
        return tried

    def succeeded(self, tried: Try) -> None:
        with self._lock:
            for allowances, key in self._counted(tried):
                allowances.give_back(key)

    def _counted(self, tried: Try) -> list[tuple[Allowances, object]]:
        """Return the allowances that a try takes from, with the key in each."""
        if tried.device is not None:
            return [(self._devices, tried.device)]
        if tried.source == LOCAL_SOCKET:
            return [(self._addresses, tried.source.site)]
        return [
            (self._addresses, tried.source.site),
            (self._networks, tried.source.network),
            (self._all, "all"),
        ]

    @contextmanager
    def hashing(self, *, known: bool) -> Iterator[None]:
        """`with` around what computes a hash: at most MAX_HASHES at once. Raises TryRefused when too many
        wait, or for too long."""
        with self._lock:
            if self._waiting >= (MAX_WAITING if known else MAX_WAITING_UNKNOWN) + MAX_HASHES:
                raise TryRefused(503, WAIT_S)
            self._waiting += 1
        try:
            if not self._hashes.acquire(timeout=WAIT_S):
                raise TryRefused(503, WAIT_S)
            try:
                yield
            finally:
                self._hashes.release()
        finally:
            with self._lock:
                self._waiting -= 1


limits = LoginLimits()


# Who asks


def source_of(request: HttpRequest) -> Source:
    """Return the source that a try of this request counts for."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    address = client_address(request.META.get("REMOTE_ADDR") or "", forwarded, settings.TRUSTED_PROXIES)
    return LOCAL_SOCKET if address is None else Source(site_of(address), network_of(address))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """The signed value of the cookie of a device."""

    device: str  # a random name
    owner: str  # `_digest` of it and the user


def device_of(request: HttpRequest, name: str) -> tuple[str, str] | None:
    """Return the device, when this user has logged in from it before; else None."""
    text = request.COOKIES.get(DEVICE_COOKIE, "")
    if not text or len(text) > MAX_DEVICE_CHARACTERS:
        return None
    try:
        known = fact_of(_Device, signing.loads(text, salt=_SALT, max_age=DEVICE_AGE_S))
    except (signing.BadSignature, ValueError):
        return None
    is_theirs = hmac.compare_digest(str(known.owner).encode(), _digest(known.device, name))
    return (known.device, name) if is_theirs else None


def remember(request: HttpRequest, response: HttpResponse, name: str) -> None:
    """Set the cookie that says that this user has logged in from this browser."""
    device = secrets.token_urlsafe(12)
    known = _Device(device=device, owner=_digest(device, name).decode())
    text = signing.dumps(document_of(known), salt=_SALT)
    response.set_cookie(
        DEVICE_COOKIE, text, max_age=DEVICE_AGE_S, httponly=True, samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE, path="/login/",
    )  # fmt: skip


def _digest(device: str, name: str) -> bytes:
    """Return a name of the user for the cookie, from which a reader of it cannot find the user's name."""
    return (
        hmac.digest(settings.SECRET_KEY.encode(), f"{device} {name.casefold()}".encode(), "sha256")
        .hex()[:32]
        .encode()
    )
