"""The address of a client: of its connection, or by X-Forwarded-For of proxies that the settings name; and
the site it belongs to."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
MAX_ADDRESS_CONNECTIONS = 200  # unless BROKER_WEB_CONNECTIONS says otherwise: 28 browsers with seven each
_IPV6_SITE_BITS = 64
_NETWORK_BITS = {4: 24, 6: 48}  # that one holder usually has, by IP version


def proxies_of(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return the addresses and networks of BROKER_WEB_PROXIES. Raises ValueError that names one that is
    none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def client_address(peer: str, forwarded: str, proxies: Sequence[Network]) -> Address | None:
    """Return the address of the client; None when the peer has none (the local socket).

    Each proxy adds its peer at the end of X-Forwarded-For, so the header is read from the end, as far as
    proxies wrote it: the first address that is no proxy's is the client's. What stands before it may be
    forged.
    """
    address = _address(peer)
    if address is None or not _is_among(address, proxies):
        return address
    for text in reversed(forwarded.split(",")):
        further = _address(_without_port(text.strip()))
        if further is None:
            break
        address = further
        if not _is_among(address, proxies):
            break
    return address


def connection_site(peer: str, unbounded: Sequence[Network]) -> str | None:
    """Return the site that a connection counts for; None for the local socket and for an address of
    `unbounded`."""
    address = _address(peer)
    return None if address is None or _is_among(address, unbounded) else site_of(address)


def site_of(address: Address) -> str:
    """Return the address as text, an IPv6 one as its site (a /64), in which one client may choose any
    address."""
    return (
        str(ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
        if address.version == 6
        else str(address)
    )


def network_of(address: Address) -> str:
    """Return the network of the address as text (a /24, of IPv6 a /48), in which one holder may have many
    sites."""
    return str(ipaddress.ip_network((address, _NETWORK_BITS[address.version]), strict=False))


def _without_port(text: str) -> str:
    """Return an entry of X-Forwarded-For without the port that some proxies add: `203.0.113.9:5678`,
    `[2001:db8::1]:443`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_among(address: Address, proxies: Sequence[Network]) -> bool:
    return any(address in network for network in proxies)
