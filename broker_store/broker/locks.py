"""Which client of a group holds a queue for ordered consumption (docs/spec/store-behaviour.md section 11).

A lock lasts 60 s from its last renewal (clients renew every 20 s). An expired lock goes to the next client
that requests it.
"""

from __future__ import annotations

from collections.abc import Iterable

LOCK_LIFE_MS = 60_000

Queue = tuple[str, int]


class QueueLocks:
    """group -> queue -> (client, time of its last renewal in ms). A queue is (topic, queue id)."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Lock or renew the queues that no other client holds; return those that the client now holds."""
        held = self._groups.setdefault(group, {})
        locked = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or _expired(owner, now_ms):
                held[queue] = (client_id, now_ms)
                locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release what the client holds; locks of other clients stay."""
        held = self._groups.get(group, {})
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]

    def owner(self, group: str, queue: Queue, now_ms: int) -> str | None:
        owner = self._groups.get(group, {}).get(queue)
        return None if owner is None or _expired(owner, now_ms) else owner[0]

    def held(self, group: str, now_ms: int) -> bool:
        """True if any queue is locked for a client of the group."""
        return any(not _expired(owner, now_ms) for owner in self._groups.get(group, {}).values())

    def scan(self, now_ms: int) -> None:
        """Remove expired locks, so that clients that are gone take no memory."""
        for group, held in list(self._groups.items()):
            for queue in [queue for queue, owner in held.items() if _expired(owner, now_ms)]:
                del held[queue]
            if not held:
                del self._groups[group]


def _expired(owner: tuple[str, int], now_ms: int) -> bool:
    return now_ms - owner[1] > LOCK_LIFE_MS
