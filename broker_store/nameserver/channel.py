"""The part of a connection that the name server uses (`server.channel.Channel`)."""

from __future__ import annotations

from typing import Protocol

from broker_store.protocol.command import Command


class Channel(Protocol):
    """A connection. It is hashed by its identity."""

    remote: str  # ip:port

    @property
    def local(self) -> str:
        """Return this end, ip:port; empty if the connection has ended."""

    def write(self, command: Command) -> None:
        """Write a command."""

    def close(self) -> None:
        """End the connection after what was written has left."""
