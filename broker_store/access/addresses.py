"""Source addresses of policies: one address, compared as text (`one_spelling`), or a block `address/bits`.

A block compares the numbers of both addresses and not their families, as in Apache: `::/0` has every IPv4
address, and `0.0.0.0/0` has the IPv6 addresses below 2^32.
"""

from __future__ import annotations

import ipaddress

MAX_ADDRESS_CHARACTERS = 64
_BITS_BEFORE_MAPPED = 96  # of ::ffff:1.2.3.4


def is_address_rule(text: str) -> bool:
    """Return True if a policy may have this source address."""
    if len(text) > MAX_ADDRESS_CHARACTERS:
        return False
    if "/" in text:
        return _block(text) is not None and not _is_around_mapped(text)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def one_spelling(rule: str) -> str:
    """Return an address rule as addresses of clients are spelled. A block is kept, since it compares numbers,
    but one of IPv4 addresses in IPv6 becomes one of IPv4."""
    address, slash, bits = rule.partition("/")
    mapped = _mapped(address)
    if not slash:
        return str(mapped or ipaddress.ip_address(address))
    return rule if mapped is None else f"{mapped}/{int(bits) - _BITS_BEFORE_MAPPED}"


def _mapped(address: str) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one contains, None if there is none."""
    found = ipaddress.ip_address(address)
    return found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None


def _is_around_mapped(block: str) -> bool:
    """Return whether a block begins at an IPv4 address in IPv6 and has others too: no IPv4 client would be in
    most of them."""
    address, _, bits = block.partition("/")
    return _mapped(address) is not None and int(bits) < _BITS_BEFORE_MAPPED


def matches(rule: str, address: str) -> bool:
    """Return True if an address is that of a rule, or in its block."""
    if "/" not in rule:
        return rule == address
    block, number = _block(rule), _number(address)
    if block is None or number is None:
        return False
    base, mask = block
    return base & mask == number[0] & mask


def _block(text: str) -> tuple[int, int] | None:
    """Return (number, mask) of a block, None if it is malformed."""
    address, _, bits = text.partition("/")
    number = _number(address)
    if number is None or not (bits.isascii() and bits.isdigit() and len(bits) <= 3):
        return None
    value, width = number
    return (value, -1 << (width - int(bits))) if int(bits) <= width else None


def _number(text: str) -> tuple[int, int] | None:
    """Return (number, number of bits) of an address, None if it is none.

    Apache's broker reads the address of a block as Java does: an empty one is 127.0.0.1, `10.1` is 10.0.0.1.
    Such a block would have other addresses than its writer means, so it is none here.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return int(address), address.max_prefixlen
