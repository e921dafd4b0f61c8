"""The two ids of a message (docs/spec/store-format.md section 3).

The *offset id* names a broker's address and a place in its log: 32 hex digits (56 with IPv6). The *unique id*
is made by the producer: address, process, loader hash, milliseconds since the month began, counter: 32 or 56
hex digits.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import NamedTuple

from broker_store.errors import FormatError
from broker_store.excerpts import excerpt
from broker_store.formats.layout import Layout

_OFFSET_TAIL = Layout(("port", "i"), ("log_offset", "q"))
_UNIQUE_TAIL = Layout(("process", "H"), ("loader_hash", "I"), ("month_ms", "I"), ("counter", "H"))
IPV4_BYTES, IPV6_BYTES = 4, 16


class UniqueId(NamedTuple):
    """The parts of a unique id; `month_ms` counts from the first of the month, 00:00 local time of the
    producer."""

    address: bytes
    process: int
    loader_hash: int
    month_ms: int
    counter: int


def encode_offset_id(host: tuple[bytes, int], log_offset: int) -> str:
    """The offset id of the record at `log_offset` of the broker at `host` (address bytes, port)."""
    address, port = host
    return (address + _OFFSET_TAIL.pack(port, log_offset)).hex().upper()


def decode_offset_id(text: str) -> tuple[tuple[bytes, int], int]:
    """((address bytes, port), log offset) of an offset id; FormatError when it is none."""
    address, tail = _split(text, _OFFSET_TAIL)
    port, log_offset = _OFFSET_TAIL.unpack(tail)
    if not 0 <= port <= 65535 or log_offset < 0:
        raise FormatError(f"{excerpt(text)} holds no port or no offset", found=(port, log_offset))
    return (address, port), log_offset


@functools.lru_cache(maxsize=4_096)
def host_text(host: tuple[bytes, int]) -> str:
    """`10.0.0.1:10911` or `[::1]:10911` of (address bytes, port); remembered, since messages come from few
    hosts."""
    address, port = host
    text = str(ipaddress.ip_address(bytes(address)))
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def encode_unique_id(unique: UniqueId) -> str:
    """The 32 or 56 hex digits of a unique id; numbers wrap at the size of their field."""
    tail = _UNIQUE_TAIL.pack(
        unique.process & 0xFFFF,
        unique.loader_hash & 0xFFFFFFFF,
        unique.month_ms & 0xFFFFFFFF,
        unique.counter & 0xFFFF,
    )
    return (unique.address + tail).hex().upper()


def decode_unique_id(text: str) -> UniqueId:
    """The parts of a unique id; FormatError when it has another length or other digits (any text may be a
    UNIQ_KEY)."""
    address, tail = _split(text, _UNIQUE_TAIL)
    return UniqueId(address, *_UNIQUE_TAIL.unpack(tail))


def _split(text: str, tail: Layout) -> tuple[bytes, bytes]:
    if len(text) not in (2 * (IPV4_BYTES + tail.size), 2 * (IPV6_BYTES + tail.size)):
        raise FormatError(
            f"{excerpt(text)} has the wrong length for a message id", expected="32 or 56", found=len(text)
        )
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise FormatError(f"{excerpt(text)} is no message id, it must be hex digits") from None
    if len(raw) * 2 != len(text):
        raise FormatError(f"{excerpt(text)} is no message id, it must be hex digits")
    return raw[: -tail.size], raw[-tail.size :]
