"""Source addresses of policies: one address, compared as text (`one_spelling`), or a block `address/bits`.

A block compares the numbers of both addresses and not their families, as in Apache: `::/0` has every IPv4
address, and `0.0.0.0/0` has the IPv6 addresses below 2^32.
"""

from __future__ import annotations

import ipaddress

MAX_ADDRESS_CHARACTERS = 64
_LOOPBACK = 0x7F000001


def is_address_rule(text: str) -> bool:
    """Return True if a policy may have this source address."""
    if len(text) > MAX_ADDRESS_CHARACTERS:
        return False
    if "/" in text:
        return _block(text) is not None
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def one_spelling(rule: str) -> str:
    """Return an address rule as addresses of clients are spelled; a block as it is, it compares numbers."""
    if "/" in rule:
        return rule
    address = ipaddress.ip_address(rule)
    return str(getattr(address, "ipv4_mapped", None) or address)


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
    """Return (number, number of bits) of an address as Java reads it, None if it is none.

    Java takes an empty text for the loopback address, and `1.2.3` for 1.2.0.3.
    """
    if not text:
        return _LOOPBACK, 32
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return _short_number(text)
    return int(address), address.max_prefixlen


def _short_number(text: str) -> tuple[int, int] | None:
    """Return the number of an IPv4 address with fewer than four parts, of which the last has the rest."""
    parts = text.split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in parts):
        return None
    *first, last = map(int, parts)
    rest_bits = 32 - 8 * len(first)
    if any(part > 255 for part in first) or last >> rest_bits:
        return None
    value = 0
    for part in first:
        value = value << 8 | part
    return value << rest_bits | last, 32
