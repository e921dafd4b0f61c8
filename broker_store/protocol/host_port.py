"""Addresses as texts, as servers state them to each other: `host:port` or `[v6]:port`."""

from __future__ import annotations

from broker_store.errors import PeerError

MAX_PORT = 65_535


def split_address(address: str, default_port: int | None = None) -> tuple[str, int]:
    """Return host and port. Raises PeerError; without a port too, unless there is a default."""
    host, separator, port = address.rpartition(":")
    if not separator and default_port is not None:
        host, port = address, str(default_port)
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > MAX_PORT:
        raise PeerError(f"{address!r:.60} is no address, expected host:port")
    return host.strip("[]"), int(port)
