"""Who asks when a proxy stands in front: X-Forwarded-For, believed from proxies that the settings name and from nobody else."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def proxies_of(texts: Sequence[str]) -> tuple[Network, ...]:
    """The addresses and networks of BROKER_WEB_PROXIES. ValueError names one that is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def client_address(peer: str, forwarded: str, proxies: Sequence[Network]) -> Address | None:
    """The address of the client; None when the peer has none (the local socket).

    Each proxy adds its peer at the end of X-Forwarded-For, so the header is read from the end, as far as proxies wrote it: the
    first address that is no proxy's is the client's, and what stands before it is the client's own invention.
    """
    address = _address(peer)
    if address is None or not _is_among(address, proxies):
        return address
    for text in reversed(forwarded.split(",")):
        further = _address(text.strip())
        if further is None:
            break
        address = further
        if not _is_among(address, proxies):
            break
    return address


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_among(address: Address, proxies: Sequence[Network]) -> bool:
    return any(address in network for network in proxies)
