"""Addresses of connections as texts and as bytes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def address_text(name: tuple) -> str:
    """Return a socket's name as `ip:port`, an IPv6 address in brackets. An address of IPv4 is shown as such
    if an IPv6 socket shows it: rules of access control compare the text."""
    host, port = name[:2]
    if ":" not in host:
        return f"{host}:{port}"
    address = parsed_address(host)
    return f"{address}:{port}" if address.version == 4 else f"[{host}]:{port}"


def parsed_address(text: str) -> IPv4Address | IPv6Address:
    """Return an address without its zone; one of IPv4 that an IPv6 socket shows, as IPv4."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def packed_address(text: str) -> bytes:
    """Return an address as records have it: 4 or 16 bytes."""
    return parsed_address(text).packed


def is_of_this_machine(remote: str) -> bool:
    """Return True if `ip:port` is an address of loopback."""
    return parsed_address(remote.rpartition(":")[0].strip("[]")).is_loopback
