"""Requests to Apache's controllers: to the one that leads, and heartbeats to all of them.

Each controller has one connection. A controller that does not lead answers CONTROLLER_NOT_LEADER: then the
controllers are asked again which of them leads.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Mapping

from broker_store.access.signatures import Credentials
from broker_store.errors import PeerError
from broker_store.protocol import controller_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import write_header
from broker_store.server.outgoing import Outgoing

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0


class Controllers:
    """Loop's thread."""

    def __init__(self, addresses: Iterable[str], credentials: Credentials | None, tls: ssl.SSLContext | None):
        self.addresses = tuple(addresses)
        self._outgoing = Outgoing(credentials, tls)
        self.leader: str | None = None

    async def of_leader(self, code: RequestCode, body: bytes = b"", **values: object) -> Command:
        """Return the leader's answer to a request. Raises PeerError, OSError, TimeoutError."""
        if self.leader is None:
            await self.find_leader()
        leader = self.leader
        assert leader is not None  # else it has raised
        try:
            answer = await self.request(leader, write_header(code, **values), code, body)
        except (OSError, TimeoutError):
            self.leader = None
            raise
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.leader = None
            raise PeerError(f"the controller at {leader} leads no more")
        return answer

    async def find_leader(self) -> None:
        """Ask the controllers in turn who leads. Raises PeerError if none says it."""
        why = "no controller is set"
        for address in self.addresses:
            try:
                code = RequestCode.CONTROLLER_GET_METADATA_INFO
                answer = await self.request(address, {}, code)
            except (OSError, TimeoutError) as error:
                why = f"{address}: {error or type(error).__name__}"
                continue
            leader = controller_bodies.read_leader(answer.fields)
            if answer.code == ResponseCode.SUCCESS and leader is not None:
                if leader != self.leader:
                    log.info("the controller at %s leads", leader)
                self.leader = leader
                return
            why = f"{address} knows no leader"
        self.leader = None
        raise PeerError(f"no leading controller is found: {why}")

    async def request(
        self,
        address: str,
        fields: Mapping[str, str],
        code: RequestCode,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
    ) -> Command:
        """Return the answer of one controller. Raises OSError, TimeoutError, PeerError."""
        return await self._outgoing.request(address, code, fields, body, timeout_s)

    def close(self) -> None:
        """Close all connections: the controllers count this broker as dead then."""
        self._outgoing.close()
