"""How much of a total one address or one user may have, so that no single one uses all of it.

A holder is an address ("10.0.0.7", an IPv6 one as its /64, in which one client may choose any address) or a
user ("user billing"). `Shares` says who holds what a peer asks for, `Held` counts the holders of one total.

Loopback has no share: programs of the same machine can harm the broker more than by filling a table, and a
proxy or a benchmark there stands for many clients. Nor have `gatewayAddresses`.

A user is known from the first signed request of a connection on, and counts for its requests and connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

ALL = 100  # percent: no share
# Of unfinished requests of all connections of a port together: enough for a few large ones, and far below
# what a flood could send.
UNFINISHED_BYTES = 256 << 20
_IPV6_SITE_BITS = 64
_MAX_KNOWN_SITES = 20_000
Holders = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Full:
    """The share of a holder is used up."""

    holder: str
    count: int
    most: int

    def cause(self, what: str) -> str:
        """Return the cause of a refusal, by which it is counted: `what` of one address, or of one user."""
        return f"{what} of one {'user' if self.holder.startswith('user ') else 'address'}"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A refusal because a total is full, or the share of a holder: what statistics count."""

    cause: str
    value: int
    limit: int
    who: str


def no_room(what: str, peer: str, full: Full | None, count: int, most: int) -> NoRoom:
    """Return the refusal of a peer: the share of a holder is `full`, or if it is None the total, which has
    `count` of `most`."""
    if full is None:
        return NoRoom(what, count, most, peer)
    return NoRoom(full.cause(what), full.count, full.most, f"{peer}, {full.holder}")


class Shares:
    """The shares of a process. A peer is the text of its address, `ip:port`.

    `unfinished_bytes` is the total of each port for unfinished requests, and at the gRPC port for answers
    that wait for their clients.
    """

    def __init__(
        self,
        address_percent: int = ALL,
        user_percent: int = ALL,
        gateways: Sequence[IPv4Network | IPv6Network] = (),
        unfinished_bytes: int = UNFINISHED_BYTES,
    ):
        self.unfinished_bytes = unfinished_bytes
        self.percents = {"address": address_percent, "user": user_percent}
        self._gateways = gateways
        self._sites: dict[str, str] = {}  # of addresses, as far as they were asked for
        self._users: dict[str, str] = {}  # of peers, while they are connected

    @property
    def least_percent(self) -> int:
        """The smaller share: below it nothing has to be counted."""
        return min(self.percents.values())

    def site(self, peer: str) -> str:
        """Return the address for which a peer counts; "" if it counts for none."""
        if self.percents["address"] == ALL:
            return ""
        host = peer.rpartition(":")[0]
        found = self._sites.get(host)
        if found is None:
            if len(self._sites) >= _MAX_KNOWN_SITES:
                self._sites.clear()
            found = self._sites[host] = self._site_of(host)
        return found

    def _site_of(self, host: str) -> str:
        try:
            address = ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            return ""  # not a connection over IP
        if address.is_loopback or any(address in network for network in self._gateways):
            return ""
        if address.version == 6:
            return str(ip_network((address, _IPV6_SITE_BITS), strict=False))
        return str(address)

    def holders(self, peer: str) -> Holders:
        """Return who holds what a peer asks for."""
        user = self._users.get(peer)
        of_user = () if user is None else (f"user {user}",)
        site = self.site(peer)
        return (site, *of_user) if site else of_user

    def has_user(self, peer: str, user: str) -> bool:
        """Return whether a peer is known to be of this user, or users have no share."""
        return self.percents["user"] == ALL or self._users.get(peer) == user

    def note_user(self, peer: str, user: str) -> None:
        """Note whose requests a peer signs."""
        self._users[peer] = user

    def user(self, peer: str) -> str | None:
        """Return the user of a peer, None if it is unknown."""
        return self._users.get(peer)

    def forget(self, peer: str) -> None:
        """Forget the user of a peer that has gone."""
        self._users.pop(peer, None)

    def most(self, holder: str, total: int) -> int:
        """Return how much of a total a holder may have."""
        percent = self.percents["user" if holder.startswith("user ") else "address"]
        return max(1, total * percent // 100)


class Held:
    """How much of one total each holder has."""

    def __init__(self, shares: Shares, total: int):
        self.shares, self.total = shares, total
        self.counts: Counter[str] = Counter()

    def full(self, holders: Holders, further: int = 1) -> Full | None:
        """Return the first holder that may not have `further` more; None if all may."""
        for holder in holders:
            count, most = self.counts[holder], self.shares.most(holder, self.total)
            if count + further > most:
                return Full(holder, count, most)
        return None

    def take(self, holders: Iterable[str], count: int = 1) -> None:
        """Count what the holders have from now on."""
        if count:
            for holder in holders:
                self.counts[holder] += count

    def give(self, holders: Iterable[str], count: int = 1) -> None:
        """Count what the holders have no longer."""
        for holder in holders:
            left = self.counts[holder] - count
            if left > 0:
                self.counts[holder] = left
            else:
                del self.counts[holder]
