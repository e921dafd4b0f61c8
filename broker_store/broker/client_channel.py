"""The part of a client's connection that the broker uses. Its tables have connections as keys, and return
them to the server, which writes to them (`server.channel.Channel`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_store.protocol.command import Command


class ClientChannel(Protocol):
    """A connection of a client. It is hashed by its identity."""

    remote: str  # ip:port
    closed: bool

    @property
    def paused(self) -> bool:
        """Return True if the client does not read what it was sent."""

    @property
    def unsent(self) -> int:
        """Return the bytes that were written and that the system has not taken yet."""

    def when_resumed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client reads again; never if the connection ends before."""

    def write(self, command: Command) -> None:
        """Write a command."""

    def write_all(self, commands: Sequence[Command]) -> None:
        """Write commands, together."""

    async def request(self, command: Command, timeout: float) -> Command:
        """Send a command and return its answer. Raises TimeoutError after `timeout` seconds."""

    def close(self) -> None:
        """End the connection after what was written has left."""
