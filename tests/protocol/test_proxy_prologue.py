"""PROXY prologues: those of the protocol's own text, cut at each byte, and bad ones."""

from __future__ import annotations

import ipaddress

import pytest

from broker_store.errors import ProtocolError
from broker_store.protocol.proxy_prologue import begins_prologue, read_prologue

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def binary(command: int, family: int, addresses: bytes, rest: bytes = b"") -> bytes:
    return (
        SIGNATURE
        + bytes((command, family))
        + (len(addresses) + len(rest)).to_bytes(2, "big")
        + addresses
        + rest
    )


def pair(source: str, target: str, source_port: int, target_port: int) -> bytes:
    packed = [ipaddress.ip_address(text).packed for text in (source, target)]
    return b"".join(packed) + source_port.to_bytes(2, "big") + target_port.to_bytes(2, "big")


FOUR, SIX = pair("192.0.2.7", "10.0.0.1", 51_000, 10_911), pair("2001:db8::7", "::1", 51_001, 8_081)
GOOD = {
    "text, IPv4": (b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 10911\r\n", ("192.0.2.7", 51_000)),
    "text, IPv6": (b"PROXY TCP6 2001:db8::7 ::1 51001 8081\r\n", ("2001:db8::7", 51_001)),
    "text, unknown": (b"PROXY UNKNOWN\r\n", None),
    "text, unknown with more": (b"PROXY UNKNOWN ff:f ::1 1 2\r\n", None),
    "text, lowest port": (b"PROXY TCP4 192.0.2.7 10.0.0.1 0 0\r\n", ("192.0.2.7", 0)),
    "binary, IPv4": (binary(0x21, 0x11, FOUR), ("192.0.2.7", 51_000)),
    "binary, IPv6": (binary(0x21, 0x21, SIX), ("2001:db8::7", 51_001)),
    "binary, with TLVs": (binary(0x21, 0x11, FOUR, b"\x04\0\x02ab"), ("192.0.2.7", 51_000)),
    "binary, of the proxy itself": (binary(0x20, 0, b""), None),
    "binary, of the proxy itself, with addresses": (binary(0x20, 0x11, FOUR), None),
    "binary, a local socket": (binary(0x21, 0x31, bytes(216)), None),
}


@pytest.mark.parametrize(("data", "peer"), GOOD.values(), ids=GOOD)
def test_a_prologue_is_read_when_its_last_byte_came_and_not_before(data, peer):
    for end in range(1, len(data)):
        assert begins_prologue(data[:end]) and read_prologue(data[:end]) is None, end
    for after in (b"", b"\x16\x03\x01", data):
        assert read_prologue(data + after) == (len(data), peer)


BAD = {
    "text that does not end": b"PROXY TCP4 " + b"1" * 96,
    "a word": b"PROXY TCP5 192.0.2.7 10.0.0.1 1 2\r\n",
    "no word": b"PROXY \r\n",
    "too few words": b"PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n",
    "too many words": b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2 3\r\n",
    "another family": b"PROXY TCP4 ::1 ::2 1 2\r\n",
    "no address": b"PROXY TCP4 192.0.2 10.0.0.1 1 2\r\n",
    "a zone, which may have any character": b"PROXY TCP6 fe80::1%\x1b[31m ::1 1 2\r\n",
    "a name": b"PROXY TCP4 localhost 10.0.0.1 1 2\r\n",
    "a port above the highest": b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 2\r\n",
    "a negative port": b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 2\r\n",
    "a port of other digits": "PROXY TCP4 192.0.2.7 10.0.0.1 ² 2\r\n".encode("latin-1"),
    "bytes that are no text": b"PROXY TCP4 \xff\xfe 10.0.0.1 1 2\r\n",
    "version 1 in the binary form": binary(0x11, 0x11, FOUR),
    "another command": binary(0x22, 0x11, FOUR),
    "too short for IPv4": binary(0x21, 0x11, FOUR[:-1]),
    "too short for IPv6": binary(0x21, 0x21, FOUR),
    "too long": SIGNATURE + b"\x21\x11" + (4_097).to_bytes(2, "big"),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_bad_prologue_is_refused(data):
    with pytest.raises(ProtocolError):
        read_prologue(data)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01", b"PRI * HTTP/2.0", b"\0\0\0\x10", b"PROXIES", b"\r\n\r\n\1"]
)
def test_other_first_bytes_are_no_prologue(data):
    assert not begins_prologue(data)
