"""How far each client of a broadcasting group has pulled (docs/spec/store-behaviour.md section 12; Apache's
BroadcastOffsetManager).

In broadcasting every client gets every message and keeps its own offsets, in a file on its side. The broker
notes from where each client pulls, for two reasons. The lowest offset, kept in consumerOffset.json as
topic@group@broadcast, shows how far the group is. And a client that connects through a proxy has no file, so
the broker answers where it must begin; the same holds for a client that changes between proxy and broker.

    note(...)    a client pulls from here
    first(...)   where it must begin instead, None to continue
    step(now)    forget absent clients, keep the lowest offsets
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from broker_store.broker.offsets import Offsets

# A proxy names its clients: this bounds the memory for a flood of invented names.
MAX_CLIENTS = 10_000


@dataclass(slots=True)
class _Client:
    through_proxy: bool
    seen_ms: int
    offsets: dict[int, int] = field(default_factory=dict)


class BroadcastOffsets:
    """(group, topic) -> client -> queue -> the highest offset it pulled from.

    `online(group)` returns the ids of its members, `begin(topic, queue_id)` the offset for an unknown client.
    """

    def __init__(
        self,
        offsets: Offsets,
        *,
        online: Callable[[str], set[str]],
        begin: Callable[[str, int], int],
        expire_ms: int,
        expire_online_ms: int,
    ):
        self._offsets = offsets
        self._online = online
        self._begin = begin
        self._expire_ms = expire_ms
        self._expire_online_ms = expire_online_ms
        self._table: dict[tuple[str, str], dict[str, _Client]] = {}
        self._count = 0

    def note(
        self,
        group: str,
        topic: str,
        queue_id: int,
        client_id: str,
        offset: int,
        now_ms: int,
        *,
        through_proxy: bool = False,
    ) -> None:
        client = self._client(group, topic, client_id, through_proxy, now_ms)
        if client is not None:
            client.through_proxy, client.seen_ms = through_proxy, now_ms
            client.offsets[queue_id] = max(offset, client.offsets.get(queue_id, 0))

    def first(
        self,
        group: str,
        topic: str,
        queue_id: int,
        client_id: str,
        asked: int,
        now_ms: int,
        *,
        through_proxy: bool = False,
    ) -> int | None:
        """Return where the client must begin, None to continue.

        That is needed when a proxy has no offset (`asked` < 0), or when the last pull came by the other way.
        """
        clients = self._table.get((group, topic))
        if clients is None:
            return self._known(None, group, topic, queue_id) if through_proxy and asked < 0 else None
        client = self._client(group, topic, client_id, through_proxy, now_ms)
        if client is None:
            return None
        if client.through_proxy != through_proxy or (through_proxy and asked < 0):
            return self._known(client, group, topic, queue_id)
        return None

    def _client(
        self, group: str, topic: str, client_id: str, through_proxy: bool, now_ms: int
    ) -> _Client | None:
        clients = self._table.get((group, topic), {})
        client = clients.get(client_id)
        if client is None and self._count < MAX_CLIENTS:
            client = clients[client_id] = _Client(through_proxy, now_ms)
            self._table[group, topic] = clients
            self._count += 1
        return client

    def _known(self, client: _Client | None, group: str, topic: str, queue_id: int) -> int:
        offset = client.offsets.get(queue_id) if client else None
        if offset is None:
            offset = self._offsets.of_broadcast(group).get(topic, {}).get(queue_id)
        return self._begin(topic, queue_id) if offset is None else offset

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Remove a deleted group or topic."""
        for key in [key for key in self._table if group == key[0] or topic == key[1]]:
            self._count -= len(self._table.pop(key))

    def step(self, now_ms: int) -> None:
        for (group, topic), clients in list(self._table.items()):
            members = self._online(group)
            lowest: dict[int, int] = {}
            for client_id, client in list(clients.items()):
                silent_ms = now_ms - client.seen_ms
                if client_id in members or silent_ms < self._expire_ms:
                    for queue_id, offset in client.offsets.items():
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
                if silent_ms >= (self._expire_online_ms if client_id in members else self._expire_ms):
                    del clients[client_id]
                    self._count -= 1
            if not clients:
                del self._table[group, topic]
            for queue_id, offset in lowest.items():
                self._offsets.commit_broadcast(group, topic, queue_id, offset)
