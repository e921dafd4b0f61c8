"""The PROXY prologue, in which a proxy names the client before the client's first byte.

Source: the PROXY protocol of HAProxy, versions 1 (a line of text) and 2 (binary). Apache's remoting server
reads both (`NettyRemotingServer`, HAProxyMessageDecoder).
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from broker_store.errors import ProtocolError

Peer = tuple[str, int]  # address and port

_TEXT = b"PROXY "
_BINARY = b"\r\n\r\n\0\r\nQUIT\n"
_MAX_TEXT_BYTES = 107  # with its CR LF
_HEAD_BYTES = 16  # of version 2: signature, version and command, family, length (2)
# Of version 2, without the head. Addresses take 36 bytes; the rest are TLVs, which are not used.
_MAX_BINARY_BYTES = 4_096
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}  # TCP over IPv4, TCP over IPv6


class Prologue(NamedTuple):
    """A prologue. `peer` is None if the proxy names no client: it speaks for itself."""

    size: int  # bytes
    peer: Peer | None


def begins_prologue(data: bytes) -> bool:
    """Return whether these are the first bytes of a prologue, or may be."""
    return any(data.startswith(known) or known.startswith(data) for known in (_TEXT, _BINARY))


def read_prologue(data: bytes) -> Prologue | None:
    """Return the prologue with which `data` begins, None if it is not complete. Raises ProtocolError."""
    if data.startswith(_TEXT):
        return _read_text(data)
    return _read_binary(data) if data.startswith(_BINARY) else None


def _read_text(data: bytes) -> Prologue | None:
    end = data.find(b"\r\n", 0, _MAX_TEXT_BYTES)
    if end < 0:
        if len(data) >= _MAX_TEXT_BYTES:
            raise ProtocolError(f"a PROXY line of more than {_MAX_TEXT_BYTES} bytes")
        return None
    line = data[:end]
    words = line.decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return Prologue(end + 2, None)
    version = {"TCP4": 4, "TCP6": 6}.get(words[1])
    if version is None or len(words) != 6:
        raise ProtocolError(f"a PROXY line that cannot be read: {line!r}")
    try:
        source, _ = (ipaddress.ip_address(word) for word in words[2:4])
    except ValueError:
        raise ProtocolError(f"a PROXY line with a wrong address: {line!r}") from None
    ports = words[4:6]
    has_zone = any("%" in word for word in words[2:4])  # a zone may have any character
    if (
        source.version != version
        or has_zone
        or not all(
            port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65_536 for port in ports
        )
    ):
        raise ProtocolError(f"a PROXY line with a wrong address or port: {line!r}")
    return Prologue(end + 2, (str(source), int(ports[0])))


def _read_binary(data: bytes) -> Prologue | None:
    if len(data) < _HEAD_BYTES:
        return None
    command, family = data[12], data[13]
    length = int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY):
        raise ProtocolError(f"a PROXY prologue of version and command 0x{command:02x}")
    if length > _MAX_BINARY_BYTES:
        raise ProtocolError(f"a PROXY prologue of {length} bytes, at most {_MAX_BINARY_BYTES} are read")
    size = _HEAD_BYTES + length
    if len(data) < size:
        return None
    address_bytes = _ADDRESS_BYTES.get(family)
    if command == _LOCAL or address_bytes is None:
        return Prologue(size, None)
    if length < 2 * address_bytes + 4:
        raise ProtocolError(f"a PROXY prologue of {length} bytes, too short for its addresses")
    at = _HEAD_BYTES
    source = ipaddress.ip_address(data[at : at + address_bytes])
    at += 2 * address_bytes
    return Prologue(size, (str(source), int.from_bytes(data[at : at + 2])))
